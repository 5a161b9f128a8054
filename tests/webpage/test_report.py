"""`mfdl report`: the numbers of a page are those of the folder, whatever the names, and nothing else is loaded."""

import csv
import io
import itertools
import json
import math
import statistics
from urllib.parse import unquote, urlparse

import numpy as np
import pytest
from folders import RECORD, Page, made_up
from hypothesis import given
from hypothesis import strategies as st

import mfdl
from mfdl.cli import main
from mfdl.errors import InvalidInput
from mfdl.pictures import looks, networks
from mfdl.reporting.shared import Shared
from mfdl.sweeps import Store
from mfdl.webpage import ReportConfig, rebuilt
from mfdl.webpage.page import write_page
from mfdl.webpage.run_groups import grouped, leader

SILENT = {"progress": False}


@pytest.fixture(scope="module")
def page(folder):
    return Page(folder / "report.html")


def best(records):
    """(mechanism, trust, mu) -> rate and losses of the best rate, written out."""
    losses = {}
    for r in records:
        key = (r["mechanism"], r["trust"], float(r["mu"]))
        losses.setdefault(key, {}).setdefault(r["lr"], []).append(r["final_loss"])
    return {key: min(of.items(), key=lambda item: statistics.mean(item[1])) for key, of in losses.items()}


def test_the_table_says_what_the_store_says(folder, page):
    records = Store.load(folder).records()
    expected = best(records)
    rows = page.rows()
    assert len(rows) == len(expected) == 7
    for row in rows:
        rate, losses = expected[row["mechanism"], row["trust"], *row["mu"]]
        asked = (row["mechanism"], row["trust"], *row["mu"], rate)
        own = [r for r in records if (r["mechanism"], r["trust"], float(r["mu"]), r["lr"]) == asked]
        assert row["rate"] == [rate]
        assert row["loss"] == pytest.approx([statistics.mean(losses), statistics.stdev(losses)], rel=1e-12)
        accuracies = [r["final_accuracy"] for r in own]
        assert row["accuracy"] == pytest.approx([statistics.mean(accuracies), statistics.stdev(accuracies)], abs=1e-12)
        assert row["noise"] == [own[0]["noise_std"]]
        assert row["epsilon"] == [float(own[0]["epsilon"])]
        assert row["words text"] == f"in words{own[0]['guarantee']}"
        assert float(row["mu text"].replace("∞", "inf")) >= row["mu"][0]
        assert float(row["epsilon text"].replace("∞", "inf")) >= row["epsilon"][0]


def test_points_of_the_trade_off_say_their_numbers(folder, page):
    tips = {element[2] for element in page.all("title")}
    for (name, _, mu), (rate, losses) in best(Store.load(folder).records()).items():
        if math.isfinite(mu):
            mean, std = statistics.mean(losses), statistics.stdev(losses)
            assert f"{name}, μ = {mu:g}, rate {rate:g}: {mean:.4g} ± {std:.4g}".replace("e-0", "e-") in tips


def test_all_rates_are_in_the_csv(folder, page):
    (link,) = page.all("a", download="report.csv")
    rows = list(csv.DictReader(io.StringIO(unquote(link[1]["href"].partition(",")[2]))))
    losses = {}
    for r in Store.load(folder).records():
        losses.setdefault((r["mechanism"], float(r["mu"]), r["lr"]), []).append(r["final_loss"])
    got = {(row["mechanism"], float(row["mu"]), float(row["lr"])): float(row["loss"]) for row in rows}
    assert got == pytest.approx({key: statistics.mean(values) for key, values in losses.items()}, rel=1e-12)


def test_nothing_is_loaded_and_links_lead_somewhere(folder, page):
    assert not page.all("script")
    (policy,) = [e[1]["content"] for e in page.all("meta") if e[1].get("http-equiv") == "Content-Security-Policy"]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    loads = [e[1][name] for e in page.elements for name in ("src", "href") if name in e[1] and e[0] != "a"]
    assert loads
    assert all(address.startswith("data:image/png;base64,") for address in loads)
    anchors = {e[1]["id"] for e in page.elements if "id" in e[1]}
    assert len(anchors) == len([e for e in page.elements if "id" in e[1]])
    for _, attributes, *_ in page.all("a"):
        address = attributes["href"]
        assert not urlparse(address).netloc
        if address.startswith("#"):
            assert address[1:] in anchors
        elif not address.startswith("data:"):
            assert (folder / unquote(address)).exists()
    assert not page.stack


def test_provenance_and_failures_are_told(folder, page):
    text = " ".join(e[2] for e in page.all("body"))
    record = Store.load(folder).records()[0]
    for told in (record["graph_hash"], record["gossip_hash"], record["task_hash"], mfdl.__version__, "seeds 0, 1"):
        assert told in text
    assert "does not protect as it is meant to" in text
    assert "Traceback (most recent call last)" in text


# ---- privacy and noise -----------------------------------------------------------------------------------------------


def made(folder, name):
    records = [r for r in Store.load(folder).records() if r["mechanism"] == name]
    return rebuilt.rebuilt(records[0], Shared())


@pytest.mark.parametrize("name", ["dp-dsgd", "mafalda", "decor"])
def test_losses_of_pairs_are_the_accountants(folder, name):
    again = made(folder, name)
    algorithm, nu = again.mechanism.algorithm, again.mechanism.noise_std
    got = rebuilt.LossStore(None).pairwise(again)
    for v, u in itertools.permutations(range(4), 2):
        stated = mfdl.account(
            algorithm, trust=mfdl.trust.PNDP([v]), adjacency="replace-one", clip_norm=1.0, noise_std=nu, progress=False
        )  # of the worst victim
        assert got.adaptive[u, v] <= stated.mu * (1 + 1e-9)
        assert got.fixed[u, v] <= got.adaptive[u, v] * (1 + 1e-9)
        assert got.adaptive[:, v][np.arange(4) != v].max() == pytest.approx(stated.mu)


def test_tables_of_pairs_are_in_the_page(folder, page):
    kept = json.loads((folder / "report.json").read_text())["pairwise"]
    assert {entry["of"]["mechanism"] for entry in kept.values()} == {"dp-dsgd", "mafalda", "decor"}
    for entry in kept.values():
        region = f"Losses of all pairs under {entry['of']['mechanism']}"
        shown = [float(e[1]["value"]) for e in page.all("data") if e[3] == region]
        assert shown == [float(v) for row in entry["mu_adaptive"] for v in row]


def test_losses_are_computed_once(folder, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("computed again")

    before = (folder / "report.json").read_bytes()
    monkeypatch.setattr(rebuilt, "pairwise", refuse)
    write_page(ReportConfig(), folder, **SILENT)
    assert (folder / "report.json").read_bytes() == before
    damaged = json.loads(before)
    for entry in damaged["pairwise"].values():
        entry["mu"] = entry["mu"][:-1]
    kept = rebuilt.LossStore(damaged)
    with pytest.raises(AssertionError, match="computed again"):
        kept.pairwise(made(folder, "dp-dsgd"))


@pytest.mark.parametrize("name", ["dp-dsgd", "mafalda", "decor"])
def test_correlations_are_those_of_the_dense_operator(folder, name):
    again = made(folder, name)
    N = again.mechanism.algorithm.noise.to_dense()
    T, n = again.mechanism.algorithm.noise.num_steps, 4
    noise = rebuilt.noise_correlation(again)
    last = N[(T - 1) * n :]
    covariance = last @ last.T * again.mechanism.noise_std**2
    np.testing.assert_allclose(noise.std**2, np.diagonal(covariance), rtol=1e-12)
    if noise.over_nodes is None:
        np.testing.assert_allclose(covariance, np.diag(np.diagonal(covariance)), atol=1e-12)
    else:
        np.testing.assert_allclose(noise.over_nodes * np.outer(noise.std, noise.std), covariance, atol=1e-12)
    assert (noise.over_time is None) == (name != "mafalda")
    if noise.over_time is not None:
        np.testing.assert_allclose(np.nan_to_num(noise.over_time), N.reshape(T, n, T, n)[:, 1, :, 1], atol=1e-12)


def test_what_cannot_be_made_again_is_left_out_with_the_reason(folder):
    record = Store.load(folder).records()[1]
    with pytest.raises(rebuilt.LeftOut, match="this version builds it with noise std"):
        rebuilt.rebuilt({**record, "noise_std": record["noise_std"] * 1.01}, Shared())
    with pytest.raises(rebuilt.LeftOut, match="could not be built again"):
        rebuilt.rebuilt({**record, "mechanism": "file:gone.npz"}, Shared())


def test_losses_beyond_the_size_are_left_out(folder, tmp_path):
    out = tmp_path / "small.html"
    write_page(ReportConfig(largest=0), folder, out, **SILENT)
    text = out.read_text()
    assert "4 nodes x 6 steps are more than 0" in text
    assert not (tmp_path / "report.json").exists()
    for _, attributes, *_ in Page(out).all("a"):
        if not attributes["href"].startswith(("#", "data:")):
            assert (tmp_path / unquote(attributes["href"])).exists()


# ---- names and numbers of any kind -----------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=40)


@given(name=TEXT, other=TEXT)
@pytest.mark.slow
def test_names_are_text_and_nothing_else(tmp_path_factory, name, other):
    folder = tmp_path_factory.mktemp("named")
    records = [{"label": name, "guarantee": other, "trust": other}, {"label": name + other, "mu": 2.0}]
    failures = [{"error": f"<img src=x>{name}", "traceback": f"</pre><script>{other}"}]
    made_up(folder, records, failures, {"mechanism": [name], "graph": other})
    page = Page(write_page(ReportConfig(), folder, **SILENT))
    assert {row["mechanism"] for row in page.rows()} == {name, name + other}
    assert any(row["words text"] == f"in words{other}" for row in page.rows())
    assert not page.all("script")
    assert not page.all("img")
    assert any(e[2] == f"</pre><script>{other}" for e in page.all("pre"))
    assert not page.stack


def test_scripts_in_names_are_shown_not_run(tmp_path):
    evil = '"><script>alert(1)</script><svg onload=alert(2)>&amp;'
    made_up(tmp_path, [{"label": evil, "graph": evil, "task": evil, "trust": evil, "gossip": evil}])
    page = Page(write_page(ReportConfig(), tmp_path, **SILENT))
    assert not page.all("script")
    assert not [e for e in page.elements if any(name.startswith("on") for name in e[1])]
    assert {row["mechanism"] for row in page.rows()} == {evil}


def test_diverged_runs_are_said_and_not_averaged(tmp_path):
    gone = {"final_loss": None, "diverged": True}
    records = [{"label": "calm", "seed": s, "final_loss": 1.0 + s} for s in (0, 1)]
    records += [{"label": "wild", "seed": 0, **gone}, {"label": "wild", "seed": 1, "final_loss": 0.1}]
    page = Page(write_page(ReportConfig(), made_up(tmp_path, records), **SILENT))
    rows = {row["mechanism"]: row for row in page.rows()}
    assert rows["calm"]["loss"] == pytest.approx([1.5, math.sqrt(0.5)])
    assert rows["wild"]["loss"] == []
    assert rows["wild"]["loss text"] == "diverged (1 of 2)"
    assert "Diverged at every rate: wild at μ = 1 (1 of 2 seeds)." in (tmp_path / "report.html").read_text()


def test_few_series_are_shown_first(tmp_path):
    records = [{"label": f"m{i}", "mu": mu, "final_loss": 2.0 - 0.1 * i} for i in range(9) for mu in (1.0, 2.0)]
    page = Page(write_page(ReportConfig(), made_up(tmp_path, records), **SILENT))
    boxes = page.all("input", type="checkbox")
    checked = {e[1]["value"] for e in boxes if "checked" in e[1]}
    assert {e[1]["value"] for e in boxes} == {str(i) for i in range(9)}
    assert checked == {"5", "6", "7", "8"}  # the lowest losses


def test_the_seeds_on_which_rates_were_chosen_are_said(tmp_path):
    fixed, chosen = "Learning rates were chosen on other seeds than these.", "chosen on these very seeds"
    records = [{"label": "a", "lr": 0.1}, {"label": "b", "lr": 0.5}]
    for name, more, told in (("t", {"chosen": [{}]}, [fixed]), ("one", {}, []), ("many", {}, [chosen])):
        own = records + [{"label": "a", "lr": 0.5}] * (name == "many")
        text = write_page(ReportConfig(), made_up(tmp_path / name, own, **more), **SILENT).read_text()
        assert [words for words in (fixed, chosen) if words in text] == told
        assert ("Loss against learning rate" in text) == (name == "many")


def test_a_large_graph_shows_the_strongest_pairs():
    correlation = np.eye(50)
    correlation[1:, 0] = correlation[0, 1:] = np.linspace(-0.9, 0.9, 49)
    correlation[2:, 1] = correlation[1, 2:] = 0.95
    correlation[3:, 2] = correlation[2, 3:] = 0.01
    pairs, every = networks.drawn_pairs(correlation)
    assert every == 48 + 48 + 47  # one of the first row is 0
    assert len(pairs) == 100
    assert pairs[:48] == [(i, 1) for i in range(2, 50)]
    assert len(networks.drawn_pairs(correlation[:40, :40])[0]) == networks.drawn_pairs(correlation[:40, :40])[1]


@given(st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=2), min_size=2, max_size=4))
def test_who_is_ahead_is_ahead_in_every_seed(losses):
    records = [
        {**RECORD, "config": {}, "mechanism": f"m{i}", "label": f"m{i}", "seed": s, "final_loss": float(own[s])}
        for i, own in enumerate(losses)
        for s in (0, 1)
    ]
    ahead = {f"m{i}" for i, own in enumerate(losses) if all(
        own[s] < other[s] for j, other in enumerate(losses) if j != i for s in (0, 1)
    )}  # fmt: skip
    said = leader(grouped(records))
    assert ({said} if said else set()) == ahead


@given(st.tuples(*[st.integers(0, 255)] * 3), st.sampled_from([looks.LIGHT, looks.DARK]), st.sampled_from([3.0, 4.6]))
def test_colours_can_be_read_on_their_ground(rgb, ground, ratio):
    colour = "#{:02x}{:02x}{:02x}".format(*rgb)
    mixed = looks.readable(colour, ground, ratio)
    assert looks.contrast(mixed, ground) >= ratio
    if looks.contrast(colour, ground) >= ratio:
        assert mixed == colour


def test_series_differ_without_their_colours():
    made = list(looks.series_looks(looks.KNOWN).values())
    assert len({(look.marker, look.dashes) for look in made}) == len(made)
    assert looks.contrast("#000000", "#ffffff") == pytest.approx(21)


# ---- other folders, and the command ----------------------------------------------------------------------------------


def test_a_comparison_has_a_page_too(finished_comparisons, tmp_path):
    folder = finished_comparisons / "mu-0.5-lr-0.1"
    result = json.loads((folder / "results.json").read_text())
    page = Page(write_page(ReportConfig(largest=0), folder, tmp_path / "page.html", **SILENT))
    rows = {row["mechanism"]: row for row in page.rows()}
    assert set(rows) == {"none", "dp-dsgd"}
    for stated in result["mechanisms"]:
        row = rows[stated["mechanism"]]
        assert row["loss"] == pytest.approx([stated["final_loss_mean"], stated["final_loss_std"]])
        assert row["words text"] == f"in words{stated['guarantee']}"


def test_a_comparison_at_several_budgets_has_its_curve(finished_comparisons, tmp_path):
    result = json.loads((finished_comparisons / "results.json").read_text())
    losses = {(row["mechanism"], row["mu"], row["lr"]): row for row in result["mechanisms"]}
    page = Page(write_page(ReportConfig(), finished_comparisons, tmp_path / "page.html", **SILENT))
    rows = page.rows()
    assert [(row["mechanism"], *row["mu"]) for row in rows] == [("dp-dsgd", 0.5), ("dp-dsgd", 2.0), ("none", math.inf)]
    for row in rows:
        (mu,), (rate,) = row["mu"], row["rate"]
        stated = losses[row["mechanism"], "inf" if mu == math.inf else mu, rate]
        for name in ("loss", "train_loss"):
            assert row[name] == pytest.approx([stated[f"final_{name}_mean"], stated[f"final_{name}_std"]])
    assert not [e for e in page.all("p") if e[2].startswith("Not shown")]


def test_the_command_writes_the_page(folder, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["report", str(folder), "--largest", "0", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"page": str(out)}
    assert out.read_text().startswith("<!DOCTYPE html>")


def test_folders_without_runs_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"holds no sweep\.json and no results\.json; give the folder of"):
        write_page(ReportConfig(), tmp_path, **SILENT)
    made_up(tmp_path, [], [{"error": "E", "traceback": "T"}])
    with pytest.raises(InvalidInput, match=r"no run in .* is finished; 1 failed: run the sweep again"):
        write_page(ReportConfig(), tmp_path, **SILENT)
