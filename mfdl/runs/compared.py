"""`compare`: mechanisms side by side on the caller's graph, data and model, with table, picture and models."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import os
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from .. import check, files
from ..display import Shown, data_frame
from ..errors import InvalidInput, unknown_name
from ..mechanism import Mechanism
from ..participation import Participation
from ..participation.schemes import SCHEMES
from ..privacy.questions import Privacy
from ..progress import Progress
from ..spec import text_label
from ..training.run import Run
from .cells import Plan, Shared, comparison_cells
from .comparing import comparison_grid, run_comparison
from .experiment import Experiment
from .output import ahead_in_every_seed, require_folder
from .rendering import booktabs
from .store import RESULTS, RUNS, STEPS, RunSteps, Store, load_steps

if TYPE_CHECKING:
    import pandas
    import torch
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = (
    "mechanism", "budget", "mu", "epsilon", "delta", "lr", "seeds", "diverged", "final_test_loss_mean",
    "final_test_loss_std", "final_accuracy_mean", "final_accuracy_std", "injected_noise_std", "sensitivity",
    "objective", "trust",
)  # fmt: skip
OF_COMPARISONS = ("trust", "adjacency", "clip_norm", "release", "unit", "participation")
"""Fields of a `Privacy` that a comparison takes."""


def compare(
    mechanisms: Any = None,
    *,
    privacy: Privacy | None = None,
    mu: float | Sequence[float] | None = None,
    epsilon: float | Sequence[float] | None = None,
    learning_rate: float | Sequence[float] | None = None,
    config: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: Progress = "auto",
    **options: Any,
) -> Comparison:
    """Trains each mechanism at each privacy budget, with the same records, first models and batches in each seed.

    >>> small = {"graph": "ring:n=4", "task": "digits", "epochs": 1, "period": 2, "seeds": 1, "progress": False}
    >>> [row["mechanism"] for row in compare(["none", "dp-dsgd"], mu=2.0, **small).table()]
    ['none', 'dp-dsgd']

    Args:
        mechanisms: names of `mfdl mechanisms`, algorithms or mechanisms of the caller's own, or functions of (dynamics,
            participation) that build an algorithm. Default none, dp-dsgd, d-mf and mafalda.
        privacy: the same for all mechanisms; default LDP, replace-one, clipping at 1. Its participation decides epochs
            and period, if it is given.
        mu, epsilon: one budget or several, exactly one of the two; epsilon with delta. Default mu = 2.
        learning_rate: one or several; default 0.5.
        config: a TOML file of options, or the results.json of an earlier comparison; arguments win over it.
        out: folder of the results, kept and resumed; default a temporary one.
        overwrite: replace another comparison in the folder instead of refusing.
        options: those of `mfdl compare`: graph (a name, file or networkx graph), gossip (a name, file or matrix), task
            (a name, a data file such as "own.csv:target=price", or a `Task`), epochs, period, seeds, momentum, ...
    Raises: InvalidInput: as for `mfdl.runs.comparing.run_comparison`; a privacy that training cannot have.
    """
    arguments = {"mechanisms": mechanisms, "mu": mu, "epsilon": epsilon, "learning_rate": learning_rate}
    of_privacy = privacy_options(privacy)
    values = {} if config is None else Experiment.in_file(check.path(config=config), ())
    for name in options:
        if name not in Experiment.fields():
            raise unknown_name("option", name, [*Experiment.fields(), *arguments])
    if twice := [name for name in of_privacy if of_privacy[name] is not None and name in {**values, **options}]:
        raise InvalidInput(f"privacy and the options both say {twice[0]}; give it in one of the two.")
    given = {**of_privacy, **options, **{name: v for name, v in arguments.items() if v is not None}}
    for name, other in (("mu", "epsilon"), ("epsilon", "mu")):
        if name in given:
            values.pop(other, None)
    values |= given
    if "epsilon" in values and "delta" not in values:
        raise InvalidInput("epsilon needs a delta in (0, 1), e.g. delta=1e-6.")
    numbers = {name: _numbers(name, values.pop(name)) for name in Experiment.SEVERAL if values.get(name) is not None}
    values |= {name: of_name[0] for name, of_name in numbers.items()}
    experiment = Experiment(**values)
    scheme = None if privacy is None else privacy.participation
    if scheme is not None and experiment.scheme() != scheme:
        raise InvalidInput(
            f"privacy has participation {scheme.describe()}, and the options describe "
            f"{experiment.scheme().describe()}; leave epochs, period and participation out, or take Cyclic, "
            "BallsInBins, RandomAllocation, CyclicPoisson or MinSeparationSampling, and at unit 'user' EveryStep."
        )
    several = {name: of_name for name, of_name in numbers.items() if len(of_name) > 1}
    folder = Path(tempfile.mkdtemp(prefix="mfdl-compare-") if out is None else out)
    result = run_comparison(experiment, folder, several=several, overwrite=overwrite, progress=progress)
    return Comparison(experiment, several, folder, result)


def _numbers(name: str, value: Any) -> tuple[float, ...]:
    """One number, several, or the text A,B of a file."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, Sequence) else (value,)
    if not parts:
        raise InvalidInput(f"{name} must hold at least one value, got an empty list.")
    try:
        return tuple(float(part) for part in parts)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must be a number or several, got {check.brief(value)}.") from None


def privacy_options(privacy: Privacy | None) -> dict[str, Any]:
    """Options of a privacy. Raises: InvalidInput: an accounting option that comparisons do not have."""
    if privacy is None:
        return {}
    check.instance(Privacy, privacy=privacy)
    privacy.require_only(OF_COMPARISONS, "a comparison")
    options = {name: getattr(privacy, name) for name in ("adjacency", "clip_norm", "release", "unit")}
    if privacy.trust is not None:
        options["trust"] = privacy.trust
    if privacy.participation is not None:
        options |= _options_of_scheme(privacy.participation)
    return options


def _options_of_scheme(scheme: Participation) -> dict[str, Any]:
    if scheme.in_every_step:
        return {"epochs": scheme.num_steps, "period": 1}  # a comparison at user level takes every step
    called = SCHEMES.entry(scheme.scheme).called
    fields = dataclasses.fields(cast("Any", scheme))  # every scheme of the registry is a dataclass
    values = {called.get(field.name, field.name): getattr(scheme, field.name) for field in fields}
    named = {"epochs": "epochs", "period": "period", "rate": "sampling_rate"}
    options = {option: values[name] for name, option in named.items() if name in values}
    return {"participation": scheme.scheme, **options}


@dataclasses.dataclass(frozen=True, eq=False)
class ComparedRun:
    """One mechanism at one budget and learning rate; its models are trained on demand.

    Its noise is that of the seeds, for research: a known seed makes it subtractable. A model to publish is trained by
    `mfdl.replay(run.mechanism, run.plan.task, seeds=None)`.
    """

    name: str
    plan: Plan
    store: Store

    @property
    def seeds(self) -> list[int]:
        return self.plan.config.seed_list

    @functools.cached_property
    def mechanism(self) -> Mechanism:
        return self.plan.mechanism(self.name)

    def run(self, seed: int | None = None) -> Run:
        """One of the `seeds`, default the first, trained again; models differ from the earlier ones by rounding."""
        chosen = self.seeds[0] if seed is None else seed
        if chosen not in self.seeds:
            raise InvalidInput(f"seed must be one of {self.seeds}, got {seed!r}.")
        cells = {(c.mechanism, c.seed): c for c in comparison_cells(self.plan.config, self.plan.shared)}
        if not self.store.is_finished(cells[self.name, chosen]):
            raise InvalidInput(
                "the graph, task or mechanism is another one than when it was compared (a file may have changed): the "
                "models would not be those of the table. Call mfdl.compare again."
            )
        return self._trained(chosen)

    @functools.cached_property
    def _trained(self) -> Any:
        from ..training.replay import replays
        from .running import replay_config

        @functools.cache
        def trained(seed: int) -> Run:
            config = replay_config(self.mechanism, self.plan.task, seed, self.plan.config)
            return replays([config], lambda *_: None)[0]

        return trained

    def module(self, node: Hashable = 0, seed: int | None = None) -> torch.nn.Module:
        return self.run(seed).module(node)


class _Runs(dict[tuple[Any, ...], ComparedRun]):
    def __missing__(self, key: Any) -> NoReturn:
        raise KeyError(f"no run {key!r}; runs have keys (mechanism, budget): {', '.join(map(repr, self))}")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Comparison(Shown):
    """The result of `compare`, and its files.

    Attributes: several: budgets and learning rates by field, where there are several; folder: results.json, steps.mfdl
        and pictures, as `mfdl compare` writes them; result: the content of results.json.
    """

    config: Experiment
    several: Mapping[str, Sequence[float]]
    folder: Path
    result: dict[str, Any]

    @functools.cached_property
    def runs(self) -> dict[tuple[Any, ...], ComparedRun]:
        """Runs by (mechanism, budget), or by (mechanism, budget, learning rate) where there are several rates.

        The name is that of the table, the budget mu or epsilon as it was given; "none" has the first budget.
        """
        shared, store = Shared(), Store(self.folder / RUNS)
        runs = _Runs()
        for config in comparison_grid(self.config, self.several).configs():
            plan = Plan(config, shared, checked=True)
            budget = config.target_mu_or_default if config.epsilon is None else config.epsilon
            rate = (config.learning_rate,) if "learning_rate" in self.several else ()
            runs |= {(text_label(name), budget, *rate): ComparedRun(name, plan, store) for name in config.mechanisms}
        return runs

    def table(self) -> list[dict[str, Any]]:
        """One row for each mechanism, budget and learning rate, with the columns `COLUMNS`."""
        seeds, delta = len(self.result["seeds"]), self.result["delta"]
        rate = None if isinstance(self.result["learning_rate"], list) else self.result["learning_rate"]
        budget = self.config.epsilon or self.config.target_mu_or_default
        rows = []
        for row in self.result["mechanisms"]:
            more = {"mechanism": row["label"], "seeds": seeds, "delta": delta, "diverged": len(row["diverged"])}
            values = {"lr": rate, "budget": budget, **row, **more}
            rows.append({name: values.get(name) for name in COLUMNS})
        return rows

    def to_pandas(self) -> pandas.DataFrame:
        return data_frame(self.table(), COLUMNS)

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows(self.table())
        return files.atomic_write_text(path, text.getvalue())

    def to_latex(self, path: str | os.PathLike[str] | None = None) -> str:
        """The table of a paper: mechanisms in rows, budgets in columns, test loss ± standard deviation over seeds.

        The best mechanism of a column is bold if it is ahead in each seed. Needs the LaTeX package booktabs.
        """
        text = booktabs(self.table(), self._leaders(), by_epsilon=self.config.epsilon is not None)
        if path is not None:
            files.atomic_write_text(Path(path), text)
        return text

    def _leaders(self) -> set[tuple[str, Any, Any]]:
        """Mechanism, budget and rate of those with noise that are ahead of the others of their column in each seed."""
        columns: dict[tuple[Any, Any], dict[str, dict[int, float | None]]] = {}
        labels = {row["mechanism"]: row["label"] for row in self.result["mechanisms"]}
        budget = self.config.epsilon or self.config.target_mu_or_default
        for run in self.result["runs"]:
            if run["mechanism"] != "none":
                key = (run.get("budget", budget), run.get("lr", self.result["learning_rate"]))
                of_label = columns.setdefault(key, {}).setdefault(labels[run["mechanism"]], {})
                of_label[run["seed"]] = run["final_test_loss"]
        leaders = {key: ahead_in_every_seed(losses) for key, losses in columns.items() if len(losses) > 1}
        return {(leader, *key) for key, leader in leaders.items() if leader}

    def plot(
        self, ax: Axes | None = None, *, metric: str = "loss", title: bool = True, caption: bool = True
    ) -> Figure | Axes:
        """Test loss over steps of one budget, or over the budgets with an interval over the seeds; ax: given axes."""
        from .rendering import plot_budgets, plot_comparison

        more: dict[str, Any] = {"metric": metric, "title": title, "caption": caption}
        if self.several:
            return plot_budgets(self.result, ax, **more)
        figure: Figure | Axes = plot_comparison(self.result, self._steps(), ax, **more)
        return figure

    def export(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Writes results.csv, table.tex, figure.pdf at column width, and caption.txt; returns their paths."""
        from .rendering import column_figure, comparison_caption

        target = Path(folder)
        require_folder(target)
        target.mkdir(parents=True, exist_ok=True)
        written = [self.to_csv(target / "results.csv"), target / "table.tex", target / "figure.pdf"]
        self.to_latex(written[1])
        drawn = io.BytesIO()
        column_figure(self.result, self._steps()).savefig(drawn, format="pdf")
        files.atomic_write_bytes(written[2], drawn.getvalue())
        written.append(files.atomic_write_text(target / "caption.txt", comparison_caption(self.result) + "\n"))
        return written

    def _steps(self) -> list[RunSteps]:
        return load_steps(self.folder / STEPS)

    def _sentence(self) -> str:
        labels = list(dict.fromkeys(row["label"] for row in self.result["mechanisms"]))
        return (
            f"of {', '.join(labels)} on task {self.result['task']}, {self.result['nodes']} nodes, "
            f"{len(self.result['seeds'])} seeds; {RESULTS} and pictures in {self.folder}"
        )

    def _rows(self) -> list[tuple[str, str]]:
        rows = []
        for row in self.table():
            name, loss = row["mechanism"], row["final_test_loss_mean"]
            name += "" if row["mu"] is None else f", mu {row['mu']:g}"
            rows.append((name, "diverged" if loss is None else f"test loss {loss:.4g}"))
        return rows

    def _figure(self) -> Figure | None:
        figure: Any = self.plot()
        return figure
