"""Training on real data with the mechanism that was accounted: executor, noise streams, keys, tasks, checkpoints."""
