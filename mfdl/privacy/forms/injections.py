"""X_u of one who sees every injected sum (gradient plus noise), as an upper bound on all that anybody sees.

Where noise enters exactly where gradients do, messages and models are functions of the injected sums and of public
start models, so by data processing nobody who knows no more gradients and noise learns more. And every gradient is
taken at a function of earlier sums, so the bound holds for gradients chosen adaptively.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Self

from ...view import AlgorithmView, View
from ._base import ViewForm, ViewGram
from .dense import Dense
from .separable import Separable

INJECTIONS = "injections seen"


class Injections(ViewForm):
    """The bound, for any messages and models of an algorithm whose noise enters where its gradients do."""

    def __init__(self, form: Separable | Dense) -> None:
        self.form = form

    @classmethod
    def of(cls, view: View) -> Self | None:
        if not isinstance(view, AlgorithmView) or not view.algorithm.noise_enters_with_gradients:
            return None
        noise, masks = view.algorithm.noise, view.knowledge
        form = Separable.of_noise(noise, masks.known_noise) or Dense.of_injections(view.algorithm, masks)
        return None if form is None else cls(form)

    def cost(self, victims: Sequence[int]) -> float:
        return self.form.cost(victims)

    def grams(self, victims: Sequence[int]) -> list[ViewGram | None]:
        found = self.form.grams(victims)
        return [None if gram is None else dataclasses.replace(gram, upper=True, form=INJECTIONS) for gram in found]
