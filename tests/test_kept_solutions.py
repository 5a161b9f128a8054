"""Solved problems that are kept: the same algorithm bit for bit, and nothing is solved twice."""

import pytest

import mfdl
from mfdl import factorization
from mfdl.algorithms import registry
from mfdl.archive import SUFFIX
from mfdl.factorization.solutions import Solutions, keeping

GOSSIP = mfdl.gossip.metropolis_hastings("path:n=3")
SCHEME = mfdl.Cyclic(epochs=2, period=2)
MECHANISMS = ("mafalda", "mafalda-l", "mafalda-classes", "d-mf", "corn", "time-space", "adapted", "space-time")


def build(name, **changed):
    return registry.build_tuned(name, mfdl.Dynamics(GOSSIP, **changed), SCHEME, coalition_size=changed.pop("q", 0))


def in_coalitions(_):
    return registry.build_tuned("corn", mfdl.Dynamics(GOSSIP), SCHEME, coalition_size=1)


@pytest.fixture
def asked(monkeypatch):
    """Keys of what was solved."""
    keys, put = [], Solutions.put
    monkeypatch.setattr(Solutions, "put", lambda self, key, answer: keys.append(key) or put(self, key, answer))
    return keys


@pytest.mark.parametrize("name", [*MECHANISMS, "corn against one node"])
def test_another_process_finds_what_was_solved(name, tmp_path, asked):
    make = in_coalitions if " " in name else build
    plain = make(name)
    with keeping(Solutions(tmp_path)):
        first = make(name)
    solved, written = list(asked), {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(f"{key}{SUFFIX}" for key in solved) == sorted(written)
    assert solved
    with keeping(Solutions(tmp_path)):
        again = make(name)
    assert asked == solved
    assert first.content_hash == again.content_hash == plain.content_hash
    for path in tmp_path.iterdir():
        path.unlink()
    with keeping(Solutions(tmp_path)):
        make(name)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == written


def test_rates_share_a_solution_and_weights_and_tolerances_do_not(asked):
    with keeping(Solutions()):
        for rate in (0.1, 0.3):
            build("mafalda", learning_rate=rate)
        assert len(set(asked)) == len(asked) == 1
        build("mafalda@last:1:0.1")
        build("mafalda", momentum=0.5)
        factorization.factorize(mfdl.Dynamics(GOSSIP), SCHEME, tolerance=1e-2)
        factorization.factorize(mfdl.Dynamics(GOSSIP), mfdl.Cyclic(epochs=4, period=1))
    assert len(set(asked)) == len(asked) == 5


def test_a_damaged_file_is_solved_anew(tmp_path, asked):
    with keeping(Solutions(tmp_path)):
        first = build("mafalda")
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    with keeping(Solutions(tmp_path)):
        assert build("mafalda").content_hash == first.content_hash
    assert path.read_bytes() == whole
    assert len(asked) == 2


def test_outside_nothing_is_kept(tmp_path, asked):
    with keeping(Solutions(tmp_path)):
        pass
    build("mafalda")
    assert asked == []
