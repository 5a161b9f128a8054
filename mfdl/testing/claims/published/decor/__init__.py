"""Claims of DECOR, noise that cancels between neighbours: arXiv:2405.01031 and its public code."""
