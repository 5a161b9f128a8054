"""A comparison at several budgets or rates: one of each, in a folder of its own, and all of them in one result.

results.json, steps.parquet     of all, with mu and lr beside each mechanism and run
mu-1.0-lr-0.5/                  the comparison at these, as `comparison_folder` says
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .. import files
from ..errors import InvalidInput
from ..progress import Progress, reporter
from .comparing import Plan, run_comparison
from .comparison_config import ComparisonConfig
from .comparison_folder import RESULTS, STEPS
from .grid import Grid
from .output import require_folder
from .shared import WITHOUT_NOISE, Shared


def run_several(
    config: ComparisonConfig,
    several: Mapping[str, Sequence[float]],
    out: str | os.PathLike[str],
    *,
    resume: bool = True,
    overwrite: bool = False,
    progress: Progress = "auto",
) -> dict[str, Any]:
    """Compares at every combination of the values; "none", which no budget changes, at the first budget alone.

    Args:
        several: values of mu or epsilon, and of learning_rate, by field.
        out, resume, overwrite, progress: as for `run_comparison`.

    Returns: the content of results.json: that of one comparison, whose mu, epsilon and learning_rate are lists, and
        each of whose mechanisms and runs has its mu and lr.
    Raises: InvalidInput, NotConverged: as `run_comparison`; a value that is refused or given twice, before any work.
    """
    for name, values in several.items():
        if len(set(values)) < len(values):
            raise InvalidInput(f"{name} must hold distinct values, got {', '.join(f'{value:g}' for value in values)}.")
    folder, shared, screen = Path(out), Shared(), reporter(progress, words=2)
    require_folder(folder)
    configs = list(_grid(config, several).configs())
    plans = [Plan(config, shared) for config in configs]
    identity = hashlib.sha256("".join(plan.identity for plan in plans).encode()).hexdigest()[:16]
    if not overwrite and (folder / RESULTS).exists() and _hash_of(folder / RESULTS) != identity:
        raise InvalidInput(
            f"{folder} holds {RESULTS} of another comparison; choose another folder, or replace it with overwrite=True "
            "(command line: --overwrite)."
        )
    run = functools.partial(run_comparison, resume=resume, overwrite=overwrite, shared=shared)
    with files.held_alone(folder), screen.bar("comparing", sum(config.total_steps for config in configs)) as report:
        places = [folder / _name(plan) for plan in plans]
        results = [run(config, place, progress=report) for config, place in zip(configs, places, strict=True)]
        result = _merged(config, several, plans, results) | {"config_hash": identity}
        result["config"] = {**result["config"], "out": str(folder)}
        buffer = io.BytesIO()
        pq.write_table(pa.concat_tables([pq.read_table(place / STEPS) for place in places]), buffer, compression="zstd")
        files.atomic_write_bytes(folder / STEPS, buffer.getvalue())
        files.atomic_write_json(folder / RESULTS, result)
    return result


def _grid(config: ComparisonConfig, several: Mapping[str, Sequence[float]]) -> Grid:
    values = {name: several.get(name, (getattr(config, name),)) for name in ComparisonConfig.SEVERAL}

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


def _merged(
    config: ComparisonConfig,
    several: Mapping[str, Sequence[float]],
    plans: Sequence[Plan],
    results: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    rows, runs = [], []
    for plan, result in zip(plans, results, strict=True):
        rate = plan.config.learning_rate
        rows += [{**row, "lr": rate} for row in result["mechanisms"]]
        budgets = {row["mechanism"]: {"mu": row["mu"], "lr": rate} for row in result["mechanisms"]}
        if plan.config.has_bins:  # without mu, epsilon says at which budget
            budgets = {
                row["mechanism"]: budgets[row["mechanism"]] | {"epsilon": row["epsilon"]}
                for row in result["mechanisms"]
            }
        runs += [{**run, **budgets[run["mechanism"]]} for run in result["runs"]]
    options = config.options() | {("lr" if name == "learning_rate" else name): list(v) for name, v in several.items()}
    return {
        **results[0],
        **{
            name: list(dict.fromkeys(result[name] for result in results)) for name in ("mu", "epsilon", "learning_rate")
        },
        "guarantee": "Each mechanism is held to its own budget, which its guarantee states.",
        "finding": None,
        "advice": list(dict.fromkeys(text for result in results for text in result["advice"])),
        "mechanisms": rows,
        "runs": runs,
        "config": options | ({"mu": None} if "epsilon" in several else {}),
    }


def _hash_of(path: Path) -> str | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content.get("config_hash") if isinstance(content, dict) else None
