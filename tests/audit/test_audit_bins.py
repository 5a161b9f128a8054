"""Audits of secret bins: the claim stands, and falls where bins are told or noise is halved."""

import json

import pytest

import mfdl
from mfdl import audit, sampled, trust
from mfdl.cli import main
from mfdl.errors import InvalidInput

ASKED = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0, "noise_std": 0.9}
RUNS = {"trust": trust.LDP(), "trials": 4000, "delta": 1e-5, "victim": 1, "progress": False}


def algorithm():
    graph = mfdl.graphs.load("ring:n=3")
    return mfdl.algorithms.dp_dsgd(mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph), 0.1), mfdl.BallsInBins(2, 4))


def test_the_claim_stands_and_public_bins_refute_it():
    mechanism = sampled.with_noise(algorithm(), **ASKED)
    secret, public = (audit.audit(mechanism, **RUNS, bins_seen=seen) for seen in (False, True))
    assert not secret.violated, secret.sentence()
    assert secret.worst.ratio > 0.5  # and is close to it
    assert public.violated, public.sentence()
    assert secret.epsilon_audited < public.epsilon_audited
    told = json.loads(json.dumps(secret.to_dict()))
    assert (told["mu_claimed"], told["violated"]) == (None, False)


def test_half_the_noise_is_seen():
    halved = audit.Training(algorithm(), noise_std=ASKED["noise_std"] / 2, clip_norm=1.0)
    assert audit.audit(sampled.with_noise(algorithm(), **ASKED), **RUNS, system=halved).violated


def test_the_command_line_audits_secret_bins(tmp_path, capsys):
    asked = ["audit", "--participation", "balls-in-bins", "--graph", "path:n=2", "--trials", "400"]
    assert main([*asked, "--noise-std", "2", "--out", str(tmp_path)]) == 0
    assert "No claim is refuted." in capsys.readouterr().out
    assert main(asked) != 0
    with pytest.raises(InvalidInput, match="no mu"):
        audit.audit(sampled.with_noise(algorithm(), **ASKED), **RUNS, claimed_mu=1.0)
