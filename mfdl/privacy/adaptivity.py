"""Does a number hold when gradients are chosen adaptively? The row-space test.

The Gaussian formula needs every gradient to be a function of what the attacker has already seen: for every node and
step (one whose gradient is known included: it shows its model), the row of the model operator (over G and Z jointly)
must lie in the row space of the strictly earlier rows of [A B], plus unit rows for known columns. It is not enough
that a gradient does not move with the record: it can cancel noise that the attacker never sees.

One weaker condition is enough where the unit of privacy is all data of a node, in every step: that a model differs from
what the attacker knows by earlier gradients of the same node alone (`own_state_form` has the proof). For a record it is
not, whatever its steps: the record that moves one gradient then moves, through the model, the gradients of the node's
other records.

The test is run on the maps, never inferred from a name: first their sparsity (a model is a weighted sum of messages,
all of them seen), then, for users, the recursions of the nodes, then, for small views, the row space itself. A larger
view that fails the first two is called not adaptive, which is the safe side.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from ..algorithms import LinearAlgorithm
from ..participation import Participation, in_every_step
from ..view import Knowledge, View
from .combination_form import states_are_multiples
from .injections import messages_determine_injections
from .own_state_form import own_states
from .rounding_level import ROUNDING, has_tiny_weights

MAX_ENTRIES = 500_000  # size of [A B], and of the models over G and Z, up to which the row space is computed


def is_adaptive(view: View, participation: Participation | None = None, *, unit: str = "record") -> bool:
    """Whether the number of a view for gradients fixed in advance holds for adaptive ones too.

    Args: participation, unit: what the number is for; by default it is to hold for any.

    Guarantees: True only if every gradient is taken at a model that the attacker knows (the row-space condition), or,
        for unit "user" with participation in every step, at one that differs from what the attacker knows by the
        node's own earlier gradients alone (`own_state_form`). The numerical part accepts residuals at rounding level
        only, and is not asked where a true remainder could be as small: several gossip rounds (remainders decay like
        the spectrum) and injections that enter a model with a weight below SMALLEST_WEIGHT of others
        (`rounding_level`).
    A bare view (no algorithm) is never adaptive.
    """
    algorithm, knowledge = view.algorithm, view.knowledge
    if algorithm is None or knowledge is None:
        return False
    if _models_are_sums_of_seen_messages(algorithm, knowledge) or _states_are_known(algorithm, knowledge):
        return True
    every_gradient_moves = unit == "user" and participation is not None and in_every_step(participation)
    if every_gradient_moves and own_states(view) is not None:
        return True
    rows, columns = view.noise.shape[0], view.noise.shape[1] + view.axis.size
    # however few rows are seen, the models have one for each gradient
    largest = max(rows, view.axis.size) * columns
    if largest > MAX_ENTRIES or len(algorithm.rounds) != algorithm.num_steps or has_tiny_weights(algorithm):
        return False
    return _in_row_space(view, algorithm, knowledge)


def _models_are_sums_of_seen_messages(algorithm: LinearAlgorithm, knowledge: Knowledge) -> bool:
    if knowledge.combination is not None:
        return states_are_multiples(algorithm, knowledge.combination)
    for r in range(1, len(algorithm.rounds)):
        step = algorithm.step_of_round[r]
        if step < 0:
            continue
        before = algorithm.rounds[r - 1]
        if any(m is not None for m in (before.state_from_state, before.state_from_gradient, before.state_from_noise)):
            return False
        if before.state_from_message is None:
            return False
        model_from_message = sp.csr_array(algorithm.model_from_state @ before.state_from_message)
        used = np.asarray(abs(model_from_message).sum(axis=0)).ravel() > 0
        if (used & ~(knowledge.seen[r - 1] & algorithm.transmitted)).any():
            return False
    return True


def _states_are_known(algorithm: LinearAlgorithm, knowledge: Knowledge) -> bool:
    """All messages are seen and give every state, buffers included, from the one before."""
    if knowledge.combination is not None or not algorithm.transmitted.all() or not knowledge.seen.all():
        return False
    return messages_determine_injections(algorithm)


def _in_row_space(view: View, algorithm: LinearAlgorithm, knowledge: Knowledge) -> bool:
    T, n = view.axis.num_steps, view.axis.num_nodes
    free = ~knowledge.known_gradients.ravel()  # known columns are unit rows: they may be dropped from every row
    seen = np.hstack([view.dense_gradients_by_time()[:, free], view.dense_noise()])
    round_of_row = _round_of_row(view, algorithm, knowledge)
    hidden = ~knowledge.known_noise.ravel()
    models = np.hstack(
        [algorithm.models_from_gradients().to_dense()[:, free], _dense(algorithm.models_from_noise()) * hidden]
    )
    round_of_step = {step: r for r, step in enumerate(algorithm.step_of_round) if step >= 0}
    for t in range(1, T):
        wanted = models[t * n : (t + 1) * n]  # a known gradient reveals its model as much as it depends on it
        earlier = seen[round_of_row < round_of_step[t]]
        size = np.linalg.norm(wanted, axis=1)
        if not earlier.size:
            residual = wanted
        else:
            solution, *_ = np.linalg.lstsq(earlier.T, wanted.T, rcond=1e-12)
            residual = (wanted.T - earlier.T @ solution).T
        if (np.linalg.norm(residual, axis=1) > ROUNDING * max(seen.shape) * np.maximum(size, 1e-300)).any():
            return False
    return True


def _round_of_row(view: View, algorithm: LinearAlgorithm, knowledge: Knowledge) -> np.ndarray:
    if knowledge.combination is not None:
        rounds = np.repeat(np.arange(len(algorithm.rounds)), knowledge.combination.shape[0])
    else:
        rounds = np.argwhere(knowledge.seen)[:, 0]
    released = view.noise.shape[0] - rounds.size  # released models come after every gradient
    return np.concatenate([rounds, np.full(released, len(algorithm.rounds))])


def _dense(operator: object) -> np.ndarray:
    columns = operator.shape[1]  # type: ignore[attr-defined]
    return np.asarray(operator.matmat(np.eye(columns)))  # type: ignore[attr-defined]
