"""Benchmarks: what a row says, slopes, growth of memory, and what is said where a peer is missing."""

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mfdl

FOLDER = Path(__file__).parents[1] / "experiments" / "benchmarks"


@pytest.fixture(scope="module")
def script():
    """Imports a benchmark by name, as its own process would."""
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    yield import_module
    sys.path.remove(str(FOLDER))
    for name in set(sys.modules) - before:
        if (FOLDER / f"{name}.py").is_file():  # their names are common words
            del sys.modules[name]


@given(exponent=st.floats(-1, 4), factor=st.floats(1e-6, 1e3), sizes=st.sets(st.integers(1, 10**6), min_size=2))
def test_the_slope_of_a_power_is_its_exponent(script, exponent, factor, sizes):
    sizes = sorted(sizes)
    slope = script("_measure").slope(sizes, [factor * size**exponent for size in sizes])
    assert abs(slope - exponent) < 1e-6 * max(1, 1 / (sizes[-1] / sizes[0] - 1))


def test_a_row_says_where_when_and_by_what_it_was_measured(script, capsys):
    measure = script("_measure")
    clock = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0])
    measure.report("some", mfdl=measure.seconds(lambda: None, repeats=3, warm_up=1, clock=lambda: next(clock)))
    row = json.loads(capsys.readouterr().out)
    assert row["benchmark"] == "some"
    assert row["mfdl"].pop("cpu") >= 0
    assert row["mfdl"] == {"median": 2.0, "min": 1.0, "max": 3.0}
    assert row["peak_megabytes"] > 10
    assert {"python", "mfdl", "numpy", "torch", "cvxpy"} <= set(row["versions"])
    assert {"machine", "processor", "cores", "memory_gigabytes", "load"} == set(row["machine"])
    assert len(row["date"]) == len("2026-11-23")


@pytest.mark.parametrize("curve", ["stream-dense", "stream-banded", "stream-buffered"])
def test_memory_of_a_stream_does_not_grow_with_its_steps(script, curve, monkeypatch):
    monkeypatch.setattr(script("growth"), "DIM", 2**10)
    row = script("growth").measured(curve, (128, 256))
    assert row["rows"][1] < 1.1 * row["rows"][0], row["rows"]


def test_a_missing_peer_is_named_with_what_installs_it(script, capsys, monkeypatch):
    dense = script("dense_peers")
    monkeypatch.setenv("MFDL_BENCH_PEER", "/no/such/python")
    monkeypatch.setattr(dense, "beside", lambda *given: {"mfdl": {"seconds": 1.0}, "interpreter": given[-1]})
    monkeypatch.setattr(sys, "argv", ["dense", "32", "--cores", "1", "--grams", "ring"])
    dense.main()
    missing, alone = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert "jax_privacy is not installed in /no/such/python" in missing["left_out"]
    assert "pip install" in missing["left_out"]
    assert alone["interpreter"] is None


def test_without_opake_the_comparison_says_that_nothing_was_measured(script, capsys, monkeypatch):
    monkeypatch.setattr(script("opake_peers"), "INTERPRETER", "")
    script("opake_peers").main([])
    assert "MFDL_BENCH_OPAKE" in json.loads(capsys.readouterr().out)["left_out"]


def test_objectives_beside_opake_are_those_of_the_solvers(script):
    """Prefix sums at unit sensitivity, here by dense arithmetic."""
    peers = script("opake_peers")
    factorized = mfdl.factorization.factorize_long(
        peers.ONE_NODE, peers.CYCLIC, form="toeplitz", bandwidth=peers.GAP, max_iterations=3
    )
    total, largest = peers.squared_error(factorized.encoder)
    assert total == pytest.approx(factorized.objective, rel=1e-6)
    assert largest <= total <= peers.STEPS * largest
