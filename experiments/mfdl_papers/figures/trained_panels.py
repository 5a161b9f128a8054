"""From training runs of a figure to its panels: cells that are trained once and stored, then tables and numbers.

Effects of losses are paired by seed. A run that diverged has an infinite loss. A comparison supports a verdict only if
one of its sides learned: no seed diverged and the mean over seeds is below the loss of a guess, where the task has one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mfdl.errors import InvalidInput
from mfdl.pictures.line_charts import Panel, draw
from mfdl.progress import reporter
from mfdl.runs import Cell, Engine, Store, run_cells
from mfdl.runs.experiment import Experiment

from . import PublishedFigure, Reproduction, RunScale, Table
from .verdicts import Effect, Verdict, joint_level

if TYPE_CHECKING:
    from mfdl.training.tasks import Task


Key = TypeVar("Key")
Item = TypeVar("Item")


def tracked(scale: RunScale, label: str, items: Sequence[Item]) -> Iterator[Item]:
    """Yields the items, and shows a progress bar meanwhile."""
    with reporter(scale.progress).bar(label, len(items)) as advance:
        for item in items:
            yield item
            advance(1)


def engine(scale: RunScale) -> Engine:
    return Engine(scale.engine, jobs=scale.jobs, scheduler=scale.scheduler)


def losses(
    figure: PublishedFigure,
    scale: RunScale,
    points: Mapping[Key, Sequence[Experiment]],
    *,
    last_steps: int,
    column: str = "loss",
) -> dict[Key, np.ndarray]:
    """Per point one number for each of its runs: `column`, mean over nodes and the evaluations of the last steps.

    Args: points: configs of one mechanism and one seed each; runs that several points share are trained once.
    Returns: arrays in the order of the configs; nan where a run diverged. Raises: as `require_finished`.
    """
    store = Store(scale.out / figure.name / "store")
    cells = {key: [Cell(config) for config in configs] for key, configs in points.items()}
    every = list(dict.fromkeys(cell for some in cells.values() for cell in some))
    run_cells(every, store, engine(scale), progress=scale.progress)
    require_finished(store, every)
    late = {cell: _late(store, cell, last_steps, column) for cell in every}
    return {key: np.array([late[cell] for cell in some]) for key, some in cells.items()}


def require_finished(store: Store, cells: Iterable[Cell]) -> None:
    """Raises: InvalidInput: a cell failed; the message is that of the first one."""
    for cell in cells:
        if store.record(cell) is None:
            errors = [failure["error"] for failure in store.failures() if failure["cell"] == cell.hash]
            raise InvalidInput(f"a run failed, {''.join(errors)}; see {store.folder / 'failed'}.")


def _late(store: Store, cell: Cell, last_steps: int, column: str) -> float:
    record = store.record(cell)
    assert record is not None
    steps = store.steps(cell)
    late = steps.steps > cell.num_steps - last_steps
    return float("nan") if record["diverged"] else float(steps.mean_over_nodes(column)[late].mean())


def seeded(seeds: Sequence[int], **options: Any) -> list[Experiment]:
    """The same run with each of the seeds; a callable option is called with the seed."""
    return [
        Experiment(
            seeds=1, first_seed=seed, **{k: value(seed) if callable(value) else value for k, value in options.items()}
        )
        for seed in seeds
    ]


def spread(values: np.ndarray) -> str:
    """Mean and standard deviation over repetitions as text.

    >>> spread(np.array([1.0, 3.0])), spread(np.array([2.0])), spread(np.array([1.0, np.nan]))
    ('2 +- 1.4', '2', 'diverged')
    """
    if not np.isfinite(values).all():
        return "diverged"
    error = deviation(values)
    return f"{np.mean(values):.3g}" + ("" if error is None else f" +- {error:.2g}")


def panel_table(panel: Panel) -> Table:
    """A row for each x, a column for each line; a repetition that is nan in every line was not run."""
    repeated = ~np.all([np.isnan(values) for values in panel.lines.values()], axis=0)
    rows = [(f"{x:.4g}", *(spread(v[i][repeated[i]]) for v in panel.lines.values())) for i, x in enumerate(panel.x)]
    return Table(panel.title, (panel.x_label, *panel.lines), rows)


def panel_numbers(panels: Iterable[Panel]) -> list[dict[str, Any]]:
    """Every repetition of every point, JSON-ready; null where there is none, or where a run diverged."""

    def finite(values: np.ndarray) -> list[list[float | None]]:
        return [[float(v) if np.isfinite(v) else None for v in row] for row in values]

    return [
        {"title": p.title, "x": [float(x) for x in p.x], "lines": {name: finite(v) for name, v in p.lines.items()}}
        for p in panels
    ]


def panel_reproduction(
    figure: PublishedFigure,
    scale: RunScale,
    verdicts: Sequence[Verdict],
    panels: Sequence[Panel],
    words: tuple[str, str],
    **more: Any,
) -> Reproduction:
    """The reproduction of a figure of panels: a table and the numbers of each, and a picture if there is a panel.

    Args: words: title and caption of the picture. more: further fields of `Reproduction`, such as settings; tables and
        numbers replace those of the panels.
    """
    more = {"tables": [*map(panel_table, panels)], "numbers": {"panels": panel_numbers(panels)}, **more}
    return Reproduction(figure, scale, verdicts, picture=draw(panels, *words) if panels else None, **more)


Pair = tuple[np.ndarray, np.ndarray]
TIE = math.log(2.0)
"""Two losses tie within this logarithm of their ratio."""


def log_ratios(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """log(a / b) seed by seed, shape (seeds,); 0 where both diverged. Raises: InvalidInput: shapes differ, or no seeds.

    >>> log_ratios(np.array([1.0, np.nan]), np.array([1.0, 1.0]))
    array([ 0., inf])
    """
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise InvalidInput(f"paired losses must have one number for each seed, got shapes {a.shape} and {b.shape}.")
    a, b = (np.where(np.isnan(x), math.inf, x) for x in (a, b))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios: np.ndarray = np.where(a == b, 0.0, np.log(a) - np.log(b))
    return ratios


def learned(losses: np.ndarray, guess: float | None) -> bool:
    """Whether no seed diverged and the mean is below that of a guess (None: the task has none)."""
    return bool(np.isfinite(losses).all()) and (guess is None or float(losses.mean()) < guess)


def unsupported(a: np.ndarray, b: np.ndarray, guess: float | None) -> str:
    """Why two lines support no verdict; empty where one of them learned."""
    if learned(a, guess) or learned(b, guess):
        return ""
    if not (np.isfinite(a).all() or np.isfinite(b).all()):
        return "both diverged"
    return "" if guess is None else f"neither has a loss below that of a guess, {guess:.3g}"


def below(points: Mapping[Any, Pair], *, guess: float | None = None, factor: float = 1.0) -> list[Effect]:
    """Effects of "the first loss is below `factor` times the second": log(factor second / first) by seed."""
    return [
        Effect.sampled(at, math.log(factor) + log_ratios(upper, lower), unsupported=unsupported(lower, upper, guess))
        for at, (lower, upper) in points.items()
    ]


def tied(at: str, a: np.ndarray, b: np.ndarray, *, guess: float | None = None) -> list[Effect]:
    """Effects of "the two meet", as a test of equivalence: each is below two times the other."""
    return [effect for pair in ((a, b), (b, a)) for effect in below({at: pair}, guess=guess, factor=math.exp(TIE))]


def clear(effects: Sequence[Effect]) -> int:
    """At how many points the effect is positive beyond its interval, all intervals together."""
    level = joint_level(effects)
    return sum(not effect.unsupported and effect.interval(level)[0] > 0 for effect in effects)


def jackknifed(statistic: Callable[..., float], *losses: np.ndarray) -> np.ndarray:
    """Pseudo-values of a statistic of means over seeds, the last axis of every array, shape (seeds,).

    Their mean is the statistic, their deviation / sqrt(seeds) its standard error. The statistic alone, shape (1,),
    where there is one seed or a value is not finite.
    """
    count, whole = losses[0].shape[-1], statistic(*losses)
    rest = [statistic(*(np.delete(values, i, axis=-1) for values in losses)) for i in range(count if count > 1 else 0)]
    usable = rest and np.isfinite([whole, *rest]).all()
    return count * whole - (count - 1) * np.array(rest) if usable else np.array([whole])


def lowest(curves: Mapping[Any, np.ndarray]) -> Any:
    """The name with the smallest mean over seeds; a run that diverged is infinitely bad."""
    return min(curves, key=lambda name: float(np.where(np.isnan(curves[name]), math.inf, curves[name]).mean()))


def mean_ratio(a: np.ndarray, b: np.ndarray) -> float:
    """mean(a) / mean(b), a diverged run being infinitely bad; nan where both are."""
    above, below = (float(np.where(np.isnan(x), math.inf, x).mean()) for x in (a, b))
    return math.nan if math.isinf(below) and math.isinf(above) else above / below


def deviation(values: np.ndarray) -> float | None:
    """Standard deviation over seeds; None for one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 and np.isfinite(values).all() else None


def guess_loss(task: Task) -> float | None:
    """The loss that a run has to beat: of a constant guess, else of the first model; None where that is the best."""
    from mfdl.training.learned import AT_BEST, chance, untrained

    loss = float((chance(task) or untrained(task, 1)).loss)
    return loss if loss > AT_BEST else None
