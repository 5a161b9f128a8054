"""What every benchmark shares: repeats, medians, peak memory, and one JSON row per measurement."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import json
import math
import os
import platform
import resource
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mfdl

PACKAGES = ("numpy", "scipy", "torch", "cvxpy", "clarabel", "jax", "jax-privacy", "cryptography", "opacus")
"""Whose versions a row states, where they are installed."""


def seconds(
    work: Callable[[], Any], *, repeats: int = 7, warm_up: int = 1, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Median and spread of seconds by a clock, wall by default; and the median `cpu` of all threads of this process."""
    for _ in range(warm_up):
        work()
    times, cpu = [], []
    for _ in range(repeats):
        began, began_cpu = clock(), time.process_time()
        work()
        times.append(clock() - began)
        cpu.append(time.process_time() - began_cpu)
    return {**spread(times), "cpu": statistics.median(cpu)}


def in_turn(works: Mapping[str, Callable[[], Any]], *, repeats: int = 21, calls: int = 5) -> dict[str, float]:
    """Median CPU seconds of a call of each, measured in turn so that all meet the same load."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats + 1):  # the first round is a warm-up
        for name, work in works.items():
            began = time.process_time()
            for _ in range(calls):
                work()
            times[name].append((time.process_time() - began) / calls)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest of repeats."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def slope(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Exponent of growth: of the line through (log size, log cost) with the least squares."""
    return statistics.linear_regression([math.log(size) for size in sizes], [math.log(cost) for cost in costs]).slope


def peak_megabytes() -> float:
    """Peak resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def traced_megabytes(work: Callable[[], Any]) -> float:
    """Peak that NumPy and Python allocate while working, beyond what is there before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def report(name: str, **row: Any) -> None:
    """Prints one JSON row with peak memory, date, versions, machine and its load (of 1 where one core is busy)."""
    load = {"load": round(os.getloadavg()[0], 2)}
    dated = {"date": datetime.date.today().isoformat(), "machine": {**_machine(), **load}, "versions": _versions()}
    print(json.dumps({"benchmark": name, "peak_megabytes": peak_megabytes(), **row, **dated}), flush=True)


def leave_out(name: str, why: str) -> None:
    """Prints a row that says what was not measured, and what would make it so."""
    report(name, left_out=why)


@functools.cache
def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "mfdl": mfdl.__version__}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


@functools.cache
def _machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gigabytes": round(memory, 1),
    }


def _processor() -> str:
    """The name that Linux gives it, else what Python knows."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
