"""The Gram matrix X_u of what a view reveals about one node, by the cheapest form that covers the view.

X_u = A_u^T (B B^T)^+ A_u, T x T, so that sens_u^2 = max over patterns and ||g_t|| <= 1 of sum X_u[s, t] <g_s, g_t>. The
forms, all giving the same X:

- all messages seen: the gossip is an injective left factor of A and B and drops out (`separable`);
- one combination of the messages, and states known up to the nodes' own gradients (`known_states`);
- part of the messages, node-local noise: modes, null-space form and range form (`hidden_modes`,
`range_and_null_space`);
- everything else, rational arithmetic where float64 cannot tell its ranks, and every matrix of one rank near the given
one, where a bare view asks for it (`dense_form`).

Where a form is undecided the next one answers, and at the end the bound by one who sees more (`separable.Injections`).
Rounding errors are bounded and carried along; a step at which a noiseless combination shows the victim's gradient is
marked as a leak.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mfdl_solvers.arithmetic import blas_threads

from ... import check
from ...algorithms import LinearAlgorithm
from ...errors import UnsupportedMechanism
from ...matrices import once
from ...trust import TrustModel
from ...trust.view import AlgorithmView, View
from ..owners import victim_nodes
from .base import Blocks, Group, ViewForm, ViewGram
from .dense_form import DenseForm, Fractions, Nearby
from .hidden_modes import HiddenModes
from .known_states import Combination, OwnStates, OwnStatesOfAll
from .range_and_null_space import NullSpace, Range
from .separable import INJECTIONS, UNPROVEN, Injections, Separable, injected_inflation

FORMS: tuple[type[ViewForm], ...] = (Separable, Combination, OwnStates, HiddenModes, NullSpace, Range)
"""Forms by structure; no rank of the view is found in float64. Asked first, the cheapest before the others."""
LAST: tuple[type[ViewForm], ...] = (Nearby, OwnStatesOfAll, DenseForm, Fractions, Injections)
"""Asked in this order after them."""
UNDECIDED = "the rank of its noise, or its size beside the gradients, cannot be told in float64"

__all__ = [
    "FORMS",
    "INJECTIONS",
    "LAST",
    "Blocks",
    "Group",
    "ViewForm",
    "ViewGram",
    "injection_bound",
    "joint_grams",
    "joint_injection_bounds",
    "known_gradient",
    "view_gram",
    "view_grams",
]


def view_gram(algorithm: LinearAlgorithm, trust: TrustModel, node: int) -> ViewGram:
    """X_u of one node under a trust model with a single view."""
    check.instance(TrustModel, trust=trust)
    return view_grams(trust.view(algorithm, node), [node])[0]


def view_grams(view: View, victims: Sequence[int]) -> list[ViewGram]:
    """X_u of each victim in one view; equal Grams are one object.

    Raises: UnsupportedMechanism: a view that only the dense form covers and that is too large for it.
    """
    grams_by_victim, answered = _by_forms(view, victims, _grams_of_form)
    if len(grams_by_victim) < len(set(victims)) and not answered:
        rows, columns = view.noise.shape
        raise UnsupportedMechanism(
            f"this view has no structured form, and its dense form needs a singular value decomposition of a {rows} x "
            f"{columns} matrix, which is too large; use fewer steps, release='none', or a model that sees all messages."
        )
    return _with_known_gradients(view, victims, grams_by_victim, "dense form")


def joint_grams(view: View, groups: Sequence[Group]) -> dict[Group, ViewGram | Blocks]:
    """X_S of the owners S of one record, by the first form that has it; without groups that none has."""
    return _by_forms(view, groups, _joint_of_form)[0]


def _by_forms(
    view: View, victims: Sequence[Any], answers: Callable[[View, ViewForm, Sequence[Any]], dict[Any, Any]]
) -> tuple[dict[Any, Any], bool]:
    """(answers of the first form that has one for each victim, whether a form of any view was asked)."""
    grams: dict[Any, Any] = {}
    undecided, of_any_view = list(dict.fromkeys(victims)), False
    with blas_threads(view.num_rows):
        for form in _forms(view, [u for victim in undecided for u in victim_nodes(victim)]) if undecided else ():
            grams |= answers(view, form, undecided)
            undecided = [victim for victim in undecided if victim not in grams]
            of_any_view = of_any_view or form.of_any_view
            if not undecided:
                break
    return grams, of_any_view


def injection_bound(view: View, victims: Sequence[int]) -> list[ViewGram] | None:
    """An upper bound on what a view shows of any messages and models, adaptively; None where there is none."""
    form = Injections.from_view(view)
    if form is None:
        return None
    return _with_known_gradients(view, victims, _grams_of_form(view, form, victims), INJECTIONS)


def joint_injection_bounds(view: View, groups: Sequence[Group]) -> dict[Group, ViewGram | Blocks]:
    form = Injections.from_view(view) if groups else None
    return {} if form is None else _joint_of_form(view, form, groups)


def _forms(view: View, victims: Sequence[int]) -> Iterator[ViewForm]:
    """The forms that cover a view, in the order of trial."""
    injections_seen = Separable.from_view(view)
    if injections_seen is not None:  # no other form by structure covers such a view
        yield injections_seen
    else:
        by_structure = (form for kind in FORMS if (form := kind.from_view(view)) is not None)
        yield from sorted(by_structure, key=lambda form: form.cost(victims))  # exact: counts of products
    for kind in LAST:
        if (form := kind.from_view(view)) is not None:
            yield form


def _grams_of_form(view: View, form: ViewForm, victims: Sequence[int]) -> dict[int, ViewGram]:
    streamed, grams = _streamed(view, form), zip(victims, form.grams(victims), strict=True)
    return {u: streamed(gram) for u, gram in grams if gram is not None}


def _joint_of_form(view: View, form: ViewForm, groups: Sequence[Group]) -> dict[Group, ViewGram | Blocks]:
    """Grams of one form, as streamed, with a leak wherever the attacker knows a gradient of an owner."""
    streamed, grams = _streamed(view, form), zip(groups, form.joint_grams(groups), strict=True)

    def changed(owners: Group, gram: ViewGram) -> ViewGram:
        known = np.concatenate([view.known_gradients[:, u] for u in owners])
        if not known.any():
            return streamed(gram)
        why = next(filter(None, (known_gradient(view, u) for u in owners)))
        return dataclasses.replace(streamed(gram), leaks=streamed(gram).leaks | known, why=why)

    return {group: gram.mapped(group, changed) for group, gram in grams if gram is not None}


def _streamed(view: View, form: ViewForm) -> Callable[[ViewGram], ViewGram]:
    """From Grams of forms that see C^-1 of an encoder with structure as an array to noise that is made step by step.

    Both are C^-1 up to rounding, N^ = C^-1 (I + E): no combination of the array has more than (1 - ||E||)^-2 times the
    noise of that of the stream.
    """
    causal = view.algorithm.noise.causal if isinstance(view, AlgorithmView) else None
    if causal is None or causal.in_blocks or form.asks_encoder:
        return lambda gram: gram
    more = injected_inflation(causal)

    @once
    def changed(gram: ViewGram) -> ViewGram:
        if math.isinf(more):
            return ViewGram.silent(len(gram.values), UNPROVEN, form=gram.form, upper=True)
        return dataclasses.replace(gram, inflation=gram.inflation * more)

    return changed


def _with_known_gradients(
    view: View, victims: Sequence[int], grams: Mapping[int, ViewGram], last: str
) -> list[ViewGram]:
    """Grams with a leak at every step whose gradient of the victim is known; undecided ones (of the `last` form) leak
    everywhere.
    """
    unknown = ViewGram.silent(view.axis.num_steps, UNDECIDED, form=last, upper=True)
    complete = [grams.get(u) or unknown for u in victims]
    known_at = np.asarray(view.known_gradients.any(axis=0))
    for i in np.flatnonzero(known_at[list(victims)]).tolist():
        known, why = view.known_gradients[:, victims[i]], known_gradient(view, victims[i])
        complete[i] = dataclasses.replace(complete[i], leaks=complete[i].leaks | known, why=why)
    return complete


def known_gradient(view: View, victim: int) -> str:
    """The gradient of a victim that the attacker knows, in words; empty where it knows none."""
    known = view.known_gradients[:, victim]
    return f"the attacker knows the gradient of step {np.flatnonzero(known)[0]}" if known.any() else ""
