"""Several rounds of gossip as a polynomial of W: its roots, and the round of each.

p(W) = product over j of (W - r_j I) / (1 - r_j) for the roots r_j of p, p(1) = 1. A round costs the messages of one
with W, and a node adds (w_uu - r_j) / (1 - r_j) of its own model, a number that may be negative, in the place of w_uu.

The Chebyshev polynomial of an interval [a, b] below 1 is the p of degree K with p(1) = 1 whose largest modulus there is
least, 1 / T_K(1 + 2 (1 - b) / (b - a)). It falls as exp(-2 K sqrt((1 - b) / (b - a))), where b^K falls as
exp(-K (1 - b)). The usual two-term recursion sends T_j(W) in round j, which has the same p and needs the models of two
rounds; products of factors need one, so that rounds stay maps of one state. Their order matters for rounding alone.
Source: as accelerated gossip, arXiv:2206.05091 (Muffliato), Algorithm 2.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from mfdl_solvers.ties import first_largest

from .. import matrices
from ..errors import InvalidInput
from ..gossip import Gossip, GossipMatrix

POWERS, CHEBYSHEV = "powers", "chebyshev"
POLYNOMIALS = (POWERS, CHEBYSHEV)
ROUNDING = 1e-12  # of weights: a smaller one left by a shift is zero


def shifted(W: sp.csr_array, shift: float) -> sp.csr_array:
    """(W - shift I) / (1 - shift), read-only."""
    V = sp.csr_array(W - shift * sp.eye_array(W.shape[0]))
    V.data[np.abs(V.data) < ROUNDING] = 0.0
    return matrices.sparse_matrix(weights=V / (1 - shift))


def require_one_symmetric_matrix(gossip: Gossip) -> None:
    """Raises InvalidInput where p(W) of a Chebyshev polynomial may enlarge differences, or is of another matrix."""
    if type(gossip) is not GossipMatrix:
        reason = "the polynomial is of one matrix, that of the whole graph, and matrices that change do not commute"
    elif not gossip.is_symmetric:
        reason = (
            "between directed edges or unequal weights eigenvectors are not orthogonal, so that p(W) may enlarge "
            "differences although p is small on the eigenvalues"
        )
    elif not gossip.is_connected:
        reason = "without a path between all nodes other eigenvalues are 1, too"
    else:
        return
    raise InvalidInput(
        f"polynomial 'chebyshev' needs one symmetric, connected gossip matrix, got {gossip.describe()}: {reason}; take "
        "metropolis-hastings or fastest-mixing, or polynomial='powers'."
    )


def chebyshev_roots(low: float, high: float, rounds: int) -> tuple[float, ...]:
    """Roots of the Chebyshev polynomial of an interval below 1, the lowest first, then in the order of Leja.

    Each is where the product of those before is largest, so that partial products stay small.
    """
    angles = (2 * np.arange(rounds) + 1) * np.pi / (2 * rounds)
    left = ((low + high) / 2 - (high - low) / 2 * np.cos(angles)).tolist()
    ordered = [left.pop(0)]
    while left:
        sizes = [float(np.sum(np.log(np.abs(root - np.array(ordered)) + 1e-300))) for root in left]
        ordered.append(left.pop(first_largest(np.exp(np.array(sizes) - max(sizes)))))
    return tuple(ordered)
