"""The experiment on step rules: a small version of it runs, resumes and reports."""

import numpy as np
import pytest
import which_step_rule as experiment

from mfdl.training import step_rules


@pytest.mark.parametrize("task", experiment.TASKS)
@pytest.mark.parametrize("design", experiment.DESIGNS)
def test_every_row_is_a_run_and_every_rule_is_one(task, design, tmp_path):
    trial = experiment.trial(task, design, tmp_path, report=True)
    assert list(trial.rows)[:2] == list(experiment.ENDS)
    assert any(rule.label not in trial.rows for rule in experiment.RULES)
    trial.plan.tuning.require_fresh(trial.plan.seeds)
    for label, row in trial.rows.items():
        config = trial.cell(label, row.rates[0], trial.plan.seeds[0]).config
        assert (config.task, config.learning_rate, config.first_seed) == (task, row.rates[0], trial.plan.seeds[0])
        assert config.gossip_rounds == (5 if design == "full" and label not in experiment.ENDS else 1)
        assert config.precondition == ("power:0.5" if row.preconditioned else None)
        assert (config.step_rule is None) == ("step_rule" not in row.options)
        if config.step_rule:
            assert str(step_rules.parse(config.step_rule)).startswith(label)


def test_a_share_is_that_of_the_gap():
    losses = {"plain": [0.6, 0.4], "no noise": [0.4, 0.2], "last model": [0.8, 0.6]}
    line = experiment.line("t", "full", "plain", 0.5, {label: np.array(values) for label, values in losses.items()})
    assert line.startswith("| t | full | plain | 0.5 | 0.5000 +- 0.1414 | 50% [")


@pytest.mark.slow
def test_a_small_version_runs_and_is_reported(tmp_path, capsys):
    command = ["--quick", "--scenes", "logistic/mafalda", "--out", str(tmp_path)]
    assert experiment.main(command) == 0
    ran = capsys.readouterr().out
    assert experiment.main([*command, "--report"]) == 0
    assert capsys.readouterr().out == ran
    assert "| logistic | mafalda | nesterov:0.9 |" in ran
    assert "log(curvature / plain)" in ran
