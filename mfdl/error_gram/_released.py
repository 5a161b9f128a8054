"""Error Grams of released models: one sum of the trajectory counts, so what injections do to it is added up first.

With e_s what a unit injection of step s does to F sum_r a_r theta_{r+1} (see `released`), H is made of products
e_s^T e_t: over steps their traces, over nodes their sum over s = t, over both all of them. One backward recursion gives
them.
"""

from __future__ import annotations

import functools

import numpy as np
import scipy.sparse as sp

from ..check import FloatArray
from ..dynamics.responses import Averaging, ByModes, ByNodes, effects
from ._counted import Counted
from ._modes import Modes

BLOCK_BYTES = 128 * 2**20  # of effects that are held at once


def over_modes(counted: Counted, eigenvalues: FloatArray) -> FloatArray:
    """e_s of each mode of one step's averaging, shape (T, modes)."""
    return _stacked(counted, ByModes(eigenvalues), np.ones(eigenvalues.size))


def over_steps(counted: Counted) -> FloatArray:
    """H over steps, (T, T): by modes where there are any, else over nodes in blocks of what counts."""
    modes = Modes.of(counted)
    if modes is not None:
        e = over_modes(counted, modes.lam)
        return _symmetric(e @ (e.T if modes.coupling is None else modes.coupling @ e.T))
    T, averaging, form = counted.num_steps, ByNodes(counted.dynamics), _form(counted)
    width = max(1, BLOCK_BYTES // (8 * T * counted.dynamics.num_nodes))
    starts = range(0, form.shape[1], width)
    blocks = (_stacked(counted, averaging, form[:, at : at + width]).reshape(T, -1) for at in starts)
    return _symmetric(functools.reduce(np.add, (e @ e.T for e in blocks)))


def over_both(counted: Counted) -> FloatArray:
    """e, shape (T, n, rows): H over steps x nodes is e e^T, that of node u e[:, u] e[:, u]^T."""
    return _stacked(counted, ByNodes(counted.dynamics), _form(counted))


def over_nodes(counted: Counted) -> FloatArray:
    """H over nodes, (n, n), the steps summed one by one."""
    averaging, form = ByNodes(counted.dynamics), _form(counted)
    steps = effects(counted.dynamics, counted.num_steps, averaging, counted.step_weights, form)
    return _symmetric(functools.reduce(np.add, (e @ e.T for _, e in steps)))


def _form(counted: Counted) -> FloatArray:
    """F^T, shape (n, rows)."""
    F = sp.eye_array(counted.dynamics.num_nodes) if counted.node_factor is None else counted.node_factor
    return np.asarray(F.T.toarray())


def _stacked(counted: Counted, averaging: Averaging, form: FloatArray) -> FloatArray:
    out = np.empty((counted.num_steps, *form.shape))
    for s, e in effects(counted.dynamics, counted.num_steps, averaging, counted.step_weights, form):
        out[s] = e
    return out


def _symmetric(H: FloatArray) -> FloatArray:
    return np.asarray((H + H.T) / 2)
