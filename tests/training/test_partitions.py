"""Partitions: every record at exactly one node, the right distributions, what depends on the seed, refusals."""

import dataclasses
import pickle

import numpy as np
import pytest
import scipy.stats
import torch
from small_tasks import classes
from vocabulary import each, given, refuses, st

from mfdl import partition, tasks
from mfdl.training.tasks.partition import Dirichlet, Fixed, Uniform


def by_class(rows_of_node, targets):
    """Records of each class at each node, (classes, nodes)."""
    return np.array([[np.sum(targets[rows] == label) for rows in rows_of_node] for label in np.unique(targets)])


@st.composite
def partitions(draw):
    num_nodes = draw(st.integers(1, 9))
    min_records = draw(st.integers(1, 6))
    num_records = num_nodes * min_records + draw(st.integers(0, 60))
    targets = np.array(draw(st.lists(st.integers(0, 4), min_size=num_records, max_size=num_records)))
    owners = np.arange(num_records) % num_nodes
    skewed = [Dirichlet(alpha, min_records) for alpha in (1e-6, 0.05, 1.0, 10.0, 1e6)]
    partition = draw(st.sampled_from([Uniform(), Fixed(owners), *skewed]))
    return partition, targets, num_nodes, draw(st.integers(0, 2**70))


@given(150, case=partitions())
def test_every_record_is_at_exactly_one_node_and_no_node_is_empty(case):
    partition, targets, num_nodes, seed = case
    partition.require_fits("classification", len(targets), num_nodes)
    rows = partition.rows_of_nodes(targets, num_nodes, seed)
    assert len(rows) == num_nodes
    assert sorted(np.concatenate(rows).tolist()) == list(range(len(targets)))
    assert min(map(len, rows)) >= (partition.min_records if isinstance(partition, Dirichlet) else 1)
    again = partition.rows_of_nodes(targets, num_nodes, seed)
    assert all(np.array_equal(a, b) for a, b in zip(rows, again, strict=True))


@pytest.mark.parametrize("alpha", [0.03, 0.5, 1.0, 10.0, 1e4])
def test_shares_are_dirichlet(alpha):
    shares = partition.dirichlet_shares(partition.Uniforms(1, partition.NODE_SHARES), alpha, (4000, 5))
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-12)
    # Below 1e-300 float64 has no shares: both sides are taken to the logarithm of what is left.
    shares = np.maximum(shares, 1e-300)
    for node in range(5):  # each marginal is Beta(alpha, 4 alpha); a false alarm has probability 5e-4 by node and alpha
        assert scipy.stats.kstest(shares[:, node], scipy.stats.beta(alpha, 4 * alpha).cdf).pvalue > 1e-4
    # Covariance of two shares: -(1/n^2) / (n alpha + 1); 4000 draws know it within about 6 percent of the variance.
    variance = (1 / 5) * (4 / 5) / (5 * alpha + 1)
    assert np.cov(shares.T)[0, 1] == pytest.approx(-1 / 25 / (5 * alpha + 1), abs=0.06 * variance)


def test_a_class_is_cut_at_the_running_sums_of_its_shares():
    targets = np.repeat([0, 1, 2], [500, 300, 7])
    rows = Dirichlet(2.0).rows_of_nodes(targets, 6, seed=4)
    shares = partition.dirichlet_shares(partition.Uniforms(4, partition.NODE_SHARES), 2.0, (3, 6))
    ideal = shares * np.array([500, 300, 7])[:, None]
    # Each of the two cuts that bound a node is at most half a record off.
    assert np.abs(by_class(rows, targets) - ideal).max() <= 1
    assert by_class(rows, targets).sum(axis=1).tolist() == [500, 300, 7]


@given(30, seed=st.integers(0, 10**6), min_records=st.integers(1, 5))
def test_too_small_nodes_are_filled_from_the_largest(seed, min_records):
    targets = np.arange(60) % 2  # two classes, nearly whole at one node each: eight nodes of ten stay empty
    rows = Dirichlet(1e-6, min_records).rows_of_nodes(targets, 10, seed)
    sizes = sorted(map(len, rows))
    assert sizes[:8] == [min_records] * 8
    assert sum(sizes) == 60
    # Both classes at one node, or at two nodes of 30 that give in turn.
    assert sizes[8] == min_records or sizes[9] - sizes[8] <= 1
    donors = [u for u in range(10) if len(rows[u]) > min_records]
    for u in set(range(10)) - set(donors):
        assert len(np.intersect1d(rows[u], np.concatenate([rows[v] for v in donors]))) == 0


def test_a_draw_that_fits_is_not_changed_and_another_is_drawn_anew_before_records_move(monkeypatch):
    targets = np.arange(400) % 4
    free, wanted = Dirichlet(1.0), Dirichlet(1.0, min_records=20)
    for seed in range(20):
        before = free.rows_of_nodes(targets, 6, seed)
        after = wanted.rows_of_nodes(targets, 6, seed)
        if min(map(len, before)) >= 20:
            assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    too_small = [seed for seed in range(20) if min(map(len, free.rows_of_nodes(targets, 6, seed))) < 20]
    assert 0 < len(too_small) < 20
    drawn = [wanted.rows_of_nodes(targets, 6, seed) for seed in too_small]
    monkeypatch.setattr(partition, "MAX_DRAWS", 1)
    for seed, redrawn in zip(too_small, drawn, strict=True):
        moved = wanted.rows_of_nodes(targets, 6, seed)
        assert min(map(len, moved)) >= 20
        assert [len(rows) for rows in moved] != [len(rows) for rows in redrawn]
        stay = sum(len(np.intersect1d(a, b)) for a, b in zip(moved, free.rows_of_nodes(targets, 6, seed), strict=True))
        assert 400 - 6 * 20 < stay < 400


def test_the_draws_are_pinned():
    # Raw Philox words and a special function: a change here moves every result.
    draws = partition.Uniforms(0, partition.NODE_SHARES)
    np.testing.assert_allclose(draws((3,)), [0.035920005358293206, 0.6461885892552882, 0.452059945769853], rtol=1e-15)
    task = classes(16, 3, 2, targets=np.arange(16) % 2, partition=Dirichlet(1.0))
    assert task.owners(0).tolist() == [2, 0, 1, 0, 2, 2, 1, 0, 1, 0, 1, 1, 1, 0, 2, 1]


def test_uniforms_are_uniform_and_inside_the_unit_interval(monkeypatch):
    numbers = partition.Uniforms(0, partition.NODE_SHARES)((20_000,))
    assert scipy.stats.kstest(numbers, "uniform").pvalue > 1e-4
    stream = partition.Uniforms(0, partition.NODE_SHARES)
    np.testing.assert_array_equal(np.concatenate([stream((2, 3)).ravel(), stream((4,))]), numbers[:10])

    class Ends:  # of the range: a logarithm and an inverse distribution stay finite
        def __init__(self, _):
            pass

        def random_raw(self, size):
            return np.array([0, 2**64 - 1], dtype=np.uint64)

    monkeypatch.setattr(np.random, "Philox", Ends)
    low, high = partition.Uniforms(0, partition.NODE_SHARES)((2,))
    assert 0 < low < high < 1


@given(25, seed=st.integers(0, 2**40), period=st.integers(1, 4), alpha=st.sampled_from([0.1, 1.0, 10.0]))
def test_an_instance_follows_the_owners_of_its_seed(seed, period, alpha):
    task = classes(partition=Dirichlet(alpha, min_records=4))
    instance = task.instance(seed, period)
    owners = task.owners(seed)
    assert sorted(instance.record_index[instance.mask].tolist()) == list(range(60))
    for u in range(4):
        present = instance.record_index[u][instance.mask[u]].tolist()
        assert sorted(present) == np.flatnonzero(owners == u).tolist()
        assert instance.mask[u].sum(1).max() == instance.public_batch_sizes[u]
    np.testing.assert_array_equal(task.public_batch_sizes(period, seed), instance.public_batch_sizes)
    np.testing.assert_array_equal(task.public_batch_sizes(period, seed), np.ceil(np.bincount(owners) / period))


def test_batch_sizes_without_a_seed_are_for_partitions_that_do_not_draw_them():
    drawn = classes(partition="dirichlet:alpha=1,min_records=3")
    assert drawn.batch_sizes_depend_on_seed
    refuses("partition 'dirichlet:alpha=1,min_records=3", drawn.public_batch_sizes, 2)
    assert len({tuple(drawn.public_batch_sizes(1, seed)) for seed in range(5)}) > 1
    for task in (classes(num_records=61), classes(partition=Fixed(np.repeat(np.arange(4), [3, 7, 20, 30])))):
        assert not task.batch_sizes_depend_on_seed
        for seed in range(5):
            np.testing.assert_array_equal(task.public_batch_sizes(3), task.public_batch_sizes(3, seed))
            np.testing.assert_array_equal(task.public_batch_sizes(3), task.instance(seed, 3).public_batch_sizes)
    refuses("seed must be an integer >= 0, got -1", drawn.public_batch_sizes, 2, -1)


@pytest.mark.parametrize("partition", [Uniform(), Dirichlet(0.5, min_records=4)])
def test_fixing_the_owners_of_a_seed_changes_nothing_in_it(partition):
    """Why neighbouring data sets are built with Fixed: a draw that reads labels reacts to the record that changed."""
    task = classes(partition=partition)
    fixed = dataclasses.replace(task, partition=Fixed(task.owners(7)))
    first, second = task.instance(7, 3), fixed.instance(7, 3)
    for name in ("record_index", "public_batch_sizes", "initial_parameters"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    labels = task.targets.copy()
    labels[0] = 2
    changed, relabelled = (dataclasses.replace(which, targets=labels) for which in (task, fixed))
    moved = any((changed.owners(seed) != task.owners(seed)).any() for seed in range(20))
    assert moved == isinstance(partition, Dirichlet)
    orders = set()
    for seed in range(4):
        np.testing.assert_array_equal(relabelled.owners(seed), task.owners(7))
        orders.add(tuple(relabelled.instance(seed, 2).record_index.flatten().tolist()))
    assert len(orders) == 4  # the order of use still follows the seed


def test_the_default_is_uniform_and_all_count_for_the_content_hash():
    assert classes().partition == Uniform()
    owners = np.arange(60) % 4
    kinds = "uniform", "dirichlet:alpha=1", Dirichlet(1 + 1e-15), Dirichlet(1, 2), Fixed(owners), Fixed(owners[::-1])
    hashes = [classes(partition=partition).content_hash for partition in kinds]
    assert len(set(hashes)) == 6
    assert classes(partition=Fixed(owners.astype(np.int32))).content_hash == hashes[4]
    for kind in (Uniform(), Dirichlet(2.0, 3), Fixed(owners)):
        assert pickle.loads(pickle.dumps(kind)).text == kind.text


def test_fixed_keeps_its_own_read_only_owners():
    owners = np.arange(60) % 4
    fixed = Fixed(owners)
    owners[:] = 0
    assert fixed.owners[1] == 1
    assert not fixed.owners.flags.writeable


class Given(partition.Partition):
    """A partition of a user: the arrays that `rows` names, whatever the law."""

    def __init__(self, *rows):
        self.rows = rows

    text = "given"

    def rows_of_nodes(self, targets, num_nodes, seed):
        return list(self.rows)


def four(*changed):
    return Given(*changed, *np.split(np.arange(60), 4)[len(changed) :])


@each(
    "partition, message",
    (Given(*[np.arange(60)] * 4), "exactly one node, in one place, and record 0 has 4 places, at node 0, 1, 2, 3"),
    (four(np.arange(16)), "record 15 has 2 places, at node 0, 1"),
    (four(np.append(np.arange(15), 3)), "record 3 has 2 places, at node 0;"),
    (four(np.arange(14)), "record 14 is at no node"),
    (four(np.array([*range(14), 15])), "record 14 is at no node"),  # as many places as records, and still wrong
    (four(np.arange(-1, 15)), "must give rows 0 to 59, got row -1 at node 0"),
    (Given(*np.split(np.arange(1, 61), 4)), "must give rows 0 to 59, got row 60 at node 3"),
    (four(np.arange(15.0)), r"must give row indices of train records, got shape \(15,\) of float64 at node 0"),
    (four(np.arange(15)[None]), r"got shape \(1, 15\)"),
    (four(np.arange(30), np.array([], dtype=int)), "every node a record, got none at node 1 of 4"),
    (Given(*np.split(np.arange(60), 3)), "one array of rows for each of 4 nodes, got 3"),
)
def test_a_partition_of_a_user_that_breaks_the_law_is_refused(partition, message):
    task = classes(partition=partition)
    for use in (lambda: task.owners(0), lambda: task.public_batch_sizes(2), lambda: task.instance(0, 2)):
        refuses(f"partition 'given' .*{message}", use)


@given(40, order=st.permutations(range(12)), cuts=st.sets(st.integers(1, 11), min_size=3, max_size=3), data=st.data())
def test_a_partition_of_a_user_that_keeps_the_law_is_taken_and_one_wrong_row_refused(order, cuts, data):
    parts = np.split(np.array(order, dtype=np.int32), sorted(cuts))
    task = classes(num_records=12, partition=Given(*parts))
    wanted = [next(u for u in range(4) if row in parts[u]) for row in range(12)]
    assert task.owners(0).tolist() == wanted
    index = task.instance(0, 1).record_index
    assert [sorted(index[u][index[u] >= 0].tolist()) for u in range(4)] == [sorted(rows.tolist()) for rows in parts]
    node = data.draw(st.integers(0, 3))
    place = data.draw(st.integers(0, len(parts[node]) - 1))
    changed = [rows.copy() for rows in parts]
    changed[node][place] = data.draw(st.integers(0, 11).filter(lambda row: row != parts[node][place]))
    wrong = classes(num_records=12, partition=Given(*changed))
    for use in (lambda: wrong.owners(0), lambda: wrong.instance(0, 1)):
        refuses("exactly one node", use)


@each(
    "build, message",
    (lambda: Dirichlet(0.0), "alpha must be a finite number > 0, got 0.0"),
    (lambda: Dirichlet(float("nan")), "alpha must be a finite number > 0"),
    (lambda: Dirichlet(1e7), r"alpha must lie between 1e-06 and 1e\+06, got 10000000.0"),
    (lambda: Dirichlet(1.0, 0), "min_records must be an integer >= 1, got 0"),
    (lambda: Fixed([]), "owners must be one node index per train record"),
    (lambda: Fixed([[0, 1]]), r"owners must be one node index per train record, got shape \(1, 2\)"),
    (lambda: Fixed([0.0, 1.0]), "of float64"),
    (lambda: Fixed([0, -1]), "owners must be node indices >= 0, got -1 in row 1"),
    (lambda: classes(partition=Fixed([0, 1, 2, 3])), "each of the 60 train records, got 4"),
    (lambda: classes(partition=Fixed(np.arange(60) % 5)), "node indices below 4, got 4 in row 4"),
    (lambda: classes(partition=Fixed(np.arange(60) % 3)), "owners give none to node 3 of 4"),
    (lambda: classes(partition=Dirichlet(1.0, 16)), "needs 64 train records, got 60; use min_records <= 15"),
    (lambda: classes(num_nodes=61, partition=Dirichlet(1.0)), "got 60 train records for 61 nodes"),
    (lambda: classes(kind="regression", partition="dirichlet:alpha=1"), "a Dirichlet partition skews classes"),
    (lambda: dataclasses.replace(classes(), partition="uniform"), r"partition must be Uniform\(\), .* got str"),
    (lambda: classes(partition=Dirichlet(0.05)).instance(0, 12), "at least period=12 records"),
)
def test_partitions_that_cannot_be_used(build, message):
    refuses(message, build)


@given(alpha=st.floats(1e-6, 1e6), min_records=st.integers(1, 10**6))
def test_the_text_of_a_partition_names_it(alpha, min_records):
    for named in (Uniform(), Dirichlet(alpha, min_records)):
        assert partition.parse(named.text) == partition.parse(f" {named.text} ") == partition.parse(named) == named


@each(
    "text, message",
    ("uniform:alpha=1", "partition uniform has no parameters, got 'alpha'"),
    ("dirichlet", "partition dirichlet needs the parameter 'alpha'; e.g. dirichlet:alpha=10"),
    ("fixed:0", "unknown partition 'fixed'"),
    (3, "partition must be a text .* got int"),
)
def test_texts_that_name_no_partition(text, message):
    refuses(message, partition.parse, text)


def test_the_tasks_of_the_library_take_a_partition():
    skewed = tasks.load("digits", 5, partition="dirichlet:alpha=0.1,min_records=9")
    assert skewed.partition == Dirichlet(0.1, 9)
    sizes = np.bincount(skewed.owners(0))
    assert sizes.sum() == 1198
    assert sizes.min() >= 9
    assert sizes.max() > 300
    assert tasks.load("digits-mlp", 5, partition=Uniform()).partition == Uniform()
