"""Runs that nodes are away from: the audit matrix refutes no claim of them, and finds noise that is used again."""

import dataclasses
from types import SimpleNamespace

import pytest

import mfdl
from mfdl import gossip
from mfdl.audit import Training, audit, audit_matrix

W, SCHEME, AWAY = gossip.metropolis_hastings("path:n=4"), mfdl.Cyclic(epochs=2, period=3), {2: [(2, 4)], 0: [(5, 6)]}
THERE = gossip.churn(W, SCHEME.num_steps, AWAY)
BACK, LAST = 4, 1  # of node 2: the step at which it comes back, and the last before it left
FIXED = "worst gradients"  # of the canaries, which do not react to models
HOW = {"adjacency": "replace-one", "clip_norm": 1.0}


def with_absences(name):
    whole = mfdl.algorithms.build(name, mfdl.Dynamics(W, 0.5), SCHEME)
    left = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(gossip.absences(W, THERE), 0.5), SCHEME)
    return mfdl.algorithms.with_absences(dataclasses.replace(left, name=name, noise=whole.noise), THERE)


class Rejoined(Training):
    """Node 2 adds at every step since it came back what it added `back` steps before."""

    back = BACK - LAST

    def stream(self, key, dim, first_step):
        honest = super().stream(key, dim, first_step)

        def step(t):
            rows = honest.step(t).copy()
            if t >= BACK:
                rows[2] = honest.step(t - self.back)[2]
            return rows

        return SimpleNamespace(step=step)


class FromTheStart(Rejoined):
    """It lost its checkpoint, and begins with the noise of step 0."""

    back = BACK


def audited(name, trust, system=None, **more):
    algorithm = with_absences(name)
    if system is not None:
        more["system"] = system(algorithm, noise_std=2.0, clip_norm=1.0)
    return audit(algorithm, trust=mfdl.trust.named(trust), noise_std=2.0, **HOW, **({"trials": 600} | more))


@pytest.mark.slow
def test_no_claim_of_a_run_with_absences_is_refuted():
    names = ("dp-dsgd", "mafalda", "decor", "corn", "time-space")
    trusts = {name: mfdl.trust.named(name) for name in ("ldp", "eavesdropper", "central")}
    trusts["pndp"], trusts["released"] = mfdl.trust.PNDP([3]), mfdl.trust.ReleasedOnly()
    found = audit_matrix({name: with_absences(name) for name in names}, trusts, mu=1.0, trials=1500, **HOW)
    assert len(found.cells) == len(names) * len(trusts)
    assert found.violations == []
    for cell in found.cells:  # and a loss of twice what was claimed would have been seen
        assert max(c.mu_audited / c.mu_possible for c in cell.result.canaries) > 0.6, (cell.mechanism, cell.trust)


@pytest.mark.slow
def test_where_messages_are_hidden_a_number_for_everybody_there_is_refuted_by_an_absence():
    """The numbers of docs/changing_networks.md: node 0 of three misses the third step of four, and loses by that."""
    path, scheme = gossip.metropolis_hastings("path:n=3"), mfdl.Cyclic(epochs=1, period=4)
    there = gossip.churn(path, 4, {0: [(2, 3)]})
    whole = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(path, 0.5), scheme)
    left = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(gossip.absences(path, there), 0.5), scheme)
    run = mfdl.algorithms.with_absences(left, there)
    how = HOW | {"trust": mfdl.trust.ReleasedOnly(), "noise_std": 0.5, "victim": 0, "trials": 10_000}
    claimed = mfdl.victim_losses(whole, mfdl.trust.ReleasedOnly())[0].fixed.squared ** 0.5 * 2 / 0.5
    shown = [next(c.mu_audited for c in audit(a, **how).canaries if c.canary == FIXED) for a in (whole, run)]
    assert 0.9 * claimed < shown[0] < claimed < shown[1]


@pytest.mark.parametrize(
    ("name", "trust", "system"),
    [
        ("decor", "eavesdropper", Rejoined),
        *(
            pytest.param(name, trust, system, marks=pytest.mark.slow)
            for name, trust in (("dp-dsgd", "ldp"), ("mafalda", "ldp"), ("time-space", "eavesdropper"))
            for system in (Rejoined, FromTheStart)
        ),
    ],
)
def test_noise_used_again_after_a_rejoin_refutes_the_claim(name, trust, system):
    found = audited(name, trust, system)
    assert found.violated, found.sentence()
    assert found.worst.victim == 2
    assert not audited(name, trust).violated
