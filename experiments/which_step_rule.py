"""Step rules, clip rules and encoders with curvature, at one guarantee: test loss at the best rate, on fresh seeds.

    python experiments/which_step_rule.py [--out DIR] [--scenes logistic/mafalda,...] [--rows plain,...] [--report]

The protocol of which_mechanism.py with other rows and fewer seeds: LDP, zero-out, delta = 1e-5, epsilon = 0.726 (a9a:
0.331), a torus of 100 nodes, each task's own partition. A scene is TASK/DESIGN or TASK/DESIGN/GRAPH; on graphs other
than the torus (er, ego) only clip rules are compared. Designs: `full`, DP-D-SGD with full batches and five gossip
rounds a step, mean of the last 80 models; `mafalda`, 10 epochs of 16 batches, mean of the last 48. Each row has a grid
of three rates, extended by a factor of 2.15 while the best is at its end, at most three times; the rate with the least
mean loss on seeds 10000 and 10001 is tested once on seeds 500 to 504. Out: one line a row, with the mean and standard
deviation over seeds, and the share of the gap from MAFALDA's last model (10 epochs of 16, its own best rate) to no
noise. Every run is a cell in OUT: the same command resumes.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from _paired_statistics import log_ratio, over_scenes, share
from _protocol import Plan, Trial
from _scenes import BATCHES, FULL, GRAPHS, NO_NOISE, QUICK, Row, Scene

from mfdl.runs import Engine, Store, Tuning

PLAN = Plan(
    tuning=Tuning(seeds=2, first_seed=10_000, first_round=2), seeds=(500, 501, 502, 503, 504), extensions=3
)  # rates are those of the rows
DESIGNS = {"full": ("dp-dsgd", f"{FULL},rounds=5"), "mafalda": ("mafalda", BATCHES)}
"""Mechanism and batches."""
TASKS = {"logistic": 0.726, "housing-linear": 0.726, "a9a": 0.331, "housing-mlp": 0.726}
"""Tasks and their epsilon."""
SPECTRUM = "power:1:20:0.2"


@dataclass(frozen=True)
class Rule:
    """A row in one design or both.

    Attributes: rates: by design; mechanism: in place of the design's; options: of the run, beside those of its design;
        tasks: on which it is tried; measure: which model is tested; clip_norm: of the gradient of one record; graphs:
        on which it is tried.
    """

    label: str
    rates: Mapping[str, tuple[float, ...]]
    options: Mapping[str, Any] = field(default_factory=dict)
    tasks: tuple[str, ...] = ("logistic", "housing-linear")
    mechanism: str = ""
    measure: str = "released"
    preconditioned: bool = False
    clip_norm: float = 1.0
    graphs: tuple[str, ...] = ("torus",)

    def row(self, design: str) -> Row:
        """The row of the protocol."""
        mechanism, batches = DESIGNS[design]
        name, given = f"{self.mechanism or mechanism},{batches}", self.options
        more = {"preconditioned": self.preconditioned, "clip_norm": self.clip_norm, "rates": self.rates[design]}
        return Row(self.label, name, (self.measure,), options=given, **more)


LOW, MIDDLE, HIGH = (0.0215, 0.0464, 0.1), (0.215, 0.464, 1.0), (0.464, 1.0, 2.15)
BELOW = (0.0464, 0.1, 0.215)
WEIGHTS = "mafalda@released/on-the-way=1"
CLIP_NORMS = {0.25: HIGH, 0.5: HIGH, 4.0: BELOW}
"""Norms of the flat rule beside 1, which `plain` has, and their rates."""
CLIP_RULES = {f"automatic:{gamma}": rates for gamma, rates in zip((0.01, 0.1, 1.0), (BELOW, MIDDLE, HIGH), strict=True)}
CLIP_RULES |= {f"quantile:{share_below}:0.2": MIDDLE for share_below in (0.5, 0.7, 0.9)}
EVERYWHERE = (0.5, 4.0, "automatic:0.01", "quantile:0.7:0.2")
"""Norms and rules that are tried on all tasks and graphs."""
ALL, BOTH, LOGISTIC = ("logistic", "housing-linear", "a9a"), ("logistic", "housing-linear"), ("logistic",)
CLIPPED = (*BOTH, "housing-mlp")
LAST_MODEL = "last model"
ENDS = (NO_NOISE, LAST_MODEL)
"""Rows, in the design `mafalda`, between which shares are taken."""


def scenes(choice: float | str) -> dict[str, tuple[str, ...]]:
    """Tasks and graphs on which a clipping norm or rule is tried."""
    return {"tasks": tuple(TASKS), "graphs": tuple(GRAPHS)} if choice in EVERYWHERE else {"tasks": CLIPPED}


RULES = (
    Rule(NO_NOISE, {"mafalda": HIGH}, tasks=tuple(TASKS), mechanism="none", graphs=tuple(GRAPHS)),
    Rule(LAST_MODEL, {"mafalda": BELOW}, tasks=tuple(TASKS), measure="last", graphs=tuple(GRAPHS)),
    Rule("plain", {"full": HIGH, "mafalda": MIDDLE}, tasks=tuple(TASKS), graphs=tuple(GRAPHS)),
    *(Rule(f"clipped at {C:g}", {"full": rates}, **scenes(C), clip_norm=C) for C, rates in CLIP_NORMS.items()),
    *(Rule(text, {"full": rates}, {"clipping": text}, **scenes(text)) for text, rates in CLIP_RULES.items()),
    *(
        Rule(f"layers at {C:g}", {"full": HIGH}, {"clipping": "layers"}, ("housing-mlp",), clip_norm=C)
        for C in (0.5, 1.0)
    ),
    Rule("nesterov:0.9", {"full": LOW, "mafalda": LOW}, {"step_rule": "nesterov:0.9"}, ALL),
    Rule("messages:0.25:0.8", {"full": MIDDLE, "mafalda": BELOW}, {"step_rule": "messages:0.25:0.8"}, ALL),
    Rule("rms:0.25:0.9", {"full": MIDDLE, "mafalda": (0.1, 0.215, 0.464)}, {"step_rule": "rms:0.25:0.9"}, BOTH),
    Rule("normalised", {"full": (2.15, 4.64, 10.0)}, {"step_rule": "normalised"}, LOGISTIC),
    Rule("momentum 0.9", {"full": LOW, "mafalda": LOW}, {"momentum": 0.9}, LOGISTIC),
    Rule("inverse-time:40", {"full": (1.0, 2.15, 4.64)}, {"lr_schedule": "inverse-time:40"}, LOGISTIC),
    Rule("power:0.5", dict.fromkeys(DESIGNS, (0.1, 0.215, 0.464)), tasks=LOGISTIC, preconditioned=True),
    Rule("curvature", {"mafalda": MIDDLE}, {"curvature": SPECTRUM}, BOTH),
    Rule("released", {"mafalda": MIDDLE}, tasks=BOTH, mechanism=WEIGHTS),
    Rule("released, curvature", {"mafalda": MIDDLE}, tasks=BOTH, mechanism=f"{WEIGHTS}/curvature={SPECTRUM}"),
)


def rows(task: str, design: str, graph: str = "torus") -> dict[str, Row]:
    """Of a scene, by label: the two ends first, which are of the design `mafalda` everywhere."""
    designs = {rule.label: "mafalda" if rule.label in ENDS else design for rule in RULES}
    return {
        rule.label: rule.row(designs[rule.label])
        for rule in RULES
        if task in rule.tasks and graph in rule.graphs and designs[rule.label] in rule.rates
    }


def trial(
    task: str, design: str, out: Path, graph: str = "torus", *, quick: bool = False, report: bool = False
) -> Trial:
    """A scene; its runs are stored in out/TASK, or out/TASK-GRAPH.

    Args: quick: a ring of four nodes and a few steps, to see that everything works; report: nothing is run.
    """
    name, folder = (task, task) if graph == "torus" else (f"{task}/{graph}", f"{task}-{graph}")
    edges = QUICK.graph if quick else GRAPHS[graph]
    scene = Scene(name, task, edges, partition=None, epsilons=(TASKS[task],), short=quick)
    plan = dataclasses.replace(PLAN, extensions=0) if quick else PLAN
    engine = None if report else Engine()
    return Trial(scene, TASKS[task], Store(out / folder), engine, plan, rows(task, design, graph))


def compared(comparison: Trial, design: str, only: Sequence[str] = ()) -> None:
    """Prints one line for each row of a scene, or for those of `only` and the two ends."""
    task = comparison.scene.name
    labels = [label for label in comparison.rows if not only or label in (*ENDS, *only)]
    comparison.choose(labels)
    comparison.test(labels)
    tested = {
        label: comparison.losses(label, measure, rate, comparison.plan.seeds)
        for (label, measure), rate in comparison.chosen.items()
    }
    losses = {label: np.where(np.isnan(values), np.inf, values) for label, values in tested.items()}  # diverged
    for (label, _), rate in comparison.chosen.items():
        print(line(task, "mafalda" if label in ENDS else design, label, rate, losses), flush=True)
    for without, with_curvature in (("plain", "curvature"), ("released", "released, curvature")):
        if {without, with_curvature} <= losses.keys():
            pair = {"loss": losses[with_curvature], "reference": losses[without]}
            if np.isfinite([*pair.values()]).all():
                ratio = over_scenes(log_ratio, [pair])
                interval = f"[{ratio.low:.4f}, {ratio.high:.4f}]"
                print(f"{task}: log({with_curvature} / {without}) {ratio.middle:.4f} {interval}", flush=True)


def line(task: str, design: str, label: str, rate: float, losses: Mapping[str, np.ndarray]) -> str:
    """One row of the table. Args: losses: of the test, by label."""
    loss, ends = losses[label], {"none": losses[NO_NOISE], "reference": losses[LAST_MODEL]}
    gap = over_scenes(share, [{"loss": loss, **ends}])
    shares = f"{gap.middle:.0%} [{gap.low:.0%}, {gap.high:.0%}]"
    return f"| {task} | {design} | {label} | {rate:g} | {loss.mean():.4f} +- {loss.std(ddof=1):.4f} | {shares} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/step_rules"))
    parser.add_argument("--scenes", default=",".join(f"{task}/{design}" for task in TASKS for design in DESIGNS))
    parser.add_argument("--rows", default="", help="labels of the rows that are run; default all")
    parser.add_argument("--report", action="store_true", help="print what is there, run nothing")
    parser.add_argument("--quick", action="store_true", help="a ring of four nodes, a check that everything works")
    options = parser.parse_args(arguments)
    print("| task | design | row | rate | test loss | share of the gap |\n| --- | --- | --- | --- | --- | --- |")
    for scene in options.scenes.split(","):
        task, design, graph = [*scene.split("/"), "torus"][: max(3, scene.count("/") + 1)]
        if task not in TASKS or design not in DESIGNS or graph not in GRAPHS:
            known = "; ".join(", ".join(names) for names in (TASKS, DESIGNS, GRAPHS))
            parser.error(f"no scene {scene!r}: TASK/DESIGN or TASK/DESIGN/GRAPH, of {known}.")
        comparison = trial(task, design, options.out, graph, quick=options.quick, report=options.report)
        compared(comparison, design, [label for label in options.rows.split(",") if label])
    return 0


if __name__ == "__main__":
    os.environ.setdefault("MFDL_PROGRESS", "0")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
