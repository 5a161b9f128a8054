"""The evaluated steps of runs: what is written is read back, in long format row by row."""

import dataclasses
import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numbers

from mfdl import InvalidInput
from mfdl.runs import load_steps
from mfdl.runs.store import CONDITIONS, RunSteps, save_steps

FLOATS = st.floats(allow_nan=False)


@st.composite
def run_steps(draw):
    """Steps of any run: infinite losses, no accuracy, a metric of the average model."""
    num_steps, num_nodes = draw(st.integers(0, 4)), draw(st.integers(1, 3))
    steps = np.array(sorted(draw(st.sets(st.integers(0, 99), min_size=num_steps, max_size=num_steps))), dtype=np.int64)
    of_nodes = numbers.arrays(np.float64, (num_steps, num_nodes), elements=FLOATS)
    optional = {"accuracy": of_nodes, "average_loss": numbers.arrays(np.float64, num_steps, elements=FLOATS)}
    values = draw(st.fixed_dictionaries({"loss": of_nodes}, optional=optional))
    conditions = dict.fromkeys(CONDITIONS, "text") | {"seed": 3, "mu": draw(st.none() | FLOATS), "lr": 0.5}
    label = st.text(st.characters(exclude_characters="\0"))
    nodes = tuple(draw(st.lists(label, min_size=num_nodes, max_size=num_nodes)))
    return RunSteps(conditions, steps, nodes, values)


def rows(run):
    """Long format, written out."""
    for i, step in enumerate(run.steps):
        for u, node in enumerate(run.nodes):
            measured = {name: values[i, u] if values.ndim == 2 else values[i] for name, values in run.values.items()}
            yield {**run.conditions, "step": step, "node": node, "accuracy": None, **measured}


def same(value, other):
    return value == other or (other is None and math.isnan(value))


@examples(50)
@given(runs=st.lists(run_steps(), max_size=3))
def test_runs_come_back_from_a_file_and_their_rows_are_those_written_out(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("steps") / "steps.mfdl"
    save_steps(path, runs)
    again = load_steps(path)
    assert len(again) == len(runs)
    for run, read in zip(runs, again, strict=True):
        columns, written_out = read.columns(), list(rows(run))
        assert {len(column) for column in columns.values()} == {len(read)} == {len(written_out)}
        for place, row in enumerate(written_out):
            assert set(row) == set(columns)
            assert all(same(columns[name][place], row[name]) for name in row)
        if run.steps.size:
            by_step = [[row["loss"] for row in written_out if row["step"] == step] for step in run.steps]
            with np.errstate(invalid="ignore", over="ignore"):
                np.testing.assert_array_equal(read.mean_over_nodes(), [np.mean(losses) for losses in by_step])


def run_of(values, conditions=None):
    return RunSteps(conditions or dict.fromkeys(CONDITIONS), np.array([1, 2]), ("a", "b", "c"), values)


def test_arrays_of_other_shapes_are_refused():
    with pytest.raises(InvalidInput, match=r"loss must have shape \(2, 3\) or \(2,\), got \(3, 2\)"):
        run_of({"loss": np.ones((3, 2))})


def test_a_file_of_which_a_byte_is_changed_is_refused(tmp_path):
    path = save_steps(tmp_path / "steps.mfdl", [run_of({"loss": np.ones((2, 3))})])
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="run the comparison or the sweep again"):
        load_steps(path)


def test_which_columns_a_run_has():
    loss = {"loss": np.ones((2, 3))}
    whole = run_of({**loss, "accuracy": np.ones((2, 3)), "train_loss": np.ones((2, 3))})
    assert whole.has_columns(["train_loss"])
    assert run_of(loss).has_columns([])
    assert not run_of(loss).has_columns(["train_loss"])
    assert not whole.has_columns([])
    assert not dataclasses.replace(whole, conditions={"seed": 0}).has_columns(["train_loss"])


def test_a_metric_that_was_not_measured_is_nan():
    assert np.isnan(run_of({"loss": np.ones((2, 3))}).mean_over_nodes("accuracy")).all()
    assert run_of({"loss": np.ones((2, 3))}).to_pandas()["accuracy"].isna().all()
