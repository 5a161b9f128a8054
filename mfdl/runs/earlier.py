"""Whether an earlier call finished everything, without loading graph, data or torch: what the commands ask first.

In: options, and what the folder of a sweep or comparison says. Out: its answer, or None where cells must be looked at
by their content: with other options or versions, something missing, or an option that names a file, which may differ.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .columns import names
from .output import versions
from .store import Store, answer

if TYPE_CHECKING:
    from .experiment import Experiment
    from .sweep_config import SweepConfig

RUNS = "runs"
COMPARISON_FILES = RESULTS, STEPS, PNG, SVG = ("results.json", "steps.mfdl", "compare.png", "compare.svg")


def finished_sweep(config: SweepConfig, folder: Path) -> dict[str, Any] | None:
    """The answer of a sweep of these options whose cells are all finished."""
    store = Store(folder)
    header, options = store.sweep(), config.options()
    if header["cells"] and _is_same(header, options) and (config.tuning is None or header.get("chosen")):
        result = answer(store)
        return result if result["finished"] == result["total"] else None
    return None


def finished_comparison(config: Experiment, folder: Path) -> dict[str, Any] | None:
    """results.json of a comparison of these options, if it is complete and its files are there."""
    try:
        result = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    whole = isinstance(result, dict) and result.get("complete") is True
    if whole and _is_same(result, {**config.options(), "out": str(folder)}):
        columns = set(names(level="mechanism"))  # a folder of another state of this version may lack one
        whole = all(columns <= row.keys() for row in result["mechanisms"])
        return result if whole and all((folder / name).is_file() for name in COMPARISON_FILES) else None
    return None


def _is_same(stored: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Whether these options decided what is stored, by these versions."""
    same = stored.get("config") == json.loads(json.dumps(options)) and stored.get("versions") == versions()
    inputs = (text for name, value in options.items() if name not in ("out", "data_home") for text in _texts(value))
    return same and not any(map(_may_name_a_file, inputs))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _may_name_a_file(text: str) -> bool:
    return any(mark in text for mark in ("/", "\\", "file:")) or any(map(os.path.exists, re.split("[:,@=]", text)))
