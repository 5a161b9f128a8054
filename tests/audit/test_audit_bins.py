"""Audits of secret bins: the claim stands, and falls where bins are told or noise is halved."""

import dataclasses
import json
import math

import numpy as np
import pytest

import mfdl
from mfdl import audit, trust
from mfdl.audit import secret_bins
from mfdl.audit.bin_draws import Replayed, Sampler
from mfdl.audit.bin_ratio import EPSILONS
from mfdl.cli import main
from mfdl.errors import InvalidInput
from mfdl.testing.oracles.secret_bins import of_two_bins

ASKED = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0, "noise_std": 0.9}
RUNS = {"trust": trust.LDP(), "trials": 4000, "delta": 1e-5, "victim": 1, "progress": False}


def algorithm():
    graph = mfdl.graphs.load("ring:n=3")
    return mfdl.algorithms.dp_dsgd(mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph), 0.1), mfdl.BallsInBins(2, 4))


@pytest.mark.slow
def test_the_claim_stands_and_public_bins_refute_it():
    mechanism = mfdl.with_noise(algorithm(), **ASKED)
    secret, public = (audit.audit(mechanism, **RUNS, bins_seen=seen) for seen in (False, True))
    assert not secret.violated, secret.sentence()
    assert secret.worst.ratio > 0.5  # and is close to it
    assert public.violated, public.sentence()
    assert secret.epsilon_audited < public.epsilon_audited
    told = json.loads(json.dumps(secret.to_dict()))
    assert (told["mu_claimed"], told["violated"]) == (None, False)


def test_half_the_noise_is_seen():
    halved = audit.Training(algorithm(), noise_std=ASKED["noise_std"] / 2, clip_norm=1.0)
    assert audit.audit(mfdl.with_noise(algorithm(), **ASKED), **RUNS, system=halved).violated


@pytest.mark.slow
def test_the_command_line_audits_secret_bins(tmp_path, capsys):
    asked = ["audit", "--participation", "balls-in-bins", "--graph", "path:n=2", "--trials", "400"]
    assert main([*asked, "--noise-std", "2", "--out", str(tmp_path)]) == 0
    assert "No claim is refuted." in capsys.readouterr().out
    assert main(asked) == 2
    assert "give --epsilon or --noise-std" in capsys.readouterr().err
    assert main(["audit", "--graph", "path:n=2", "--planted"]) == 2
    assert "only secret bins can be told" in capsys.readouterr().err
    with pytest.raises(InvalidInput, match="no mu"):
        audit.audit(mfdl.with_noise(algorithm(), **ASKED), **RUNS, claimed_mu=1.0)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"adjacency": "replaced"}, "unknown adjacency 'replaced'"),
        ({"trials": 60}, "trials must be at least .* that half the noise breaks the claim"),
        ({"trials": 2**26}, "trials must be at most"),
        ({"claimed_mu": 1.0}, "no mu"),
    ],
)
def test_what_runs_cannot_show_is_refused(asked, why):
    with pytest.raises(InvalidInput, match=why):
        audit.audit(mfdl.with_noise(algorithm(), **ASKED), **RUNS | asked)


def test_bins_that_say_nothing_cannot_be_told():
    """One bin, and noise so weak that bins count as public."""
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("ring:n=3"), 0.1)
    one_bin = mfdl.algorithms.dp_dsgd(dynamics, mfdl.BallsInBins(2, 1))
    for told, noise_std in ((one_bin, 0.9), (algorithm(), 0.01)):
        with pytest.raises(InvalidInput, match="bins that are told break the claim only after more than"):
            audit.audit(mfdl.with_noise(told, **ASKED | {"noise_std": noise_std}), **RUNS, bins_seen=True)


def test_the_smaller_of_what_is_stated_and_what_is_accounted_now_is_audited(monkeypatch):
    mechanism = mfdl.with_noise(algorithm(), **ASKED)
    claims, notes = _claims(mechanism)
    assert not notes
    assert claims[0].claims == (mechanism.guarantee, mechanism.guarantee.curve)
    stronger, curves = mfdl.with_noise(algorithm(), **ASKED | {"noise_std": 1.0}), mfdl.PrivacyLosses.curves
    assert claims[0].epsilon(1e-5) == mechanism.guarantee.epsilon(1e-5) > stronger.guarantee.epsilon(1e-5)
    monkeypatch.setattr(mfdl.PrivacyLosses, "curves", lambda losses, noise_std: curves(losses, 1.0))
    claims, notes = _claims(mechanism)
    assert claims[0].epsilon(1e-5) == stronger.guarantee.epsilon(1e-5)
    assert claims[0].delta(1.0) == stronger.guarantee.delta(1.0)
    assert "the smaller is audited" in notes[0]


def _claims(mechanism):
    config = audit.AuditConfig(mechanism, trust=trust.LDP())
    return secret_bins._claims(config, config.settings())


def mafalda(epochs, bins):
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("path:n=2"), 0.1)
    public = mfdl.algorithms.mafalda(dynamics, mfdl.Cyclic(epochs, bins))
    return dataclasses.replace(public, participation=mfdl.BallsInBins(epochs, bins))


@pytest.mark.slow
def test_a_matrix_skips_in_words_and_has_a_row_for_public_bins():
    how = {"adjacency": "zero-out", "clip_norm": 1.0, "delta": 1e-5, "trials": 1500, "progress": False}
    bare = dataclasses.replace(
        mfdl.algorithms.dsgd(algorithm().dynamics, mfdl.Cyclic(2, 4)), participation=mfdl.BallsInBins(2, 4)
    )
    found = audit.audit_matrix(
        {"fresh": algorithm(), "bare": bare}, {"ldp": trust.LDP()}, epsilon=4.0, planted=True, **how
    )
    rows = {cell.mechanism: cell for cell in found.cells}
    assert list(rows) == ["fresh", "fresh (bins are public)", "bare", "bare (bins are public)"]
    assert all("nothing finite is claimed" in rows[name].why for name in ("bare", "bare (bins are public)"))
    assert 3.99 < rows["fresh"].result.epsilon_claimed <= 4.0
    assert rows["fresh (bins are public)"].result.violated
    assert not found.violations
    assert not found.unseen
    told = found.to_dict()
    assert (told["violations"], told["cells"][1]["planted"]) == (0, "bins are public")
    with pytest.raises(InvalidInput, match="secret bins have no mu; give epsilon"):
        audit.audit_matrix({"fresh": algorithm()}, {"ldp": trust.LDP()}, mu=1.0, **how)


@pytest.mark.slow
def test_a_planted_bug_that_is_not_seen_is_no_violation_but_is_said(monkeypatch, capsys):
    monkeypatch.setattr(audit.BinsAuditResult, "violated", False)
    asked = ["audit", "--participation", "balls-in-bins", "--graph", "path:n=2", "--b", "4", "--trials", "1000"]
    assert main([*asked, "--adjacency", "zero-out", "--noise-std", "0.9", "--planted"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "dp-dsgd (bins are public) under ldp is a planted bug that was not seen." in said
    assert "No claim is refuted." in said


# ---- long ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Exact:
    """The curve of two bins by quadrature, that which the canary reaches."""

    M: np.ndarray
    ways: tuple[str, ...]

    def delta(self, epsilon):
        return max(of_two_bins(self.M, epsilon, way, 801) for way in self.ways)

    def epsilon(self, delta):
        return 60.0  # what is held is the curve


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epochs", "adjacency", "ways"), [(2, "zero-out", ("kept", "lost")), (3, "replace-one", ("replaced",))]
)
def test_a_true_claim_is_refuted_no_more_often_than_stated(epochs, adjacency, ways):
    """The very curve of the canary, at a level of a half: of 200 audits no more than 100."""
    asked = {"trust": trust.LDP(), "adjacency": adjacency, "clip_norm": 1.0, "noise_std": 1.5, "trials": 400}
    refuted = 0
    for seed in range(200):
        config = audit.AuditConfig(mafalda(epochs, 2), **asked, victim=0, level=0.5, seed=seed)
        settings = config.settings()
        if not seed:
            canary = secret_bins._canaries(config, secret_bins._claims(config, settings)[0])[1]
            _, ratio = secret_bins._whitened(canary, settings, told=False)
            exact = Exact(ratio.shifts @ ratio.shifts.T, ways)
            curve = np.array([exact.delta(epsilon) for epsilon in EPSILONS])
            options = {name: asked[name] for name in ("trust", "clip_norm", "noise_std")}
            drawn = Replayed(mfdl.with_noise(config.algorithm, adjacency="zero-out", **options)).joined
            sampler = Sampler(drawn, config.algorithm.num_nodes, config.algorithm.num_steps, bins=2)
        system = audit.Training(config.algorithm, noise_std=1.5, clip_norm=1.0)
        runs = secret_bins.BinRuns(system, sampler, settings, 0.5, bins_seen=False)
        refuted += runs.result(canary, 0, exact, curve).violated
    assert refuted <= 100


@pytest.mark.slow
def test_told_bins_are_refuted_nearly_always_where_the_audit_is_not_refused_and_true_claims_stand():
    """What is refused is the number of runs that would not refute told bins nearly always: in 9 of 10 audits here."""
    rng, told, refuted, stood = np.random.default_rng(5), 0, 0, 0
    for _ in range(150):
        epochs, bins, seed = int(rng.integers(1, 4)), int(rng.integers(2, 7)), int(rng.integers(1000))
        adjacency = ["zero-out", "replace-one", "add-remove"][rng.integers(3)]
        noise_std = math.exp(rng.uniform(-0.9, 1.8))
        asked = {"trust": trust.LDP(), "adjacency": adjacency, "clip_norm": 1.0, "noise_std": noise_std, "seed": seed}
        for seen in (False, True):
            try:
                result = audit.audit(
                    mafalda(epochs, bins), **asked, victim=0, trials=4000, bins_seen=seen, progress=False
                )
            except InvalidInput:
                continue
            assert seen or not result.violated, result.sentence()
            told, refuted, stood = told + seen, refuted + result.violated, stood + (not seen)
    assert told > 5
    assert refuted >= 0.9 * told
    assert stood > 50
