"""One node: it meets its peers, agrees on secrets, trains, and goes on where it stood after a crash of anybody.

In: the setting, the node's folder, addresses of its peers. Out: its messages, on the wire and in its folder.

No node goes back. A node saves itself after a step and before it sends, and stores what it sends; a node that rejoins
says which step it lacks, and peers that are ahead (by one step, since each waits for the others) send theirs again from
files.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import mfdl
from mfdl import PrivateNode
from mfdl.training.keys import NoiseKey
from mfdl.training.shared_randomness import HolderKeys, Holders, open_group_key, pair_key, seal_group_key

from .folder import NodeFolder
from .frames import DONE, GROUP_KEY, HELLO, MESSAGE, ROOM, Channel, Refused, unpacked
from .hello import Hello
from .setting import Setting

PATIENCE = 60.0  # seconds without a word after which a peer counts as gone
HOST = "127.0.0.1"

Address = Callable[[int], Awaitable[int]]  # the port of a node, once it listens


class Node:
    """One node of a run.

    Args:
        on_step: called with the number of finished steps after each.
        planted: changes the `PrivateNode` before it steps: a bug for the audit to find.
    """

    def __init__(
        self,
        setting: Setting,
        node: int,
        folder: NodeFolder,
        *,
        on_step: Callable[[int], None] = lambda _: None,
        planted: Callable[[PrivateNode, HolderKeys], None] = lambda *_: None,
        patience: float = PATIENCE,
    ) -> None:
        self.setting, self.node, self.folder = setting, node, folder
        self.identity, self.on_step, self.planted, self.patience = folder.identity, on_step, planted, patience
        self.channels: dict[int, Channel] = {}
        self._publics: dict[int, bytes] = {}
        self._needs: dict[int, int] = {}  # first step whose messages each peer lacks
        self._arrived: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self._lacks = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def listen(self) -> int:
        """Opens a port on loopback and returns its number."""

        async def arrived(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.append(writer)
            await self._arrived.put((reader, writer))

        self._server = await asyncio.start_server(arrived, HOST, 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def run(self, address: Address) -> PrivateNode:
        """Trains to the last step; the node whose module is the final model.

        Raises: Refused: a peer is gone, or sent what is not accepted; what was saved stays, and the run can go on.
        """
        try:
            saved = self.folder.saved_step()
            self._lacks = max(0, saved - 1)
            await self._meet(address)
            keys = await self._agreed_keys()
            trained = self.setting.private_node(self.node, keys)
            self.planted(trained, keys)
            self.folder.load(trained)
            await self._train(trained)
            return trained
        finally:
            if self._server is not None:
                self._server.close()
            for writer in self._writers:
                writer.close()
            for writer in self._writers:  # until what was written is on its way
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    # ---- meeting -----------------------------------------------------------------------------------------------------

    def _channel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: int | None) -> Channel:
        largest = ROOM + 4 * self.setting.data.dimension
        settings = {"run_id": self.setting.run_id, "node": self.node, "largest": largest, "patience": self.patience}
        return Channel(reader, writer, peer=peer, **settings)

    async def _meet(self, address: Address) -> None:
        """One connection a pair of peers: the node of the smaller number dials, and says hello first."""
        peers = self.setting.peers(self.node)
        for peer in (v for v in peers if v > self.node):
            channel = self._channel(*await self._dial(peer, address), peer)
            await self._say_hello(channel)
            await self._hear_hello(channel)
        while len(self.channels) < len(peers):
            try:
                reader, writer = await asyncio.wait_for(self._arrived.get(), self.patience)
            except TimeoutError:
                missing = sorted(set(peers) - set(self.channels))
                raise Refused(f"nodes {missing} did not come within {self.patience:g} seconds.") from None
            channel = self._channel(reader, writer, None)
            await self._hear_hello(channel)
            await self._say_hello(channel)

    async def _dial(self, peer: int, address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        deadline = asyncio.get_running_loop().time() + self.patience
        while True:
            try:
                port = await asyncio.wait_for(address(peer), self.patience)
                reader, writer = await asyncio.open_connection(HOST, port)
                self._writers.append(writer)
                return reader, writer
            except (OSError, TimeoutError):
                if asyncio.get_running_loop().time() > deadline:
                    raise Refused(f"node {peer} did not answer within {self.patience:g} seconds.") from None
                await asyncio.sleep(0.05)

    async def _say_hello(self, channel: Channel) -> None:
        await channel.send(HELLO, Hello(self.identity.public_bytes, self._lacks, self.setting.plan).encoded())

    async def _hear_hello(self, channel: Channel) -> None:
        body = await channel.receive(HELLO)
        try:
            self._accept(channel, body)
        except Refused:
            channel.close()
            raise

    def _accept(self, channel: Channel, body: bytes) -> None:
        peer = channel.peer
        assert peer is not None  # said by the header of the hello
        if peer not in self.setting.peers(self.node) or peer in self.channels:
            why = "is connected already" if peer in self.channels else "is no peer of this node"
            raise Refused(f"a hello says that it is from node {peer}, which {why}.")
        hello = Hello.of(body, peer)
        self.setting.require_plan(hello.plan, peer)
        if peer in self.setting.heard(self.node):
            hello.require_near(peer, self._lacks)
        self.folder.require_pinned(peer, hello.public)
        self._publics[peer], self._needs[peer], self.channels[peer] = hello.public, hello.lacks, channel

    # ---- secrets -----------------------------------------------------------------------------------------------------

    async def _agreed_keys(self) -> HolderKeys:
        """The secrets of all holder sets of this node: its own, one a pair, those of groups from their first node."""
        keys: dict[Holders, NoiseKey] = {}
        for number, holders in enumerate(self.setting.holder_sets):
            if self.node not in holders:
                continue
            first, *others = sorted(holders)
            if not others:
                keys[holders] = self.folder.own_key
            elif len(others) == 1:
                keys[holders] = self._pair(first if first != self.node else others[0])
            elif first == self.node:
                keys[holders] = self.folder.group_key(holders)
                for peer in others:
                    sealed = seal_group_key(keys[holders], self._pair(peer), **self._ends(holders, first, peer))
                    await self.channels[peer].send(GROUP_KEY, sealed, step=number)
            else:
                sealed = await self.channels[first].receive(GROUP_KEY, step=number)
                keys[holders] = open_group_key(sealed, self._pair(first), **self._ends(holders, first, self.node))
        return HolderKeys.given(keys)

    def _pair(self, peer: int) -> NoiseKey:
        labels = {"own_label": self.node, "peer_label": peer}
        return pair_key(self.identity, self._publics[peer], run_id=self.setting.run_id, **labels)

    def _ends(self, holders: Holders, sender: int, receiver: int) -> dict[str, object]:
        return {"group": holders, "run_id": self.setting.run_id, "sender": sender, "receiver": receiver}

    # ---- training ----------------------------------------------------------------------------------------------------

    async def _train(self, trained: PrivateNode) -> None:
        rounds, heard = self.setting.gossip_rounds, self.setting.heard(self.node)
        for peer in heard:
            for step, round, body in self.folder.recorded(range(self._needs[peer], self._lacks), rounds):
                await self.channels[peer].send(MESSAGE, body, step=step, round=round)
        for step in range(self._lacks, trained.num_steps):
            if trained.steps_taken == step:
                features, targets, records = self.setting.batch(self.node, step)
                trained.step(features, targets, records=records)
                self.folder.save(trained)  # before anything of this step is sent
            for round in range(rounds):
                await self._exchange(trained, step, round)
            self.on_step(step + 1)
        for channel in self.channels.values():
            await channel.send(DONE, b"", step=trained.num_steps)
        for channel in self.channels.values():
            await channel.receive(DONE, step=trained.num_steps)

    async def _exchange(self, trained: PrivateNode, step: int, round: int) -> None:
        """Sends the model, hears the neighbours', and takes the average."""
        model = trained.message()
        body = self.folder.record(trained, step, round)
        messages = {self.node: dict(model)}
        heard = self.setting.heard(self.node)
        for peer in heard:
            if step >= self._needs[peer]:  # a peer that is ahead has this message
                await self.channels[peer].send(MESSAGE, body, step=step, round=round)
        for peer in heard:
            received = await self.channels[peer].receive(MESSAGE, step=step, round=round)
            messages[peer] = unpacked(received, model, peer)
        at = step * self.setting.gossip_rounds + round
        trained.receive(mfdl.gossip.average(messages, self.setting.gossip, self.node, step=at))
