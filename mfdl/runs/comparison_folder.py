"""The folder of a comparison: which runs it holds, and writing them so that it is readable at any moment.

    results.json     what `run_comparison` returns, rewritten after every finished run (`complete`: all are there)
    steps.parquet    every evaluated step of every node and seed, with what it was run with
    compare.png/svg  the picture

Each file is the old one or the new one, whole, at any moment, so that a comparison that was stopped is readable and
goes on from the runs it has.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .. import files
from ..algorithms.registry import shortsighted
from ..errors import InvalidInput
from ..mechanism import Mechanism
from ..metrics import result_key
from ..pictures.style import write_figure
from ..training.covered import left_out, statement
from ..training.learned import Ended, Judged
from ..training.run import is_private
from .columns import NOT_PRIVATE, aggregated, is_finished, schema_of
from .output import circumstances, json_number, objective_fields, require_folder, require_writable
from .rendering import plot_comparison

if TYPE_CHECKING:
    from ..privacy.guarantee import Guarantee
    from .comparing import Plan


RESULTS, STEPS, PNG, SVG = NAMES = ("results.json", "steps.parquet", "compare.png", "compare.svg")
Key = tuple[str, int]  # mechanism, seed


class Folder:
    """The finished runs that it holds, and the mechanisms they are of."""

    def __init__(self, folder: Path, plan: Plan, *, resume: bool, overwrite: bool) -> None:
        self.folder, self.plan, self.identity, self.metrics = folder, plan, plan.identity, plan.config.metrics
        self.schema = schema_of(self.metrics)
        require_folder(folder)
        for name in NAMES:
            require_writable(folder / name)
        self.records: dict[Key, dict[str, Any]] = {}
        self.tables: dict[Key, pa.Table] = {}
        self.mechanisms: dict[str, Mechanism] = {}
        earlier = self._earlier_result()
        self._drawn = earlier is not None and resume and earlier.get("complete") is True
        if earlier is None:
            existing = [name for name in NAMES if (folder / name).exists()]
            if existing and not overwrite:
                raise InvalidInput(
                    f"{folder} holds {existing[0]} of another comparison; choose another folder, or replace it with "
                    "overwrite=True (command line: --overwrite)."
                )
        elif resume:
            self._take_over(earlier)

    def _earlier_result(self) -> dict[str, Any] | None:
        """results.json if it is of this very config, else None."""
        try:
            content = json.loads((self.folder / RESULTS).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return content if isinstance(content, dict) and content.get("config_hash") == self.identity else None

    def _take_over(self, earlier: dict[str, Any]) -> None:
        try:
            table = pq.read_table(io.BytesIO((self.folder / STEPS).read_bytes())).cast(self.schema)
        except (OSError, ValueError, pa.ArrowException):  # ValueError: other columns
            return  # without its steps a run is not finished
        names, seeds = np.asarray(table["mechanism"]), np.asarray(table["seed"])
        runs = earlier.get("runs")
        for record in runs if isinstance(runs, list) else []:
            if not is_finished(record, self.plan.config.measured_besides):
                continue
            key = (record["mechanism"], record["seed"])
            rows = table.filter(pa.array((names == key[0]) & (seeds == key[1])))
            if rows.num_rows:
                self.records[key], self.tables[key] = record, rows

    def begin(self, mechanisms: dict[str, Mechanism]) -> None:
        """Takes the folder: from here on it holds this comparison and nothing of an earlier one."""
        self.mechanisms = mechanisms
        # first of all, so that a full disk leaves the earlier comparison; from then on nothing of it counts
        files.atomic_write_json(self.folder / RESULTS, self.result(complete=False))
        # also what stayed of an earlier one because a process was killed right here
        stale = [STEPS] * (not self.records) + [PNG, SVG] * (not self._drawn)
        gone = [self.folder / name for name in stale]
        for name in NAMES:  # what killed runs left: a folder belongs to one comparison at a time
            gone += self.folder.glob(f".{name}.*.tmp")
        for path in gone:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise InvalidInput(f"cannot remove {path}: {error.strerror}; choose another folder.") from error

    def add(self, key: Key, record: dict[str, Any], table: pa.Table) -> None:
        """Records one finished run; the steps first, so that results.json never names a run without them."""
        self.records[key], self.tables[key] = record, table
        self._write_steps()
        files.atomic_write_json(self.folder / RESULTS, self.result(complete=False))

    def finish(self) -> dict[str, Any]:
        """Draws the picture and marks the result complete, last of all."""
        result = self.result(complete=True)
        steps = self._write_steps()
        write_figure(self.folder, Path(PNG).stem, plot_comparison(result, steps))
        files.atomic_write_json(self.folder / RESULTS, result)
        return result

    def _ordered(self) -> list[Key]:
        return [key for key in self.plan.config.runs if key in self.records]

    def _write_steps(self) -> pa.Table:
        table = pa.concat_tables([self.schema.empty_table(), *(self.tables[key] for key in self._ordered())])
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        files.atomic_write_bytes(self.folder / STEPS, buffer.getvalue())
        return table

    def result(self, *, complete: bool) -> dict[str, Any]:
        """Everything known so far."""
        plan, config = self.plan, self.plan.config
        return {
            **circumstances(config, plan.graph, plan.gossip),
            **config.values("unit", "trust", "adjacency", "clip_norm", "learning_rate", "momentum", "weight_decay"),
            "gossip_hash": plan.gossip.content_hash,
            "task": plan.task.name,
            "steps": plan.participation.num_steps,
            "participation": {**plan.participation.to_dict(), **config.values("epochs", "period")},
            "across_trust_models": self._across(),
            "mu": json_number(plan.mu),
            "epsilon": json_number(plan.epsilon),
            "delta": config.delta,
            "seeds": config.seed_list,
            "guarantee": self._guarantee(),
            "noise": "seeded",
            "not_private": [
                *NOT_PRIVATE,
                *(key for name in self.metrics for key in (name, result_key("final", name))),
                *(name for name in config.measured_besides if name.startswith("last_")),
            ],
            **self._worth(),
            "mechanisms": [self._summary(name) for name in config.mechanisms],
            "runs": [self.records[key] for key in self._ordered()],
            "complete": complete,
            "config": {**config.options(), "out": str(self.folder)},
            "config_hash": self.identity,
        }

    def _judged(self) -> Judged:
        """The mechanisms as far as they are finished, beside the untrained model and chance."""
        plan = self.plan
        ended = []
        for name in plan.config.mechanisms:
            runs = self._runs_of(name)
            losses, accuracies = [run["final_test_loss"] for run in runs], [run["final_accuracy"] for run in runs]
            private = is_private(self.mechanisms[name])
            diverged = sum(run["diverged"] for run in runs)
            remark = shortsighted(self.mechanisms[name].algorithm)
            ended.append(Ended(name, private, losses, accuracies, diverged, remark))
        return Judged(ended, plan.untrained, plan.chance)

    def _worth(self) -> dict[str, Any]:
        """What training is held against, and whether it was worth it."""
        judged = self._judged()
        worth: dict[str, Any] = {"finding": judged.finding, "advice": judged.advice}
        for name, baseline in (("untrained", judged.untrained), ("chance", judged.chance)):
            mean = "_mean" if name == "untrained" else ""
            worth[f"{name}_loss{mean}"] = None if baseline is None else baseline.loss
            worth[f"{name}_accuracy{mean}"] = None if baseline is None else baseline.accuracy
        return worth

    def _runs_of(self, name: str) -> list[dict[str, Any]]:
        return [self.records[key] for key in self._ordered() if key[0] == name]

    def _private(self) -> list[Mechanism]:
        """The mechanisms with noise."""
        return [mechanism for mechanism in self.mechanisms.values() if is_private(mechanism)]

    def _guarantee(self) -> str:
        """The sentence of the weakest guarantee among the mechanisms with noise; it holds for each of them."""
        if self._across():
            return "Each mechanism is held to its own trust model, named beside it: their losses are no ranking."
        every = self._private() or list(self.mechanisms.values())
        return self._statement(
            max(every, key=lambda each: (self._lost(each.guarantee), each.guarantee.bound == "upper"))
        )

    def _lost(self, guarantee: Guarantee) -> float:
        mu = guarantee.mu
        return guarantee.epsilon(self.plan.config.delta) if mu is None else mu

    def _statement(self, mechanism: Mechanism) -> str:
        """What `Run.statement` says of its runs, with epsilon at the delta of this comparison."""
        return statement(mechanism, left_out(mechanism, self.plan.task), self.plan.config.delta)

    def _across(self) -> bool:
        """Whether mechanisms with noise are held to different trust models."""
        return len({(m.guarantee.trust, m.guarantee.attacker, m.guarantee.release) for m in self._private()}) > 1

    def _summary(self, name: str) -> dict[str, Any]:
        mechanism = self.mechanisms[name]
        guarantee = mechanism.guarantee
        runs = self._runs_of(name)
        measured = ("final_test_loss", "final_accuracy", *self.plan.config.measured_besides)
        over = aggregated(runs, (*measured, "seconds"))
        whole = [name for name in measured if over[f"{name}_count"] == over["final_test_loss_count"] == len(runs)]
        judged, seconds = self._judged(), over["seconds"]
        (ended,) = (each for each in judged.ended if each.name == name)
        steps = len(runs) * self.plan.dynamics.num_nodes * self.plan.participation.num_steps
        return {
            "mechanism": name,
            "label": f"{name} [{guarantee.trust}]" if self._across() and is_private(mechanism) else name,
            "trust": guarantee.trust,
            "guarantee": self._statement(mechanism),
            "noise_std": mechanism.noise_std,  # nu, what `mfdl account --noise-std` takes
            "injected_noise_std": mechanism.injected_noise_std,
            **objective_fields(mechanism),
            **{
                f"{name}_{kind}": over[f"{name}_{kind}"] if name in whole else None
                for name in measured
                for kind in ("mean", "std")
            },
            "mu": json_number(guarantee.mu),
            "epsilon": json_number(guarantee.epsilon(self.plan.config.delta)),
            "beats_untrained": ended.beats(judged.untrained),
            "beats_chance": ended.beats(judged.chance),
            "diverged": [run["seed"] for run in runs if run["diverged"]],
            "seconds": seconds,
            "node_steps_per_second": json_number(steps / seconds) if seconds > 0 else None,
        }
