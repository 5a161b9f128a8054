"""The models at which gradients are taken, and when rows are seen: what a view needs to be proven adaptive.

In: matrices beside A and B of a bare view. Out: checked rows over gradients and base noise. The condition itself is in
`privacy.adaptive`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from . import check
from .entries import exact_entries
from .errors import InvalidInput
from .operators.structured import TimeNodeAxis


@dataclasses.dataclass(frozen=True, eq=False)
class GivenModels:
    """Models as they were given.

    Attributes:
        rows: [M_G M_Z], row t n + u the model at which node u takes its gradient of step t, shape (T n, T n + m); of
            floats or Fractions.
        row_steps: for each row of the view the step after whose gradients it is seen, shape (rows,).
    """

    rows: NDArray[Any]
    row_steps: NDArray[np.intp]

    @classmethod
    def of(
        cls, models: tuple[Any, Any], row_steps: ArrayLike | None, A: Any, num_noises: int, axis: TimeNodeAxis
    ) -> GivenModels:
        """Checked against A, entries of the view.

        Raises: InvalidInput: shapes that do not fit, a model that holds a gradient of its own step or a later one, no
            row_steps, or a row that would be seen before the last gradient in it is taken.
        """
        if A is None:
            raise InvalidInput("models can be given with A and B as arrays or sparse matrices, not as operators.")
        pair = check.listed("two matrices, of gradients and of noise", models=models)
        if len(pair) != 2:
            raise InvalidInput(f"models must be two matrices, of gradients and of noise, got {len(pair)}.")
        parts = [_dense(name, part) for name, part in zip(("models[0]", "models[1]"), pair, strict=True)]
        shapes = (axis.size, axis.size), (axis.size, num_noises)
        for number, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
            if part.shape != shape:
                raise InvalidInput(f"models[{number}] must have shape {shape}, got {part.shape}.")
        steps = np.arange(axis.size) // axis.num_nodes
        if ((parts[0] != 0) & (steps >= steps[:, None])).any():
            raise InvalidInput(
                "models[0] must hold gradients of earlier steps alone, in rows of time-major order: row t n + u is the "
                "model at which node u takes its gradient of step t."
            )
        return cls(np.hstack(parts), _row_steps(row_steps, A, axis))


def _row_steps(row_steps: ArrayLike | None, A: Any, axis: TimeNodeAxis) -> NDArray[np.intp]:
    if row_steps is None:
        raise InvalidInput(
            f"row_steps must say beside models for each of the {A.shape[0]} rows after which step's gradients it is "
            f"seen; rows seen at the end count as {axis.num_steps - 1}."
        )
    steps = check.as_array(row_steps=row_steps)
    if (
        steps.dtype.kind not in "iu"
        or steps.shape != (A.shape[0],)
        or (steps < 0).any()
        or (steps >= axis.num_steps).any()
    ):
        raise InvalidInput(
            f"row_steps must be {A.shape[0]} steps below {axis.num_steps}, one for each row, got "
            f"{check.brief(row_steps)} of shape {steps.shape}."
        )
    has_gradient = (A.toarray() if sp.issparse(A) else A) != 0
    last = np.where(has_gradient.any(axis=1), axis.size - 1 - has_gradient[:, ::-1].argmax(axis=1), 0) // axis.num_nodes
    if (late := np.flatnonzero(last > steps)).size:
        row = int(late[0])
        raise InvalidInput(
            f"row_steps must not be before the last gradient in a row is taken, got step {int(steps[row])} for row "
            f"{row}, which holds a gradient of step {int(last[row])}."
        )
    return np.asarray(steps, dtype=np.intp)


def _dense(name: str, given: Any) -> NDArray[Any]:
    entries = exact_entries(name, given)
    dense: NDArray[Any] = entries.toarray() if sp.issparse(entries) else entries
    return dense
