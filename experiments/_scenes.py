"""Scenes (task, graph, partition) and rows (a mechanism, its batches) of the comparison, as cells of a sweep."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from mfdl.runs.comparison_config import ComparisonConfig

EPOCHS, PERIOD, AVERAGE = 10, 16, 48
DELTA = 1e-5
CLIP_NORM, ADJACENCY = 1.0, "zero-out"
PUBLIC, SECRET = "public", "secret"
MEASURES = {"last": "last_test_loss", "released": "final_test_loss"}
"""Which model is evaluated, and its key in a record: one run gives both."""


@dataclass(frozen=True)
class Row:
    """One mechanism, with public batches or balls-in-bins.

    Attributes:
        mechanism: its name, with the models that it is made for where these are not all.
        rankings: trust models whose table it stands in; the first is the one it is held to.
    """

    label: str
    mechanism: str
    batches: str = PUBLIC
    rankings: tuple[str, ...] = ("ldp", "eavesdropper")


NO_NOISE, INDEPENDENT, REFERENCE = "no noise", "DP-D-SGD", "MAFALDA"
SECRET_INDEPENDENT, SECRET_BINS = "DP-D-SGD with balls-in-bins", "encoder for balls-in-bins"
SECRET_AVERAGE = "encoder for balls-in-bins and the average"
ROWS = {
    row.label: row
    for row in (
        Row(NO_NOISE, "none"),
        Row(INDEPENDENT, "dp-dsgd"),
        Row(REFERENCE, "mafalda"),
        Row("banded", "banded"),
        Row(SECRET_INDEPENDENT, "dp-dsgd", SECRET),
        Row(SECRET_BINS, "mafalda-bins", SECRET),
        Row(SECRET_AVERAGE, "mafalda-bins@released", SECRET),
        Row("CorN", "corn", rankings=("eavesdropper",)),
        Row("DECOR", "decor", rankings=("eavesdropper",)),
        Row("time x space", "kronecker", rankings=("eavesdropper",)),
        Row("CorN with balls-in-bins", "corn@released", SECRET, rankings=("eavesdropper",)),
        Row("time x space with balls-in-bins", "kronecker-bins", SECRET, rankings=("eavesdropper",)),
    )
}


@dataclass(frozen=True)
class Scene:
    """Where rows are compared.

    Attributes: epsilons: tried in this order until noise costs enough.
    """

    name: str
    task: str
    graph: str
    partition: str = "uniform"
    epsilons: tuple[float, ...] = (0.726, 0.331)
    epochs: int = EPOCHS
    period: int = PERIOD
    average: int = AVERAGE

    def config(self, row: Row, epsilon: float, rate: float, seed: int) -> ComparisonConfig:
        """One run, evaluated once, at its end."""
        shared: dict[str, Any] = {"epochs": self.epochs, "period": self.period, "graph": self.graph, "task": self.task}
        shared |= {"eval_every": self.epochs * self.period, "release_model": f"average:{self.average}"}
        if row.batches == SECRET:
            shared["participation"] = "balls-in-bins"
        shared |= {"adjacency": ADJACENCY, "clip_norm": CLIP_NORM, "delta": DELTA, "partition": self.partition}
        return ComparisonConfig(
            **shared,
            mechanisms=(row.mechanism,),
            epsilon=epsilon,
            trust=row.rankings[0],
            learning_rate=rate,
            seeds=1,
            first_seed=seed,
        )


GRAPHS = {"ego": "ego-facebook", "er": "erdos-renyi:n=100,p=0.1,seed=0", "torus": "torus:n=100"}
TASKS = ("housing-linear", "logistic", "a9a", "housing-mlp", "mnist")
SKEWED = f"dirichlet:alpha=1,min_records={PERIOD}"
QUICK = Scene("quick", "digits", "ring:n=4", epochs=2, period=3, average=2)


def scene(name: str) -> Scene:
    """The scene of a name TASK/GRAPH, with "/dirichlet" for a skewed partition, with "/epsilon=E" for one budget.

    >>> scene("logistic/torus/dirichlet").partition
    'dirichlet:alpha=1,min_records=16'
    """
    if name == QUICK.name:
        return QUICK
    task, graph, *more = [*name.split("/"), ""][: max(2, name.count("/") + 1)]
    if task not in TASKS or graph not in GRAPHS:
        raise ValueError(f"no scene {name!r}: TASK/GRAPH with tasks {', '.join(TASKS)} and graphs {', '.join(GRAPHS)}.")
    options: dict[str, Any] = {}
    for text in more:
        if text == "dirichlet":
            options["partition"] = SKEWED
        elif match := re.fullmatch(r"epsilon=([0-9.]+)", text):
            options["epsilons"] = (float(match[1]),)
        else:
            raise ValueError(f"scene {name!r}: cannot read {text!r}; after TASK/GRAPH come dirichlet and epsilon=E.")
    return Scene(name, task, GRAPHS[graph], **options)
