"""What the transcript of a run shows an attacker: the rows of its view, in the order of `View`.

In: an algorithm, what is seen of it, messages and models. Out: rows of O, and the parts of them that are known.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from .. import check
from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..errors import InvalidInput
from ..view import Knowledge, Mask, View


def with_all_noise(view: View, algorithm: LinearAlgorithm, knowledge: Knowledge) -> View:
    """The same view with the noise that is known left in B."""
    everything = dataclasses.replace(knowledge, known_noise=np.zeros_like(knowledge.known_noise))
    return View.of(algorithm, everything, release=view.release, attacker=view.attacker)


def seen_rows(algorithm: LinearAlgorithm, knowledge: Knowledge, messages: FloatArray) -> FloatArray:
    """What is seen of all messages, (rounds * messages of a round, d); of others some may not be finite."""
    if knowledge.combination is None:
        return np.asarray(messages[np.flatnonzero(knowledge.seen.ravel())])
    return np.asarray(knowledge.rows(algorithm) @ messages)


def with_models(rows: FloatArray, models: FloatArray, release: str) -> FloatArray:
    """The rows, and below them what nodes release, "all" or the "average" over them."""
    return np.concatenate([rows, models if release == "all" else models.mean(axis=0, keepdims=True)])


def by_round(algorithm: LinearAlgorithm, messages: ArrayLike) -> FloatArray:
    """Messages given by step or by round, (rounds, messages of a round, d): the rounds of a step follow one another.

    Raises: InvalidInput: another shape; nothing is broadcast.
    """
    R, S, T = len(algorithm.rounds), algorithm.messages_per_round, algorithm.num_steps
    sent = _numbers("messages", messages)
    by_step, of_round = (T, R * S // T), (R, S)
    if sent.ndim != 3 or sent.shape[:2] not in (by_step, of_round):
        either = "" if by_step == of_round else f"({by_step[0]}, {by_step[1]}, d) for {T} steps, or "
        raise InvalidInput(
            f"messages must have shape {either}({R}, {S}, d) for {R} rounds of {S} messages, got shape {sent.shape}; "
            "record every step of the run, in order."
        )
    return sent.reshape(R, S, sent.shape[2])


def without_gradients(algorithm: LinearAlgorithm, models: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(messages, what is released) that start models alone would give, shapes (rounds, messages, d) and (n, d)."""
    start = algorithm.state_from_start
    state = (algorithm.model_from_state.T if start is None else start) @ models
    sent, released = [], np.zeros_like(models, dtype=np.float64)
    for number, step in enumerate(algorithm.rounds, start=1):
        size = (algorithm.messages_per_round, models.shape[1])
        message = np.zeros(size) if step.message_from_state is None else step.message_from_state @ state
        after = np.zeros_like(state) if step.state_from_message is None else step.state_from_message @ message
        if step.state_from_state is not None:
            after = after + step.state_from_state @ state
        sent.append(message)
        state = after
        released += algorithm.released_after_rounds.get(number, 0.0) * (algorithm.model_from_state @ state)
    return np.stack(sent), released


def shaped(name: str, given: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    array = check.finite_array(len(shape), **{name: given})
    if array.shape != shape:
        raise InvalidInput(f"{name} must have shape {shape}, got {array.shape}.")
    return array


def known_part(name: str, given: ArrayLike, known: Mask, d: int) -> FloatArray:
    """`given`, of shape (*known.shape, d), where `known`, else zero: the rest is not read and may be nan."""
    array, shape = _numbers(name, given), (*known.shape, d)
    if array.shape != shape:  # before np.where, which would broadcast it
        raise InvalidInput(f"{name} must have shape {shape}, got {array.shape}; what is not known may be nan.")
    return check.finite_array(len(shape), **{name: np.where(known[..., None], array, 0.0)})


def _numbers(name: str, given: ArrayLike) -> FloatArray:
    """Real numbers of any shape, nan and infinity among them."""
    try:
        array = np.asarray(given)
        if array.dtype.kind in "USc":  # numpy would read texts as numbers and drop imaginary parts
            raise TypeError
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f"{name} must be an array of real numbers, got {type(given).__name__}.") from None
