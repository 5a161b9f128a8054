"""Audits of balls-in-bins: the claim stands, broken samplers are refuted; the likelihood ratio by densities."""

import dataclasses
import json
import math

import numpy as np
import pytest
from scipy import stats
from vocabulary import dynamics_on, each, given, st

import mfdl
from mfdl import BallsInBins, Cyclic, InvalidInput, Losses, NoiseKey, Privacy, audit, calibrate, trust
from mfdl.audit import AuditSettings, bin_draws
from mfdl.audit.audited_claims import AuditedClaim, AuditedClaims
from mfdl.audit.auditing import FEWEST, BinRatio, BinsAttack, whitened
from mfdl.audit.bounds import EPSILONS, ErrorRates, clopper_pearson_upper_bound
from mfdl.audit.runs import Runs
from mfdl.commands import main
from mfdl.privacy import gaussian
from mfdl.testing.oracles.curve_oracles import two_bin_delta
from mfdl.training import drawn_batches

LDP = trust.LDP()
CIRCUMSTANCES = {"trust": LDP, "adjacency": "zero-out", "clip_norm": 1.0}
SETTINGS = {"trust": LDP, "trials": 4000, "delta": 1e-5, "victim": 1, "progress": False}
COMMAND = ["audit", "--participation", "balls-in-bins", "--graph", "path:n=2"]


def algorithm(build=mfdl.algorithms.dp_dsgd, graph="ring:n=3", epochs=2, bins=4):
    public = build(dynamics_on(graph, 0.1), Cyclic(epochs, bins))
    return dataclasses.replace(public, participation=BallsInBins(epochs, bins))


def mafalda(epochs, bins):
    return algorithm(mfdl.algorithms.mafalda, "path:n=2", epochs, bins)


def mechanism(noise_std=0.9, **of):
    return calibrate(algorithm(**of), Privacy(**CIRCUMSTANCES), noise_std=noise_std)


@pytest.mark.slow
def test_the_claim_stands_and_public_bins_refute_it():
    secret, public = (audit.audit(mechanism(), **SETTINGS, bins_seen=seen) for seen in (False, True))
    assert not secret.violated, secret.sentence()
    assert secret.worst.ratio > 0.5  # and is close to it
    assert public.violated, public.sentence()
    assert secret.epsilon_audited < public.epsilon_audited
    plain = json.loads(json.dumps(secret.to_dict()))
    assert (plain["mu_claimed"], plain["violated"]) == (None, False)


def test_half_the_noise_is_seen():
    halved = audit.Training(algorithm(), noise_std=0.45, clip_norm=1.0)
    assert audit.audit(mechanism(), **SETTINGS, system=halved).violated


def test_the_smaller_of_what_is_stated_and_what_is_accounted_now_is_audited(monkeypatch):
    settings = AuditSettings(mechanism(), trust=LDP)
    guaranteed, stronger, curves = (mechanism().guarantee.curve, mechanism(1.0).guarantee.curve, Losses.curves)
    claims = AuditedClaims.from_settings(settings)
    assert not claims.notes
    assert claims.by_victim[0] == AuditedClaim((guaranteed,))
    assert guaranteed.epsilon(1e-5) > stronger.epsilon(1e-5)
    monkeypatch.setattr(Losses, "curves", lambda losses, noise_std: curves(losses, 1.0))
    claims = AuditedClaims.from_settings(settings)
    assert claims.by_victim[0].curves == (stronger, guaranteed)
    assert claims.by_victim[0].epsilon(1e-5) == stronger.epsilon(1e-5)
    assert claims.by_victim[0].deltas.tolist() == AuditedClaim((stronger,)).deltas.tolist()
    assert "the guarantee states epsilon = " in claims.notes[0]
    assert "the smaller is audited" in claims.notes[0]


@pytest.mark.slow
def test_a_matrix_skips_in_words_and_has_a_row_for_public_bins():
    settings = {"adjacency": "zero-out", "clip_norm": 1.0, "delta": 1e-5, "trials": 1500, "progress": False}
    algorithms = {"fresh": algorithm(), "bare": algorithm(mfdl.algorithms.dsgd)}
    matrix = audit.audit_matrix(algorithms, {"ldp": LDP}, epsilon=4.0, planted=True, **settings)
    rows = {cell.mechanism: cell for cell in matrix.cells}
    assert list(rows) == ["fresh", "fresh (bins are public)", "bare", "bare (bins are public)"]
    assert all("infinite loss is claimed" in rows[name].why for name in ("bare", "bare (bins are public)"))
    assert 3.99 < rows["fresh"].result.epsilon_claimed <= 4.0
    assert rows["fresh (bins are public)"].result.violated
    assert not matrix.violations
    assert not matrix.unseen
    plain = matrix.to_dict()
    assert (plain["violations"], plain["cells"][1]["planted"]) == (0, "bins are public")


@pytest.mark.slow
def test_a_planted_bug_that_is_not_seen_is_no_violation_but_is_reported(monkeypatch, capsys):
    monkeypatch.setattr(audit.AuditResult, "violated", False)
    bug = ["--b", "4", "--trials", "1000", "--adjacency", "zero-out", "--noise-std", "0.9", "--planted"]
    assert main([*COMMAND, *bug]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "dp-dsgd (bins are public) under ldp is a planted bug that the audit did not detect." in out
    assert "No claim is refuted." in out


# ---- long ------------------------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True, eq=False)
class Exact:
    """The curve of two bins by quadrature, that which the canary reaches."""

    ratio: BinRatio
    ways: tuple[str, ...]
    mu = None

    def delta(self, epsilon):
        M = self.ratio.shifts @ self.ratio.shifts.T
        return max(two_bin_delta(M, epsilon, way, 801) for way in self.ways)

    def epsilon(self, delta):
        return 60.0  # the curve alone is tested


@pytest.mark.slow
@each("epochs, adjacency, ways", (2, "zero-out", ("kept", "lost")), (3, "replace-one", ("replaced",)))
def test_a_true_claim_is_refuted_no_more_often_than_stated(epochs, adjacency, ways):
    level, audits = 0.5, 100
    settings = AuditSettings(
        mafalda(epochs, 2), trust=LDP, adjacency=adjacency, clip_norm=1.0, noise_std=1.5, trials=400, victim=0,
        level=level,
    )  # fmt: skip
    attack, refuted = BinsAttack(settings), 0
    canary = attack.candidates([0])[1]
    claim = AuditedClaim((Exact(whitened(canary, settings.circumstances, bins_seen=False)[1], ways),))
    for seed in range(audits):
        seeded = BinsAttack(dataclasses.replace(settings, seed=seed))
        vars(seeded)["sampler"] = attack.sampler
        refuted += Runs(seeded, 1 - level).result(canary, 0, claim).violated
    assert refuted <= stats.binom.isf(1e-3, audits, 1 - level)


DRAW_SETTINGS = SETTINGS | {"trials": 1500}


def drawn_mechanism(bins=3, epochs=2, nodes=4):
    return mechanism(graph=f"ring:n={nodes}", epochs=epochs, bins=bins)


def draws_of(bins=3, epochs=2, nodes=4, seed=0):
    """Of the runs of a mechanism that `replay` would train."""
    joined = bin_draws.Replayed(drawn_mechanism(bins, epochs, nodes)).joined
    return bin_draws.Sampler(joined, nodes, epochs * bins, bins).tested(seed=seed, failure=0.01)


def refuted(draws):
    return [finding.property for finding in draws.findings if finding.violated]


def of_words(words, count):
    """Uniform bins of 64-bit words by another rule than the library's."""
    return (words % np.uint64(count)).astype(np.int64)


def shuffled_at_each_node(words, count):
    return words.argsort(axis=1).argsort(axis=1) % count


def shuffled_over_all_records(words, count):
    return words.ravel().argsort().argsort().reshape(words.shape) % count


def alike_at_all_nodes(words, count):
    return np.broadcast_to(of_words(words[:1], count), words.shape)


def drawn_anew(self, step):
    epoch = step // self._count
    return np.asarray((drawn_batches.drawn_bins(self._words(epoch), self._count) == step % self._count) & self._held)


def twice_an_epoch(self, step):
    return np.asarray(((self.bins == step % self._count) | (step % self._count == 0)) & self._held)


def keyed_by(seed_of, init=drawn_batches.BinBatches.__init__):
    return lambda self, instance, key, bins: init(self, instance, NoiseKey.from_seed(seed_of(instance)), bins)


UNIFORM, INDEPENDENT, FRESH = "uniform over bins", "independent across records", "fresh between runs"
BROKEN_BINS = {
    "all in bin 0": (lambda words, count: np.zeros(words.shape, dtype=np.int64), UNIFORM),
    "the last bin unused": (lambda words, count: of_words(words, max(count - 1, 1)), UNIFORM),
    "a shuffle at each node": (shuffled_at_each_node, INDEPENDENT),
    "a shuffle over all records": (shuffled_over_all_records, INDEPENDENT),
    "the same bins at all nodes": (alike_at_all_nodes, INDEPENDENT),
    "in turn": (lambda words, count: np.arange(words.size).reshape(words.shape) % count, INDEPENDENT),
}
BROKEN_BATCHES = {  # the last entries: numbers of bins, and whether they lack this property alone
    "bins drawn anew in each epoch": ("drawn", drawn_anew, "fixed over epochs", (2, 3, 16), True),
    "steps beside those of the bin": ("drawn", twice_an_epoch, "one step of each epoch", (3,), False),
    "the same bins in every run": ("__init__", keyed_by(lambda instance: 0), FRESH, (2, 3, 16), False),
    "bins of the public seed alone": ("__init__", keyed_by(lambda instance: instance.seed), FRESH, (3,), True),
}


@pytest.mark.parametrize("name", BROKEN_BINS)
@pytest.mark.parametrize("bins", [2, *(pytest.param(bins, marks=pytest.mark.slow) for bins in (3, 16))])
def test_broken_samplers_are_refuted_by_the_property_that_they_lack(monkeypatch, name, bins):
    broken, lacking = BROKEN_BINS[name]
    monkeypatch.setattr(drawn_batches, "drawn_bins", broken)
    assert lacking in refuted(draws_of(bins))


@pytest.mark.parametrize(("name", "bins"), [(name, b) for name, case in BROKEN_BATCHES.items() for b in case[3]])
def test_broken_batches_are_refuted_by_the_property_that_they_lack(monkeypatch, name, bins):
    method, broken, lacking, _, alone = BROKEN_BATCHES[name]
    monkeypatch.setattr(drawn_batches.BinBatches, method, broken)
    properties = refuted(draws_of(bins))
    assert lacking in properties
    assert properties == [lacking] or not alone


def test_an_audit_names_the_bin_that_is_never_drawn(monkeypatch):
    monkeypatch.setattr(drawn_batches, "drawn_bins", BROKEN_BINS["the last bin unused"][0])
    result = audit.audit(drawn_mechanism(), **DRAW_SETTINGS)
    assert "The draws of bins are REFUTED: not uniform over bins (bin 2 holds 0 of" in result.sentence()
    plain = json.loads(json.dumps(result.to_dict()))
    assert [result.violated, result.draws.violated, plain["violated"], plain["draws"]["violated"]] == [True] * 4


@pytest.mark.slow
def test_the_sampler_of_a_system_is_tested_where_it_has_one_and_else_a_note_says_whose_is():
    class InTurn(audit.Training):
        def joined(self, records, *, key, run, steps):
            return (np.arange(4 * records).reshape(4, records) % 3) == np.arange(steps)[:, None, None] % 3

    class Other:
        def __init__(self, inner):
            self.run = inner.run

    audited = drawn_mechanism()
    trained, turned = (kind(audited.algorithm, noise_std=0.9, clip_norm=1.0) for kind in (audit.Training, InTurn))
    assert audit.audit(audited, **DRAW_SETTINGS, system=turned).draws.violated
    result = audit.audit(audited, **DRAW_SETTINGS, system=Other(trained))
    assert not result.violated
    assert any("the sampler of the library" in note for note in result.notes)


@pytest.mark.parametrize(("bins", "epochs", "nodes"), [(1, 2, 3), (2, 1, 2), (3, 2, 4), (16, 2, 3)])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_the_draws_of_the_library_pass(bins, epochs, nodes, seed):
    draws = draws_of(bins, epochs, nodes, seed)
    assert not draws.violated, draws.sentence()
    assert "false alarm" in draws.sentence()


@given(60, st.integers(1, 4), st.integers(2, 5), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_tails_are_never_below_those_of_the_exact_law(groups, bins, size, seed):
    exact = {0: 1.0}
    for _ in range(groups):
        exact = convolved(exact, law_of_squares(size, bins))
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(size, rng.dirichlet(np.ones(bins) * rng.choice([0.1, 1.0, 50.0])), size=groups)
    low, high = bin_draws.tails(counts)
    total = int((counts**2).sum())
    assert low >= sum(p for value, p in exact.items() if value <= total) * (1 - 1e-9)
    assert high >= sum(p for value, p in exact.items() if value >= total) * (1 - 1e-9)


def law_of_squares(size, bins):
    law = {}
    for counts in compositions(size, bins):
        value = sum(c * c for c in counts)
        law[value] = law.get(value, 0.0) + stats.multinomial.pmf(counts, size, np.full(bins, 1 / bins))
    return law


def compositions(size, bins):
    if bins == 1:
        return [(size,)]
    return [(first, *rest) for first in range(size + 1) for rest in compositions(size - first, bins - 1)]


def convolved(first, other):
    law = {}
    for a, p in first.items():
        for b, q in other.items():
            law[a + b] = law.get(a + b, 0.0) + p * q
    return law


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_they_say():
    rng, alarms = np.random.default_rng(7), 0
    for _ in range(100):

        def joined(records, *, key, run, steps):
            bins = rng.integers(0, 3, (4, records))
            return bins == np.arange(steps)[:, None, None] % 3

        alarms += bin_draws.Sampler(joined, 4, 6, 3).tested(seed=0, failure=0.5).violated
    assert alarms <= 50
    assert alarms > 0


@pytest.mark.slow
def test_the_command_line_prints_what_is_known_of_the_draws(tmp_path, capsys, monkeypatch):
    command = [*COMMAND, "--trials", "400", "--noise-std", "2"]
    assert main([*command, "--out", str(tmp_path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    properties = (UNIFORM, INDEPENDENT, FRESH, "fixed over epochs")
    assert [words for words in (*properties, "false alarm", "No claim is refuted.") if words not in out] == []
    assert '"draws"' in (tmp_path / "audit.json").read_text()
    monkeypatch.setattr(drawn_batches, "drawn_bins", BROKEN_BINS["all in bin 0"][0])
    assert main(command) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "1 claim is refuted." in out
    assert UNIFORM in out


@given(
    40, epochs=st.integers(1, 2), bins=st.integers(1, 3), adjacency=st.sampled_from(["zero-out", "replace-one"]),
    public=st.booleans(), seed=st.integers(0, 100)
)  # fmt: skip
def test_the_statistic_is_the_ratio_of_dense_mixtures(epochs, bins, adjacency, public, seed):
    settings = AuditSettings(mafalda(epochs, bins), trust=LDP, adjacency=adjacency, clip_norm=1.3, noise_std=0.7)
    canary = BinsAttack(settings).candidates([0])[0]
    view, rng = canary.view, np.random.default_rng(seed)
    o = 0.7 * (rng.standard_normal((4, view.noise.shape[1])) @ view.noise.T) + rng.normal() * canary.shift
    drawn = rng.integers(bins, size=4)
    P, ratio = whitened(canary, settings.circumstances, bins_seen=public)
    statistic, covariance = ratio.ratios(o @ P.T / 0.7, drawn), 0.49 * view.noise @ view.noise.T
    law = stats.multivariate_normal(np.zeros(len(view.noise)), covariance, allow_singular=True)
    joins = [canary.signs * (np.arange(epochs * bins) % bins == r) for r in range(bins)]
    means = [1.3 * view.victim_columns(0) @ joined for joined in joins]
    for run, r in enumerate(drawn):
        some = [means[r]] if public else means
        present = sum(law.pdf(o[run] - mean) for mean in some)
        absent = some if adjacency == "replace-one" else [0.0] * len(some)
        without = sum(law.pdf(o[run] + mean) for mean in absent)
        assert statistic[run] == pytest.approx(math.log(present / without), rel=1e-6, abs=1e-6)


def test_as_many_runs_as_are_needed_refute_public_bins_nearly_always_and_half_of_them_do_not():
    ratio = BinRatio(np.eye(4) * 1.2, replaced=False, bins_seen=True)
    claimed = np.array([gaussian.delta_from_mu(0.7, epsilon) for epsilon in EPSILONS])
    needed = ratio.trials_needed(1.0, claimed, 0.01)
    assert FEWEST < needed < 10_000

    def refuted(runs, quantile):
        for t in np.linspace(-3, 3, 121):
            alpha, beta = stats.norm.sf((t + 0.72) / 1.2), stats.norm.cdf((t - 0.72) / 1.2)
            counts = [int(stats.binom.ppf(quantile, runs, rate)) for rate in (alpha, beta)]
            if (ErrorRates(*(clopper_pearson_upper_bound(k, runs, 0.005) for k in counts)).deltas > claimed).any():
                return True
        return False

    assert refuted(int(needed), 0.9)
    assert not refuted(int(needed) // 2, 0.9)


@pytest.mark.parametrize("replaced", [False, True])
def test_simulated_error_rates_are_those_of_one_bin(replaced):
    shift = np.array([[0.8, 0.6]])
    s = 2.0 if replaced else 1.0
    claimed = np.array([gaussian.delta_from_mu(s, epsilon) for epsilon in EPSILONS])
    for public in (False, True):
        ratio = BinRatio(shift, replaced, public)
        alpha, beta = ratio.error_rates(0.5)
        middle = int(np.argmin(np.abs(alpha - beta)))
        assert alpha[middle] == pytest.approx(stats.norm.sf(s / 2 / 0.5), abs=0.005)
        assert math.isinf(ratio.trials_needed(1.0, claimed, 0.01))  # a claim that holds is never expected to fall
        assert FEWEST <= ratio.trials_needed(0.5, claimed, 0.01) < 3000


@pytest.mark.slow
def test_public_bins_are_refuted_nearly_always_where_the_audit_is_not_refused_and_true_claims_stand():
    """What is refused is the number of runs that would not refute public bins nearly always: 9 of 10 audits here."""
    rng, public, refuted, stood = np.random.default_rng(5), 0, 0, 0
    for _ in range(16):  # 10 s each
        epochs, bins, seed = int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(1000))
        adjacency = ["zero-out", "replace-one", "add-remove"][rng.integers(3)]
        noise_std = math.exp(rng.uniform(-0.9, 1.8))
        settings = {"adjacency": adjacency, "noise_std": noise_std, "seed": seed, "clip_norm": 1.0, "progress": False}
        for seen in (False, True):
            try:
                result = audit.audit(
                    mafalda(epochs, bins), trust=LDP, victim=0, trials=4000, bins_seen=seen, **settings
                )
            except InvalidInput:
                continue
            assert seen or not result.violated, result.sentence()
            public, refuted, stood = public + seen, refuted + result.violated, stood + (not seen)
    assert public >= 1
    assert refuted >= 0.9 * public
    assert stood > 5
