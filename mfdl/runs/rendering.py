"""Pictures of a comparison: test loss over steps beside final losses, final loss over budgets; its table as LaTeX."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from scipy import stats

from ..errors import InvalidInput, require_known
from ..metrics import WORDS, final_steps, result_key
from ..pictures.curves import Curves, draw_curves, draw_over_steps
from ..pictures.style import LINE_INCHES, caption_lines, mechanism_looks, quiet, write_caption
from ..spec import text_label
from ..training.learned import AT_BEST
from .output import ahead_in_every_seed, shared_conditions, target_in_words

if TYPE_CHECKING:
    from .store import RunSteps


def plot_comparison(
    result: dict[str, Any],
    runs: Iterable[RunSteps],
    ax: Axes | None = None,
    *,
    metric: str = "loss",
    title: bool = True,
    caption: bool = True,
) -> Any:
    """Test loss over steps beside final losses: a Figure of its own, or the given axes with the curves over steps.

    Args: result: of `run_comparison`; runs: the evaluated steps of each run; metric: "loss", "accuracy", or a requested
        one; title, caption: whether the figure has them.
    """
    require_known("metric", metric, WORDS)
    labels = {row["mechanism"]: row.get("label", row["mechanism"]) for row in result["mechanisms"]}
    beside = {row["mechanism"]: row.get("final_accuracy_mean") for row in result["mechanisms"] if metric == "loss"}
    key = result_key("final", metric)
    if any(key not in run for run in result["runs"]):
        raise InvalidInput(f"this comparison did not measure {metric!r}; compare with metrics={metric} (--metrics).")
    finals = {(run["mechanism"], run["seed"]): run[key] for run in result["runs"]}
    by_key = {(run.conditions["mechanism"], run.conditions["seed"]): run for run in runs}
    curves, ended_by_seed = [], {}
    for name, look in zip(labels, mechanism_looks(labels), strict=True):
        ended = {seed: final for (mechanism, seed), final in finals.items() if mechanism == name}
        steps = [by_key[name, seed].steps for seed in ended]
        losses = [by_key[name, seed].mean_over_nodes(metric) for seed in ended]
        curve = Curves(labels[name], look, steps, losses, list(ended.values()), beside.get(name))
        curves.append(curve)
        ended_by_seed[curve.label] = ended
    participation = result["participation"]
    start = result.get("untrained_loss_mean") if metric == "loss" else None
    levels = {} if start is None or start <= AT_BEST else {"untrained": start}
    if ax is not None:
        return draw_over_steps(ax, curves, len(result["seeds"]), levels=levels, metric=metric, named=False)
    of_metric = f"{WORDS[metric].capitalize()} on {result['task']}, {_target(result)}"
    words = _finding(result, curves, ended_by_seed) if metric == "loss" else of_metric
    below = comparison_caption(result) if caption else ""
    last = final_steps(participation["epochs"] * participation["period"])
    seeds = len(result["seeds"])
    return draw_curves(curves, words if title else "", below, seeds, last, levels=levels, metric=metric)


def comparison_caption(result: Mapping[str, Any]) -> str:
    """Task, graph and settings, and the conditions that all mechanisms share, in sentences."""
    participation, rates = result["participation"], result["learning_rate"]
    rates = rates if isinstance(rates, list) else [rates]
    rule, seeds = result.get("config", {}).get("lr_schedule"), result["seeds"]
    trained = (
        f"Task {result['task']} on {text_label(result['graph'])} with {result['nodes']} nodes and gossip "
        f"{result['gossip']}, {participation['epochs']} epochs of {participation['period']} steps, learning rate "
        f"{', '.join(f'{rate:g}' for rate in rates)}{'' if rule is None else f' ({rule})'}, "
        f"{f'seed {seeds[0]}' if len(seeds) == 1 else f'seeds {seeds[0]} to {seeds[-1]}'}."
    )
    return " ".join([trained, shared_conditions(result), *result.get("advice", ())])


def _target(result: dict[str, Any]) -> str:
    words = target_in_words(result) or "the same target"
    return words.replace("mu =", "μ =").replace("epsilon =", "ε =").replace("delta =", "δ =")


def _finding(result: dict[str, Any], curves: Sequence[Curves], ended: Mapping[str, Mapping[int, float | None]]) -> str:
    """The finding, claimed only as far as every seed agrees, and never of models that learned nothing."""
    target = _target(result)
    if result.get("finding"):
        return f"{result['finding']} at {target}"
    private = {curve.label: curve.short for curve in curves if curve.label != "none" and curve.mean is not None}
    if result.get("across_trust_models"):
        return f"Test loss on {result['task']} under {target}, each mechanism under its own trust model: no ranking"
    if len(private) < 2:
        return f"Test loss on {result['task']} under {target}"
    leader = ahead_in_every_seed({label: ended[label] for label in private})
    if not leader:
        return f"At equal privacy ({target}) no mechanism is ahead in every seed"
    seeds = len(ended[leader])
    in_seeds = f"in each of {seeds} seeds" if seeds > 1 else "in a single seed"
    return f"At equal privacy ({target}), {private[leader]} ends with the lowest test loss {in_seeds}"


SPECIAL = re.compile(r"([&%$#_{}])")


def booktabs(
    rows: Sequence[Mapping[str, Any]], leaders: Collection[tuple[Any, Any, Any]] = (), *, by_epsilon: bool = False
) -> str:
    r"""Test loss ± standard deviation over seeds, of rows of `Comparison.table`; without noise the same in each column.

    >>> row = {"mechanism": "mafalda", "budget": 1.0, "epsilon": 4.9, "delta": 1e-6, "lr": 0.5, "seeds": 3,
    ...        "final_test_loss_mean": 1.25, "final_test_loss_std": 0.031}
    >>> print(booktabs([row], {("mafalda", 1.0, 0.5)}))
    \begin{tabular}{lr}
    \toprule
    test loss & $\mu = 1$ \\
    \midrule
    mafalda & $\mathbf{1.250 \pm 0.031}$ \\
    \bottomrule
    \end{tabular}
    <BLANKLINE>

    Args: leaders: mechanism, budget and learning rate of the bold entries; by_epsilon: budgets are epsilons.
    """
    private = [row for row in rows if row["mechanism"] != "none"]
    columns = list(dict.fromkeys((row["budget"], row["lr"]) for row in private or rows))
    rates = {rate for _, rate in columns}
    lines = [r"\begin{tabular}{l" + "r" * len(columns) + "}", r"\toprule"]
    lines.append(
        " & ".join(["test loss", *(_head(column, by_epsilon, len(rates) > 1) if private else "" for column in columns)])
        + r" \\"
    )
    lines.append(r"\midrule")
    for name in dict.fromkeys(row["mechanism"] for row in rows):
        of_name = [row for row in rows if row["mechanism"] == name]
        by_column = {(row["budget"], row["lr"]): row for row in of_name}
        entries = []
        for column in columns:
            row = by_column.get(column)
            if row is None and of_name[0] not in private:
                row = next((row for row in of_name if row["lr"] == column[1]), None)
            entries.append(_entry(row, bold=(name, *column) in leaders))
        lines.append(" & ".join([SPECIAL.sub(r"\\\1", name), *entries]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _head(column: tuple[Any, Any], by_epsilon: bool, with_rate: bool) -> str:
    budget, rate = column
    words = rf"$\{'varepsilon' if by_epsilon else 'mu'} = {budget:.4g}$"
    return words + (rf", $\eta = {rate:g}$" if with_rate else "")


def _entry(row: Mapping[str, Any] | None, *, bold: bool) -> str:
    if row is None:
        return ""
    mean = row["final_test_loss_mean"]
    if mean is None:
        return "diverged"
    text = f"{mean:.3f}" + (rf" \pm {row['final_test_loss_std']:.3f}" if row["seeds"] > 1 else "")
    return rf"$\mathbf{{{text}}}$" if bold else f"${text}$"


LEVEL = 0.95
CAPTION_WIDTH = 104
COLUMN_INCHES = 3.3  # width of one column of a paper
SMALL = 8  # points, of words in such a column
Point = tuple[float, float, float]  # budget, mean, half of the interval


def points(result: Mapping[str, Any], metric: str) -> dict[str, list[Point]]:
    """Mean over seeds and half of its 95 % interval (Student's t), by mechanism; budgets as mu, or as epsilon.

    A mechanism without noise is at budget inf. With several learning rates the least loss over the rates counts. A
    budget at which a seed diverged is left out.
    """
    key = result_key("final", metric)
    values: dict[tuple[str, float, Any], list[float | None]] = {}
    for run in result["runs"]:
        at = math.inf if run["mechanism"] == "none" else float(run["budget"])
        values.setdefault((run["mechanism"], at, run["lr"]), []).append(run[key])
    curves: dict[str, list[Point]] = {}
    for (name, budget, _), finals in values.items():
        reached = [final for final in finals if final is not None]
        if len(reached) < len(finals):
            continue
        half = 0.0
        if len(reached) > 1:
            quantile = float(stats.t.ppf((1 + LEVEL) / 2, len(reached) - 1))
            half = quantile * statistics.stdev(reached) / math.sqrt(len(reached))
        curves.setdefault(name, []).append((budget, statistics.fmean(reached), half))
    best = max if metric.endswith("accuracy") else min
    return {
        name: [
            best((point for point in of_name if point[0] == budget), key=lambda point: point[1])  # exact: over rates
            for budget in sorted({point[0] for point in of_name})
        ]
        for name, of_name in curves.items()
    }


def plot_budgets(
    result: Mapping[str, Any],
    ax: Axes | None = None,
    *,
    metric: str = "loss",
    title: bool = True,
    caption: bool = True,
    width: float = 7.0,
) -> Figure | Axes:
    """Final test loss over the budgets of a comparison, or the given axes with the curves; width in inches.

    Raises: InvalidInput: a metric that was not measured.
    """
    require_known("metric", metric, WORDS)
    if any(result_key("final", metric) not in run for run in result["runs"]):
        raise InvalidInput(f"this comparison did not measure {metric!r}; compare with metrics={metric} (--metrics).")
    labels = {row["mechanism"]: row["label"] for row in result["mechanisms"]}
    curves = points(result, metric)
    if ax is not None:
        _draw(ax, curves, labels, result, metric)
        return ax
    lines = caption_lines(comparison_caption(result), CAPTION_WIDTH) if caption else []
    foot = LINE_INCHES * len(lines)
    height = width * 0.62 + foot
    layout = ConstrainedLayoutEngine(rect=(0, foot / height, 1, 1 - foot / height))
    figure = Figure(figsize=(width, height), facecolor="white", layout=layout)
    axes = figure.add_subplot()
    _draw(axes, curves, labels, result, metric)
    if title:
        axes.set_title(f"{WORDS[metric].capitalize()} on {result['task']} over the privacy budget", loc="left")
    if lines:
        write_caption(figure, lines, left=0.02, top=foot / height)
    return figure


def _draw(
    axes: Axes, curves: Mapping[str, Sequence[Point]], labels: Mapping[str, str], result: Mapping[str, Any], metric: str
) -> None:
    quiet(axes, grid="y")
    by_mu = result["config"].get("epsilon") is None
    for name, look in zip(curves, mechanism_looks(labels[name] for name in curves), strict=True):
        of_name = curves[name]
        if all(math.isinf(budget) for budget, _, _ in of_name):
            level, words = of_name[0][1], f"{labels[name]} (no noise)"
            axes.axhline(level, color=look.colour, linestyle="--", linewidth=1.2, label=words)
            continue
        budgets, means, halves = zip(*of_name, strict=True)
        style: dict[str, Any] = {"color": look.colour, "marker": "o", "markersize": 4, "capsize": 3}
        axes.errorbar(budgets, means, yerr=halves, label=labels[name], **style)
    axes.set_xscale("log")
    axes.set_xticks(ticks := sorted({p[0] for of_name in curves.values() for p in of_name if math.isfinite(p[0])}))
    axes.set_xticklabels([f"{tick:.3g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("privacy budget μ (Gaussian DP)" if by_mu else f"privacy budget ε at δ = {result['delta']:g}")
    seeds = len(result["seeds"])
    axes.set_ylabel(f"{WORDS[metric]}" + (", mean and 95 % interval" if seeds > 1 else ", one seed"))
    axes.legend(frameon=False, fontsize="small")


def column_figure(result: dict[str, Any], steps: Sequence[RunSteps]) -> Figure:
    """The picture at the width of a paper's column, without title and caption."""
    figure = Figure(figsize=(COLUMN_INCHES, COLUMN_INCHES * 0.72), facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    if isinstance(result["mu"], list):
        plot_budgets(result, axes)
    else:
        plot_comparison(result, steps, axes)
    axes.set_title("", loc="left")
    axes.set_ylabel(axes.get_ylabel().partition(",")[0] or WORDS["loss"])  # the caption has the rest
    if (legend := axes.get_legend()) is not None:  # above the curves, which it may not cover
        names = [text.get_text() for text in legend.get_texts()]
        handles = [handle for handle in legend.legend_handles if handle is not None]
        figure.legend(handles, names, loc="outside upper left", ncols=3, frameon=False, fontsize=SMALL)
        legend.remove()
    for text in (axes.xaxis.label, axes.yaxis.label):
        text.set_fontsize(SMALL)
    axes.tick_params(labelsize=SMALL - 1)
    return figure
