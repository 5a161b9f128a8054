"""Hypothesis strategy for algorithms with a trust model and the same view written out by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from ... import algorithms, trust
from ...algorithms import LinearAlgorithm
from ...check import FloatArray
from ...dynamics import Dynamics
from ...gossip import Gossip
from ...participation import EveryStep
from ..claims._describe import describe
from ..oracles.views import gossip_messages, local_noising, received, without_noise
from .graphs import dyadic_gossip, gossip_matrices, gossip_sequences

TRUST = ("ldp", "pndp", "eavesdropper", "colluding", "central", "released", "masks")
RELEASE = ("none", "average", "all")


@dataclasses.dataclass(frozen=True, eq=False)
class ViewCase:
    """An algorithm and a trust model, and the same view written out.

    Attributes:
        A, B: rows of the view; known noise columns of B are zero. honest: nodes that do not attack.
        round_of_row: round of each row; the number of rounds for released models.
        known_gradients, known_noise: bool (T, n), and columns of the base noise, that the attacker knows.
        noising: injected noise <- base noise, (T n, T n).
    """

    algorithm: LinearAlgorithm
    model: trust.TrustModel
    release: str
    A: FloatArray
    B: FloatArray
    honest: tuple[int, ...]
    round_of_row: NDArray[np.intp]
    known_gradients: NDArray[np.bool_]
    known_noise: tuple[int, ...]
    noising: FloatArray

    def __str__(self) -> str:
        return f"{describe(self.algorithm)}; seen by {describe(self.model)}, released: {self.release}"


@st.composite
def view_cases(
    draw: st.DrawFn,
    *,
    kinds: tuple[str, ...] = TRUST,
    max_nodes: int = 4,
    max_steps: int = 3,
    exact: bool = False,
    noises: tuple[str, ...] = ("independent", "shared", "per node", "rounds"),
) -> ViewCase:
    """Plain gossip with node-local noise under any trust model and release; `exact`: all entries dyadic."""
    W: Gossip
    if exact:
        W = draw(dyadic_gossip(max_nodes=max_nodes))
    else:
        W = draw(
            st.one_of(
                gossip_matrices(min_nodes=2, max_nodes=max_nodes), gossip_sequences(min_nodes=2, max_nodes=max_nodes)
            )
        )
    n = W.num_nodes
    noise = draw(st.sampled_from(noises))
    T = draw(st.integers(1, max_steps))
    K = draw(st.integers(2, 3)) if noise == "rounds" else 1
    if (length := getattr(W, "num_steps", None)) is not None:  # a sequence that does not repeat
        K = 1
        T = length
    rate = draw(st.sampled_from([1.0, 0.5]))
    dynamics = Dynamics(W, rate, gossip_rounds=K)
    participation = EveryStep(T)
    encoders = np.stack([np.eye(T)] * n)
    if noise in ("shared", "per node"):
        below = st.integers(-1, 1).map(float)
        for u in range(n if noise == "per node" else 1):
            encoders[u][np.tril_indices(T, -1)] = draw(
                st.lists(below, min_size=T * (T - 1) // 2, max_size=T * (T - 1) // 2)
            )
            encoders[u] += np.diag(draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=T, max_size=T)))
        if noise == "shared":
            encoders[:] = encoders[0]
        one = algorithms.mf_dsgd(dynamics, participation, encoders if noise == "per node" else encoders[0])
    elif noise == "rounds":
        one = algorithms.muffliato(dynamics, participation)
    else:
        one = algorithms.dp_dsgd(dynamics, participation)
    divisors = np.ones(n)
    if draw(st.booleans()):
        divisors = np.array(draw(st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=n, max_size=n)))
        one = one.with_divisors(divisors)

    R = T * K
    every = np.ones((R, n), dtype=bool)
    inside: list[int] = []
    kind = draw(st.sampled_from(kinds))
    average = False
    release = draw(st.sampled_from(RELEASE))
    known_noise: set[int] = set()
    known_gradients = np.zeros((T, n), dtype=bool)
    seen = every
    model: trust.TrustModel
    if kind in ("pndp", "colluding"):
        inside = sorted(draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=n - 1)))
        model = trust.PNDP(inside) if kind == "pndp" else trust.SecLDP(tuple(inside))
        seen = received(W, R, inside) if kind == "pndp" else every
        known_noise = {t * n + a for t in range(T) for a in inside}
        known_gradients[:, inside] = True
    elif kind == "ldp":
        model = trust.LDP()
    elif kind == "eavesdropper":
        model = trust.SecLDP()
    elif kind == "central":
        model, average = trust.Central(), True
    elif kind == "released":
        model, seen = trust.ReleasedOnly(), ~every
    else:
        bits = st.lists(st.booleans(), min_size=R * n, max_size=R * n)
        seen = np.array(draw(bits)).reshape(R, n)
        if draw(st.booleans()):
            seen[:] = seen[0]
        noise_bits = np.array(draw(st.lists(st.integers(0, 3), min_size=T * n, max_size=T * n))).reshape(T, n) == 3
        if draw(st.booleans()):
            noise_bits[:] = noise_bits[0]
        gradient_bits = np.zeros((T, n), dtype=bool)
        if draw(st.booleans()):
            gradient_bits[:, draw(st.integers(1, n - 1)) :] = True
            inside = [u for u in range(n) if gradient_bits[0, u]]
        known_gradients = gradient_bits
        known_noise = {int(i) for i in np.flatnonzero(noise_bits.ravel())}
        model = trust.TrustModel.from_masks(seen=seen, known_gradients=gradient_bits, known_noise=noise_bits)
    messages, final = gossip_messages(W, T, gossip_rounds=K, rate=rate, divisors=divisors.tolist())
    if average:
        rows = messages.reshape(R, n, T * n).mean(axis=1)
        rounds = np.arange(R)
    else:
        rows = messages[seen.ravel()]
        rounds = np.repeat(np.arange(R), n)[seen.ravel()]
    if kind in ("ldp", "eavesdropper", "colluding"):
        release = "none"
    extra = {"none": final[:0], "average": final.mean(axis=0, keepdims=True), "all": final}[release]
    A = np.vstack([rows, extra])
    N = local_noising(encoders)
    return ViewCase(
        algorithm=one,
        model=model,
        release=release,
        A=A,
        B=without_noise(A @ N, known_noise),
        honest=tuple(u for u in range(n) if u not in inside),
        round_of_row=np.concatenate([rounds, np.full(len(extra), R)]).astype(np.intp),
        known_gradients=known_gradients,
        known_noise=tuple(sorted(known_noise)),
        noising=N,
    )
