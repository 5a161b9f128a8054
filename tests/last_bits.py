"""Numbers as another BLAS gives them."""

import numpy as np


def nudged(values, seed, size=1e-12):
    """The values, each off by at most `size` of itself; a square array stays symmetric."""
    values = np.asarray(values, dtype=float)
    off = np.random.default_rng(seed).uniform(-size, size, values.shape)
    if values.ndim == 2 and values.shape[0] == values.shape[1]:
        off = (off + off.T) / 2
    return values * (1 + off)
