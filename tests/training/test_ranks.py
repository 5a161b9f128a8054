"""Training shared by processes is training by one: same models, messages and losses, whatever the noise is shared by.

The ranks of a test do all its runs, as starting them costs seconds.
"""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from vocabulary import ZERO_OUT, assume, dynamics_on, given, refuses, st

import mfdl
from mfdl.algorithms.round import MAPS, SHAPES
from mfdl.commands import main
from mfdl.errors import RankLost
from mfdl.testing import strategies
from mfdl.training import distributed
from mfdl.training.distributed import Group, Share, Shares
from mfdl.training.keys import NoiseKey
from mfdl.training.streams import noise_stream

EXACT = 1e-12  # of models and messages of size 1, in float64, over 8 steps
GRAPH = mfdl.graphs.load("erdos-renyi:n=12,p=0.3,seed=1")
DYNAMICS = dynamics_on(GRAPH, 0.1)
CYCLIC, BINS = mfdl.Cyclic(epochs=2, period=4), mfdl.BallsInBins(epochs=2, bins=4)
EAVESDROPPER = ("decor", "corn", "kronecker")
TASK = mfdl.tasks.digits(GRAPH, partition=mfdl.partition.Dirichlet(1.0))
CPU = torch.device("cpu")


def calibrated(algorithm, trust="ldp", **target):
    return mfdl.calibrate(algorithm, mfdl.Privacy(mfdl.trust.named(trust), **ZERO_OUT), **(target or {"mu": 1.0}))


def mechanisms():
    for name in ("mafalda", "bsr", "gradient-tracking", *EAVESDROPPER):
        built = mfdl.algorithms.build(name, DYNAMICS, CYCLIC)
        yield calibrated(built, "eavesdropper" if name in EAVESDROPPER else "ldp")
    rounds = dataclasses.replace(DYNAMICS, gossip_rounds=3, polynomial="least-noise")
    yield calibrated(mfdl.algorithms.dp_dsgd(rounds, CYCLIC))
    average = mfdl.released.ReleasedModel("average:3", rounds_of_gossip=2)
    yield calibrated(mfdl.algorithms.dp_dsgd(DYNAMICS, CYCLIC).releasing(average))
    yield calibrated(mfdl.algorithms.dp_dsgd(DYNAMICS, BINS), epsilon=2.0, delta=1e-5)


def trained(mechanism, **options):
    more = {"metrics": ["train_loss", "average_loss"], "keep_messages": True, "dtype": torch.float64}
    return mfdl.replay(mechanism, TASK, seeds=[3], **(more | options)).seeds[0]


def assert_same(shared, alone):
    assert shared.key_id == alone.key_id
    for name in ("models", "messages", "loss", "accuracy", "steps"):
        first, second = getattr(shared, name), getattr(alone, name)
        assert (first is None) == (second is None)
        if first is not None:
            np.testing.assert_allclose(first, second, rtol=EXACT, atol=EXACT, err_msg=name)
    for measured in ("metrics", "released"):
        values = getattr(alone, measured)
        assert values.keys() == getattr(shared, measured).keys()
        for name in values:
            np.testing.assert_allclose(getattr(shared, measured)[name], values[name], rtol=EXACT, err_msg=name)


@given(
    100, st.one_of(strategies.linear_algorithms(min_nodes=2), strategies.user_algorithms(max_nodes=5)),
    st.integers(2, 4), st.integers(0, 2**32),
)  # fmt: skip
def test_the_rows_of_all_ranks_are_those_of_the_map(algorithm, num_ranks, seed):
    assume(algorithm.num_nodes > 1)
    num_ranks, rng = min(num_ranks, algorithm.num_nodes), np.random.default_rng(seed)
    shares = [Share(algorithm, Group(rank, num_ranks), CPU) for rank in range(num_ranks)]
    whole = {name: rng.standard_normal((size, 2)) for name, size in algorithm.sizes.items()}
    for name, size in algorithm.sizes.items():
        gathered = np.concatenate([np.asarray(share.shares.rows(name, rank)) for rank, share in enumerate(shares)])
        np.testing.assert_array_equal(np.sort(gathered), np.arange(size))
    for kind in algorithm.kinds:
        parts = [share.round_maps(kind) for share in shares]
        for name in MAPS:
            matrix, (rows, columns) = getattr(kind, name), SHAPES[name]
            for share, (maps, seen) in zip(shares, parts, strict=True):
                if matrix is None:
                    assert maps[name] is None
                    continue
                wanted = share.own_rows(rows, torch.tensor(matrix @ whole[columns])).numpy()
                np.testing.assert_allclose(maps[name] @ whole[columns][seen[columns].columns], wanted, atol=1e-12)
        for word in ("state", "messages", "nodes", "injection slots"):
            for q, share in enumerate(shares):  # what comes is put behind what is there, rank by rank
                come = parts[q][1][word].columns[len(share.shares.rows(word, q)) :]
                senders, counts = np.unique(share.shares.rank_of[word][come], return_counts=True)
                np.testing.assert_array_equal(np.repeat(senders, counts), share.shares.rank_of[word][come])
                assert parts[q][1][word].receives == list(zip(senders, counts, strict=True))
            for p, q in np.ndindex(num_ranks, num_ranks):
                sent = dict(parts[p][1][word].sends).get(q, torch.zeros(0, dtype=torch.int64)).numpy()
                places = shares[p].shares.rows(word, p)[sent]
                of_others = parts[q][1][word].columns[len(shares[q].shares.rows(word, q)) :]
                np.testing.assert_array_equal(places, of_others[shares[q].shares.rank_of[word][of_others] == p])


@pytest.mark.slow
def test_two_ranks_train_what_one_process_trains():
    with distributed.ranks(2) as group:
        for mechanism in mechanisms():
            before = group.sent_bytes
            with_ranks = trained(mechanism)
            assert group.sent_bytes > before
            with distributed.apart():
                assert_same(with_ranks, trained(mechanism))
        ruled = trained(mechanism, step_rule="messages:0.25")
        with distributed.apart():
            assert_same(ruled, trained(mechanism, step_rule="messages:0.25"))
        refuses("seeds", mfdl.replay, mechanism, TASK, seeds=[])
        assert_same(trained(mechanism), with_ranks)  # what is refused ends no group


def test_what_is_sent_is_what_crosses_the_cut():
    ring = mfdl.graphs.load("ring:n=64")
    algorithm = mfdl.algorithms.dp_dsgd(dynamics_on(ring, 0.1), CYCLIC)
    shares = Shares.from_algorithm(algorithm, 2)
    assert shares.cut_edges == 2
    assert np.bincount(shares.rank_of["nodes"]).max() <= 34
    _, seen = Share(algorithm, Group(0, 2), CPU).round_maps(algorithm.kinds[0])
    assert sum(len(places) for _, places in seen["messages"].sends) == 2
    assert not any(seen[word].sends for word in ("state", "nodes", "injection slots"))


@pytest.mark.parametrize("name", ["mafalda", *EAVESDROPPER])
def test_ranks_make_the_noise_of_their_nodes_and_of_no_others(name):
    noise, key = mfdl.algorithms.build(name, DYNAMICS, CYCLIC).noise, NoiseKey.from_seed(0)
    whole = noise_stream(noise, 2.0, key, 3)
    shares = [Share(mfdl.algorithms.build(name, DYNAMICS, CYCLIC), Group(rank, 3), CPU) for rank in range(3)]
    streams = [noise_stream(noise, 2.0, key, 3, slots=share.slots) for share in shares]
    assert sorted(slot for share in shares for slot in share.slots) == list(range(12))
    for t in range(CYCLIC.num_steps):
        for share, stream in zip(shares, streams, strict=True):
            wanted = share.own_rows("injection slots", torch.tensor(whole.step(t)))
            np.testing.assert_allclose(stream.step(t), wanted, rtol=EXACT, atol=EXACT)


@pytest.mark.slow
def test_ranks_inside_a_script_that_torchrun_started_are_refused(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refuses("torchrun.* rank 1", lambda: distributed.ranks(2).__enter__())
    monkeypatch.setenv("WORLD_SIZE", "1")
    with distributed.ranks(2) as group:
        assert group.size == 2


def test_more_ranks_than_nodes_are_refused():
    algorithm = mfdl.algorithms.dp_dsgd(DYNAMICS, CYCLIC)
    refuses("at most the number of nodes, 12, got 13", Shares.from_algorithm, algorithm, 13)
    refuses("ranks must be", lambda: distributed.ranks(0).__enter__())


@pytest.mark.slow
def test_four_ranks_train_what_one_process_trains_and_any_number_goes_on(tmp_path):
    every_mechanism = list(mechanisms())
    alone = [trained(mechanism) for mechanism in every_mechanism]
    options = {"keep_messages": False}
    with distributed.ranks(4):
        for number, (mechanism, single) in enumerate(zip(every_mechanism, alone, strict=True)):
            assert_same(trained(mechanism), single)
            trained(mechanism, checkpoint_folder=tmp_path / str(number), stop_after=5, **options)
    for count, span in ((1, slice(0, 4)), (2, slice(4, 8))):
        with distributed.ranks(count):
            for number in range(len(every_mechanism))[span]:
                done = trained(every_mechanism[number], checkpoint_folder=tmp_path / str(number), **options)
                np.testing.assert_allclose(done.models, alone[number].models, rtol=EXACT, atol=EXACT)
                np.testing.assert_allclose(done.loss, alone[number].loss, rtol=EXACT)


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_run_in_words_and_the_run_goes_on(tmp_path):
    mechanism, lost = next(mechanisms()), r"rank 1 ended with status -9.*goes on from there"
    with distributed.ranks(2) as group:

        def kill(at):
            if at.step == 4:
                group.started[0].kill()

        with pytest.raises(RankLost, match=lost):
            trained(mechanism, checkpoint_folder=tmp_path, on_evaluation=kill, keep_messages=False)
        refuses("start a new group", trained, mechanism, error=RankLost)
    with distributed.ranks(3):
        done = trained(mechanism, checkpoint_folder=tmp_path, keep_messages=False)
    np.testing.assert_allclose(done.models, trained(mechanism).models, rtol=EXACT, atol=EXACT)


WRITTEN = "--graph florentine --task digits --mechanisms mafalda --epochs 3 --period 4 --seeds 2 --mu 1"
OPTIONS = WRITTEN.split(" ")


@pytest.mark.slow
def test_compare_with_ranks_says_what_it_says_without(tmp_path, capsys):
    results = {}
    for name, more in (("alone", []), ("one", ["--ranks", "1"]), ("two", ["--ranks", "2"])):
        assert main(["compare", *OPTIONS, *more, "--out", str(tmp_path / name), "--json"]) == 0
        results[name] = json.loads(capsys.readouterr().out)
    for name in ("one", "two"):
        assert results[name].keys() == results["alone"].keys()
        assert results[name]["config_hash"] == results["alone"]["config_hash"]
        got, wanted = (results[at]["mechanisms"][0]["final_test_loss_mean"] for at in (name, "alone"))
        assert got == pytest.approx(wanted, rel=1e-4)  # float32
        assert not (tmp_path / name / "checkpoints").exists()


@pytest.mark.slow
def test_torchrun_starts_the_ranks_of_a_comparison(tmp_path):
    config, out = tmp_path / "compare.toml", tmp_path / "out"
    text = 'graph = "florentine"\ntask = "digits"\nmechanisms = ["dp-dsgd"]\nepochs = 2\nperiod = 4\nseeds = 1\n'
    config.write_text(text)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command, path = [*torchrun, "-m", "mfdl.training.distributed"], os.pathsep.join(filter(None, sys.path))
    subprocess.run([*command, str(config), "--out", str(out)], check=True, env={**os.environ, "PYTHONPATH": path})
    assert json.loads((out / "results.json").read_text())["complete"]


def test_ranks_and_jobs_exclude_each_other(capsys):
    assert main(["compare", *OPTIONS, "--ranks", "2", "--jobs", "2"]) == 2
    assert "give one of them" in " ".join(capsys.readouterr().err.split())
