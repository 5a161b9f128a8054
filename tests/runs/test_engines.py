"""Engines: every item once, one thread each, workers that die, schedulers that do not answer."""

import os
import signal
import sys

import distributed
import pytest
import test_running
import torch
from vocabulary import each, refuses
from work_of_workers import dies, dies_once, threads

from mfdl import engines
from mfdl.engines import Engine
from mfdl.runs import Store, run_cells


@pytest.fixture(scope="module")
def scheduler():
    """The address of a cluster whose one worker is a thread of this process: there is nothing to start."""
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0", protocol="inproc"
    ) as cluster:
        yield cluster.scheduler_address


def test_here_each_call_has_one_thread_and_gives_them_back():
    torch.set_num_threads(2)
    try:
        assert (list(Engine().run(threads, "ab")), torch.get_num_threads()) == ([(0, {1}), (1, {1})], 2)
    finally:
        torch.set_num_threads(1)


def test_nothing_is_asked_of_no_items():
    assert list(Engine("dask", scheduler="tcp://127.0.0.1:1").run(threads, [])) == []


@pytest.mark.slow
def test_a_scheduler_is_given_the_same_cells(scheduler, tmp_path):
    cells = test_running.grid()
    here = run_cells(cells, tmp_path / "here", progress=False)
    assert run_cells(cells, tmp_path / "there", Engine("dask", scheduler=scheduler), progress=False) == here
    assert test_running.content(tmp_path / "there") == test_running.content(tmp_path / "here")


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nonsense://x:1", "host without a port"])
def test_a_scheduler_that_does_not_answer_is_told_in_words(address, monkeypatch):
    monkeypatch.setattr(engines, "ANSWER_SECONDS", 0.2)
    words = f"no Dask scheduler answers at {address} .* leave --scheduler out"
    refuses(words, lambda: list(Engine("dask", scheduler=address).run(threads, "a")))


@each(
    "arguments, message",
    ({"name": "jobib"}, "did you mean 'joblib'"),
    ({"jobs": 0}, "jobs must be an integer >= 1"),
    ({"jobs": True}, "jobs must be an integer >= 1"),
    ({"scheduler": "tcp://host:1"}, "belongs to engine dask"),
)
def test_refusals(arguments, message):
    refuses(message, Engine, **arguments)


def test_dask_that_is_not_installed_is_told_in_words(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    refuses(r"pip install 'mfdl\[dask\]'", Engine, "dask")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_processes_that_die_are_survived_unless_they_always_do(tmp_path):
    items = [tmp_path / name for name in "abc"]
    done = sorted(Engine(jobs=2).run(dies_once, items))
    assert done == [(0, "a"), (1, "b"), (2, "c")]
    assert [result for _, result in Engine(jobs=2).run(threads, "ab")] == [{1}, {1}]
    refuses("killed 3 times in a row", lambda: list(Engine(jobs=2).run(dies, "ab")))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_cluster_goes_on_when_a_worker_is_killed(tmp_path):
    """Two worker processes, one killed once some cells are finished: the bytes are those of one process."""
    cells = test_running.grid() + [test_running.cell(mechanisms=("bsr",), first_seed=seed) for seed in range(20)]
    run_cells(cells, tmp_path / "calm", progress=False)
    killed = []
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster:

        def kill_one(steps, doing):
            if not killed and len(list((tmp_path / "s" / "cells").glob("*.json"))) >= 3:
                with distributed.Client(cluster, set_as_default=False) as client:
                    killed.append(next(iter(client.run(os.getpid).values())))
                os.kill(killed[0], signal.SIGKILL)

        run_cells(cells, tmp_path / "s", Engine("dask", scheduler=cluster.scheduler_address), progress=kill_one)
        assert killed
        assert Store.load(tmp_path / "s").status().missing == ()
        assert test_running.content(tmp_path / "s") == test_running.content(tmp_path / "calm")
