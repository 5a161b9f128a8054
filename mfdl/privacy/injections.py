"""What all messages of an algorithm say together: whether they give every injected sum g + e, and every state.

Decided on the maps, never by name. Where it holds, gossip, momentum, weight decay and step sizes drop out of privacy
for whoever sees all messages.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from ..algorithms import LinearAlgorithm, Round


def is_plain_gossip(algorithm: LinearAlgorithm) -> bool:
    """Whether a message is the model itself with injections of one sign: what the forms for hidden messages assume."""
    if not messages_determine_injections(algorithm):
        return False
    if any(m is not None for r in algorithm.rounds for m in (r.state_from_state, r.state_from_gradient)):
        return False
    n = algorithm.num_nodes
    identities = {id(m): m for m in (algorithm.model_from_state, *(r.message_from_state for r in algorithm.rounds))}
    for matrix in identities.values():
        if matrix is None or matrix.shape != (n, n) or (matrix != sp.eye_array(n, format="csr")).nnz:
            return False
    injections = {id(r): r.message_from_gradient for r in algorithm.rounds if r.message_from_gradient is not None}
    return all((Q.diagonal() < 0).all() for Q in injections.values())


def messages_determine_injections(algorithm: LinearAlgorithm) -> bool:
    """Whether all messages together are an injective function of the injected sums g + e, and give every state.

    True when gradient and noise enter alike, a step's messages through a diagonal without zeros: a state that is known
    (the start is) and the messages of a round then give its injection, and with it the next state. In further gossip
    rounds nothing enters.
    """
    verdicts: dict[tuple[int, bool], bool] = {}
    for one, step in zip(algorithm.rounds, algorithm.step_of_round, strict=True):
        key = (id(one), step >= 0)
        if key not in verdicts:
            verdicts[key] = _injects_visibly(one) if step >= 0 else _injects_nothing(one)
    return all(verdicts.values())


def _injects_nothing(one: Round) -> bool:
    return all(
        m is None
        for m in (one.message_from_gradient, one.message_from_noise, one.state_from_gradient, one.state_from_noise)
    )


def _injects_visibly(one: Round) -> bool:
    Q, R = one.message_from_gradient, one.message_from_noise
    if Q is None or R is None or Q.shape != R.shape or Q.shape[0] != Q.shape[1]:
        return False
    diagonal = Q.diagonal()
    if (Q != R).nnz or np.count_nonzero(Q.data) != np.count_nonzero(diagonal) or not diagonal.all():
        return False
    J, L = one.state_from_gradient, one.state_from_noise
    return J is L or (J is not None and L is not None and J.shape == L.shape and not (J != L).nnz)
