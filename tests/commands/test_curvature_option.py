"""`--curvature` of the commands: the encoder for it, the names of mechanisms, and what is refused."""

from __future__ import annotations

import os

import numpy as np
import pytest
from numpy.testing import assert_allclose
from refusals import refuses

from mfdl import Cyclic, Dynamics, ErrorWeights, factorization, gossip
from mfdl.commands.factorize import FactorizeConfig
from mfdl.commands.factorize_jobs import run_factorize
from mfdl.factorization import load
from mfdl.runs.cells import Cell
from mfdl.runs.experiment import Experiment
from mfdl.runs.sweep_config import SweepConfig

SMALL = {"graph": "ring:n=4", "epochs": 2, "period": 3, "curvature": "power:1:20"}


@pytest.mark.parametrize("mechanism", ["mafalda", "kronecker", "corn", "bsr"])
def test_factorize_is_for_the_curvature_at_the_rate(mechanism, tmp_path):
    over_time = {} if mechanism == "corn" else {"epochs": 2, "period": 3}
    results = [
        run_factorize(
            FactorizeConfig(mechanism=mechanism, graph="ring:n=4", curvature="power:1:20", lr=lr, **over_time),
            tmp_path / f"{lr}.mfdl",
        )
        for lr in (0.5, 1.5)
    ]
    assert results[0]["error_weights"] == "all/curvature=power:1:20"
    assert results[0]["objective"] >= results[0]["lower_bound"] > 0
    assert load(tmp_path / "0.5.mfdl").header["error_weights"] == "all/curvature=power:1:20"
    if mechanism == "corn":  # one step, after which nothing contracts
        assert_allclose(results[0]["objective"], results[1]["objective"])
        return
    assert results[1]["objective"] != pytest.approx(results[0]["objective"], rel=1e-3)  # in units of the squared rate
    if mechanism == "mafalda":
        dynamics = Dynamics(gossip.metropolis_hastings("ring:n=4"), 0.5)
        weights = ErrorWeights(curvature="power:1:20")
        best = factorization.factorize(dynamics, Cyclic(2, 3), weights=weights)
        assert_allclose(results[0]["objective"], best.objective)


def test_released_models_and_those_on_the_way_keep_the_curvature():
    config = FactorizeConfig(**SMALL, error_weights="released/on-the-way=0.3", release_model="average:2")
    assert config.weights.describe() == "released:average:2/on-the-way=0.3/curvature=power:1:20"
    assert FactorizeConfig(**SMALL, release_model="last+2").weights.describe() == (
        "released:last+2/curvature=power:1:20"
    )


def test_mechanisms_that_optimise_are_named_by_it():
    names = ("none", "dp-dsgd", "mafalda", "mafalda@last:2", "mafalda@all/curvature=power:2:5")
    config = Experiment(mechanisms=names, **SMALL)
    expected = (
        "none", "dp-dsgd", "mafalda@all/curvature=power:1:20", "mafalda@last:2/curvature=power:1:20",
        "mafalda@all/curvature=power:2:5",
    )  # fmt: skip
    assert config.mechanisms == expected
    assert Experiment(**{**SMALL, "mechanisms": expected}).mechanisms == expected
    cells = [
        Cell(Experiment(mechanisms=(name,), **{**SMALL, "curvature": curvature}, seeds=1))
        for name, curvature in ((expected[2], None), ("mafalda", "power:1:20"))
    ]
    assert cells[0] == cells[1]
    sweep = SweepConfig(mechanisms=("dp-dsgd", "mafalda"), learning_rate=[0.1, 0.2], **SMALL)
    assert {cell.mechanism for cell in sweep.cells()} == {"dp-dsgd", "mafalda@all/curvature=power:1:20"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"learning_rate": 2.0}, "training diverges; lower the rate"),
        ({"momentum": 0.5}, "covered without momentum"),
        ({"clip_schedule": "inverse-sqrt"}, "scales gradients, and with them the curvature"),
        ({"curvature": "powr:1"}, "did you mean 'power'"),
        ({"curvature": "nowhere.npy"}, "cannot be read"),
    ],
)
def test_runs_that_do_not_have_it_are_refused_before_any_work(changed, message):
    refuses(message, Experiment, **{"mechanisms": ("mafalda",), **SMALL, **changed})


def test_a_file_that_changes_is_read_again(tmp_path):
    file = tmp_path / "public.npy"
    largest = []
    for scale, stamp in ((1.0, 1), (2.0, 2)):
        np.save(file, scale * np.eye(3))
        os.utime(file, (stamp, stamp))
        largest.append(ErrorWeights(curvature=f"features:{file}").curvature.largest)
    assert_allclose(largest, [1 / 3, 4 / 3])
