"""What is done about noise that an absent node does not add: other plans of who adds which column when.

In: the noise of an algorithm and who is there. Out: a `ScheduledNoise`, smaller or correlated otherwise, which must be
accounted anew. Nobody learns a secret that it did not hold: a column is added by its holders alone.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..errors import InvalidInput, require_known
from ..gossip.changing import Present
from ..noise import NoiseOperator, ScheduledNoise

REPAIRS = ("leave-out", "stand-in", "catch-up")


def repaired(noise: NoiseOperator, there: Present, repair: str) -> NoiseOperator:
    """The noise that is added where nodes are away.

    Args:
        noise: a `CausalNoise` with one slot for each node; there: bool (T, n).
        repair: "leave-out": the others add nothing of a column that an absent node would add as well. "stand-in":
            those of its holders who are there add its part, in equal shares. "catch-up": who comes back adds, besides
            its own of that step, all that it missed. The first two need to know who is away before noise is added.

    Raises: InvalidInput: another repair, or noise of one's own, whose columns nobody else can plan.
    """
    require_known("repair", repair, REPAIRS)
    causal = noise.causal
    if causal is None or not causal.in_blocks:
        raise InvalidInput(
            f"repair={repair!r} plans who adds which column of the noise and is for a CausalNoise with encoders "
            f"written out, got {type(noise).__name__}; leave repair out."
        )
    if causal.is_zero:
        return noise
    F, held = causal.mixing.toarray(), causal.holders().toarray().T.astype(bool)  # both (n, columns)
    if repair == "catch-up":
        S = _caught_up(F, there)
    else:
        plan, made = _left_out if repair == "leave-out" else _stood_in, {}
        for up in np.unique(there, axis=0):
            made[up.tobytes()] = sp.csr_array(plan(F, held, up))
        S = sp.block_diag([made[up.tobytes()] for up in there], format="csr")
    sizes = {"num_steps": causal.num_steps, "num_nodes": causal.num_nodes}
    return ScheduledNoise(causal.encoder, S, causal.holders(), **sizes)


def _left_out(F: NDArray[np.float64], held: NDArray[np.bool_], up: NDArray[np.bool_]) -> NDArray[np.float64]:
    missed = (F[~up] != 0).any(axis=0)
    return np.asarray(F * up[:, None] * ~missed)


def _stood_in(F: NDArray[np.float64], held: NDArray[np.bool_], up: NDArray[np.bool_]) -> NDArray[np.float64]:
    who = held & up[:, None]
    lacking = F[~up].sum(axis=0) / np.maximum(who.sum(axis=0), 1)
    return np.asarray((F + lacking) * who)


def _caught_up(F: NDArray[np.float64], there: Present) -> sp.csr_array:
    """Row (t, u) adds F_u of step t and of the steps that u missed right before."""
    T, n = there.shape
    back = np.where(there, np.arange(T)[:, None], T)
    at = np.minimum.accumulate(back[::-1], axis=0)[::-1]  # when each node is next there, T for never
    t, u = np.nonzero(at < T)
    when = sp.csr_array((np.ones(t.size), (at[t, u] * n + u, t * n + u)), shape=(T * n, T * n))
    return sp.csr_array(when @ sp.kron(sp.eye_array(T), sp.csr_array(F)))
