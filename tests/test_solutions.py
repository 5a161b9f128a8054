"""Solved problems are stored and not solved twice; a solver that stops early raises, and its answer is feasible."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from vocabulary import dynamics_on, each, given, st

from mfdl import Cyclic, Dynamics, algorithms, factorization, gossip
from mfdl.algorithms import registry
from mfdl.archive import SUFFIX
from mfdl.factorization import NotConverged, factorize, factorize_nodes, optimal_covariance, prefix_sum_encoder, problem
from mfdl.factorization.solutions import Solutions, keeping
from mfdl.testing import optimal_loss_reference

GOSSIP = gossip.metropolis_hastings("path:n=3")
SCHEME = Cyclic(epochs=2, period=2)
MECHANISMS = ("mafalda", "mafalda-l", "mafalda-classes", "d-mf", "corn", "kronecker", "per-mode", "joint")


def build(name, **changed):
    return registry.build_tuned(name, Dynamics(GOSSIP, **changed), SCHEME, coalition_size=changed.pop("q", 0))


def in_coalitions(_):
    return registry.build_tuned("corn", Dynamics(GOSSIP), SCHEME, coalition_size=1)


@pytest.fixture
def solved_problems(monkeypatch):
    keys, put = [], Solutions.put
    monkeypatch.setattr(Solutions, "put", lambda self, key, answer: keys.append(key) or put(self, key, answer))
    return keys


@pytest.mark.parametrize("name", [*MECHANISMS, "corn against one node"])
def test_another_process_finds_what_was_solved(name, tmp_path, solved_problems):
    make = in_coalitions if " " in name else build
    plain = make(name)
    with keeping(Solutions(tmp_path)):
        first = make(name)
    solved, written = list(solved_problems), {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(f"{key}{SUFFIX}" for key in solved) == sorted(written)
    assert solved
    with keeping(Solutions(tmp_path)):
        again = make(name)
    assert solved_problems == solved
    assert first.content_hash == again.content_hash == plain.content_hash
    for path in tmp_path.iterdir():
        path.unlink()
    with keeping(Solutions(tmp_path)):
        make(name)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == written


def test_rates_share_a_solution_and_weights_and_tolerances_do_not(solved_problems):
    with keeping(Solutions()):
        for rate in (0.1, 0.3):
            build("mafalda", learning_rate=rate)
        assert len(set(solved_problems)) == len(solved_problems) == 1
        build("mafalda@last:1:0.1")
        build("mafalda", momentum=0.5)
        factorization.factorize(Dynamics(GOSSIP), SCHEME, tolerance=1e-2)
        factorization.factorize(Dynamics(GOSSIP), Cyclic(epochs=4, period=1))
    assert len(set(solved_problems)) == len(solved_problems) == 5


def test_a_damaged_file_is_solved_anew(tmp_path, solved_problems):
    with keeping(Solutions(tmp_path)):
        first = build("mafalda")
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    with keeping(Solutions(tmp_path)):
        assert build("mafalda").content_hash == first.content_hash
    assert path.read_bytes() == whole
    assert len(solved_problems) == 2


def test_outside_nothing_is_kept(tmp_path, solved_problems):
    with keeping(Solutions(tmp_path)):
        pass
    build("mafalda")
    assert solved_problems == []


DYN = dynamics_on("path:n=4")
PART = Cyclic(2, 2)
SEEDS_OF_EDGES = [(0, 1), (1, 2), (2, 3)]


@given(10, iterations=st.integers(1, 4), solver=st.sampled_from(["dense", "autodiff"]))
def test_an_unfinished_encoder_is_feasible_and_brackets_the_optimum(iterations, solver):
    with pytest.raises(NotConverged, match=r"at most .* % above the .* tolerance 1e-14; raise max_iter") as caught:
        factorize(DYN, PART, solver=solver, tolerance=1e-14, max_iterations=iterations)
    factorization, posed = caught.value.factorization, problem(DYN, PART)
    assert factorization.status == "stopped"
    assert factorization.objective.__class__ is float
    assert factorization.encoder.dtype == np.float64
    X = factorization.encoder.T @ factorization.encoder
    assert_allclose(np.trace(posed.error_gram @ np.linalg.inv(X)), factorization.objective, rtol=1e-9)
    assert posed.sensitivity_squared(X) <= 1 + 1e-12
    best = optimal_loss_reference(posed)
    assert factorization.lower_bound <= best * (1 + 1e-6)
    assert factorization.objective >= best * (1 - 1e-6)
    assert factorization.gap == factorization.objective / factorization.lower_bound - 1 > 1e-14


@each(
    "solve",
    lambda: prefix_sum_encoder(PART, max_iterations=1),
    lambda: factorize_nodes(DYN, PART, max_iterations=1),
    lambda: optimal_covariance(DYN, max_iterations=1, tolerance=1e-15).require_converged(1e-15),
    lambda: algorithms.corn(DYN, PART, tolerance=1e-16),
    lambda: algorithms.corn(DYN, PART, groups=SEEDS_OF_EDGES, coalition_size=1, tolerance=1e-16),
    ids=["prefix sums", "per node", "covariance", "corn", "corn with seeds of edges"],
)
def test_every_door_to_a_solver_raises_when_it_did_not_finish(solve):
    with pytest.raises(NotConverged, match="its objective and lower bound are valid") as caught:
        solve()
    factorization = caught.value.factorization
    assert factorization.status == "stopped"
    assert 0 < factorization.lower_bound <= factorization.objective < np.inf
