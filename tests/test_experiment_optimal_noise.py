"""The experiment on optimal noise in training: its rows, its table, and a small version that runs and resumes."""

import numpy as np
import optimal_noise as experiment
import pytest

RESULT = {
    "rates": dict.fromkeys(experiment.MECHANISMS, 1.0),
    "accounting": 0.0,
    "better noise": 0.2,
    "losses": {
        label: np.array([1.0, 1.1, 1.3]) * factor
        for label, factor in zip(experiment.MECHANISMS, (1.0, 1.6, 1.5, 1.4), strict=True)
    },
}


@pytest.mark.parametrize("name", ["logistic/ring/full", "housing-linear/florentine/epoch"])
def test_every_row_is_one_run_under_one_trust_model_and_budget(name, tmp_path):
    trial = experiment.trial(name, tmp_path, report=True)
    trial.plan.tuning.require_fresh(trial.plan.seeds)
    task, _, design = name.split("/")
    for label, row in trial.rows.items():
        config = trial.cell(label, row.rates[0], trial.plan.seeds[0]).config
        assert ([*config.mechanisms], config.task) == ([experiment.MECHANISMS[label]], task)
        if label != experiment.NO_NOISE:
            assert (config.trust, config.epsilon) == ("pndp", experiment.TASKS[task][0])
        assert (config.epochs, config.period, config.gossip_rounds) == ((4, 1, 4) if design == "full" else (1, 4, 4))


def test_the_table_pairs_seeds_and_pools_the_scenes_of_a_graph():
    results = [{**RESULT, "name": f"{task}/ring/full"} for task in experiment.TASKS]
    lines = experiment.table(results)
    assert lines[2].startswith("| logistic/ring/full | 0.0 % | 20.0 % | 1.1333 (1) |")
    assert "| -6.7 % [-6.7 %, -6.7 %] | 20.0 % [20.0 %, 20.0 %] |" in lines[2]
    assert lines[4].startswith("| ring, mean of 2 |")
    assert lines[-1].endswith("against MAFALDA -6.7 % [-6.7 %, -6.7 %], against DP-D-SGD -12.5 % [-12.5 %, -12.5 %].")
    (axes,) = experiment.draw(results).axes
    assert len(axes.containers) == len(results)


@pytest.mark.slow
def test_a_small_version_runs_and_is_reported(tmp_path, capsys):
    command = ["--quick", "--scenes", "logistic/ring/full", "--out", str(tmp_path)]
    assert experiment.main(command) == 0
    ran = capsys.readouterr().out
    assert experiment.main([*command, "--report"]) == 0
    assert capsys.readouterr().out == ran
    assert "| logistic/ring/full |" in ran
    assert (tmp_path / "optimal_noise.png").exists()
