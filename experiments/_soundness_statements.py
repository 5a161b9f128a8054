"""Statements on soundness: the library's loss is never below that of an exact oracle; tried by `soundness.py`."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any
from unittest import mock

import numpy as np
import torch
from _campaign import Case, Excluded, Statement, shortfall
from _soundness_cases import Question, drawn_question, least_loss

from mfdl import trust
from mfdl.check import FloatArray
from mfdl.errors import UnsupportedMechanism
from mfdl.privacy import exact_arithmetic
from mfdl.privacy.attacking_sets import sensitivity_by_victim
from mfdl.privacy.forms import dense_form
from mfdl.privacy.owners import Owners
from mfdl.privacy.victim_sensitivity import VictimSensitivity
from mfdl.training.executor import Executor

STATEMENTS: dict[str, Statement] = {}
FEW_BITS, ROUNDED = 2.0**20, 1e-14  # of entries whose sums are exact; relative: what sums of others may be off
ROUNDING = 1e-9  # what is stated is rounded up; a lower bound in fractions is compared as a float
ORDER = ("released", "central", "pndp", "colluding", "full-collusion", "ldp")


def statement(name: str, *, tolerance: float = ROUNDING, share: float = 1.0):
    def register(differ):
        STATEMENTS[name] = Statement(name, differ, tolerance, share)
        return differ

    return register


def account_of(question: Question, *, lipschitz: float | None = None) -> VictimSensitivity:
    try:
        (loss,) = sensitivity_by_victim(
            question.algorithm,
            question.model,
            victims=[question.victim],
            participation=question.participation,
            release=question.release,
            unit=question.unit,
            lipschitz=lipschitz,
            method="certified" if sum(question.owners) % 2 else "exact",
            owners=Owners(same_steps=question.same_steps),
        )
    except UnsupportedMechanism as error:
        raise Excluded(f"refused: {str(error)[:60]}") from None
    return loss


def judged(question: Question, truth: Fraction | float, accounted_loss: float) -> Case:
    off = shortfall(truth if truth == math.inf else float(truth), accounted_loss)
    words = "" if off <= ROUNDING else f"true {float(truth)!r}, stated {accounted_loss!r}: {question.words}"
    return Case(off, question.label, question.size, words)


@statement("non-adaptive gradients: exact view <= library")
def fixed(rng: np.random.Generator) -> Case:
    question = drawn_question(rng, wide=False)
    return judged(question, least_loss(question), account_of(question).sensitivity_squared)


@statement("non-adaptive gradients, 30 decades: exact view <= library")
def fixed_wide(rng: np.random.Generator) -> Case:
    question = drawn_question(rng, wide=True)
    return judged(question, least_loss(question), account_of(question).sensitivity_squared)


@statement("30 decades, as views too large for exact ranks: exact view <= library", share=0.5)
def fixed_large(rng: np.random.Generator) -> Case:
    question = drawn_question(rng, wide=True)
    truth = least_loss(question)
    with mock.patch.object(exact_arithmetic, "MAX_ENTRIES", 0), mock.patch.object(dense_form, "MAX_ENTRIES", 0):
        return judged(question, truth, account_of(question).sensitivity_squared)


def drawn_reactions(rng: np.random.Generator, question: Question, wide: bool) -> FloatArray:
    T, n = question.algorithm.num_steps, question.algorithm.num_nodes
    sizes = 2.0 ** rng.integers(-20, 21, (T, n)) if wide else 1.0
    r = rng.choice([0.0, 1.0, -1.0, 2.0, -0.5], (T, n)) * sizes
    if question.unit == "user":  # all of the victim's gradients move as far as clipping lets them, reactions included
        r[:, question.victim] = 0
    return np.asarray(r)


@statement("reacting gradients: exact view <= library")
def adaptive(rng: np.random.Generator) -> Case:
    question = drawn_question(rng, wide=False)
    truth = least_loss(question, drawn_reactions(rng, question, False))
    return judged(question, truth, account_of(question).adaptive_sensitivity_squared)


@statement("reacting gradients, 30 decades: exact view <= library")
def adaptive_wide(rng: np.random.Generator) -> Case:
    question = drawn_question(rng, wide=True)
    truth = least_loss(question, drawn_reactions(rng, question, True))
    return judged(question, truth, account_of(question).adaptive_sensitivity_squared)


@statement("reacting gradients under a Lipschitz constant: exact view <= library", share=0.5)
def lipschitz(rng: np.random.Generator) -> Case:
    """theta - (rate / m) r theta is L-Lipschitz: r = (1 - s L) m / rate for s in [-1, 1]."""
    question = drawn_question(rng, wide=False)
    if question.unit == "user":
        raise Excluded("a Lipschitz constant is for records")
    algorithm = question.algorithm
    L = float(rng.choice([0.5, 1.0, 2.0]))
    rates = algorithm.dynamics.learning_rates(algorithm.num_steps)[:, None] / algorithm.divisors
    r = (1 - rng.choice([-1.0, 0.0, 0.5, 1.0], rates.shape) * L) / rates
    try:
        squared = account_of(question, lipschitz=L).adaptive_sensitivity_squared
    except Excluded as reason:
        raise Excluded("no shift reduction for it") from reason
    return judged(question, least_loss(question, r), squared)


@statement("no trust model asks for more than LDP")
def weakest(rng: np.random.Generator) -> Case:
    question = drawn_question(rng, wide=bool(rng.random() < 0.5))
    if question.kind == "masks":
        raise Excluded("masks may see what is never sent")
    if question.unit == "user" and question.release in (None, "average", "all"):
        raise Excluded("users of messages that are not sent: models are released to one and not to the other")
    algorithm = question.algorithm
    if question.kind == "central" and not (algorithm.sent.all(axis=1) | ~algorithm.sent.any(axis=1)).all():
        raise Excluded("an average of messages some of which are not sent")
    options: dict[str, Any] = {"victims": [question.victim], "participation": question.participation}
    (local,) = sensitivity_by_victim(algorithm, trust.LDP(), release=question.release, unit=question.unit, **options)
    loss = account_of(question)
    lower = loss.non_adaptive_sensitivity.lower
    informative = math.isfinite(lower) or loss.non_adaptive_sensitivity.exact  # infinite as a bound says nothing
    return judged(question, lower if informative else 0.0, local.sensitivity_squared)


@statement("accounted = executed, bit for bit", tolerance=0)
def executed(rng: np.random.Generator) -> Case:
    """The executor's response to unit impulses is the operators' that the accountant reads.

    Noise with other entries than a few bits, such as thirds, is added up in another order: it may differ by rounding.
    """
    question = drawn_question(rng, wide=False)
    algorithm = question.algorithm
    T, n = algorithm.num_steps, algorithm.num_nodes
    executor = Executor(algorithm, dtype=torch.float64)
    N = torch.tensor(algorithm.noise.matmat(np.eye(algorithm.noise.shape[1])))
    slots, columns = algorithm.noise.slots_per_step, algorithm.noise.shape[1]
    width = T * n + columns
    G = torch.hstack([torch.eye(T * n, dtype=torch.float64), torch.zeros(T * n, columns, dtype=torch.float64)])
    E = torch.hstack([torch.zeros(T * slots, T * n, dtype=torch.float64), N])
    state = executor.initial_state(torch.zeros(n, width, dtype=torch.float64))
    sent, models = [], []
    for t in range(T):
        models.append(executor.models(state).numpy())
        messages, state = executor.step(t, state, G[t * n : (t + 1) * n], E[t * slots : (t + 1) * slots])
        sent.append(messages.numpy())

    def accounted(from_gradients, from_noise):
        return np.hstack([from_gradients.matmat(np.eye(T * n)), from_noise.matmat(np.eye(columns))])

    pairs = [
        (np.vstack(sent), accounted(algorithm.messages_from_gradients, algorithm.messages_from_noise)),
        (np.vstack(models), accounted(algorithm.models_from_gradients(), algorithm.models_from_noise())),
        (
            executor.models(state).numpy(),
            accounted(algorithm.models_from_gradients(final=True), algorithm.models_from_noise(final=True)),
        ),
    ]
    off = max(float(np.abs(a - b).max(initial=0.0)) for a, b in pairs)
    largest = max(float(np.abs(b).max(initial=0.0)) for _, b in pairs)
    if (N.numpy() * FEW_BITS % 1).any() and off <= ROUNDED * largest:
        off = 0.0
    return Case(off, size=question.size, words=question.words if off else "")
