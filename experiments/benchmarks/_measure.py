"""What every benchmark shares: repeats, medians, peak memory, and one JSON row per measurement."""

from __future__ import annotations

import datetime
import json
import math
import os
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


def slope(sizes: list[float], costs: list[float]) -> float:
    """Exponent of growth: of the line through (log size, log cost) with the least squares."""
    return statistics.linear_regression([math.log(size) for size in sizes], [math.log(cost) for cost in costs]).slope


def peak_megabytes() -> float:
    """Peak resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(name: str, **row: Any) -> None:
    """Prints one JSON row with date, versions, machine and its load (of 1 where one core is busy)."""
    versions = {"python": platform.python_version(), "mfdl": mfdl.__version__}
    versions |= {"numpy": np.__version__, "scipy": scipy.__version__}
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)}
    dated = {"date": datetime.date.today().isoformat(), "machine": machine, "versions": versions}
    print(json.dumps({"benchmark": name, **row, **dated}), flush=True)
