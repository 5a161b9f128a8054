"""All victims of one attacker by structure against plain NumPy on the stacked view; ratio of seconds.

The peer does what a direct implementation does: it stacks the messages the attacker receives, its own gradients and its
own noise as dense A and B, takes the pseudo-inverse of B, and forms X_u for every victim. A second peer knows that the
attacker's rows can go and inverts the small B B^T. Independent noise, user level, no model released.
"""

from __future__ import annotations

import numpy as np
from _measure import peak_megabytes, report, seconds

import mfdl
from mfdl.privacy.attacking_sets import sensitivity_by_victim


def stacked(W: np.ndarray, attacker: int, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """A and B of the messages received."""
    n = len(W)
    rows = [j for j in range(n) if W[attacker, j] > 0 and j != attacker]
    powers = [np.eye(n)]
    for _ in range(num_steps - 1):
        powers.append(powers[-1] @ W)
    A = np.zeros((num_steps * len(rows), num_steps * n))
    for t in range(num_steps):
        for s in range(t + 1):
            A[t * len(rows) : (t + 1) * len(rows), s * n : (s + 1) * n] = powers[t - s][rows]
    return A, A.copy()


def sums(C: np.ndarray, projector: np.ndarray, attacker: int, n: int) -> np.ndarray:
    """sum |X_u| for X_u = C_u^T projector C_u."""
    blocks = [C[:, u::n] for u in range(n) if u != attacker]
    return np.array([np.abs(block.T @ projector @ block).sum() for block in blocks])


def direct_peer(W: np.ndarray, attacker: int, num_steps: int) -> np.ndarray:
    """Pseudo-inverse of the stacked view, own gradients and noise as rows."""
    n = len(W)
    A, B = stacked(W, attacker, num_steps)
    attacker_rows = np.eye(num_steps * n)[attacker::n]
    A[:, attacker::n] = 0.0
    A, B = np.vstack([A, np.zeros_like(attacker_rows)]), np.vstack([B, attacker_rows])
    inverse = np.linalg.pinv(B)
    C = inverse @ A
    return sums(C, inverse @ B, attacker, n)


def careful_peer(W: np.ndarray, attacker: int, num_steps: int) -> np.ndarray:
    """Own noise columns zeroed, the small B B^T inverted."""
    A, B = stacked(W, attacker, num_steps)
    B[:, attacker :: len(W)] = 0.0
    return sums(A, np.linalg.pinv(B @ B.T, hermitian=True), attacker, len(W))


def main() -> None:
    graph = mfdl.graphs.load("erdos-renyi:n=148,p=0.15,seed=1")
    gossip = mfdl.gossip.uniform(graph)
    attacker, T = 0, 20
    algorithm = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(gossip), mfdl.EveryStep(T))
    trust = mfdl.trust.PNDP([attacker])

    def ours() -> np.ndarray:
        losses = sensitivity_by_victim(algorithm, trust, release="none", method="certified")
        return np.array([loss.sensitivity_squared for loss in losses])

    W = gossip.dense()
    reference = np.minimum(careful_peer(W, attacker, T), T)
    assert np.allclose(careful_peer(W, attacker, T), direct_peer(W, attacker, T)), "the two peers disagree"
    assert (ours() <= reference * (1 + 1e-6)).all(), "a certified bound is above the plain sum"
    mine = seconds(ours)
    exact = seconds(lambda: sensitivity_by_victim(algorithm, trust, release="none"), repeats=3)
    direct = seconds(lambda: direct_peer(W, attacker, T), repeats=3)
    careful = seconds(lambda: careful_peer(W, attacker, T), repeats=3)
    report(
        "accountant",
        nodes=148,
        degree=graph.degree[attacker],
        steps=T,
        certified=mine,
        exact=exact,
        plain_numpy=direct,
        careful_numpy=careful,
        ratio=direct["median"] / mine["median"],
        ratio_careful=careful["median"] / mine["median"],
        peak_megabytes=peak_megabytes(),
    )


if __name__ == "__main__":
    main()
