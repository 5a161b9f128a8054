"""The experiment on step rules: a small version of it runs, resumes and reports."""

import numpy as np
import pytest
import which_step_rule as experiment

from mfdl.runs.comparison_config import ComparisonConfig
from mfdl.training import step_rules


def test_every_row_is_a_run_and_every_rule_is_one():
    for row in experiment.ROWS:
        assert set(row.rates) <= set(experiment.DESIGNS)
        assert set(row.tasks) <= set(experiment.TASKS)
        ComparisonConfig(**{"epochs": 10, "release_model": "average:48"} | row.options)
        if "step_rule" in row.options:
            assert str(step_rules.parse(row.options["step_rule"])).startswith(row.options["step_rule"])


def test_a_share_is_that_of_the_gap_and_a_missing_end_leaves_it_out():
    losses = {("plain", "full"): np.array([0.6, 0.4]), ("no noise", "mafalda"): np.array([0.4, 0.2])}
    assert experiment.line("t", "plain", "full", 0.5, losses) == "| t | full | plain | 0.5 | 0.5000 +- 0.1414 |"
    losses["last model", "mafalda"] = np.array([0.8, 0.6])
    assert experiment.line("t", "plain", "full", 0.5, losses).split("|")[-2].startswith(" 50% [")


@pytest.mark.slow
def test_a_small_version_runs_and_is_reported(tmp_path, capsys):
    command = ["--quick", "--scenes", "logistic/mafalda", "--out", str(tmp_path)]
    assert experiment.main(command) == 0
    ran = capsys.readouterr().out
    assert experiment.main([*command, "--report"]) == 0
    assert capsys.readouterr().out == ran
    assert "| logistic | mafalda | nesterov:0.9 |" in ran
    assert "log(curvature / plain)" in ran
