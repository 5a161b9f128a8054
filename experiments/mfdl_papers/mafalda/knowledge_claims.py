"""What an attacker sees and knows: Theorem 5, Lemma 11, (12), and the view of DECOR."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from mfdl.check import FloatArray
from mfdl.gossip import metropolis_hastings
from mfdl.testing.oracles import (
    append_known_noise,
    clear_rank,
    elliptope_reference,
    gossip_messages,
    largest_signed_sum,
    local_noising,
    of_node,
    pairwise_factor,
    pinv_gram,
    without_noise,
)
from mfdl.testing.strategies import connected_graphs, encoders, integer_views

from ..pairwise_views import distance, gram_of, heard, own_parts, pairwise_gram, two_of
from .case_draws import NODES, UP_TO_FOUR, published_claim
from .local_encoders import SYSTEMS, local_encoders


@published_claim(
    "mafalda-theorem-5-ldp",
    graph=connected_graphs(1, 4),
    steps=st.integers(1, 3),
    system=st.sampled_from(SYSTEMS),
    seed=st.integers(0, 99),
)
def theorem_5_ldp(graph: nx.Graph, steps: int, system: str, seed: int) -> tuple[float, float]:
    n, rounds = len(graph), 2 if system == "muffliato" else 1
    C = local_encoders(system, graph, steps, seed)
    messages, _ = gossip_messages(metropolis_hastings(graph), steps, gossip_rounds=rounds)
    X, leaks = pinv_gram(messages, messages @ local_noising(C))
    claimed = np.zeros((steps, n, steps, n))
    for u in range(n):
        claimed[:, u, :, u] = C[u].T @ C[u]
    return 0.0, math.inf if leaks.any() else distance(X, claimed.reshape(X.shape))


@published_claim("mafalda-theorem-5-pndp-below-ldp", examples=80, **UP_TO_FOUR, encoder=encoders(max_steps=3))
def theorem_5_pndp_below_ldp(graph: nx.Graph, attacker: int, victim: int, encoder: FloatArray) -> tuple[float, float]:
    n, steps = two_of(len(graph), attacker, victim), len(encoder)
    rows = heard(metropolis_hastings(graph), attacker, steps)
    noise = without_noise(rows @ local_noising(np.stack([encoder] * n)), own_parts(attacker, steps, n))
    return elliptope_reference(encoder.T @ encoder), elliptope_reference(gram_of(rows, noise, victim, n))


@published_claim("mafalda-lemma-11-known-gradients")
def lemma_11_known_gradients(graph: nx.Graph, attacker: int, victim: int, steps: int) -> tuple[float, float]:
    return _lemma_11(graph, attacker, victim, steps)


@published_claim("mafalda-lemma-11-nothing-known-moves")
def lemma_11_nothing_known_moves(graph: nx.Graph, attacker: int, victim: int, steps: int) -> tuple[float, float]:
    assume(attacker != victim)
    return _lemma_11(graph, attacker, victim, steps)


def _lemma_11(graph: nx.Graph, attacker: int, victim: int, steps: int) -> tuple[float, float]:
    """(reduced view, all messages, gradients and noise that the attacker holds)."""
    n = len(graph)
    assume(attacker < n and victim < n)
    known = sorted(own_parts(attacker, steps, n))
    W = metropolis_hastings(graph)
    rest = without_noise(heard(W, attacker, steps), known)
    reduced = gram_of(rest, rest, victim, n)
    held = heard(W, attacker, steps, own_messages=True)
    gradients = np.eye(steps * n)[known]
    full_A, full_B = append_known_noise(
        np.vstack([held, gradients]), np.vstack([held, np.zeros_like(gradients)]), known
    )
    full, leaks = pinv_gram(of_node(full_A, victim, n), full_B)
    return largest_signed_sum(reduced), math.inf if leaks.any() else largest_signed_sum(full)


@published_claim("mafalda-lemma-11-factorization", noise_known_of=NODES)
def lemma_11_factorization(graph: nx.Graph, attacker: int, noise_known_of: int, steps: int) -> tuple[float, float]:
    """The attacker knows its own gradients and the noise of one node."""
    n = len(graph)
    assume(attacker < n and noise_known_of < n)
    rows = heard(metropolis_hastings(graph), attacker, steps, own_messages=True)
    A = without_noise(rows, own_parts(attacker, steps, n))
    B = without_noise(rows, own_parts(attacker, steps, n) | own_parts(noise_known_of, steps, n))
    assume(clear_rank(B))
    return 0.0, float(np.linalg.norm(A - B @ np.linalg.pinv(B, rcond=1e-9) @ A))


@published_claim("mafalda-known-noise-appended-rows", view=integer_views(), known=st.sets(st.integers(0, 4)))
def known_noise_appended_rows(view: tuple[FloatArray, FloatArray], known: set[int]) -> tuple[float, float]:
    A, B = view
    known = {j for j in known if j < B.shape[1]}
    zeroed, first = pinv_gram(A, without_noise(B, known))
    appended, second = pinv_gram(*append_known_noise(A, B, known))
    assume(not first.any() and not second.any())
    return 0.0, distance(zeroed, appended)


@published_claim("mafalda-equation-12-own-noise")
def equation_12_own_noise(graph: nx.Graph, attacker: int, victim: int, steps: int) -> tuple[float, float]:
    W, n = metropolis_hastings(graph), two_of(len(graph), attacker, victim)
    rows = heard(W, attacker, steps)
    printed = gram_of(rows, rows, victim, n)
    return float(np.abs(printed).sum()), largest_signed_sum(pairwise_gram(W, attacker, victim, steps))


@published_claim("mafalda-decor-received-messages", member=NODES)
def decor_received_messages(graph: nx.Graph, member: int, victim: int, steps: int) -> tuple[float, float]:
    n = two_of(len(graph), member, victim)
    edges = list(graph.edges)
    noise = np.kron(np.eye(steps), pairwise_factor(edges, n, 0.5, 2.0))
    secrets = [member, *(n + i for i, edge in enumerate(edges) if member in edge)]
    known = {t * (n + len(edges)) + secret for t in range(steps) for secret in secrets}
    W = metropolis_hastings(graph)
    everything, _ = gossip_messages(W, steps)
    received_only, all_messages = (
        gram_of(rows, without_noise(rows @ noise, known), victim, n)
        for rows in (heard(W, member, steps, own_messages=True), everything)
    )
    return float(np.abs(received_only).sum()), largest_signed_sum(all_messages)
