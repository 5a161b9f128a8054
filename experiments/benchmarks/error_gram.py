"""Error Gram by structure against plain NumPy with the dense block workload; ratio of seconds and of memory."""

from __future__ import annotations

import numpy as np
from _measure import peak_megabytes, report, seconds, traced_megabytes

import mfdl
from mfdl.objective import NoiseObjective


def peer(W: np.ndarray, num_steps: int) -> np.ndarray:
    """H from the (T n) x (T n) workload, as plain code would build it."""
    n = len(W)
    powers = [np.linalg.matrix_power(W, a) for a in range(num_steps + 1)]
    workload = np.zeros((num_steps * n, num_steps * n))
    for t in range(num_steps):
        for s in range(t + 1):
            workload[t * n : (t + 1) * n, s * n : (s + 1) * n] = powers[t - s + 1]
    gram = (workload.T @ workload).reshape(num_steps, n, num_steps, n)
    return np.einsum("sutu->st", gram)


def main() -> None:
    before = peak_megabytes()
    dynamics = mfdl.Dynamics(mfdl.gossip.uniform("erdos-renyi:n=1000,p=0.01,seed=1"))
    ours = seconds(lambda: NoiseObjective(dynamics, 1024).over_steps(), repeats=3)
    report("error-gram-large", nodes=1000, steps=1024, mfdl=ours, megabytes_above_imports=peak_megabytes() - before)
    for spec, steps in (("florentine", 64), ("ring:n=50", 64)):
        gossip = mfdl.gossip.uniform(spec)
        dynamics, W = mfdl.Dynamics(gossip), gossip.dense()
        assert np.allclose(NoiseObjective(dynamics, steps).over_steps(), peer(W, steps)), "the two Grams disagree"
        ours = seconds(lambda d=dynamics, s=steps: NoiseObjective(d, s).over_steps())
        other = seconds(lambda W=W, s=steps: peer(W, s), repeats=3)
        memory = [
            traced_megabytes(lambda d=dynamics, s=steps: NoiseObjective(d, s).over_steps()),
            traced_megabytes(lambda W=W, s=steps: peer(W, s)),
        ]
        report(
            "error-gram",
            nodes=len(W),
            steps=steps,
            mfdl=ours,
            plain_numpy=other,
            ratio=other["median"] / ours["median"],
            memory_ratio=memory[1] / memory[0],
        )


if __name__ == "__main__":
    main()
