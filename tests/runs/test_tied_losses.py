"""Where all nodes are alike their losses are equal: the first is named and the ties are counted, however they round.

`mfdl_solvers.ties` decides; with a bare argmax in its place the last bits of the losses would name the victim.
"""

import dataclasses
import functools
import io

import networkx as nx
import numpy as np
import pytest
from rich.console import Console
from vocabulary import ZERO_OUT, dynamics_on, given, st

import mfdl
from mfdl import EveryStep, algorithms, trust
from mfdl.commands import account as account_command
from mfdl.commands import terminal
from mfdl.commands.account import AccountConfig, run_account
from mfdl.commands.loss_pictures import Pictures
from mfdl.privacy.gram_sensitivity import largest_sensitivity
from mfdl.privacy.victim_sensitivity import worst_loss
from mfdl.runs.output import ahead_in_every_seed
from mfdl.runs.pairwise_losses import PairwiseLosses
from mfdl.runs.sweep_config import ordered

GRAPHS = {
    "ring": nx.cycle_graph(8),
    "complete graph": nx.complete_graph(5),
    "hypercube": nx.convert_node_labels_to_integers(nx.hypercube_graph(3), ordering="sorted"),
    "circulant graph": nx.circulant_graph(9, [1, 3]),
    "Petersen graph": nx.petersen_graph(),
}
LAST_BITS = 1e-12


@functools.cache
def losses_on(name):
    graph = nx.Graph()
    graph.add_nodes_from(range(len(GRAPHS[name])))
    graph.add_edges_from(GRAPHS[name].edges)
    dynamics = dynamics_on(graph)
    algorithm = algorithms.decor(dynamics, EveryStep(2), sigma_ldp=1.0, sigma_cor=2.0)
    return mfdl.losses(algorithm, mfdl.Privacy(trust.Coalitions(1), **ZERO_OUT))


@functools.cache
def pairs_on(name):
    return mfdl.pairwise(losses_on(name).algorithm, mfdl.Privacy(**ZERO_OUT))


def perturbed(losses, factors):
    every = []
    for loss, factor in zip(losses.sensitivities, factors, strict=True):
        squared = loss.adaptive_sensitivity_squared * factor
        lower = loss.adaptive_sensitivity.lower * (1 - LAST_BITS)
        number = dataclasses.replace(loss.adaptive_sensitivity, squared=squared, lower=lower, tolerance=4 * LAST_BITS)
        changed = dataclasses.replace(loss, non_adaptive_sensitivity=number, adaptive_sensitivity=number)
        every.append(changed.answering(loss.fingerprint))
    return mfdl.Losses.from_sensitivities(losses.algorithm, losses.privacy, every)


def rounding(count):
    return st.lists(st.floats(1 - LAST_BITS, 1 + LAST_BITS), min_size=count, max_size=count)


@pytest.mark.parametrize("name", GRAPHS)
def test_all_victims_tie_and_the_first_is_named(name):
    losses = losses_on(name)
    assert (losses.worst.node, losses.tied) == (0, len(GRAPHS[name]))
    assert f"of node 0, one of {losses.tied} that lose most" in repr(losses)
    assert all(loss.adaptive_sensitivity_squared <= losses.worst.squared for loss in losses.sensitivities)


@pytest.mark.parametrize("name", GRAPHS)
def test_of_all_pairs_the_first_is_named(name):
    pairs = pairs_on(name)
    mu = pairs.matrix()
    np.fill_diagonal(mu, 0.0)
    ties = [(int(v), int(u)) for v, u in np.argwhere(mu.T.round(6) == mu.max().round(6))]
    assert (ties[0][0], len(ties) % len(mu), pairs.worst(), pairs.tied()) == (0, 0, ties[0], len(ties))
    assert f"attacker 0 and victim {ties[0][1]}, one of {len(ties)} pairs that lose most" in repr(pairs)


@given(60, factors=rounding(8))
def test_rounding_changes_no_name_and_lowers_no_number(factors):
    changed = perturbed(losses_on("ring"), factors)
    largest = max(loss.adaptive_sensitivity_squared for loss in changed.sensitivities)
    assert (changed.worst.node, changed.tied, changed.worst.squared) == (0, 8, largest)
    assert changed.worst.exact
    assert changed.worst.lower <= largest <= changed.worst.lower * (1 + changed.worst.tolerance) * (1 + 1e-15)
    backwards = (loss.adaptive_sensitivity for loss in reversed(changed.sensitivities))
    assert worst_loss(changed.sensitivities).node == largest_sensitivity(backwards).node == 0
    assert changed.calibrate(mu=1.0).mu <= 1.0
    assert all(curve.mu <= 1.0 for curve in changed.curves(changed.calibrate(mu=1.0).noise_std).values())


@given(40, factors=rounding(7 * 8))
def test_rounding_changes_no_pair(factors):
    exact, parts = pairs_on("ring"), np.reshape(factors, (8, 7))
    changed = PairwiseLosses({v: perturbed(exact.of_attackers[v], parts[v]) for v in exact.of_attackers})
    assert (changed.worst(), changed.tied()) == (exact.worst(), exact.tied()) == ((0, 1), 16)


@functools.cache
def accounted():
    values = {"mechanism": "decor", "graph": "ring:n=8", "trust": "pndp", "all_attackers": True, "jobs": 1}
    config = AccountConfig(**values, epochs=1, period=2, release="none", mu=1.0)
    return run_account(config, progress=False)


@given(20, factors=rounding(7 * 8))
def test_rounding_changes_no_answer_of_the_command(factors):
    account, remaining = accounted(), iter(factors)

    def nudged(loss):
        number = loss.adaptive_sensitivity
        other = dataclasses.replace(number, squared=number.squared * next(remaining))
        return dataclasses.replace(loss, adaptive_sensitivity=other).answering(loss.fingerprint)

    losses = {nodes: [nudged(loss) for loss in of_nodes] for nodes, of_nodes in account.losses.items()}
    changed = dataclasses.replace(account, losses=losses)
    assert changed.answer["tied"] == account.answer["tied"] == 16
    assert changed.worst_in_words() == "attacker 0 and victim 1, one of 16 pairs that lose most"
    rows = [row for attacker in changed.answer["attackers"] for row in attacker["victims"]]
    assert max(row["mu_adaptive"] for row in rows) == changed.answer["worst_mu_adaptive"] <= 1.0


def test_table_and_pictures_say_that_losses_tie(monkeypatch):
    account, printed = accounted(), io.StringIO()
    monkeypatch.setattr(terminal, "answers", lambda: Console(file=printed, width=200))
    account_command.show(account.answer, account.worst_in_words(), None)
    assert "Largest loss: attacker 0 and victim 1, one of 16 pairs that lose most." in printed.getvalue()
    pictures = Pictures(account)
    assert "(attacker 0 and victim 1, one of 16 pairs that lose most)" in pictures._setting()
    words = [text.get_text() for text in pictures.coloured_graph().findobj(lambda artist: hasattr(artist, "get_text"))]
    assert any("to 0 (one of 8 attackers with the largest total)" in " ".join(text.split()) for text in words)


def test_an_infinite_loss_names_the_first_of_the_victims():
    silent = algorithms.dsgd(losses_on("ring").algorithm.dynamics, EveryStep(2))
    guarantee = mfdl.account(silent, mfdl.Privacy(trust.LDP(), **ZERO_OUT), noise_std=1.0)
    assert guarantee.why.endswith("(node 0, one of 8 that lose most).")


@given(factors=rounding(6))
def test_equal_losses_have_no_leader_and_no_best_rate(factors):
    table = np.reshape(factors, (3, 2))
    losses = {f"m{i}": dict(enumerate(row.tolist())) for i, row in enumerate(table)}
    assert (ahead_in_every_seed(losses), ahead_in_every_seed({**losses, "lower": {0: 0.9, 1: 0.9}})) == ("", "lower")
    assert ordered({0.3: table[0], 0.1: table[1], 0.2: table[2]}) == [0.3, 0.1, 0.2]
