"""Attackers that a symmetry takes to others: their losses are those computed one by one."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from mfdl import Dynamics, EveryStep, algorithms, gossip, trust
from mfdl.noise import StepNoise
from mfdl.privacy import attacking_sets, sensitivity_by_victim
from mfdl.privacy.symmetry import Symmetries

GRAPHS = ("ring:n=5", "torus:rows=3,cols=3", "hypercube:dim=3", "path:n=5", "star:n=5", "florentine")
NAMES = ("dp-dsgd", "muffliato", "mafalda", "gradient-tracking", "delayed-dsgd", "decor", "corn", "cdp")


def built(spec, name="dp-dsgd", steps=3, rounds=1):
    dynamics = Dynamics(gossip.metropolis_hastings(spec), 0.1, gossip_rounds=rounds)
    return algorithms.build(name, dynamics, EveryStep(steps))


def counted(monkeypatch):
    """How many attackers were accounted one by one."""
    calls, against = [], attacking_sets._Asked.against
    monkeypatch.setattr(attacking_sets._Asked, "against", lambda *args: calls.append(1) or against(*args))
    return calls


@examples(12)
@given(st.sampled_from(GRAPHS), st.sampled_from(NAMES), st.integers(1, 2), st.sampled_from([None, "none", "average"]))
def test_losses_are_those_of_each_attacker(spec, name, rounds, release):
    algorithm = built(spec, name, rounds=rounds if name == "muffliato" else 1)
    options = {"release": release, "progress": False}
    together = sensitivity_by_victim(algorithm, trust.AnyReceiver(), **options)
    for loss in together:
        others = [u for u in range(algorithm.num_nodes) if u != loss.node]
        alone = [
            sensitivity_by_victim(algorithm, trust.PNDP([f"#{u}"]), victims=[loss.node], **options)[0] for u in others
        ]
        for adaptive in (False, True):
            largest = max(one.number(adaptive=adaptive).squared for one in alone)
            assert_allclose(loss.number(adaptive=adaptive).squared, largest, rtol=1e-9)


@pytest.mark.parametrize(("spec", "orbits"), [("ring:n=7", 1), ("hypercube:dim=3", 1), ("path:n=7", 4)])
def test_one_attacker_of_an_orbit_is_accounted(monkeypatch, spec, orbits):
    calls = counted(monkeypatch)
    sensitivity_by_victim(built(spec, rounds=2, name="muffliato"), trust.AnyReceiver(), progress=False)
    assert len(calls) == orbits


def changed_weight(algorithm):
    """One weight of one round larger by its last bit."""
    kind = algorithm.kinds[0]
    weights = sp.csr_array(kind.state_from_message)
    data = weights.data.copy()
    data[0] = np.nextafter(data[0], 1.0)
    turned = kind.with_maps(state_from_message=sp.csr_array((data, weights.indices, weights.indptr), weights.shape))
    return dataclasses.replace(algorithm, rounds=(turned, *algorithm.rounds[1:]))


def louder_node(algorithm):
    louder = np.diag([2.0, 1, 1, 1, 1, 1, 1])
    return dataclasses.replace(algorithm, noise=StepNoise(louder, np.eye(7, dtype=bool), 3, 7))


@pytest.mark.parametrize("change", [changed_weight, louder_node])
def test_what_differs_in_a_bit_is_no_symmetry(change):
    algorithm = change(built("ring:n=7"))
    symmetries = Symmetries(algorithm, algorithm.participation)
    assert all(symmetries.taking(0, u) is None for u in range(2, 6))
