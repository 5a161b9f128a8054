"""A sweep as a whole, with public batches and balls-in-bins: rates on seeds of their own, status, refusals."""

import json
import math

import numpy as np
import pytest
from finished_runs import answer_of, printed, refused
from test_running import content
from vocabulary import each, given, refuses, st

import mfdl
from mfdl.commands import main
from mfdl.privacy.gaussian import epsilon_from_mu
from mfdl.runs import Engine, Store, Tuning, running, sweep
from mfdl.runs.sweep_config import SweepConfig, halved, ordered
from mfdl.training import replay_config

SMALL = {"graph": "ring:n=4", "epochs": 2, "period": 3, "seeds": 2, "mechanisms": ("none", "dp-dsgd")}
FILE = """
graph = "ring:n=4"
epochs = 2
period = 3
seeds = 2
mechanisms = ["none", "dp-dsgd"]
lr = [0.1, 0.5, 10]
mu = [1]
"""


@given(
    100,
    losses=st.lists(st.lists(st.floats(0, 10) | st.just(math.nan), min_size=8, max_size=8), min_size=1, max_size=9),
    seeds=st.integers(1, 8), share=st.floats(0.1, 0.9), at_least=st.integers(1, 3),
)  # fmt: skip
def test_halving_keeps_the_best_of_every_round(losses, seeds, share, at_least):
    """Oracle: rounds written out, one group at a time."""
    tuning = Tuning(seeds=seeds, first_seed=0, share=share, at_least=at_least)
    table, requested = np.array(losses), []

    def losses_of(keys, of_seeds):
        requested.append((sorted(keys), list(of_seeds)))
        return {key: table[key, list(of_seeds)] for key in keys}

    chosen = halved({"a": range(len(table)), "alone": [len(table)]}, tuning, losses_of)
    left, count = list(range(len(table))), 1
    while len(left) > 1:
        means = np.where(np.isnan(table[:, :count]), np.inf, table[:, :count]).mean(axis=1)
        ranked = sorted(left, key=lambda key: (means[key], left.index(key)))
        assert requested.pop(0) == (sorted(left), list(range(count)))
        left = ranked[: 1 if count == seeds else max(at_least, math.ceil(share * len(left)))]
        if count == seeds:
            break
        count = min(2 * count, seeds)
    assert (chosen, requested) == ({"a": left[0], "alone": len(table)}, [])


RANKED = st.lists(st.lists(st.integers(0, 4) | st.just(math.nan), min_size=3, max_size=3), min_size=1, max_size=5)


@given(100, table=RANKED)
def test_ranks_count_for_each_key_how_many_are_better_and_order_nothing_else(table):
    """Oracle: places of each seed counted pair by pair, a tie half; a monotone change of one seed's losses is none."""
    losses = dict(enumerate(np.array(table, dtype=float)))
    finite = {key: np.where(np.isnan(values), np.inf, values) for key, values in losses.items()}

    def place(key):
        pairs = [(b < a) + 0.5 * (b == a) for other in finite for a, b in zip(finite[key], finite[other], strict=True)]
        return (np.isinf(finite[key]).any(), sum(pairs), finite[key].mean())

    assert [place(key) for key in ordered(losses, "rank")] == sorted(map(place, losses))
    stretched = {key: np.append(np.exp(values[:1]), values[1:]) for key, values in losses.items()}
    assert [place(key)[:2] for key in ordered(stretched, "rank")] == sorted(place(key)[:2] for key in losses)


@pytest.mark.slow
def test_rates_are_chosen_on_other_seeds_and_the_table_holds_the_best_alone(tmp_path, monkeypatch):
    """A made-up loss that is least at rate 0.3 without noise and at 0.1 with it."""
    work, seeds = running.work, set()

    def made_up(requested, **arguments):
        answers = work(requested, **arguments)
        for cell, answer in zip(requested.cells, answers, strict=True):
            seeds.add(cell.seed)
            best = 0.3 if cell.mechanism == "none" else 0.1
            if answer.record is not None:
                answer.record["final_test_loss"] = abs(cell.config.learning_rate - best) + 0.01 * (cell.seed % 3)
        return answers

    monkeypatch.setattr(running, "work", made_up)
    options = {**SMALL, "learning_rate": [0.1, 0.3, 0.9], "tuning": Tuning(seeds=2, first_seed=50)}
    answer = mfdl.sweep(out=tmp_path / "s", progress=False, **options)
    assert {(row["mechanism"], row["lr"]) for row in answer["chosen"]} == {("none", 0.3), ("dp-dsgd", 0.1)}
    rows = {(row["mechanism"], row["lr"], tuple(row["seeds"])) for row in answer["rows"]}
    assert rows == {("none", 0.3, (0, 1)), ("dp-dsgd", 0.1, (0, 1))}
    assert seeds == {0, 1, 50, 51}
    before = content(tmp_path / "s")
    assert mfdl.sweep(out=tmp_path / "s", progress=False, **options) == answer
    assert content(tmp_path / "s") == before


@pytest.mark.slow
def test_the_command_and_the_function_are_one(tmp_path, capsys):
    file, out = tmp_path / "s.toml", tmp_path / "a"
    file.write_text(FILE + 'jobs = 1\nengine = "joblib"\n')
    loaded = answer_of(capsys, "sweep", str(file), "--out", str(out))
    assert (loaded["total"], loaded["finished"], loaded["failed"], loaded["missing"]) == (12, 12, 0, 0)
    assert [(row["mechanism"], row["lr"]) for row in loaded["rows"]] == [
        (name, rate) for name in ("none", "dp-dsgd") for rate in (0.1, 0.5, 10.0)
    ]
    python = mfdl.sweep(file, out=tmp_path / "b", progress=False)
    assert {**python, "out": loaded["out"]} == loaded
    assert content(tmp_path / "b") == content(out)
    assert mfdl.sweep(SweepConfig.load(file), out=out, progress=False) == loaded
    before = content(out)
    assert main(["sweep", str(file), "--out", str(out)]) == 0
    output, said = capsys.readouterr()
    assert said == "Nothing to do: every cell was finished by an earlier call.\n"
    assert content(out) == before
    assert output.startswith("12 cells: 12 finished, 0 failed, 0 missing.")
    assert output.count("dp-dsgd") == 3


def test_status_of_a_sweep_that_was_stopped(tmp_path, capsys):
    options, stopped = {**SMALL, "learning_rate": [0.1, 0.5]}, []

    def stop(steps, doing):
        stopped.append(steps)
        if len(list((tmp_path / "cells").glob("*.json"))) == 3:
            raise KeyboardInterrupt

    refuses(None, mfdl.sweep, out=tmp_path, progress=stop, **options, error=KeyboardInterrupt)
    assert main(["sweep", "--status", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("8 cells: 3 finished, 0 failed, 5 missing.")
    steps = []
    mfdl.sweep(out=tmp_path, progress=lambda n, doing: steps.append(n), **options)
    assert (sum(steps), len(Store.load(tmp_path).timings())) == (8 * 6, 8)


def test_failed_cells_are_told_and_make_exit_code_one(tmp_path, capsys):
    file = tmp_path / "s.toml"
    text = FILE.replace('"dp-dsgd"', '"zip-dl"').replace("[0.1, 0.5, 10]", "0.1")
    file.write_text(text.replace("mu = [1]", 'trust = "pndp"'))
    assert main(["sweep", str(file), "--out", str(tmp_path / "s"), "--jobs", "1"]) == 1
    output = " ".join(capsys.readouterr().out.split())
    assert output.startswith("4 cells: 2 finished, 2 failed, 0 missing. failed: zip-dl")
    assert "infinite loss" in output
    assert main(["sweep", "--status", str(tmp_path / "s"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["failed"] == 2


@each(
    "arguments, message",
    ([], "give either CONFIG.toml, to run a sweep, or --status DIR"),
    (["none.toml"], "cannot read none.toml: No such file"), (["--status", "nowhere"], "nowhere holds no sweep"),
    (["s.toml", "--engine", "dusk"], "did you mean 'dask'"),
    (["s.toml", "--scheduler", "tcp://a:1"], "belongs to engine dask"), (["s.toml", "--jobs", "0"], "--jobs"),
    (["bad.toml"], "bad.toml, line 3, mu: mu must be"), (["s.toml", "--out", "s.toml"], "cannot write"),
)  # fmt: skip
def test_refused_in_one_line_before_any_work(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(FILE)
    (tmp_path / "bad.toml").write_text("# one\n# two\nmu = [1, -1]\n")
    refused(capsys, message, "sweep", *arguments)
    assert {path.name for path in tmp_path.iterdir()} == {"s.toml", "bad.toml"}


def test_one_process_at_a_time_writes_a_folder(tmp_path):
    with mfdl.runs.store.files.held_alone(tmp_path), pytest.raises(mfdl.InvalidInput, match="in use by another run"):
        mfdl.sweep(out=tmp_path, progress=False, engine=Engine(), **SMALL)


ASKED = {
    "graph": "ring:n=3", "mechanisms": ("none", "dp-dsgd"), "participation": ["cyclic", "balls-in-bins"], "mu": [0.8],
    "delta": 1e-5, "epochs": 2, "period": 2, "seeds": 1, "adjacency": "zero-out",
}  # fmt: skip
EPSILON = epsilon_from_mu(0.8, 1e-5)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Of a task whose records were looked at before training."""
    folder = tmp_path_factory.mktemp("sweep")
    with pytest.MonkeyPatch.context() as patch:
        target_words = {True: "the mean", False: ""}
        patch.setattr(replay_config, "left_out", lambda mechanism, task: target_words[mechanism.sampling is not None])
        return folder, sweep(out=folder, progress=False, **ASKED)


def test_both_participations_are_held_to_one_epsilon_and_the_answer_says_what_was_converted(swept):
    folder, answer = swept
    assert (answer["finished"], answer["failed"]) == (4, 0)
    rows = {(row["mechanism"], row["participation"]): row for row in answer["rows"]}
    public, secret = rows["dp-dsgd", "cyclic"], rows["dp-dsgd", "balls-in-bins"]
    assert public["mu"] == pytest.approx(0.8)
    assert secret["mu"] is None
    assert 0.99 * EPSILON < secret["epsilon"] <= EPSILON
    assert answer["converted"] == [{"mu": 0.8, "epsilon": EPSILON, "delta": 1e-5}]
    assert rows["none", "balls-in-bins"]["final_test_loss_mean"] != rows["none", "cyclic"]["final_test_loss_mean"]
    records = Store.load(folder).records()
    assert {json.dumps(record["mu"]) for record in records} == {"null", "0.8", '"inf"'}
    for record in records:
        declared = record["guarantee"].endswith("not covered, declared public: the mean")
        assert declared == (record["participation"] == "balls-in-bins")
    steps = Store.load(folder).steps(next(r["cell"] for r in records if r["label"] == "dp-dsgd" and r["mu"] is None))
    assert steps.conditions["mu"] is None


def test_a_cell_that_was_converted_is_the_one_that_is_asked_for_by_epsilon():
    by_mu = SweepConfig(**ASKED).cells()
    options = {name: value for name, value in ASKED.items() if name != "mu"}
    by_epsilon = SweepConfig(**options | {"participation": "balls-in-bins"}, epsilon=EPSILON).cells()
    assert [cell.config.mechanisms for cell in by_epsilon] == [("none",), ("dp-dsgd",)]
    assert set(by_epsilon) < set(by_mu)
    assert len(by_mu) == 4


def test_the_page_and_the_table_bear_that_there_is_no_mu(swept, capsys):
    folder, _ = swept
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    for part in ("participation balls-in-bins", "participation cyclic", f"ε = {EPSILON:g}", "balls-in-bins"):
        assert part in page
    output = " ".join(printed(capsys, "sweep", "--status", str(folder)).split())
    assert "Secret batches have no mu" in output


def test_a_budget_that_secret_batches_cannot_have_is_refused_before_any_work():
    without = {name: value for name, value in ASKED.items() if name != "mu"}
    refuses("give --epsilon", SweepConfig, **without)
    refuses("mu", SweepConfig, **ASKED | {"mu": [0.8, -1.0]})
    refuses("one privacy target", SweepConfig, **ASKED, epsilon=[1.0])
    refuses("--unit user", SweepConfig, **ASKED, unit="user")
    refuses("unknown by 'median'", Tuning, by="median")
