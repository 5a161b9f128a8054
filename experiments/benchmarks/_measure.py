"""What every benchmark shares: repeats, medians, peak memory, and one JSON row per measurement."""

from __future__ import annotations

import json
import platform
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy

import mfdl


def seconds(work: Callable[[], Any], *, repeats: int = 7, warm_up: int = 1) -> dict[str, float]:
    """Median and spread of wall seconds."""
    for _ in range(warm_up):
        work()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return {"median": statistics.median(times), "min": min(times), "max": max(times)}


def peak_megabytes() -> float:
    """Peak resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(name: str, **row: Any) -> None:
    """Prints one JSON row with versions and machine."""
    machine = {"python": platform.python_version(), "machine": platform.machine(), "mfdl": mfdl.__version__}
    versions = {"numpy": np.__version__, "scipy": scipy.__version__}
    print(json.dumps({"benchmark": name, **row, "versions": {**machine, **versions}}), flush=True)
