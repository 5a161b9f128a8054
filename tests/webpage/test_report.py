"""`mfdl report`: the numbers of a page are those of the folder, whatever the names, and nothing else is loaded."""

import csv
import io
import itertools
import json
import math
import re
import statistics
from types import SimpleNamespace
from urllib.parse import unquote, urlparse

import numpy as np
import pytest
from folders import RECORD, Page, made_up
from vocabulary import each, example, given, refuses, st

import mfdl
from mfdl.commands import main
from mfdl.metrics import result_key
from mfdl.pictures.drawings import IN_CELLS
from mfdl.pictures.style import plain, series_looks
from mfdl.runs import Store
from mfdl.runs.cells import Shared
from mfdl.webpage import ReportConfig, rebuilt
from mfdl.webpage.page import by_hops, write_page
from mfdl.webpage.run_groups import TrustPanel, grouped, leader

CHOSEN_BEFORE = "Learning rates were chosen on other seeds."
CHOSEN_HERE = "learning rates by mean test loss on the same seeds"


def written(folder, out=None, **config):
    return write_page(ReportConfig(**config), folder, out, progress=False)


@pytest.fixture(scope="module")
def page(folder):
    return Page(folder / "report.html")


@pytest.fixture(scope="module")
def records(folder):
    return Store.load(folder).records()


@pytest.fixture(scope="module")
def best(records):
    groups = {}
    for r in records:
        groups.setdefault((r["mechanism"], r["trust"], float(r["mu"])), {}).setdefault(r["lr"], []).append(r)

    def loss(runs):
        return statistics.mean(r["final_test_loss"] for r in runs)

    return {key: min(by_rate.values(), key=loss) for key, by_rate in groups.items()}


def test_the_table_and_the_trade_off_show_the_numbers_of_the_store(page, best):
    rows, tips = page.rows(), {element[2] for element in page.all("title")}
    assert len(rows) == len(best) == 7
    for row in rows:
        runs = best[row["mechanism"], row["trust"], *row["mu"]]
        for name in ("loss", "accuracy"):
            values = [r[result_key("final", name)] for r in runs]
            assert row[name] == pytest.approx([statistics.mean(values), statistics.stdev(values)], rel=1e-12, abs=1e-12)
        assert float(row["loss text"].partition(" ")[0]) == pytest.approx(row["loss"][0], rel=1e-3)
        assert (row["rate"], row["noise"]) == ([runs[0]["lr"]], [runs[0]["injected_noise_std"]])
        assert row["sensitivity"] == ([] if runs[0]["sensitivity"] is None else [runs[0]["sensitivity"]])
        assert (row["epsilon"], row["words text"]) == ([float(runs[0]["epsilon"])], f"in words{runs[0]['guarantee']}")
        for name in ("mu", "epsilon"):
            assert float(row[f"{name} text"].replace("∞", "inf")) >= row[name][0]
        if math.isfinite(row["mu"][0]):
            setting = f"{row['mechanism']}, μ = {row['mu'][0]:g}, rate {row['rate'][0]:g}"
            assert f"{setting}: {plain(row['loss'][0])} ± {plain(row['loss'][1])}" in tips


def test_all_rates_are_in_the_csv(page, records):
    (link,) = page.all("a", download="report.csv")
    rows = list(csv.DictReader(io.StringIO(unquote(link[1]["href"].partition(",")[2]))))
    losses = {}
    for r in records:
        losses.setdefault((r["mechanism"], float(r["mu"]), r["lr"]), []).append(r["final_test_loss"])
    got = {(row["mechanism"], float(row["mu"]), float(row["lr"])): float(row["loss"]) for row in rows}
    assert got == pytest.approx({key: statistics.mean(values) for key, values in losses.items()}, rel=1e-12)


def test_nothing_is_loaded_and_links_lead_somewhere(folder, page):
    assert not page.all("script")
    (policy,) = [e[1]["content"] for e in page.all("meta") if e[1].get("http-equiv") == "Content-Security-Policy"]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    loads = [e[1][name] for e in page.elements for name in ("src", "href") if name in e[1] and e[0] != "a"]
    assert loads
    assert all(address.startswith("data:image/png;base64,") for address in loads)
    ids = [e[1]["id"] for e in page.elements if "id" in e[1]]
    assert len(ids) == len(set(ids))
    for _, attributes, *_ in page.all("a"):
        address = attributes["href"]
        assert not urlparse(address).netloc
        if address.startswith("#"):
            assert address[1:] in ids
        elif not address.startswith("data:"):
            assert (folder / unquote(address)).exists()
    assert not page.stack


def test_drawings_have_the_colours_of_the_page(folder, page):
    light, dark = (
        {f"var(--{name})" for name in re.findall(r"--(\w+): #", style)}
        for style in page.all("style")[0][2].split("@media (prefers-color-scheme: dark)")
    )
    colours = re.findall(r"(?:fill|stroke):([^;]+)", ";".join(e[1].get("style", "") for e in page.elements))
    assert len(colours) > 500
    assert set(colours) - {"none", *IN_CELLS} <= light == dark


def test_provenance_and_failures_are_told(page, records):
    text = " ".join(e[2] for e in page.all("body"))
    hashes = [records[0][name] for name in ("graph_hash", "gossip_hash", "task_hash")]
    for words in (*hashes, mfdl.__version__, "seeds 0, 1", "is meant for"):
        assert words in text
    assert "Traceback (most recent call last)" in text


@pytest.fixture(params=["dp-dsgd", "mafalda", "decor"])
def built(request, records):
    return rebuilt.rebuilt(next(r for r in records if r["mechanism"] == request.param), Shared())


def test_losses_of_pairs_are_the_accountants(built):
    got, mechanism = rebuilt.LossStore(None).pairwise(built), built.mechanism
    for v, u in itertools.permutations(range(4), 2):
        privacy = mfdl.Privacy(mfdl.trust.PNDP([v]), adjacency="replace-one", clip_norm=1.0)
        guarantee = mfdl.account(mechanism.algorithm, privacy, noise_std=mechanism.noise_std)  # of the worst victim
        assert got.adaptive[u, v] <= guarantee.mu * (1 + 1e-9)
        assert got.non_adaptive[u, v] <= got.adaptive[u, v] * (1 + 1e-9)
        assert got.adaptive[:, v][np.arange(4) != v].max() == pytest.approx(guarantee.mu)


def test_losses_are_computed_once_and_their_table_is_in_the_page(folder, page, built, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("computed again")

    before = (folder / "report.json").read_bytes()
    entries = json.loads(before)["pairwise"]
    assert {entry["of"]["mechanism"] for entry in entries.values()} == {"dp-dsgd", "mafalda", "decor"}
    for entry in entries.values():
        region = f"Losses of all pairs under {entry['of']['mechanism']}"
        cells = [float(e[1]["value"]) for e in page.all("data") if e[3] == region]
        assert cells == [float(v) for row in entry["mu_adaptive"] for v in row]
    store = rebuilt.LossStore(None)
    store.pairwise(built)
    ((key, entry),) = store.used.items()
    monkeypatch.setattr(rebuilt, "pairwise", refuse)
    written(folder)
    assert (folder / "report.json").read_bytes() == before
    rebuilt.LossStore({"mfdl": mfdl.__version__, "pairwise": {key: entry}}).pairwise(built)
    damaged = entry | {"mu": entry["mu"][:-1]}
    for version, earlier in (("0", {key: entry}), (mfdl.__version__, {key: damaged}), (mfdl.__version__, [])):
        with pytest.raises(AssertionError, match="computed again"):
            rebuilt.LossStore({"mfdl": version, "pairwise": earlier}).pairwise(built)


def test_losses_by_distance_are_those_of_the_pairs():
    hops = np.abs(np.subtract.outer(np.arange(4.0), np.arange(4.0)))
    mu = np.where(hops > 0, 1 / np.maximum(hops, 1), np.inf)
    mu[0, 1], mu[3, 2] = np.inf, 3.0
    group, built = SimpleNamespace(label="a"), SimpleNamespace(hops=hops)
    mechanism = rebuilt.MechanismDetails(group, built, rebuilt.PairLosses(mu, mu / 2))
    adaptive, fixed = by_hops(TrustPanel("ldp", []), [mechanism], series_looks(["a"]))
    assert "a, 1 hops: mean 1.4, largest 3, 5 pairs" in adaptive.svg
    assert "a, 3 hops: mean 0.1667, largest 0.1667, 2 pairs" in fixed.svg
    assert adaptive.words == fixed.words == "1 infinite losses are not drawn."


def test_correlations_are_those_of_the_dense_operator(built):
    N = built.mechanism.algorithm.noise.to_dense()
    T, n = built.mechanism.algorithm.num_steps, 4
    noise = rebuilt.noise_correlation(built)
    last = N[(T - 1) * n :]
    covariance = last @ last.T * built.mechanism.noise_std**2
    np.testing.assert_allclose(noise.std**2, np.diagonal(covariance), rtol=1e-12)
    correlation = np.eye(n) if noise.over_nodes is None else noise.over_nodes
    np.testing.assert_allclose(correlation * np.outer(noise.std, noise.std), covariance, atol=1e-12)
    assert (noise.over_time is None) == (built.record["mechanism"] != "mafalda")
    if noise.over_time is not None:
        np.testing.assert_allclose(np.nan_to_num(noise.over_time), N.reshape(T, n, T, n)[:, 1, :, 1], atol=1e-12)


def test_what_cannot_be_built_again_is_left_out_with_the_reason(records):
    for name, value, reason in (
        ("noise_std", records[1]["noise_std"] * 1.01, "this version calibrates base noise std"),
        ("mechanism", "file:gone.npz", "could not be rebuilt"),
    ):
        refuses(reason, rebuilt.rebuilt, {**records[1], name: value}, Shared(), error=rebuilt.LeftOut)


def test_the_command_leaves_out_losses_beyond_the_size(folder, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["report", str(folder), "--largest", "0", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"page": str(out)}
    assert "4 nodes x 6 steps are more than 0" in out.read_text()
    assert not (tmp_path / "report.json").exists()
    for _, attributes, *_ in Page(out).all("a"):
        if not attributes["href"].startswith(("#", "data:")):
            assert (tmp_path / unquote(attributes["href"])).exists()


TEXT = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=40)
EVIL = '"><script>alert(1)</script><svg onload=alert(2)>&amp;$\\frac{$\x01'


@given(name=TEXT, other=TEXT)
@example(name=EVIL, other=EVIL)
@pytest.mark.slow
def test_names_are_text_and_nothing_else(tmp_path_factory, name, other):
    folder = tmp_path_factory.mktemp("named")
    same = dict.fromkeys(("graph", "task", "gossip"), other)
    changes = [{"label": name, "guarantee": other, "trust": other, **same}, {"label": name + other, "mu": 2.0, **same}]
    failures = [{"error": f"<img src=x>{name}", "traceback": f"</pre><script>{other}"}]
    page = Page(written(made_up(folder, changes, failures, {"mechanism": [name], "graph": other})))
    assert {row["mechanism"] for row in page.rows()} == {name, name + other}
    assert any(row["words text"] == f"in words{other}" for row in page.rows())
    assert not page.all("script") + page.all("img")
    assert not [e for e in page.elements if any(attribute.startswith("on") for attribute in e[1])]
    assert any(e[2] == f"</pre><script>{other}" for e in page.all("pre"))
    assert not page.stack


def test_diverged_runs_are_said_and_not_averaged(tmp_path):
    gone = {"final_test_loss": None, "diverged": True}
    changes = [{"label": "calm", "seed": s, "final_test_loss": 1.0 + s} for s in (0, 1)]
    changes += [{"label": "wild", "seed": s, "lr": 0.1, **gone} for s in (0, 1)]  # a worse rate
    changes += [{"label": "wild", "seed": 0, **gone}, {"label": "wild", "seed": 1, "final_test_loss": 0.1}]
    path = written(made_up(tmp_path, changes))
    rows = {row["mechanism"]: row for row in Page(path).rows()}
    assert (rows["calm"]["loss"], rows["wild"]["loss"]) == (pytest.approx([1.5, math.sqrt(0.5)]), [])
    assert rows["wild"]["loss text"] == "diverged (1 of 2)"
    assert "Diverged at every rate: wild at μ = 1 (1 of 2 seeds)." in path.read_text()


def test_few_series_are_shown_first(tmp_path):
    changes = [{"label": f"m{i}", "mu": mu, "final_test_loss": 2.0 - 0.1 * i} for i in range(9) for mu in (1.0, 2.0)]
    boxes = Page(written(made_up(tmp_path, changes))).all("input", type="checkbox")
    assert {e[1]["value"] for e in boxes} == {str(i) for i in range(9)}
    assert {e[1]["value"] for e in boxes if "checked" in e[1]} == {"5", "6", "7", "8"}  # the lowest losses


@each("rates, chosen, expected", ([0.1], [{}], [CHOSEN_BEFORE]), ([0.1], None, []), ([0.1, 0.5], None, [CHOSEN_HERE]))
def test_the_seeds_on_which_rates_were_chosen_are_said(tmp_path, rates, chosen, expected):
    changes = [{"label": "b", "lr": 0.5}, *({"label": "a", "lr": rate} for rate in rates)]
    text = written(made_up(tmp_path, changes, **({} if chosen is None else {"chosen": chosen}))).read_text()
    assert [words for words in (CHOSEN_BEFORE, CHOSEN_HERE) if words in text] == expected
    assert ("Loss against learning rate" in text) == (len(rates) > 1)


@given(st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=2), min_size=2, max_size=4))
def test_who_is_ahead_is_ahead_in_every_seed(losses):
    same = {**RECORD, "config": {}}
    records = [
        {**same, "mechanism": f"m{i}", "label": f"m{i}", "seed": s, "final_test_loss": float(of_seed[s])}
        for i, of_seed in enumerate(losses)
        for s in (0, 1)
    ]
    ahead = [f"m{i}" for i, of_seed in enumerate(losses) if all(
        of_seed[s] < other[s] for j, other in enumerate(losses) if j != i for s in (0, 1)
    )]  # fmt: skip
    assert leader(grouped(records)) == "".join(ahead)


@pytest.mark.parametrize("part", ["", "mu-0.5-lr-0.1"])
def test_a_comparison_has_a_page_too(finished_comparisons, tmp_path, part):
    result = json.loads((finished_comparisons / part / "results.json").read_text())
    rate = result["learning_rate"]
    by_key = {(m["mechanism"], float(m["mu"]), m.get("lr", rate)): m for m in result["mechanisms"]}
    page = Page(written(finished_comparisons / part, tmp_path / "page.html"))
    rows = page.rows()
    curve = [("dp-dsgd", 0.5), *([] if part else [("dp-dsgd", 2.0)]), ("none", math.inf)]
    assert [(row["mechanism"], *row["mu"]) for row in rows] == curve
    for row in rows:
        numbers = by_key[row["mechanism"], *row["mu"], *row["rate"]]
        for name in ("loss", "train_loss"):
            key = result_key("final", name)
            assert row[name] == pytest.approx([numbers[f"{key}_mean"], numbers[f"{key}_std"]])
        assert row["words text"] == f"in words{numbers['guarantee']}"
    assert not [e for e in page.all("p") if e[2].startswith("Not shown")]


def test_folders_without_runs_are_refused(tmp_path):
    refuses(r"holds no sweep\.json and no results\.json", written, tmp_path)
    made_up(tmp_path, [], [{"error": "E", "traceback": "T"}])
    refuses("no run in .* is finished; 1 failed: run", written, tmp_path)
