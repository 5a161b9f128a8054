"""Scenes (task, graph, partition) and rows (a design of the run, its public geometry) of the comparison."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mfdl.planning import Design
from mfdl.runs.experiment import Experiment

DELTA = 1e-5
ADJACENCY = "zero-out"
PUBLIC, SECRET = "public", "secret"
MEASURES = {"last": "last_test_loss", "released": "final_test_loss"}
"""Which model is evaluated, and its key in a record: one run gives both."""
PRECONDITION = {"logistic": "power:0.5"}
"""Of each task whose features have a spectrum that is public: rows that need one are left out elsewhere."""
BATCHES = "b=16,k=10,average:48"
"""Ten epochs of 16 steps and the mean of the last 30 % of the models, as the published comparisons train."""
FULL, LONG = "b=1,k=160,average:80", "b=1,k=640,average:320"
"""Full batches in as many steps, and four times as many; the mean of the last half."""


@dataclass(frozen=True)
class Row:
    """One design.

    Attributes:
        design: as `mfdl.planning.Design.parse` reads it.
        measures: which of its models are tuned and tested.
        rankings: trust models whose table it stands in; the first is the one it is held to. "coalitions:2" is
            coalitions of two nodes.
        preconditioned: with the public preconditioner of the task; clip_norm: of the gradient of one record.
        options: of the run, beside those of its design.
        rates: that tuning starts with; none: those of the plan.
        rate_of: label of the row whose rate it takes, instead of tuning.
        few_nodes: only on graphs of `FEW_NODES`, or only on others; None: on all.
    """

    label: str
    design: str
    measures: tuple[str, ...] = ("released",)
    rankings: tuple[str, ...] = ("ldp", "eavesdropper")
    preconditioned: bool = False
    clip_norm: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    rates: tuple[float, ...] = ()
    rate_of: str = ""
    few_nodes: bool | None = None

    @property
    def trust(self) -> dict[str, Any]:
        """The options of its trust model."""
        name, _, size = self.rankings[0].partition(":")
        return {"trust": name, "coalition_size": int(size)} if size else {"trust": name}

    @property
    def batches(self) -> str:
        """Whether an attacker knows which steps a record joins."""
        return SECRET if Design.parse(self.design).has_bins else PUBLIC


BOTH, OUTSIDE = tuple(MEASURES), ("eavesdropper",)
NO_NOISE, INDEPENDENT, REFERENCE = "no noise", "DP-D-SGD", "MAFALDA"
SECRET_INDEPENDENT, SECRET_BINS = "DP-D-SGD with balls-in-bins", "encoder for balls-in-bins"
SECRET_AVERAGE = "encoder for balls-in-bins and the average"
NO_NOISE_FULL = "no noise; full batches; 5 rounds"
FULL_BATCHES, SEVERAL_ROUNDS = "full batches", "full batches; 5 rounds"
GEOMETRY, MIXED = (f"full batches; {rounds} rounds; preconditioned" for rounds in (5, 20))
MANY_ROUNDS = "full batches; 20 rounds"
ROUNDS = {FULL_BATCHES: FULL, SEVERAL_ROUNDS: f"{FULL},rounds=5", MANY_ROUNDS: f"{FULL},rounds=20"}
SEEDS_PUBLIC, SEEDS_BINS = "DECOR; public batches; coalitions of 1", "DECOR with balls-in-bins; coalitions of 1"
FEW_NODES, FEW = "n=25", "b=1,k=4,rounds=4"
"""A graph and steps that are few enough for coalitions of three, and for noise on every message."""
FEW_STEPS, MESSAGES = "DP-D-SGD; 4 full batches; 4 rounds", "trust-optimal; 4 full batches; 4 rounds"
ROWS = {
    row.label: row
    for row in (
        Row(NO_NOISE, f"none,{BATCHES}", BOTH),
        Row(NO_NOISE_FULL, f"none,{FULL},rounds=5"),
        Row(f"{NO_NOISE_FULL}; preconditioned", f"none,{FULL},rounds=5", preconditioned=True),
        Row(INDEPENDENT, f"dp-dsgd,{BATCHES}", BOTH),
        Row(REFERENCE, f"mafalda,{BATCHES}", BOTH),
        Row("MAFALDA; preconditioned", f"mafalda,{BATCHES}", preconditioned=True),
        Row("banded", f"banded,{BATCHES}", BOTH),
        Row(SECRET_INDEPENDENT, f"dp-dsgd,bins,{BATCHES}"),
        Row("DP-D-SGD with balls-in-bins; preconditioned", f"dp-dsgd,bins,{BATCHES}", preconditioned=True),
        Row(SECRET_BINS, f"mafalda-bins,bins,{BATCHES}", BOTH),
        Row(SECRET_AVERAGE, f"mafalda-bins@released,bins,{BATCHES}", BOTH),
        Row(FULL_BATCHES, f"dp-dsgd,{FULL}"),
        Row(SEVERAL_ROUNDS, f"dp-dsgd,{FULL},rounds=5"),
        Row("full batches; 20 rounds", f"dp-dsgd,{FULL},rounds=20"),
        Row("full batches; 5 rounds; clipped at 0.5", f"dp-dsgd,{FULL},rounds=5", clip_norm=0.5),
        Row("full batches; 5 rounds; clipped at 4", f"dp-dsgd,{FULL},rounds=5", clip_norm=4.0),
        Row("full batches; 20 rounds; clipped at 0.5", f"dp-dsgd,{FULL},rounds=20", clip_norm=0.5),
        Row("full batches; 20 rounds; clipped at 4", f"dp-dsgd,{FULL},rounds=20", clip_norm=4.0),
        Row("640 full batches; 5 rounds", f"dp-dsgd,{LONG},rounds=5"),
        Row(GEOMETRY, f"dp-dsgd,{FULL},rounds=5", preconditioned=True),
        Row(MIXED, f"dp-dsgd,{FULL},rounds=20", preconditioned=True),
        Row(f"{GEOMETRY}; clipped at 0.5", f"dp-dsgd,{FULL},rounds=5", preconditioned=True, clip_norm=0.5),
        Row(f"{MIXED}; clipped at 0.5", f"dp-dsgd,{FULL},rounds=20", preconditioned=True, clip_norm=0.5),
        Row("640 full batches; 5 rounds; preconditioned", f"dp-dsgd,{LONG},rounds=5", preconditioned=True),
        Row("CorN", f"corn,{BATCHES}", BOTH, OUTSIDE),
        Row("DECOR", f"decor,{BATCHES}", BOTH, OUTSIDE),
        Row("kronecker", f"kronecker,{BATCHES}", BOTH, OUTSIDE),
        Row("CorN with balls-in-bins", f"corn@released,bins,{BATCHES}", BOTH, OUTSIDE),
        Row("kronecker with balls-in-bins", f"kronecker-bins,bins,{BATCHES}", BOTH, OUTSIDE),
        *(Row(f"CorN; {name}", f"corn,{design}", rankings=OUTSIDE) for name, design in ROUNDS.items()),
        Row(SEEDS_BINS, f"decor,bins,{BATCHES}", rankings=("coalitions:1",), rate_of="CorN with balls-in-bins"),
        Row(SEEDS_PUBLIC, f"decor,{BATCHES}", rankings=("coalitions:1",), rate_of="CorN"),
        *(
            Row(
                f"DECOR; {name}; coalitions of 1",
                f"decor,{design}",
                rankings=("coalitions:1",),
                rate_of=f"CorN; {name}",
            )
            for name, design in ROUNDS.items()
        ),
        *(
            Row(
                f"DECOR; {MANY_ROUNDS}; coalitions of {q}",
                f"decor,{ROUNDS[MANY_ROUNDS]}",
                rankings=(f"coalitions:{q}",),
                rate_of=f"CorN; {MANY_ROUNDS}",
                few_nodes=True,
            )
            for q in (2, 3)
        ),
        Row("CDP; public batches", f"cdp,{BATCHES}", rankings=("central",)),
        Row("CDP; full batches", f"cdp,{FULL}", rankings=("central",)),
        Row(FEW_STEPS, f"dp-dsgd,{FEW}", rankings=("pndp",), few_nodes=True),
        Row(MESSAGES, f"trust-optimal,{FEW}", rankings=("pndp",), rate_of=FEW_STEPS, few_nodes=True),
    )
}


def _of_table(label: str, *, few: bool | None = None, low: bool = False, last: bool = False) -> Row:
    """A row as the table of all trust models has it: one of its models, rates near those that others had."""
    row = ROWS[label]
    measures = row.measures if label == NO_NOISE else ("last",) if last else ("released",)
    rates = () if row.rate_of else LOW_RATES if low else HIGH_RATES
    return dataclasses.replace(row, measures=measures, rates=rates, few_nodes=row.few_nodes if few is None else few)


LOW_RATES, HIGH_RATES = (0.0464, 0.1, 0.215, 0.464), (0.215, 0.464, 1.0, 2.15, 4.64)
TRUST_ROWS = (
    *(_of_table(label) for label in (NO_NOISE, NO_NOISE_FULL, MANY_ROUNDS, f"CorN; {MANY_ROUNDS}")),
    *(_of_table(label, low=True, last=True) for label in (INDEPENDENT, REFERENCE)),
    *(_of_table(f"DECOR; {MANY_ROUNDS}; coalitions of {q}") for q in (1, 2, 3)),
    *(_of_table(label) for label in (FEW_STEPS, MESSAGES)),
    *(_of_table(label, few=False, low=True) for label in (SECRET_INDEPENDENT, "CorN", "CorN with balls-in-bins")),
    *(_of_table(label, few=False) for label in (FULL_BATCHES, SEVERAL_ROUNDS)),
    *(_of_table(f"CorN; {name}", few=False) for name in (FULL_BATCHES, SEVERAL_ROUNDS)),
    *(_of_table(f"DECOR; {name}; coalitions of 1", few=False) for name in (FULL_BATCHES, SEVERAL_ROUNDS)),
    *(_of_table(label, few=False) for label in (SEEDS_BINS, SEEDS_PUBLIC, "CDP; public batches", "CDP; full batches")),
)
"""The table of all trust models, with the rows that it is measured against."""


@dataclass(frozen=True)
class Scene:
    """Where rows are compared.

    Attributes: partition: None: that of the task; epsilons: tried in this order until noise costs enough; short: six
        steps a run, for a check.
    """

    name: str
    task: str
    graph: str
    partition: str | None = "uniform"
    epsilons: tuple[float, ...] = (0.726, 0.331)
    short: bool = False

    def design(self, row: Row) -> Design:
        """Of a row here."""
        design = Design.parse(row.design)
        if not self.short:
            return design
        few = {"batches": min(design.batches, 3), "epochs": 2 if design.batches > 1 else 6}
        mechanism = row.design.partition(",")[0]  # whose weights are those of the released model again
        return dataclasses.replace(design, **few, mechanism=mechanism, release_model="average:2")

    def has(self, row: Row) -> bool:
        """Whether the row can be run: its preconditioner is public, and the graph small enough."""
        of_size = self.short or row.few_nodes in (None, self.graph.endswith(FEW_NODES))
        return of_size and (not row.preconditioned or self.task in PRECONDITION)

    def config(self, row: Row, epsilon: float, rate: float, seed: int, device: str | None = None) -> Experiment:
        """One run, evaluated once, at its end."""
        design = self.design(row)
        return Experiment(
            **design.options(),
            **row.options,
            **row.trust,
            graph=self.graph,
            task=self.task,
            partition=self.partition,
            precondition=PRECONDITION[self.task] if row.preconditioned else None,
            eval_every=design.num_steps,
            adjacency=ADJACENCY,
            clip_norm=row.clip_norm,
            epsilon=epsilon,
            delta=DELTA,
            learning_rate=rate,
            seeds=1,
            first_seed=seed,
            device=device,
        )


GRAPHS = {
    "ego": "ego-facebook",
    "er": "erdos-renyi:n=100,p=0.1,seed=0",
    "torus": "torus:n=100",
    "torus25": "torus:n=25",
}
TASKS = ("housing-linear", "logistic", "a9a", "housing-mlp", "mnist")
SKEWED = "dirichlet:alpha=1,min_records=16"
QUICK = Scene("quick", "digits", "ring:n=4", short=True)


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
