"""X_u of one who sees every injected sum (gradient plus noise), as an upper bound on all that anybody sees.

Where noise enters exactly where gradients do, messages and models are functions of the injected sums and of public
start models, so by data processing nobody who knows no more gradients and noise learns more. And every gradient is
taken at a function of earlier sums, so the bound holds for gradients chosen adaptively. Gradients that enter nothing,
those of nodes that are away, may be taken for zero: their rows and columns of X are left out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ...view import AlgorithmView, View
from ..structure import gradients_enter
from ._base import ViewForm, ViewGram
from .dense import DenseForm
from .separable import Separable

INJECTIONS = "injections seen"


class Injections(ViewForm):
    """The bound, for any messages and models of an algorithm whose noise enters where its gradients do."""

    def __init__(self, form: Separable | DenseForm, enters: NDArray[np.bool_]) -> None:
        self.form, self.enters = form, enters  # (T, n)

    @classmethod
    def of(cls, view: View) -> Self | None:
        if not isinstance(view, AlgorithmView) or not view.algorithm.noise_enters_with_gradients:
            return None
        noise, masks = view.algorithm.noise, view.knowledge
        form = Separable.of_noise(noise, masks.known_noise) or DenseForm.of_injections(view.algorithm, masks)
        return None if form is None else cls(form, gradients_enter(view.algorithm))

    def cost(self, victims: Sequence[int]) -> float:
        return self.form.cost(victims)

    def grams(self, victims: Sequence[int]) -> list[ViewGram | None]:
        found = self.form.grams(victims)
        return [
            None if gram is None else self._bound(gram, self.enters[:, u])
            for u, gram in zip(victims, found, strict=True)
        ]

    @staticmethod
    def _bound(gram: ViewGram, enters: NDArray[np.bool_]) -> ViewGram:
        """X where the gradients of steps that enter nothing are zero."""
        bound = dataclasses.replace(gram, upper=True, form=INJECTIONS)
        if enters.all() or math.isinf(gram.inflation):
            return bound
        values, errors, both = gram.values, gram.errors, enters
        if not gram.is_diagonal:
            values, errors, both = gram.matrix, gram.entry_error, np.outer(enters, enters)
        leaks = gram.leaks & enters
        return dataclasses.replace(bound, values=values * both, errors=errors * both, leaks=leaks, structured=None)
