"""Commands take every participation with secret batches: accounted at epsilon, trained, refused in words."""

import pytest
from refusals import refuses

from mfdl.commands.account import AccountConfig
from mfdl.commands.account_losses import run_account
from mfdl.participation.schemes import SCHEMES
from mfdl.runs import options
from mfdl.runs.experiment import Experiment

SMALL = {"graph": "ring:n=4", "epochs": 2, "period": 3, "adjacency": "zero-out", "epsilon": 2.0}
RATES = [(name, 0.3 if name in options.SAMPLED_AT_A_RATE else None) for name in options.SECRET]


def test_the_names_are_those_of_the_secret_schemes():
    secret = {name: entry for name, entry in SCHEMES.items() if entry.build.secret}
    assert set(options.SECRET) == set(secret)
    assert set(options.SAMPLED_AT_A_RATE) == {name for name, entry in secret.items() if "rate" in entry.takes}


@pytest.mark.parametrize(("name", "rate"), RATES)
def test_account_meets_epsilon_of_every_victim(name, rate):
    config = AccountConfig(mechanism="bsr", trust="ldp", participation=name, sampling_rate=rate, **SMALL)
    answer = run_account(config, progress=False).answer
    assert answer["participation"]["scheme"] == name
    assert {row["adaptive_by"] for row in answer["victims"]} == {answer["victims"][0]["adaptive_by"]}
    assert 1.9 < answer["worst_epsilon"] <= 2.0
    assert answer["worst_mu"] is None
    assert "Secret batches have no mu" in answer["notes"][-1]
    assert Experiment(participation=name, sampling_rate=rate, **SMALL).scheme() == config.scheme()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"participation": "cyclic-poisson"}, "needs --sampling-rate"),
        ({"participation": "cyclic", "sampling_rate": 0.5}, "leave it out"),
        ({"participation": "cyclic-poisson", "sampling_rate": 1.0}, "sampling_rate"),
        ({"participation": "random-allocation", "all_attackers": True, "trust": "pndp"}, "random-allocation assumes"),
    ],
)
def test_what_does_not_fit_is_refused(options, words):
    refuses(words, AccountConfig, mechanism="dp-dsgd", **{"trust": "ldp", **SMALL, **options})
