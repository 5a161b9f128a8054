"""Metrics, times and divergence carry a mark that no guarantee covers them: in the type, in tables, in results."""

import dataclasses
import json

import pyarrow.parquet as pq
import pytest

from mfdl.metrics import METRICS, not_private_fields
from mfdl.runs.comparing import run_comparison
from mfdl.runs.comparison_config import ComparisonConfig
from mfdl.runs.comparison_folder import NOT_PRIVATE
from mfdl.training.run import SeedRun
from mfdl.training.tasks import Evaluation

COVERED = {"models", "messages"}  # as far as the guarantee says who sees which
PUBLIC = {"seed", "steps", "finished_steps", "key_id", "seeded_noise"}  # settings and names, no function of data


def test_every_field_of_a_run_is_private_public_or_marked():
    """A field that is added must be put somewhere."""
    fields = {field.name for field in dataclasses.fields(SeedRun)}
    marked = set(not_private_fields(SeedRun))
    first = {"untrained_loss", "untrained_accuracy"}
    assert marked == {"loss", "accuracy", "diverged", "training_seconds", "metrics", "released"} | first
    assert marked | COVERED | PUBLIC == fields
    assert not marked & (COVERED | PUBLIC)


def test_every_metric_of_an_evaluation_is_marked():
    assert set(not_private_fields(Evaluation)) == {field.name for field in dataclasses.fields(Evaluation)}


def test_a_class_without_marks_has_none():
    @dataclasses.dataclass
    class Plain:
        models: int
        loss: float

    assert not_private_fields(Plain) == ()


@pytest.mark.parametrize("metrics", [(), METRICS])
def test_results_list_everything_they_hold_that_is_not_covered(tmp_path, metrics):
    config = ComparisonConfig(graph="ring:n=4", epochs=1, period=2, seeds=1, mechanisms=("none",), metrics=metrics)
    run_comparison(config, tmp_path)
    result = json.loads((tmp_path / "results.json").read_text())
    (run,) = result["runs"]
    columns = set(pq.read_table(tmp_path / "steps.parquet").column_names)
    labels = {"mechanism", "seed", "step", "node"}
    columns -= {"trust", "mu", "epsilon", "delta", "lr", "graph", "task"}  # what it was run with
    not_private = {*NOT_PRIVATE, *metrics, *(f"final_{name}" for name in metrics)}
    assert set(run) - labels == not_private & set(run)
    assert columns - labels == not_private & columns
    assert set(result["not_private"]) == (set(run) | columns) - labels
