"""Draws of balls-in-bins: samplers broken in the path of `replay` are refuted in words, the library's passes."""

import json
import math

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import mfdl
from mfdl import NoiseKey, audit, trust
from mfdl.audit import bin_draws
from mfdl.commands import main
from mfdl.training import drawn_batches

CIRCUMSTANCES = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0}
SETTINGS = {"trust": trust.LDP(), "trials": 1500, "delta": 1e-5, "victim": 1, "progress": False}


def mechanism(bins=3, epochs=2, nodes=4):
    graph = mfdl.graphs.load(f"ring:n={nodes}")
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph), 0.1)
    return mfdl.calibrate(
        mfdl.algorithms.dp_dsgd(dynamics, mfdl.BallsInBins(epochs, bins)), mfdl.Privacy(**CIRCUMSTANCES), noise_std=0.9
    )


def draws_of(bins=3, epochs=2, nodes=4, seed=0):
    """Of the runs of a mechanism that `replay` would train."""
    joined = bin_draws.Replayed(mechanism(bins, epochs, nodes)).joined
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
    return np.asarray((drawn_batches.bins_of(self._words(epoch), self._count) == step % self._count) & self._held)


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
    monkeypatch.setattr(drawn_batches, "bins_of", broken)
    assert lacking in refuted(draws_of(bins))


@pytest.mark.parametrize(("name", "bins"), [(name, b) for name, case in BROKEN_BATCHES.items() for b in case[3]])
def test_broken_batches_are_refuted_by_the_property_that_they_lack(monkeypatch, name, bins):
    method, broken, lacking, _, alone = BROKEN_BATCHES[name]
    monkeypatch.setattr(drawn_batches.BinBatches, method, broken)
    properties = refuted(draws_of(bins))
    assert lacking in properties
    assert properties == [lacking] or not alone


def test_an_audit_names_the_bin_that_is_never_drawn(monkeypatch):
    monkeypatch.setattr(drawn_batches, "bins_of", BROKEN_BINS["the last bin unused"][0])
    result = audit.audit(mechanism(), **SETTINGS)
    assert "The draws of bins are REFUTED: not uniform over bins (bin 2 holds 0 of" in result.sentence()
    plain = json.loads(json.dumps(result.to_dict()))
    assert [result.violated, result.draws.violated, plain["violated"], plain["draws"]["violated"]] == [True] * 4


@pytest.mark.slow
def test_the_sampler_of_a_system_is_tested_where_it_has_one_and_else_a_note_says_whose_is():
    class InTurn(audit.Training):
        def joined(self, records, *, key, run, steps):
            bins = np.arange(4 * records).reshape(4, records) % 3
            return bins == np.arange(steps)[:, None, None] % 3

    class Other:
        def __init__(self, inner):
            self.run = inner.run

    audited = mechanism()
    trained, turned = (kind(audited.algorithm, noise_std=0.9, clip_norm=1.0) for kind in (audit.Training, InTurn))
    assert audit.audit(audited, **SETTINGS, system=turned).draws.violated
    result = audit.audit(audited, **SETTINGS, system=Other(trained))
    assert not result.violated
    assert any("the sampler of the library" in note for note in result.notes)


@pytest.mark.parametrize(("bins", "epochs", "nodes"), [(1, 2, 3), (2, 1, 2), (3, 2, 4), (16, 2, 3)])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_the_draws_of_the_library_pass(bins, epochs, nodes, seed):
    draws = draws_of(bins, epochs, nodes, seed)
    assert not draws.violated, draws.sentence()
    assert "false alarm" in draws.sentence()


@given(st.integers(1, 4), st.integers(2, 5), st.integers(1, 6), st.integers(0, 2**32 - 1))
@examples(60)
def test_tails_are_never_below_those_of_the_exact_law(groups, bins, size, seed):
    """Against the law of the sum of squares by enumeration of compositions."""
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
    """At a level of a half: of 100 samples of independent uniform bins no more than 50 are refuted."""
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
    command = [
        "audit",
        "--participation",
        "balls-in-bins",
        "--graph",
        "path:n=2",
        "--trials",
        "400",
        "--noise-std",
        "2",
    ]
    assert main([*command, "--out", str(tmp_path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    properties = (UNIFORM, INDEPENDENT, FRESH, "fixed over epochs")
    assert [words for words in (*properties, "false alarm", "No claim is refuted.") if words not in out] == []
    assert '"draws"' in (tmp_path / "audit.json").read_text()
    monkeypatch.setattr(drawn_batches, "bins_of", BROKEN_BINS["all in bin 0"][0])
    assert main(command) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "1 claim is refuted." in out
    assert UNIFORM in out


def test_log_moments_are_finite_for_many_records():
    counts = np.full((16, 4), 256)
    low, high = bin_draws.tails(counts)
    assert low < 1e-30
    assert high == 1.0
    assert math.isfinite(bin_draws.tails(np.array([[1024, 0, 0, 0]]))[1])
