"""Does noise that is optimal for a trust model train better? Test loss at one guarantee, rates tuned alike, paired.

The protocol, fixed before any run of the test:

- Trust model: `pndp`, any one other node attacks from the messages that it receives, adaptive gradients; every number
  is the library's for the mechanism under it. Zero-out adjacency, delta = 1e-5, clipping at 1.
- Scenes, TASK/GRAPH/DESIGN: logistic data of known spectrum, and California housing with a linear model (Huber's loss);
  a ring, a torus (4 x 4) and an Erdos-Renyi graph (p = 0.3) of 16 nodes, the 15 of Florentine; four steps with four
  gossip rounds each: `full`, all records in every step, or `epoch`, one epoch of four batches. So few because the
  covariance over T (K + 1) = 20 messages of a node is dense. Epsilon 0.34 (mu = 0.1) on logistic data, 0.027 (mu =
  0.01) on housing, at which noise costs on the ring (seeds 1 to 3).
- Rows: no noise, DP-D-SGD, MAFALDA, trust-optimal with the library's defaults: they count the models after all steps.
  trust-optimal publishes every node's model after each step, and its number covers that; the others do not.
- Tuning: rates by a factor of about 1.5, the mean over seeds 10000 to 10004; the next rate beyond an end of the grid is
  tried up to twice. Test: the model after the last step, ten seeds that no choice has seen (700 to 709), once; the
  seed gives split, first model and batches to all rows alike, and each its own noise.
- Shown: the noise variance in the models at the same guarantee, predicted before training, less than MAFALDA's, split:
  MAFALDA accounted under the trust model instead of LDP, and better noise than that. Log ratio of the losses, and share
  of the gap from MAFALDA to no noise. Intervals at 95 %: bootstrap over scenes, then seeds. Wilcoxon's test against
  MAFALDA in every scene, corrected by Holm over all of them.

Every run is a cell in OUT/GRAPH: the same command resumes.

    python experiments/optimal_noise.py [--out DIR] [--scenes logistic/ring/full,...] [--report] [--quick]
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _paired_statistics import Estimate, holm, log_ratio, over_scenes, share, signed_rank
from _protocol import Plan, Trial
from _scenes import INDEPENDENT, NO_NOISE, REFERENCE, Row, Scene
from matplotlib.figure import Figure

from mfdl.pictures.style import INK, QUIET, quiet, write_figure
from mfdl.runs import Engine, Store, Tuning

PLAN = Plan(tuning=Tuning(seeds=5, first_seed=10_000), seeds=tuple(range(700, 710)), extensions=2)
QUICK_PLAN = Plan(tuning=Tuning(seeds=2, first_seed=10_000), seeds=(700, 701, 702), extensions=0)
OPTIMAL = "trust-optimal"
MECHANISMS = {NO_NOISE: "none", INDEPENDENT: "dp-dsgd", REFERENCE: "mafalda", OPTIMAL: "trust-optimal"}
TASKS = {
    "logistic": (0.34, (4.64, 6.81, 10.0, 14.7, 21.5, 31.6)),
    "housing-linear": (0.027, (0.681, 1.0, 1.47, 2.15, 3.16)),
}
"""Epsilon and rates."""
GRAPHS = {
    "ring": "ring:n=16",
    "torus": "torus:n=16",
    "er": "erdos-renyi:n=16,p=0.3,seed=0",
    "florentine": "florentine",
}
COLOURS = dict(zip(GRAPHS, ("#0072b2", "#d55e00", "#009e73", "#cc79a7"), strict=True))
DESIGNS = {"full": "b=1,k=4,rounds=4", "epoch": "b=4,k=1,rounds=4"}
SCENES = tuple("/".join(parts) for parts in itertools.product(TASKS, GRAPHS, DESIGNS))


def trial(name: str, out: Path, *, quick: bool = False, report: bool = False) -> Trial:
    """A scene; its runs are stored in out/GRAPH.

    Args: quick: four nodes and two steps, to see that everything works; report: nothing is run.
    """
    task, graph, design = name.split("/")
    epsilon, rates = TASKS[task]
    text = f"{DESIGNS[design]},".replace("4,", "2,").strip(",") if quick else DESIGNS[design]
    rows = {
        label: Row(label, f"{mechanism},{text}", rankings=("pndp",), rates=rates[-4:-2] if quick else rates)
        for label, mechanism in MECHANISMS.items()
    }
    scene = Scene(name, task, "ring:n=4" if quick else GRAPHS[graph], epsilons=(epsilon,))
    plan = QUICK_PLAN if quick else PLAN
    return Trial(scene, epsilon, Store(out / graph), None if report else Engine(), plan, rows)


def result(comparison: Trial) -> dict[str, Any]:
    """Of a scene: its test losses by row, chosen rates, and what is predicted without training."""
    comparison.choose(list(comparison.rows))
    comparison.test(list(comparison.rows))
    rates = {label: rate for (label, _), rate in comparison.chosen.items()}
    losses = {label: comparison.losses(label, "released", rate, comparison.plan.seeds) for label, rate in rates.items()}
    records = {label: _record(comparison, label, rate) for label, rate in rates.items()}
    return {
        "name": comparison.scene.name,
        "rates": rates,
        "losses": {label: np.where(np.isnan(values), np.inf, values) for label, values in losses.items()},
        "accounting": round(1 - records[REFERENCE]["sensitivity"] ** 2, 6) + 0.0,  # 1 under LDP
        "better noise": 1 - records[OPTIMAL]["objective"] / records[REFERENCE]["objective"],
    }


def _record(comparison: Trial, label: str, rate: float) -> dict[str, Any]:
    record = comparison.store.record(comparison.cell(label, rate, comparison.plan.seeds[0]))
    if record is None:
        raise SystemExit(f"{comparison.scene.name}, {label}: no finished run at rate {rate:g}.")
    return record


def pair(losses: Mapping[str, np.ndarray], reference: str = REFERENCE) -> dict[str, np.ndarray]:
    """Losses of trust-optimal beside another row's and those without noise, as the statistics take them."""
    return {"loss": losses[OPTIMAL], "reference": losses[reference], "none": losses[NO_NOISE]}


def percent(estimate: Estimate) -> str:
    """With its interval."""
    return f"{estimate.middle:.1%} [{estimate.low:.1%}, {estimate.high:.1%}]".replace("%", " %")


def table(results: Sequence[dict[str, Any]]) -> list[str]:
    """One line a scene, then the mean over the scenes of each graph, as Markdown."""
    p_values = holm([signed_rank(*list(pair(each["losses"]).values())[:2]) for each in results])
    head = ("scene", "accounting", "better noise", *MECHANISMS, "loss / MAFALDA - 1", "share of the gap", "p (Holm)")
    lines = [_line(head), _line(["---"] * len(head))]
    for each, p in zip(results, p_values, strict=True):
        rows = [f"{each['losses'][label].mean():.4f} ({each['rates'][label]:g})" for label in MECHANISMS]
        effects = [percent(change([each])), percent(over_scenes(share, [pair(each["losses"])]))]
        split = [f"{each[part]:.1%}".replace("%", " %") for part in ("accounting", "better noise")]
        lines.append(_line([each["name"], *split, *rows, *effects, f"{p:.2g}"]))
    for graph in GRAPHS:
        scenes = [each for each in results if each["name"].split("/")[1] == graph]
        if scenes:
            effects = [percent(change(scenes)), percent(over_scenes(share, [pair(each["losses"]) for each in scenes]))]
            lines.append(_line([f"{graph}, mean of {len(scenes)}", *[""] * (2 + len(MECHANISMS)), *effects, ""]))
    against = percent(change(results, INDEPENDENT))
    return [*lines, "", f"All {len(results)}: against MAFALDA {percent(change(results))}, against DP-D-SGD {against}."]


def change(results: Sequence[dict[str, Any]], reference: str = REFERENCE) -> Estimate:
    """Geometric mean of the loss over that of another row, minus 1."""
    ratio = over_scenes(log_ratio, [pair(each["losses"], reference) for each in results])
    return Estimate(*(float(np.expm1(value)) for value in (ratio.middle, ratio.low, ratio.high)))


def _line(entries: Sequence[str]) -> str:
    return f"| {' | '.join(entries)} |"


def draw(results: Sequence[dict[str, Any]]) -> Figure:
    """Measured share of the gap against the predicted variance saved; on the diagonal all of it reaches the loss."""
    figure = Figure(figsize=(6.4, 4.2), facecolor="white", layout="constrained")
    axes = figure.subplots()
    for each in results:
        task, graph, design = each["name"].split("/")
        gap, predicted = over_scenes(share, [pair(each["losses"])]), 100 * each["better noise"]
        error = [[100 * (gap.middle - gap.low)], [100 * (gap.high - gap.middle)]]
        marker, colour = "os"[list(TASKS).index(task)], COLOURS[graph]
        filled = colour if design == "full" else "white"
        axes.errorbar([predicted], [100 * gap.middle], error, fmt=marker, color=colour, markerfacecolor=filled)
    ends = np.array(axes.get_xlim())
    axes.plot(ends, ends, color=QUIET, linewidth=0.9)
    axes.axhline(0, color=INK, linewidth=0.9)
    for graph in dict.fromkeys(each["name"].split("/")[1] for each in results):
        axes.plot([], [], "o", color=COLOURS[graph], label=graph)
    for task, marker in zip(TASKS, "os", strict=True):
        axes.plot([], [], marker, color=QUIET, label=task)
    axes.plot([], [], "o", color=QUIET, markerfacecolor="white", label="epoch instead of full batches")
    quiet(axes, grid="y")
    axes.legend(fontsize=8.5, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.set_xlabel("less noise variance in the models than MAFALDA, %", fontsize=8.5, color=INK)
    axes.set_ylabel("share of the gap to no noise, %", fontsize=8.5, color=INK)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/optimal_noise"))
    parser.add_argument("--scenes", default=",".join(SCENES), help="TASK/GRAPH/DESIGN, in this order")
    parser.add_argument("--report", action="store_true", help="print what is there, run nothing")
    parser.add_argument("--quick", action="store_true", help="four nodes and two steps, a check that everything works")
    options = parser.parse_args(arguments)
    names, results = options.scenes.split(","), []
    if unknown := [name for name in names if name not in SCENES]:
        parser.error(f"no scene {unknown[0]!r}; there are {', '.join(SCENES)}.")
    for name in names:
        results.append(result(trial(name, options.out, quick=options.quick, report=options.report)))
        if not options.report:
            print(f"{name}: {percent(change(results[-1:]))} against MAFALDA", file=sys.stderr, flush=True)
    print("\n".join(table(results)))
    write_figure(options.out, "optimal_noise", draw(results))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("MFDL_PROGRESS", "0")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
