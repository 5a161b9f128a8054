"""Comparison of mechanisms at one privacy guarantee, or at several budgets or rates: a grid of cells and its folder.

    runs/                           the store (`mfdl.runs.store`) of all finished runs
    results.json                    the return value of `run_comparison`, written after each finished run
    steps.mfdl                      every evaluated step of every node and seed, with its conditions (`load_steps`)
    compare.png/svg                 the picture; budgets.png/svg at several budgets
    mu-1.0-lr-0.5/                  the comparison at these, without runs/, if there are several

Each file is replaced as a whole, so a stopped comparison is readable and resumes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mfdl_solvers.ties import first_maximum

from .. import files
from ..algorithms.registry import shortsighted
from ..engines import Engine
from ..errors import InvalidInput
from ..mechanism import Mechanism
from ..metrics import result_key
from ..pictures.style import write_figure
from ..privacy.guarantee_texts import in_common
from ..progress import Advance, Progress, reporter
from ..spec import text_label
from ..training import distributed
from ..training.distributed import Group, current
from ..training.learned import Baseline, Ended, Judged
from ..training.replay_config import left_out, statement
from ..training.run import is_private
from .cells import WITHOUT_NOISE, Cell, Grid, Plan, Shared, comparison_cells
from .experiment import Experiment
from .option_files import is_own
from .output import circumstances, json_number, objective_fields, require_folder, require_writable, result_sensitivity
from .rendering import plot_budgets, plot_comparison
from .running import run_missing
from .store import (
    COMPARISON_FILES,
    NOT_PRIVATE,
    PNG,
    RESULTS,
    RUNS,
    STEPS,
    SVG,
    RunSteps,
    Store,
    aggregated,
    names,
    read_json,
    save_steps,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..privacy.guarantee import Guarantee

Key = tuple[str, int]  # mechanism, seed


def earlier_result(
    folder: Path, identity: str, options: Mapping[str, Any], *, overwrite: bool
) -> dict[str, Any] | None:
    """results.json of a folder if it is of this very comparison, else None; one that only grew resumes in its folder.

    Raises: InvalidInput: the folder holds files of another one, or cannot be written.
    """
    require_folder(folder)
    for name in COMPARISON_FILES:
        require_writable(folder / name)
    content = read_json(folder / RESULTS)
    if content is not None and content.get("config_hash") == identity:
        return content
    existing = [name for name in COMPARISON_FILES if (folder / name).exists()]
    if existing and not overwrite:
        before = None if content is None else content.get("config")
        differing = _differing(before, options) if isinstance(before, dict) else {}
        if not differing or not all(_grown(name, *pair) for name, pair in differing.items()):
            pairs = [f"{name} {before!r} there, {now!r} here" for name, (before, now) in differing.items()]
            details = f" ({'; '.join(pairs)})" if pairs else ""
            raise InvalidInput(
                f"{folder} holds {existing[0]} of another comparison{details}; choose another folder, or replace it "
                "with overwrite=True (command line: --overwrite)."
            )
    return None


WHERE = {"out", "jobs", "device", "data_home", "ranks"}  # options that decide no number


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Options of two comparisons that decide numbers and differ, by name: (before, now)."""
    stored = json.loads(json.dumps(dict(now), default=str))
    names = [name for name in {**before, **stored} if name not in WHERE]
    return {name: (before.get(name), stored.get(name)) for name in names if before.get(name) != stored.get(name)}


def _grown(name: str, before: Any, now: Any) -> bool:
    """Whether an option only adds runs to those of before."""
    if name == "seeds":
        return isinstance(before, int) and isinstance(now, int) and now > before
    several = name in ("mechanisms", "mu", "epsilon", "lr") and isinstance(before, list) and isinstance(now, list)
    return several and set(before) <= set(now)


def _baseline(name: str, baseline: Baseline | None, suffix: str = "") -> dict[str, Any]:
    loss, accuracy = (None, None) if baseline is None else (baseline.loss, baseline.accuracy)
    return {f"{name}_loss{suffix}": loss, f"{name}_accuracy{suffix}": accuracy}


class Folder:
    """The files of one comparison, derived from its cells in a store: cells and finished runs by mechanism and seed."""

    def __init__(self, folder: Path, plan: Plan, store: Store, *, resume: bool, overwrite: bool) -> None:
        self.folder, self.plan, self.store, self.resume = folder, plan, store, resume
        self.cells = {(cell.mechanism, cell.seed): cell for cell in comparison_cells(plan.config, plan.shared)}
        hashes = "".join(cell.hash for cell in self.cells.values())
        self.identity, self.metrics = hashlib.sha256(hashes.encode()).hexdigest()[:16], plan.config.metrics
        self.records: dict[Key, dict[str, Any]] = {}
        self.steps_of_run: dict[Key, RunSteps] = {}
        self.mechanisms: dict[str, Mechanism] = {}
        earlier = earlier_result(folder, self.identity, plan.config.options(), overwrite=overwrite)
        self._is_new = earlier is None
        self._drawn = earlier is not None and resume and earlier.get("complete") is True

    def begin(self, mechanisms: dict[str, Mechanism]) -> None:
        """Claims the folder, and removes files of an earlier comparison."""
        self.mechanisms = mechanisms
        self.store.require_places(self.cells.values())
        if self._is_new:  # first of all, so that a full disk leaves the earlier comparison; then nothing of it counts
            files.atomic_write_json(self.folder / RESULTS, self.result(complete=False))
        if not self.resume:
            self.store.discard(self.cells.values())
        self._take(self.cells.values())
        # also what stayed of an earlier one because a process was killed right here
        stale = [STEPS] * (not self.records) + [PNG, SVG] * (not self._drawn)
        gone = [self.folder / name for name in stale]
        for name in COMPARISON_FILES:  # what killed runs left: a folder belongs to one comparison at a time
            gone += self.folder.glob(f".{name}.*.tmp")
        for path in gone:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise InvalidInput(f"cannot remove {path}: {error.strerror}; choose another folder.") from error
        self._write()

    def add(self, cell: Cell) -> None:
        self._take([cell])
        self._write()

    def finish(self) -> dict[str, Any]:
        result = self.result(complete=True)
        write_figure(self.folder, Path(PNG).stem, plot_comparison(result, self.steps))
        files.atomic_write_json(self.folder / RESULTS, result)
        return result

    @property
    def steps(self) -> list[RunSteps]:
        return [self.steps_of_run[key] for key in self._ordered()]

    def _take(self, cells: Iterable[Cell]) -> None:
        timings = {str(timing.get("cell")): timing for timing in self.store.timings()}
        fields = (*names("run"), *self.plan.config.measured_besides)
        for cell in cells:
            if (record := self.store.record(cell)) is None:
                continue
            try:
                steps = self.store.steps(cell)
            except InvalidInput:  # damaged
                steps = None
            if steps is None or not steps.has_columns(self.metrics):  # without its steps a run is not finished
                self.store.discard([cell])
                continue
            timing, key = timings.get(cell.hash, {}), (cell.mechanism, cell.seed)
            seconds = timing.get("training_seconds")
            values = {**record, **timing, **dict(zip(("mechanism", "seed"), key, strict=True))}
            values["seconds"] = seconds if isinstance(seconds, float) else 0.0
            self.records[key] = {name: values.get(name) for name in fields}
            trust = self.mechanisms[cell.mechanism].guarantee.trust  # that of a cell of "none" may be another
            conditions = {**steps.conditions, "trust": trust}
            self.steps_of_run[key] = dataclasses.replace(steps, conditions=conditions)

    def _write(self) -> None:
        """Writes the steps first, so that results.json never names a run without them."""
        if self.records:
            save_steps(self.folder / STEPS, self.steps)
        files.atomic_write_json(self.folder / RESULTS, self.result(complete=False))

    def _ordered(self) -> list[Key]:
        return [key for key in self.cells if key in self.records]

    def result(self, *, complete: bool) -> dict[str, Any]:
        plan, config, judged = self.plan, self.plan.config, self._judged()
        return {
            **circumstances(config, plan.graph, plan.gossip),
            **config.values("unit", "adjacency", "clip_norm", "learning_rate", "momentum", "weight_decay"),
            "trust": text_label(config.trust), **self._view(), "gossip_hash": plan.gossip.content_hash,
            "task": plan.task.name, "steps": plan.participation.num_steps,
            "participation": {**plan.participation.to_dict(), **config.values("epochs", "period")},
            "across_trust_models": self._across(), "mu": json_number(plan.mu), "epsilon": json_number(plan.epsilon),
            "delta": config.delta, "seeds": config.seed_list, "guarantee": self._guarantee(), "noise": "seeded",
            "not_private": [
                *NOT_PRIVATE,
                *(key for name in self.metrics for key in (name, result_key("final", name))),
                *(name for name in config.measured_besides if name.startswith("last_")),
                *(["dropped_records"] if any("dropped_records" in run for run in self.records.values()) else []),
            ],
            "finding": judged.finding, "advice": judged.advice, **_baseline("untrained", judged.untrained, "_mean"),
            **_baseline("chance", judged.chance),
            "mechanisms": [self._summary(ended, judged) for ended in judged.ended],
            "runs": [self.records[key] for key in self._ordered()], "complete": complete,
            "config": {**config.options(), "out": str(self.folder)}, "config_hash": self.identity,
        }  # fmt: skip

    def _view(self) -> dict[str, str | None]:
        """Attacker and published models, if the same for all with noise; a name alone may say who observes."""
        config = self.plan.config
        if not (is_own(config.trust) or config.attackers or config.colluders or config.coalition_size):
            return {"attacker": None, "release": None}
        guarantees = [m.guarantee for m in self.mechanisms.values() if is_private(m)]
        attackers, releases = ({getattr(g, name) for g in guarantees} for name in ("attacker", "release"))
        return {
            "attacker": attackers.pop() if len(attackers) == 1 else None,
            "release": releases.pop() if len(releases) == 1 else None,
        }  # fmt: skip

    def _judged(self) -> Judged:
        plan = self.plan
        ended = []
        for name in plan.config.mechanisms:
            runs = self._mechanism_runs(name)
            losses, accuracies = [run["final_test_loss"] for run in runs], [run["final_accuracy"] for run in runs]
            diverged, mechanism = sum(run["diverged"] for run in runs), self.mechanisms[name]
            remark = shortsighted(mechanism.algorithm)
            dropped = sum(run.get("dropped_records", 0) for run in runs)
            ended.append(Ended(name, is_private(mechanism), losses, accuracies, diverged, remark, dropped))
        return Judged(ended, plan.untrained, plan.chance)

    def _mechanism_runs(self, name: str) -> list[dict[str, Any]]:
        return [self.records[key] for key in self._ordered() if key[0] == name]

    def _guarantee(self) -> str:
        """The fields that hold for every mechanism with noise, with mu and epsilon of the weakest guarantee."""
        if self._across():
            return "Each mechanism is accounted under its own trust model, named beside it: do not rank them by loss."
        private = {name: mechanism for name, mechanism in self.mechanisms.items() if is_private(mechanism)}
        every = private or self.mechanisms
        weakest = first_maximum(list(every), key=lambda name: self._lost(every[name].guarantee))
        texts = {name: self._statement(mechanism) for name, mechanism in every.items()}
        return in_common(texts[weakest], texts)

    def _lost(self, guarantee: Guarantee) -> float:
        mu = guarantee.mu
        return guarantee.epsilon(self.plan.config.delta) if mu is None else mu

    def _statement(self, mechanism: Mechanism) -> str:
        """`Run.statement` of its runs, with epsilon at the delta of this comparison."""
        config = self.plan.config
        declared = left_out(mechanism, self.plan.task)
        return statement(mechanism, declared, config.delta, config.step_rule or "", config.clipping)

    def _across(self) -> bool:
        """Whether mechanisms with noise have different trust models."""
        private = [mechanism.guarantee for mechanism in self.mechanisms.values() if is_private(mechanism)]
        return len({(guarantee.trust, guarantee.attacker, guarantee.release) for guarantee in private}) > 1

    def _summary(self, ended: Ended, judged: Judged) -> dict[str, Any]:
        name, mechanism = ended.name, self.mechanisms[ended.name]
        guarantee, runs, label = mechanism.guarantee, self._mechanism_runs(name), text_label(name)
        measured = ("final_test_loss", "final_accuracy", *self.plan.config.measured_besides)
        over = aggregated(runs, (*measured, "seconds"))
        whole = [name for name in measured if over[f"{name}_count"] == over["final_test_loss_count"] == len(runs)]
        seconds = over["seconds"]
        steps = len(runs) * self.plan.dynamics.num_nodes * self.plan.participation.num_steps
        return {
            "mechanism": name,
            "label": f"{label} [{guarantee.trust}]" if self._across() and is_private(mechanism) else label,
            "trust": guarantee.trust, "guarantee": self._statement(mechanism),
            "noise_std": mechanism.noise_std,  # nu, what `mfdl account --noise-std` takes
            "injected_noise_std": mechanism.injected_noise_std, "sensitivity": result_sensitivity(mechanism),
            **objective_fields(mechanism),
            **{
                key: over[key] if name in whole else None
                for name in measured
                for key in (f"{name}_mean", f"{name}_std")
            },
            "mu": json_number(guarantee.mu), "epsilon": json_number(guarantee.epsilon(self.plan.config.delta)),
            "beats_untrained": ended.beats(judged.untrained), "beats_chance": ended.beats(judged.chance),
            "diverged": [run["seed"] for run in runs if run["diverged"]], "seconds": seconds,
            "node_steps_per_second": json_number(steps / seconds) if seconds > 0 else None,
        }  # fmt: skip


BUDGETS = "budgets"
CHECKPOINTS = "checkpoints"  # folder of checkpoints of a comparison whose runs are shared by ranks


def run_comparison(
    config: Experiment,
    out: str | os.PathLike[str],
    *,
    several: Mapping[str, Sequence[float]] | None = None,
    resume: bool = True,
    overwrite: bool = False,
    progress: Progress = "auto",
) -> dict[str, Any]:
    """Runs the missing runs of a comparison and writes it to a folder.

    Args:
        several: values of mu or epsilon, and of learning_rate, by field: a comparison at every combination of them;
            "none", which no budget changes, at the first budget alone.
        resume: keep the finished runs that the folder holds for this very config.
        overwrite: replace the files of another config instead of refusing.
        progress: True, False, "auto" (see `mfdl.progress`), or a function of the number of steps just finished and a
            description; an exception it raises stops the comparison, finished runs stay readable.
    Returns: the content of results.json; at several values, mu, epsilon and learning_rate are lists, and each mechanism
        and run has its mu and lr.
    Raises: InvalidInput: anything that cannot be used, also a value given twice and a folder in use, before any work is
        done or any file is written. NotConverged: a mechanism's factorization stopped before its tolerance.
    """
    several, folder, shared = several or {}, Path(out), Shared()
    if (config.ranks or 1) > 1:
        distributed.require_packages()
    for name, values in several.items():
        if len(set(values)) < len(values):
            raise InvalidInput(f"{name} must hold distinct values, got {', '.join(f'{value:g}' for value in values)}.")
    require_folder(folder)
    store, screen = Store(folder / RUNS), reporter(progress, words=2)
    plans = [Plan(each, shared) for each in comparison_grid(config, several).configs()]
    parts = [
        Folder(folder / _name(plan) if several else folder, plan, store, resume=resume, overwrite=overwrite)
        for plan in plans
    ]
    identity = hashlib.sha256("".join(part.identity for part in parts).encode()).hexdigest()[:16]
    if several:
        earlier_result(folder, identity, _options(config, several), overwrite=overwrite)
    every = [cell for part in parts for cell in part.cells.values()]
    with files.held_alone(folder), screen.bar("comparing", sum(cell.num_steps for cell in every)) as report:
        results = [_compared(part, every, folder / CHECKPOINTS, report) for part in parts]
        if not several:
            return results[0]
        result = _merged(config, several, plans, results) | {"config_hash": identity}
        result["config"] = {**result["config"], "out": str(folder)}
        save_steps(folder / STEPS, [steps for part in parts for steps in part.steps])
        if len(several.get("mu", several.get("epsilon", ()))) > 1:
            write_figure(folder, BUDGETS, cast("Figure", plot_budgets(result)))
        files.atomic_write_json(folder / RESULTS, result)
    return result


def _compared(part: Folder, every: Sequence[Cell], checkpoints: Path, report: Advance) -> dict[str, Any]:
    config, plan, store = part.plan.config, part.plan, part.store
    mechanisms: dict[str, Mechanism] = {}
    for name in config.mechanisms:
        report(0, f"building {name}")
        mechanisms[name] = plan.mechanism(name)
    store.begin(every, {"config": config.options()})
    part.begin(mechanisms)
    calibrated = {cell: mechanisms[name] for (name, _), cell in part.cells.items() if name != WITHOUT_NOISE}
    with _sharing(config.ranks) as group:
        keeps = config.ranks is not None or group.size > 1
        engine, folder = Engine(jobs=config.jobs), checkpoints if keeps else None
        more: dict[str, Any] = {"mechanisms": calibrated, "checkpoints": folder, "strict": True}
        for cell in run_missing(list(part.cells.values()), store, engine, report, plan.shared, **more):
            part.add(cell)
    if keeps:
        for cell in part.cells.values():
            shutil.rmtree(checkpoints / cell.hash, ignore_errors=True)
        with contextlib.suppress(OSError):
            checkpoints.rmdir()  # only if nothing else is there
    return part.finish()


def _sharing(ranks: int | None) -> contextlib.AbstractContextManager[Group]:
    """The processes that share the nodes of each run: those of torchrun, or `ranks` new ones."""
    if ranks is None or current().size > 1:
        return contextlib.nullcontext(current())
    return distributed.ranks(ranks)


def comparison_grid(config: Experiment, several: Mapping[str, Sequence[float]]) -> Grid:
    values = {name: several.get(name, (getattr(config, name),)) for name in Experiment.SEVERAL}

    def point(chosen: dict[str, Any]) -> dict[str, Any] | None:
        names = config.mechanisms
        if any(chosen[name] != values[name][0] for name in ("mu", "epsilon")):
            names = tuple(name for name in names if name != WITHOUT_NOISE)
        return {**chosen, "mechanisms": names} if names else None

    return Grid(config, values, point)


def _name(plan: Plan) -> str:
    config = plan.config
    target = f"mu-{plan.mu!r}" if config.epsilon is None else f"epsilon-{config.epsilon!r}"
    return f"{target}-lr-{config.learning_rate!r}"


def _options(config: Experiment, several: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    return config.options() | {("lr" if name == "learning_rate" else name): list(v) for name, v in several.items()}


def _merged(
    config: Experiment, several: Mapping[str, Sequence[float]], plans: Sequence[Plan], results: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    for plan, result in zip(plans, results, strict=True):
        # without mu, epsilon says at which budget
        budget = ("mu", "lr", "budget", *["epsilon"] * plan.config.has_secret_batches)
        target = {"lr": plan.config.learning_rate, "budget": plan.config.epsilon or plan.config.target_mu_or_default}
        of_mechanism = {row["mechanism"]: {**row, **target} for row in result["mechanisms"]}
        rows += of_mechanism.values()
        runs += [{**run, **{name: of_mechanism[run["mechanism"]][name] for name in budget}} for run in result["runs"]]
    options = _options(config, several)
    return {
        **results[0],
        **{name: list(dict.fromkeys(each[name] for each in results)) for name in ("mu", "epsilon", "learning_rate")},
        "guarantee": "Each mechanism meets its own budget, which its guarantee states.", "finding": None,
        "advice": list(dict.fromkeys(text for result in results for text in result["advice"])), "mechanisms": rows,
        "runs": runs, "config": options | ({"mu": None} if "epsilon" in several else {}),
    }  # fmt: skip
