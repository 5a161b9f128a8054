"""Small integers and powers of two, of which matrices of any rank and scale are made."""

import math

import numpy as np
from hypothesis import strategies as st


def integers(draw, *shape):
    entries = draw(st.lists(st.integers(-3, 3), min_size=math.prod(shape), max_size=math.prod(shape)))
    return np.array(entries, dtype=np.float64).reshape(shape)


def scales(draw, size):
    """Powers of two over 30 decades."""
    return np.ldexp(1.0, draw(st.lists(st.integers(-50, 50), min_size=size, max_size=size)))
