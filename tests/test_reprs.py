"""What public objects say of themselves: a paragraph, never a page; a table and a picture in notebooks."""

import numpy as np
import pytest

import mfdl
from mfdl.display import short

GRAPH = mfdl.graphs.load("ring:n=40")
W = mfdl.gossip.metropolis_hastings(GRAPH)
DYNAMICS = mfdl.Dynamics(W, np.full(80, 0.5))
CYCLIC = mfdl.Cyclic(10, 8)


@pytest.fixture(scope="module")
def objects():
    algorithm = mfdl.algorithms.mafalda(DYNAMICS, CYCLIC)
    trust = mfdl.trust.LDP()
    mechanism = mfdl.calibrate(
        algorithm, mfdl.Privacy(trust, adjacency="replace-one", clip_norm=1.0), epsilon=3.0, delta=1e-5
    )
    task = mfdl.tasks.digits(40)
    run = mfdl.replay(mechanism, task, seeds=[0, 1], stop_after=8)
    question = mfdl.Privacy(trust, adjacency="zero-out", clip_norm=1.0)
    losses = mfdl.losses(algorithm, question)
    short_dynamics, few = mfdl.Dynamics(W, 0.5), mfdl.EveryStep(4)
    return [
        W, mfdl.gossip.sequence([W] * 30), DYNAMICS, CYCLIC, algorithm, trust, mechanism, mechanism.guarantee,
        losses.worst, algorithm.factorization, task, run, *run.seeds, question, losses, *losses.sensitivities[:2],
        algorithm.kinds[0], algorithm.noise, mfdl.trust.PNDP([0]).view(algorithm, 1), mfdl.View(np.eye(90), np.eye(90)),
        algorithm.workload(), mfdl.ErrorWeights(np.ones(500)), mfdl.NoiseKey.from_seed(0),
        mfdl.participation.ParticipationByNode([CYCLIC] * 500),
        mfdl.participation.Explicit([[i] for i in range(900)], 900),
        task.instance(0, 8), mfdl.partition.Fixed(np.arange(900)), mfdl.factorization.problem(DYNAMICS, CYCLIC),
        mfdl.trust.TrustModel.from_masks(seen=np.ones((900, 40), bool)), mfdl.trust.Colluding(list(range(5))),
        mfdl.algorithms.corn(short_dynamics, few).factorization,
        mfdl.algorithms.kronecker(short_dynamics, few).factorization,
        mfdl.audit.reconstruct(mfdl.trust.PNDP([0]).view(mfdl.algorithms.dsgd(short_dynamics, few), 1)),
    ]  # fmt: skip


def test_no_public_object_prints_a_page(objects):
    lengths = {type(x).__name__: len(repr(x)) for x in objects}
    assert {name: n for name, n in lengths.items() if n >= 1500} == {}


def test_what_counts_is_in_the_sentence(objects):
    repr_by_class = {type(x).__name__: repr(x) for x in objects}
    for part in (
        "mafalda on 40 nodes, 80 steps",
        "epsilon = 3 at delta = 1e-05",
        "replace-one",
        "clipping norm 1",
        "(ldp)",
    ):
        assert part in repr_by_class["Mechanism"]
        assert part in repr_by_class["Run"] or part == "mafalda on 40 nodes, 80 steps"
    assert "8 of 80 steps" in repr_by_class["Run"]
    assert "standard deviation over seeds" in repr_by_class["Run"]
    assert "% above the optimum (certified: no objective is below" in repr_by_class["Factorization"]


def test_notebooks_get_a_table_and_a_picture(objects):
    for x in objects:
        if hasattr(x, "_repr_html_"):
            page = x._repr_html_()
            assert "<table>" in page
            assert repr(x).split(":")[0][:20] in page
    pages = {type(x).__name__: x._repr_html_() for x in objects if hasattr(x, "_repr_html_")}
    assert {"Mechanism", "LinearAlgorithm", "Factorization", "Losses"} <= pages.keys()
    assert all("<img" in pages[name] for name in ("Run", "Guarantee"))
    assert "at most" in pages["Factorization"]


def test_epsilon_is_told_at_the_delta_of_the_target_and_survives_a_file(tmp_path):
    algorithm = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(W, 0.5), mfdl.Cyclic(2, 2))
    common = {"trust": mfdl.trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0}
    by_epsilon = mfdl.calibrate(algorithm, mfdl.Privacy(**common), epsilon=2.0, delta=1e-3).guarantee
    by_mu = mfdl.calibrate(algorithm, mfdl.Privacy(**common), mu=1.0).guarantee
    assert "epsilon: 2 at delta = 0.001" in str(by_epsilon)
    assert "at delta = 1e-06" in str(by_mu)
    by_epsilon.save(tmp_path / "guarantee.json")
    again = mfdl.Guarantee.load(tmp_path / "guarantee.json")
    assert again == by_epsilon
    assert again.stated_delta == 1e-3
    assert again.fingerprint == by_epsilon.fingerprint  # the delta of words is no part of what is sealed
    assert by_mu.to_dict()["epsilon"] == by_mu.epsilon(1e-6)


def test_short_values_keep_what_is_small():
    assert short(np.arange(3)) == "[0, 1, 2]"
    assert short((1,)) == "(1,)"
    assert short({i: i for i in range(9)}).endswith("... 9 items}")
    assert len(short("x" * 10_000)) <= 300
