"""Statements on records that several nodes hold: the library's joint loss is never below an exact oracle's.

The oracle takes the columns of all owners from the exact view, and tries all signs on every combination of the owners'
patterns, or on common ones where the owners use the record in the same steps. Attackers are those without an owner.
"""

from __future__ import annotations

import math

import numpy as np
from _campaign import Case, Excluded
from _soundness_cases import drawn_question, least_loss
from _soundness_statements import ROUNDING, Statement, account_of, drawn_reactions, judged

from mfdl.privacy.attacking_sets import sensitivity_by_victim

WIDE = 0.3
"""Share of cases over 30 decades."""
BELOW = 2e-6
"""Relative: both numbers are within 1e-6 of the truth."""


def fixed(rng: np.random.Generator) -> Case:
    """Gradients fixed in advance."""
    question = drawn_question(rng, wide=bool(rng.random() < WIDE), several=True)
    return judged(question, least_loss(question), account_of(question).sensitivity_squared)


def reacting(rng: np.random.Generator) -> Case:
    """Gradients that react to the models."""
    wide = bool(rng.random() < WIDE)
    question = drawn_question(rng, wide=wide, several=True)
    truth = least_loss(question, drawn_reactions(rng, question, wide))
    return judged(question, truth, account_of(question).adaptive_sensitivity_squared)


def at_least_of_each(rng: np.random.Generator) -> Case:
    """A record of several owners loses at least what each of its copies loses, where both numbers are exact."""
    question = drawn_question(rng, wide=False, several=True)
    if question.kind in ("any-receiver", "coalitions"):
        raise Excluded("attackers of one copy may hold another")
    joint = account_of(question).non_adaptive_sensitivity
    options = {"victims": list(question.owners), "participation": question.participation, "release": question.release}
    model = question.model.against_owners(question.algorithm, question.owners) or question.model  # the same attackers
    alone = sensitivity_by_victim(question.algorithm, model, **options)
    exact = [s.squared for loss in alone if (s := loss.non_adaptive_sensitivity).exact and math.isfinite(s.squared)]
    return judged(question, max(exact, default=0.0) * (1 - BELOW), joint.squared)


STATEMENTS = {
    name: Statement(name, differ, ROUNDING, share)
    for name, differ, share in (
        ("several owners, non-adaptive gradients: exact view <= library", fixed, 1.0),
        ("several owners, reacting gradients: exact view <= library", reacting, 1.0),
        ("several owners: no copy alone loses more", at_least_of_each, 0.25),
    )
}
