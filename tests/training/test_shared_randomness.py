"""Secrets by holders: who can make which noise, no secret in two places, and none in what is shown or stored."""

import base64
import itertools
import logging
import pickle

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from noises import philox_key
from numpy.testing import assert_array_equal
from refusals import refuses
from small_tasks import regression

from mfdl import Cyclic, Dynamics, InvalidInput, NoiseKey, Privacy, algorithms, calibrate, gossip, replay, trust
from mfdl.noise import IndependentNoise, StepNoise, ZeroNoise
from mfdl.training import checkpoint
from mfdl.training.keys import normals
from mfdl.training.shared_randomness import HolderKeys, base_columns, columns_by_holders, holder_set

ROOT = NoiseKey.from_seed(11)
NODE_SETS = st.frozensets(st.integers(0, 6), max_size=4)


def noise_held_by(sets, num_nodes=7, num_steps=3):
    holders = sp.csr_array(np.array([[u in s for u in range(num_nodes)] for s in sets]).reshape(-1, num_nodes))
    return StepNoise(np.ones((num_nodes + 1, len(sets))), holders, num_steps, num_nodes)  # slots are messages


# ---- columns and their keys ---------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(NODE_SETS, max_size=9))
def test_every_column_is_with_its_holders_and_nowhere_else(sets):
    by_holders = columns_by_holders(noise_held_by(sets))
    assert by_holders.keys() == set(sets)
    for holders, columns in by_holders.items():
        assert columns.tolist() == [c for c, s in enumerate(sets) if s == holders]


@settings(deadline=None)
@given(st.lists(NODE_SETS, min_size=1, max_size=9), st.integers(0, 2**40), st.data())
def test_a_column_is_the_stream_of_its_holders_key_and_of_its_place_among_their_columns(sets, step, data):
    noise, hold = noise_held_by(sets), HolderKeys.simulated(ROOT)
    columns = base_columns(noise, hold).step(step, 3)
    for c, holders in enumerate(sets):
        key = ROOT.derive("holders", *sorted(holders))
        assert key == hold.key_of(holders)
        assert_array_equal(columns[c], normals(key, step, [sets[:c].count(holders)], 3)[0])
    chosen = data.draw(st.lists(st.integers(0, len(sets) - 1), max_size=5))
    assert_array_equal(base_columns(noise, hold, chosen).step(step, 3), columns[chosen])


def test_an_explicit_false_entry_is_no_holder():
    table = sp.csr_array((np.array([True, False]), ([0, 0], [1, 0])), shape=(1, 2))
    assert list(columns_by_holders(StepNoise(np.ones((3, 1)), table, 1, 2))) == [{1}]


def test_no_columns_no_holders():
    assert columns_by_holders(ZeroNoise(3, 2)) == {}
    assert base_columns(ZeroNoise(3, 2), HolderKeys.given({})).step(0, 4).shape == (0, 4)


def test_holders_of_another_shape_are_refused():
    class Wrong(IndependentNoise):
        def holders(self):
            return sp.csr_array(np.ones((1, self.num_nodes), dtype=bool))

    refuses(r"holders\(\) of Wrong must have shape \(3", lambda: columns_by_holders(Wrong(2, 3)))


def test_all_that_names_noise_separates_it():
    """Holder set, step, column and tensor: 4 x 2 x 2 x 2 x 100 normals, no two alike up to sign."""
    hold = HolderKeys.simulated(ROOT)
    draws = [
        normals(hold.key_of(s), step, [column], 100, tensor=tensor)
        for s in ({0}, {1}, {0, 1}, {0, 1, 2})
        for step, column, tensor in itertools.product(range(2), repeat=3)
    ]
    values = np.abs(np.concatenate(draws))
    assert len(np.unique(values)) == values.size == 3200


def test_edges_that_share_a_node_have_noise_of_their_own():
    """Star: all pairs of columns, also at shifted positions, have correlation 0 within 6 standard deviations."""
    graph = nx.star_graph(5)
    D = 20_000
    noise = noise_held_by([frozenset(edge) for edge in graph.edges], 6)
    columns = base_columns(noise, HolderKeys.simulated(ROOT)).step(0, D + 1)
    for other in (columns[:, :-1], columns[:, 1:]):
        correlation = columns[:, :-1] @ other.T / D
        np.fill_diagonal(correlation, 0)
        assert np.abs(correlation).max() < 6 / np.sqrt(D)


# ---- keys -----------------------------------------------------------------------------------------------------------


def test_the_order_of_nodes_does_not_matter():
    hold = HolderKeys.simulated(ROOT)
    assert hold.key_of((3, 1)) == hold.key_of([1, 3]) == hold.key_of({np.int64(3), np.int32(1)})
    assert hold.key_of({1}) != hold.key_of({1, 3}) != hold.key_of({13})
    assert hold.key_of({1}).seeded
    given_ = HolderKeys.given({(3, 1): ROOT})
    assert given_.key_of((1, 3)) == ROOT


@settings(deadline=None)
@given(st.sets(NODE_SETS.filter(bool), max_size=6), st.integers(0, 6), NODE_SETS)
def test_a_node_has_the_keys_of_its_own_sets_only(sets, node, options):
    simulated = HolderKeys.simulated(ROOT)
    given_ = HolderKeys.given({s: simulated.key_of(s) for s in sets})
    for hold, known in ((simulated.of_node(node), True), (given_.of_node(node), options in sets)):
        if node in options and known:
            assert hold.key_of(options) == simulated.key_of(options)
        else:
            refuses(r"secret of \{", hold.key_of, options)
        assert repr(hold.of_node(node)) == repr(hold)
        refuses(f"the keys of node {node}", hold.of_node, node + 1)


def test_a_view_carries_no_key_of_others():
    mine, theirs = NoiseKey.from_entropy(), NoiseKey.from_entropy()
    view = HolderKeys.given({(0,): mine, (1,): theirs}).of_node(0)
    stored = pickle.dumps(view)
    assert mine.reveal_secret() in stored
    assert theirs.reveal_secret() not in stored


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: HolderKeys.simulated(b"x"), "root must be a NoiseKey, got bytes"),
        (lambda: HolderKeys.given({(0,): "x"}), r"the secret of \{0\} must be a NoiseKey, got str"),
        (lambda: HolderKeys.given({(): ROOT}), "at least one, got \\[\\]"),
        (lambda: HolderKeys.given({(2, 2): ROOT}), "distinct node indices"),
        (lambda: HolderKeys.given({(-1,): ROOT}), "holder must be an integer >= 0, got -1"),
        (lambda: HolderKeys.given({3: ROOT}), r"several node indices, got 3; write \(3,\)"),
        (lambda: HolderKeys.given({(0, 1): ROOT, (1, 0): ROOT.derive(1)}), r"names the holder set \{0, 1\} twice"),
        (lambda: HolderKeys.given({(0, 1): ROOT, (1, 2): ROOT}), r"\{0, 1\} and \{1, 2\} were given the same secret"),
        (lambda: HolderKeys.given({}).key_of(range(12)), r"the secret of \{0, .* 9, ... 12 nodes\} is missing"),
        (lambda: HolderKeys.simulated(ROOT).of_node(4).key_of({0, 1}), r"node 4 needs the secret of \{0, 1\}"),
        (lambda: HolderKeys.simulated(ROOT).of_node(-1), "node must be an integer >= 0"),
        (lambda: holder_set([0.5]), "holder must be an integer"),
    ],
)
def test_refusals(call, message):
    refuses(message, call)


# ---- secrets stay where they are ------------------------------------------------------------------------------------


def spellings(key):
    """How a secret, or the Philox key hashed from it, could be written."""
    for raw in (key.reveal_secret(), philox_key(key.reveal_secret())):
        words = [str(word).encode() for word in np.frombuffer(raw, dtype="<u8")]
        number = str(int.from_bytes(raw, "big")).encode()
        yield from (raw, raw[::-1], raw.hex().encode(), base64.b64encode(raw), repr(raw).encode(), number, *words)


def test_keys_are_shown_by_public_names_only():
    hold = HolderKeys.given({(0, 1): NoiseKey.from_entropy(), (1,): NoiseKey.from_entropy()})
    root = NoiseKey.from_entropy()
    printed = (
        f"{hold!r} {hold} {hold.of_node(1)!r} {HolderKeys.simulated(root)!r} {HolderKeys.simulated(root).of_node(2)}"
    )
    assert "holders=[{0, 1}, {1}]" in printed
    assert root.key_id in printed
    for key in (hold.key_of({0, 1}), hold.key_of({1}), root, root.derive("holders", 2)):
        assert not any(text in printed.encode() for text in spellings(key))


def test_a_run_leaves_no_secret_in_results_checkpoints_messages_or_logs(tmp_path, caplog, capfd):
    dynamics = Dynamics(gossip.metropolis_hastings("ring:n=4"), 0.1)
    algorithm = algorithms.decor(dynamics, Cyclic(epochs=2, period=2), sigma_ldp=1.0, sigma_cor=2.0)
    calibrated = calibrate(algorithm, Privacy(trust.LDP(), adjacency="zero-out", clip_norm=1.0), mu=1.0)
    task = regression(16, build=lambda: torch.nn.Linear(3, 1))
    root = NoiseKey.from_entropy()
    used, derive = [root], NoiseKey.derive

    def witnessed(self, *context):
        used.append(derive(self, *context))
        return used[-1]

    with caplog.at_level(logging.DEBUG), pytest.MonkeyPatch.context() as patch:
        patch.setattr(NoiseKey, "derive", witnessed)
        run = replay(calibrated, task, key=root, checkpoint_folder=tmp_path, stop_after=3)
    assert len(used) == 2 + 4 + 4  # root, the run's own, four nodes and four edges
    printed = capfd.readouterr()
    printed_texts = " ".join([repr(run), str(run.seeds), repr(run.rows()), caplog.text, printed.out, printed.err])
    stored = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert stored
    everything = b"\n".join([printed_texts.encode(), pickle.dumps(run.seeds), *stored])
    assert run.seeds[0].key_id.encode() in everything
    for key in used:
        assert not any(text in everything for text in spellings(key))
    for secret in (root, HolderKeys.simulated(root)):
        with pytest.raises(InvalidInput, match=r"NoiseKey|HolderKeys"):
            checkpoint.save(tmp_path / "other", step=0, models={}, metadata={"key": secret})
