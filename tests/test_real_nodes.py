"""Real nodes: what is refused on the wire and at the door, noise after a rejoin, and what the records of a run show."""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from real_nodes import auditing, frames, launching
from real_nodes.folder import NodeFolder
from real_nodes.frames import DONE, HELLO, MESSAGE, Channel, Frame, Refused
from real_nodes.node import Node
from real_nodes.setting import NODES, Setting
from vocabulary import each, given, refuses, st

from mfdl import InvalidInput, NoiseKey, files
from mfdl.training.shared_randomness import HolderKeys, base_columns
from mfdl.training.single_copy import steps_of_keys

ROOT = Path(__file__).parents[1]
RUN, PEER = b"r" * 32, 3
MODEL = {"bias": torch.arange(2.0), "weight": torch.arange(6.0).reshape(2, 3)}


class Writer:
    closed = False

    def close(self):
        self.closed = True


def received(data, *expected, peer=PEER, patience=5.0):
    """The bodies that a channel takes from these bytes, when it is asked for (kind, step, round) one after another."""

    async def receive():
        reader, writer = asyncio.StreamReader(), Writer()
        if data is not None:
            reader.feed_data(data)
            reader.feed_eof()
        channel = Channel(reader, writer, run_id=RUN, node=0, largest=64, patience=patience, peer=peer)
        try:
            return [await channel.receive(kind, step=step, round=round) for kind, step, round in expected]
        except Refused:
            assert writer.closed
            raise

    return asyncio.run(receive())


def message(step=5, sequence=0, *, kind=MESSAGE, run_id=RUN, sender=PEER, round=0, body=b"numbers"):
    return Frame(kind, run_id, sender, step, round, sequence, body).encoded()


@each(
    "data, words",
    (message()[:20], "malformed frame: it ends after 20 bytes"),
    (message()[:-1], "malformed frame: it ends after 6 bytes"),
    (b"GET / HTTP/1.1" + bytes(60), "malformed frame: it begins with b'GET"), (b"", "node 3 closed the connection"),
    (message(body=bytes(65)), "oversized frame: 65 bytes, at most 64"),
    (message(run_id=b"s" * 32), "of another run, 7373737373737373 and not 7272727272727272"),
    (message(sender=2), "connection to node 3 says that node 2"),
    (message(sequence=1), "frame 1 where 0 comes next: it is reordered, or one before it is lost"),
    (message(step=4), "message of step 4, round 0, where a message of step 5, round 0 comes next"),
    (message(step=6), "message of step 6"), (message(round=1), "of step 5, round 1"),
    (message(kind=DONE), "sent a done of step 5"), (message(kind=200), "sent a kind 200"),
    (None, "said nothing for 0.01 seconds"),
)  # fmt: skip
def test_a_frame_that_is_not_the_next_one_is_refused_in_words_and_the_connection_closed(data, words):
    refuses(words, received, data, (MESSAGE, 5, 0), patience=0.01 if data is None else 5.0, error=Refused)


def test_a_frame_that_was_taken_is_refused_when_it_comes_again():
    refuses("frame 0 where", lambda: received(message() + message(), (MESSAGE, 5, 0), (MESSAGE, 6, 0)), error=Refused)


@given(100, order=st.lists(st.integers(0, 4), max_size=8))
def test_of_any_frames_in_any_order_the_longest_right_beginning_is_taken_and_no_more(order):
    sent = [message(step, sequence=step, body=bytes([step])) for step in range(5)]
    right = next((i for i, step in enumerate(order) if step != i), len(order))
    stream, expected = b"".join(sent[step] for step in order), [(MESSAGE, step, 0) for step in range(right)]
    assert received(stream, *expected) == [bytes([step]) for step in range(right)]
    refuses(None, received, stream, *expected, (MESSAGE, right, 0), error=Refused)


def test_the_first_frame_says_who_the_peer_is_and_the_others_must_agree():
    hello, expected = message(0, kind=HELLO), [(HELLO, 0, 0), (MESSAGE, 5, 0)]
    assert received(hello + message(sequence=1), *expected, peer=None) == [b"numbers"] * 2
    frames, why = hello + message(sequence=1, sender=1), "connection to node 3 says that node 1"
    refuses(why, received, frames, *expected, peer=None, error=Refused)


def test_tensors_arrive_as_they_were():
    body = frames.packed(MODEL)
    assert body == frames.packed(dict(reversed(MODEL.items())))
    arrived = frames.unpacked(body, MODEL, PEER)
    assert list(arrived) == list(MODEL)
    assert all(torch.equal(arrived[name], MODEL[name]) for name in MODEL)


@each(
    "body, words",
    (b"", "malformed message"),
    (b"\x80\x04K\x01." + bytes(20), "malformed message"),  # a pickle
    (frames.packed(MODEL)[:-1], "malformed message"),
    (frames.packed({"bias": MODEL["bias"]}), "wrongly shaped message"),
    (frames.packed({**MODEL, "more": torch.zeros(1)}), "wrongly shaped message"),
    (frames.packed({**MODEL, "weight": MODEL["weight"].T}), "wrongly shaped message"),
    (frames.packed({**MODEL, "bias": MODEL["bias"].double()}), "wrongly shaped message"),
    (frames.packed({**MODEL, "bias": torch.tensor([0, torch.nan])}), "not finite"),
    (frames.packed({**MODEL, "bias": torch.tensor([0, torch.inf])}), "not finite"),
)
def test_what_is_no_message_of_the_model_is_refused_in_words(body, words):
    refuses(f"node 3 sent .*{words}", frames.unpacked, body, MODEL, PEER, error=Refused)


class Killed(Exception):
    """Stands for SIGKILL in a test of one process: nothing after it is done."""


class KilledFolder(NodeFolder):
    """The folder of a node that is killed once, before or after a file of a step is written."""

    at = None

    def save(self, node):
        self._dies("before save", node.steps_taken - 1)
        super().save(node)
        self._dies("after save", node.steps_taken - 1)

    def record(self, node, step, round):
        body = super().record(node, step, round)
        self._dies("after record", step)
        return body

    def _dies(self, moment, step):
        if self.at == (moment, step):
            raise Killed


def run(setting, root, *, kill=None, until=asyncio.ALL_COMPLETED, plant=lambda *_: None):
    """Errors with which nodes ended that were started on the folders in root. kill: (node, moment, step)."""
    steps_of_keys.clear()  # as a new process

    async def all_nodes():
        loop, nodes = asyncio.get_running_loop(), []
        for u in range(NODES):
            try:
                folder = KilledFolder(root / str(u), setting.run_id)
            except Refused as error:
                return [error]
            folder.at = kill[1:] if kill and kill[0] == u else None
            nodes.append(Node(setting, u, folder, planted=plant))
        ports = [loop.create_future() for _ in nodes]

        async def address(peer):
            return await ports[peer]

        for port, node in zip(ports, nodes, strict=True):
            port.set_result(await node.listen())
        ended, waiting = await asyncio.wait([asyncio.ensure_future(n.run(address)) for n in nodes], return_when=until)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return [task.exception() for task in ended]

    return [error for error in asyncio.run(all_nodes()) if error is not None]


def folders(setting, root):
    return [NodeFolder(root / str(u), setting.run_id) for u in range(NODES)]


def sent(setting, root):
    return [f.recorded(range(setting.steps), setting.gossip_rounds) for f in folders(setting, root)]


def seeded_secrets(setting, root, seed=0):
    """Secrets that anybody can guess, so that what is measured is the same each time."""
    for u in range(NODES):
        drawn = {name: hashlib.sha256(f"{seed} {u} {name}".encode()).hexdigest() for name in ("private", "own")}
        (root / str(u)).mkdir(parents=True)
        content = {"run_id": setting.run_id.hex(), **drawn, "groups": {"0,1,2,3": hashlib.sha256(b"0").hexdigest()}}
        path = root / str(u) / "secrets.json"
        path.write_text(json.dumps(content))
        path.chmod(0o600)


@pytest.fixture(scope="module")
def decor():
    return Setting("decor", 8, nonce="a test", gossip_rounds=2)


@pytest.fixture(scope="module")
def undisturbed(decor, tmp_path_factory):
    root = tmp_path_factory.mktemp("undisturbed")
    seeded_secrets(decor, root)
    assert run(decor, root) == []
    return root


def same_secrets(undisturbed, root):
    for u in range(NODES):
        (root / str(u)).mkdir(parents=True)
        shutil.copy2(undisturbed / str(u) / "secrets.json", root / str(u))


def test_nodes_send_what_the_executor_sends_with_their_secrets(decor, undisturbed):
    messages = auditing.recorded(decor, folders(decor, undisturbed))
    keys = auditing.all_keys(decor, folders(decor, undisturbed))
    assert auditing.difference_from_executor(decor, messages, keys) < 1e-6
    other = auditing.all_keys(Setting("decor", 8, nonce="another", gossip_rounds=2), folders(decor, undisturbed))
    assert auditing.difference_from_executor(decor, messages, other) > 0.1


KILLS = [(2, "before save", 5), (3, "after record", 3)]
MORE = [(1, "after save", 0), (0, "after save", 7), (1, "before save", 0), (2, "after record", 7)]


@pytest.mark.parametrize("kill", [*KILLS, *(pytest.param(kill, marks=pytest.mark.slow) for kill in MORE)])
def test_after_a_kill_all_go_on_and_their_messages_are_bit_for_bit_those_of_an_undisturbed_run(
    decor, undisturbed, tmp_path, kill
):
    same_secrets(undisturbed, tmp_path)
    ended = run(decor, tmp_path, kill=kill)
    assert {type(error) for error in ended} == {Killed, Refused}
    assert all("closed the connection" in str(error) for error in ended if isinstance(error, Refused))
    assert run(decor, tmp_path) == []
    assert sent(decor, tmp_path) == sent(decor, undisturbed)


def test_a_node_with_stale_secrets_is_refused_by_its_peers(decor, undisturbed, tmp_path):
    same_secrets(undisturbed, tmp_path)
    run(decor, tmp_path, kill=(1, "before save", 1))
    shutil.rmtree(tmp_path / "1")  # comes back with a key pair of its own
    ended = run(decor, tmp_path, until=asyncio.FIRST_EXCEPTION)
    assert any("node 1 comes with another public key than before in this run" in str(error) for error in ended)
    assert not (tmp_path / "1" / "sent").exists()


def test_a_node_with_a_checkpoint_older_than_what_it_sent_is_refused(decor, undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "2" / "checkpoint")
    ended = run(decor, tmp_path / "run", until=asyncio.FIRST_EXCEPTION)
    assert any("older checkpoint than it has sent from" in str(error) for error in ended)


def test_a_message_that_was_sent_with_other_numbers_is_not_sent_again(decor, undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "run")
    folder = folders(decor, tmp_path / "run")[0]
    body = folder.message_file(3, 1).read_bytes()
    folder.keep(3, 1, body)
    refuses("sent before with other numbers under", folder.keep, 3, 1, body[:-1] + b"\x00", error=Refused)


def test_secrets_of_one_run_make_no_noise_in_another(decor, undisturbed, tmp_path):
    same_secrets(undisturbed, tmp_path)
    (error,) = run(Setting("decor", 8, nonce="another", gossip_rounds=2), tmp_path)
    assert "the same secrets in a second run repeat its noise" in str(error)


def test_secrets_are_in_no_file_but_their_own(undisturbed):
    for u in range(NODES):
        secrets = json.loads((undisturbed / str(u) / "secrets.json").read_text())
        wanted = [bytes.fromhex(secrets[name]) for name in ("private", "own")]
        for path in (undisturbed / str(u)).rglob("*"):
            if path.is_file() and path.name != "secrets.json":
                data = path.read_bytes()
                assert not any(secret in data or secret.hex().encode() in data for secret in wanted)


def test_drawn_secrets_are_for_their_owner_alone_and_differ_from_node_to_node(decor, tmp_path):
    folders = [NodeFolder(tmp_path / str(u), decor.run_id) for u in range(NODES)]
    for folder in folders:
        folder.group_key(frozenset(range(NODES)))
        assert (folder.path / "secrets.json").stat().st_mode & 0o077 == 0
    keys = [key for f in folders for key in (f.own_key, f.group_key(frozenset(range(NODES))))]
    assert len({key.key_id for key in keys}) == len(keys)
    assert len({folder.identity.fingerprint for folder in folders}) == NODES
    again = NodeFolder(tmp_path / "0", decor.run_id)
    assert (again.own_key, again.group_key(frozenset(range(NODES)))) == tuple(keys[:2])


PLAN = Setting("decor", 8, nonce="a test", gossip_rounds=2).plan


def hello_of_1(**changed):
    return json.dumps({"public": "ab" * 32, "plan": {**PLAN, **changed}, "lacks": 0}).encode()


HELLO_OF_1 = hello_of_1()


@each(
    "sender, body, words",
    (2, HELLO_OF_1, "node 2, which is no peer of this node"),
    (0, HELLO_OF_1, "node 0, which is no peer of this node"),
    (77, HELLO_OF_1, "node 77, which is no peer of this node"),
    (1, b"\xff{", "malformed hello: it is no JSON, or its key"),
    (1, b"[]", "malformed hello: it must hold public, lacks, plan alone"),
    (1, b'{"public": "ab"}', "malformed hello: it must hold"),
    (1, HELLO_OF_1.replace(b"0}", b"true}"), "malformed hello: it must hold"),
    (1, HELLO_OF_1.replace(b"0}", b'0, "more": 1}'), "malformed hello: it must hold"),
    (1, HELLO_OF_1.replace(b"ab", b"xy"), "malformed hello: .* or its key is not hexadecimal"),
    (1, HELLO_OF_1.replace(b"abab", b"ab", 1), "malformed hello: its key has 31 bytes, not 32"),
    (1, HELLO_OF_1.replace(b"0}", b"2}"), "neighbours are never further apart than one step"),
    (1, HELLO_OF_1.replace(b"0}", b"-2}"), "neighbours are never further apart than one step"),
    *((1, hello_of_1(**{name: "0" * 16}), f"node 1 has another {name}: '0000") for name in PLAN if name != "run"),
    (1, hello_of_1(run="0" * 64), "node 1 is of another run, 0000000000000000 and not"),
)
def test_a_hello_that_is_none_is_refused_in_words_and_leaves_nothing(decor, tmp_path, sender, body, words):
    hello = message(0, kind=HELLO, run_id=decor.run_id, sender=sender, body=body)
    node, writer = Node(decor, 0, NodeFolder(tmp_path, decor.run_id)), Writer()

    async def hear():
        reader = asyncio.StreamReader()
        reader.feed_data(hello)
        await node._hear_hello(node._channel(reader, writer, None))

    refuses(words, lambda: asyncio.run(hear()), error=Refused)
    assert writer.closed
    assert not node.channels
    assert not (tmp_path / "peers.json").exists()


def test_a_module_that_went_around_its_node_is_not_sent(decor, tmp_path):
    folder, keys = NodeFolder(tmp_path, decor.run_id), HolderKeys.simulated(NoiseKey.from_entropy())
    node = decor.private_node(0, keys)
    features, targets, records = decor.batch(0, 0)
    node.step(features, targets, records=records)
    folder.record(node, 0, 0)
    with torch.no_grad():
        next(node.module.parameters()).mul_(1.5)
    refuses("not what step or receive left", folder.record, node, 0, 1)
    assert not folder.message_file(0, 1).exists()


def test_a_second_process_of_a_node_is_refused(decor, tmp_path):
    with files.held_alone(launching.node_folder(tmp_path, 2)), pytest.raises(InvalidInput, match="is in use"):
        asyncio.run(launching.run_node(decor, 2, tmp_path, "nothing"))


def test_a_second_hello_of_one_peer_is_refused(decor, tmp_path):
    node = Node(decor, 0, NodeFolder(tmp_path, decor.run_id))
    options = {"run_id": decor.run_id, "node": 0, "largest": 64, "patience": 1.0, "peer": 1}
    first, second = (Channel(None, Writer(), **options) for _ in range(2))
    node._accept(first, HELLO_OF_1)
    refuses("node 1, which is connected already", node._accept, second, HELLO_OF_1, error=Refused)


def findings(setting, root):
    return auditing.audited(setting, auditing.recorded(setting, folders(setting, root)))


def test_a_run_stays_below_its_claim_and_is_not_far_from_it(decor, undisturbed):
    problems = findings(decor, undisturbed)
    assert not problems.violated
    assert 0.7 * problems.mu_claimed < problems.mu_shown
    assert "not refuted" in str(problems)


def test_what_is_left_of_the_messages_is_the_noise_that_the_nodes_made(decor, undisturbed):
    messages = auditing.recorded(decor, folders(decor, undisturbed))
    left, algorithm = auditing.noise_left(decor, messages), decor.mechanism.algorithm
    algorithm = algorithm.with_divisors(decor.data.public_batch_sizes.numpy())
    keys = auditing.all_keys(decor, folders(decor, undisturbed))
    base = base_columns(algorithm.noise, keys).block(np.arange(8), decor.data.dimension).reshape(-1, left.shape[1])
    B = decor.trust.view(algorithm, 0).dense_noise()
    assert_allclose(left, decor.mechanism.noise_std * B @ base, atol=1e-5 * np.abs(left).max())


@each(
    "name, plant",
    ("decor", "shared-once"),
    *(pytest.param(name, "silent", marks=pytest.mark.slow) for name in ("mafalda", "decor", "corn")),
)
def test_a_planted_bug_is_found(tmp_path, name, plant):
    setting = Setting(name, 16, nonce="planted")
    seeded_secrets(setting, tmp_path)
    assert run(setting, tmp_path, plant=launching.PLANTED[plant]) == []
    problems = findings(setting, tmp_path)
    assert problems.violated
    assert problems.mu_shown > (1.1 if plant == "shared-once" else 1e3) * problems.mu_claimed
    assert "REFUTED" in str(problems)


@pytest.mark.parametrize("name", ["corn", pytest.param("mafalda", marks=pytest.mark.slow)])
def test_secrets_of_groups_and_of_nobody_else_make_the_same_messages(tmp_path, name):
    setting = Setting(name, 8, nonce="groups")
    assert {type(error) for error in run(setting, tmp_path, kill=(3, "after record", 2))} == {Killed, Refused}
    assert run(setting, tmp_path) == []
    messages = auditing.recorded(setting, folders(setting, tmp_path))
    keys = auditing.all_keys(setting, folders(setting, tmp_path))
    assert auditing.difference_from_executor(setting, messages, keys) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["decor", "mafalda"])
def test_four_processes_train_are_killed_go_on_and_are_audited(tmp_path, name):
    command = [sys.executable, "-m", "experiments.real_nodes", "--mechanism", name, "--steps", "16", "--out"]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "solvers")])
    done = subprocess.run(
        [*command, str(tmp_path), "--kill", "2@9"], cwd=ROOT, env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    loaded = json.loads((tmp_path / "audit.json").read_text())
    assert (loaded["starts"], loaded["violated"]) == (2, False)
    assert loaded["difference"] < 1e-5
    assert loaded["mu_shown"] > 0.7 * loaded["mu_claimed"]
    assert "processes started 2 time(s)" in done.stdout


@each(
    "changed, words",
    ({"mechanism_name": "dsgd"}, "mechanism must be one of mafalda, decor, corn, got 'dsgd'"),
    ({"steps": 12}, "steps must be a positive multiple of 8, got 12"),
    ({"nonce": ""}, "nonce must not be empty"),
)
def test_a_setting_that_is_none_is_refused(changed, words):
    refuses(words, Setting, **{"mechanism_name": "decor", "steps": 8, "nonce": "a", **changed})
