"""The evaluated steps of runs: what each node measured at each of them, in one file of the format of `archive`.

In: arrays over steps and nodes, and the conditions of the run. Out: files, means over nodes, data frames.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import archive, errors
from ..errors import InvalidInput
from ..storable import storable
from .columns import STEP, names

if TYPE_CHECKING:
    import pandas

KIND = "steps"
CONDITIONS = tuple(name for name in names("steps") if name not in names("steps", level=STEP))
"""What is the same at all steps of a run: the columns of which each run has a single value."""


@storable
@dataclasses.dataclass(frozen=True, eq=False)
class RunSteps:
    """The evaluated steps of one run of one seed.

    Attributes:
        conditions: mechanism, seed, privacy budget and more, by name (`CONDITIONS`).
        steps: the number of finished steps at each evaluation, shape (E,).
        nodes: their labels, as text.
        values: loss, accuracy of a classification, and the requested metrics, by name: of each node, shape (E, n); of
            the average model, (E,).

    Raises: InvalidInput: arrays of other shapes.
    """

    conditions: Mapping[str, Any]
    steps: NDArray[np.int64]
    nodes: tuple[str, ...]
    values: Mapping[str, NDArray[np.float64]]

    def __post_init__(self) -> None:
        shapes = [(len(self.steps), len(self.nodes)), (len(self.steps),)]
        for name, values in self.values.items():
            if values.shape not in shapes:
                raise InvalidInput(f"{name} must have shape {shapes[0]} or {shapes[1]}, got {values.shape}.")

    def __len__(self) -> int:
        """The number of rows in long format: evaluated steps times nodes."""
        return len(self.steps) * len(self.nodes)

    def has_columns(self, metrics: Iterable[str]) -> bool:
        """Whether it has the conditions that this version records, and these metrics."""
        return set(self.conditions) == set(CONDITIONS) and set(self.values) - {"accuracy"} == {"loss", *metrics}

    def mean_over_nodes(self, metric: str = "loss") -> NDArray[np.float64]:
        """The mean of a metric at each evaluated step, shape (E,); NaN if it was not measured."""
        values = self._values(metric)
        return values if values.ndim == 1 else values.mean(axis=1)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Long format: a row for each evaluated step and node, the columns by name; what is missing is NaN."""
        steps, nodes = len(self.steps), len(self.nodes)
        each_step = {"step": np.repeat(self.steps, nodes), "node": np.tile(np.array(self.nodes, dtype=np.str_), steps)}
        for name in dict.fromkeys(["loss", "accuracy", *sorted(self.values)]):
            values = self._values(name)
            each_step[name] = values.ravel() if values.ndim == 2 else np.repeat(values, nodes)
        same = {name: np.nan if value is None else value for name, value in self.conditions.items()}
        order = dict.fromkeys([*names("steps"), *each_step])
        return {name: each_step[name] if name in each_step else np.full(len(self), same[name]) for name in order}

    def to_pandas(self) -> pandas.DataFrame:
        """`columns` as a data frame; `pandas.concat` puts runs together.

        Raises: MissingExtra: pandas is not installed.
        """
        installed = errors.imported("pandas", "a data frame", "take columns(), which gives arrays")
        frame: pandas.DataFrame = installed.DataFrame(self.columns())
        return frame

    def _values(self, metric: str) -> NDArray[np.float64]:
        missing = np.full(len(self.steps), np.nan)
        return self.values.get(metric, missing)


def save_steps(path: str | os.PathLike[str], runs: Iterable[RunSteps]) -> Path:
    """Writes the steps of runs, atomically; the same bytes for the same runs.

    Raises: InvalidInput: the path cannot be written.
    """
    return archive.write(path, KIND, {"runs": list(runs)})


def load_steps(path: str | os.PathLike[str]) -> list[RunSteps]:
    """The steps of runs from `steps.mfdl` of a comparison, or from a cell's file of a sweep.

    Raises: InvalidInput: no such file, or a damaged one.
    """
    content = archive.read(path, KIND)
    with archive.refusing(path, KIND):
        return list(content["runs"])
