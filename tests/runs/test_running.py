"""Cells are run once, by any engine to the same bytes, and what goes wrong in one stops no other."""

import dataclasses
import itertools
import json
import pickle
import shutil

import joblib
import numpy as np
import pytest
from vocabulary import refuses

import mfdl
from mfdl.runs import Cell, Engine, Store, rows, run_cells, running
from mfdl.runs.comparing import run_comparison
from mfdl.runs.experiment import Experiment

SMALL = Experiment(graph="ring:n=4", epochs=2, period=3, seeds=1, mechanisms=("dp-dsgd",), task="digits")


def cell(**changed):
    return Cell(dataclasses.replace(SMALL, **changed))


def grid():
    """Two mechanisms, two budgets, two seeds, and one that cannot be run under this trust model."""
    values = itertools.product(("mafalda", "dp-dsgd"), (0.5, 2.0), (0, 1))
    cells = [cell(mechanisms=(name,), mu=mu, first_seed=seed) for name, mu, seed in values]
    return [*cells, cell(mechanisms=("corn",))]


def content(folder):
    """All files by name, but the timings."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "timings.jsonl")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "s"
    return run_cells(grid(), folder, progress=False), folder


def test_a_store_says_what_was_run(finished):
    records, folder = finished
    store, cells = Store.load(folder), grid()
    assert ([record["cell"] for record in records], records) == ([cell.hash for cell in cells[:-1]], store.records())
    (failure,) = store.failures()
    assert failure["cell"] == cells[-1].hash
    assert "is meant for" in failure["error"]
    assert all(words in failure["traceback"] for words in ("Traceback", "UnsupportedMechanism"))
    assert len(store.timings()) == len(cells)
    steps = store.steps(cells[0])
    assert len(steps) == 2 * 4  # two evaluations, four nodes
    assert (folder / "sweep.json").read_text().count(cells[0].hash) == 1


@pytest.mark.slow
def test_a_cell_is_what_compare_trains(finished, tmp_path):
    records, _ = finished
    config = dataclasses.replace(SMALL, mechanisms=("mafalda", "dp-dsgd"), seeds=2, mu=0.5)
    compared = run_comparison(config, tmp_path / "c", progress=False)
    losses = {(run["mechanism"], run["seed"]): run["final_test_loss"] for run in compared["runs"]}
    assert losses == {(r["mechanism"], r["seed"]): r["final_test_loss"] for r in records if r["mu"] < 1}
    for row in rows(record for record in records if record["mu"] < 1):
        (same,) = (other for other in compared["mechanisms"] if other["mechanism"] == row["mechanism"])
        assert row["final_test_loss_mean"] == pytest.approx(same["final_test_loss_mean"])
        assert row["final_test_loss_std"] == pytest.approx(same["final_test_loss_std"])
        assert (row["seeds"], row["diverged"], row["final_test_loss_count"]) == ([0, 1], 0, 2)
    for record in records[:1]:
        (same,) = (other for other in compared["mechanisms"] if other["mechanism"] == record["mechanism"])
        for name in ("guarantee", "noise_std", "injected_noise_std", "epsilon", "objective"):
            assert record[name] == same[name], name


def test_finished_cells_are_not_run_again_and_failed_ones_are(finished, monkeypatch):
    records, folder = finished
    before, work, done, steps = content(folder), running.work, [], []
    monkeypatch.setattr(running, "work", lambda job, **arguments: done.extend(job.hashes) or work(job, **arguments))
    assert run_cells(grid(), folder, progress=lambda n, doing: steps.append(n)) == records
    assert grid()[-1].hash in done
    assert sum(steps) == 9 * 6
    assert content(folder) == before


def test_another_list_of_cells_comes_after_the_first(finished, tmp_path):
    cells = grid()[:3]
    run_cells(cells[1:2], tmp_path, progress=False)
    run_cells(cells, tmp_path, progress=False)
    assert Store.load(tmp_path).hashes == [cells[1].hash, cells[0].hash, cells[2].hash]
    assert content(tmp_path)[f"cells/{cells[0].hash}.json"] == content(finished[1])[f"cells/{cells[0].hash}.json"]


def test_workers_give_the_same_bytes(finished, tmp_path):
    with joblib.parallel_config(backend="threading"):  # no start of processes; they are the test below
        run_cells(grid(), tmp_path / "s", Engine(jobs=2), progress=False)
    assert content(tmp_path / "s") == content(finished[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["joblib", "dask"])
def test_worker_processes_give_the_same_bytes(name, finished, tmp_path):
    run_cells(grid(), tmp_path / "s", Engine(name, jobs=2), progress=False)
    assert content(tmp_path / "s") == content(finished[1])


def test_what_a_worker_has_of_other_content_is_refused_not_mixed(tmp_path):
    weights, rings = tmp_path / "W.csv", mfdl.gossip.metropolis_hastings("ring:n=4").dense()
    np.savetxt(weights, rings, delimiter=",", fmt="%.17g")
    named = cell(gossip=str(weights))
    sent = pickle.dumps(running.CellJob((named,), (named.hash,), (True,), (0, 0), tmp_path, (None,)))
    assert running.work(pickle.loads(sent))[0].failure is None
    np.savetxt(weights, (rings + np.eye(4)) / 2, delimiter=",", fmt="%.17g")
    (answer,) = running.work(dataclasses.replace(pickle.loads(sent), call=(1, 1)))
    assert answer.record is None
    assert "differs on" in answer.failure["error"]


def test_several_runs_are_no_cell():
    refuses("one mechanism and one seed, got 1 mechanisms", cell, seeds=3)


def test_json_is_plain(finished):
    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    for path in finished[1].rglob("*.json"):
        json.loads(path.read_text(), parse_constant=refuse)


def batch():
    rates, seeds = (0.2, 0.5), (0, 1)
    return [cell(first_seed=s, learning_rate=rate, metrics=("average_loss",)) for rate in rates for s in seeds]


def test_cells_of_a_batch_are_those_of_single_runs(tmp_path, monkeypatch):
    (part,) = running.batches(batch())
    assert list(part) == batch()
    together = run_cells(batch(), tmp_path / "together", progress=False)
    monkeypatch.setattr(running.replay, "most_on", lambda device: 1)
    assert len(running.batches(batch())) == len(batch())
    alone = run_cells(batch(), tmp_path / "alone", progress=False)
    for record, other in zip(together, alone, strict=True):
        numbers = {name for name in record if name.endswith(("loss", "accuracy"))}
        assert [record[name] for name in numbers] == pytest.approx([other[name] for name in numbers], rel=1e-5)
        assert all(record[name] == other[name] for name in record.keys() - numbers)


def test_what_is_missing_of_a_batch_gets_the_same_bytes(tmp_path):
    run_cells(batch(), tmp_path, progress=False)
    before, steps = content(tmp_path), []
    (tmp_path / "cells" / f"{batch()[1].hash}.json").unlink()
    run_cells(batch(), tmp_path, progress=lambda n, doing: steps.append(n))
    assert content(tmp_path) == before
    assert sum(steps) == 6 * len(batch())


def test_a_batch_that_fails_is_trained_in_parts(tmp_path, monkeypatch):
    trained, sizes = running.replays, []

    def failing(configs, advance):
        sizes.append(len(configs))
        if any(tuple(config.seeds) == (1,) for config in configs):
            raise MemoryError("too much")
        return trained(configs, advance)

    monkeypatch.setattr(running, "replays", failing)
    records = run_cells(batch(), tmp_path, progress=False)
    assert ([record["seed"] for record in records], sizes[0]) == ([0, 0], len(batch()))
    failed = {failure["cell"] for failure in Store.load(tmp_path).failures()}
    assert failed == {each.hash for each in batch() if each.seed == 1}


@pytest.mark.parametrize("strict", [True, False])
def test_a_caller_who_stops_is_not_taken_for_a_failure_of_a_batch(strict, tmp_path, monkeypatch):
    starts, trained = [], running.replays
    monkeypatch.setattr(running, "replays", lambda *given: starts.append(1) or trained(*given))

    def stop(cell, steps):
        if steps:
            raise RuntimeError("stop")

    (part,) = running.batches(batch())
    job = running.CellJob(part, tuple(c.hash for c in part), (True,) * 4, (0, 0), tmp_path, (None,) * 4, None, strict)
    if strict:
        refuses("stop", running.work, job, progress=stop, error=RuntimeError)
    else:
        assert all("stop" in answer.failure["error"] for answer in running.work(job, progress=stop))
    assert len(starts) == 1


def test_the_steps_of_another_cell_are_not_taken(finished, tmp_path):
    _, folder = finished
    shutil.copytree(folder, tmp_path / "copy")
    store, (first, second) = Store.load(tmp_path / "copy"), grid()[:2]
    shutil.copyfile(store._steps_path(second.hash), store._steps_path(first.hash))
    refuses("steps of one run", store.steps, first)
