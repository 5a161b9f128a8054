"""One site: NVFlare's synchronous peer-to-peer executor around a `PrivateNode`.

In: the folder of the run, and the neighbours that NVFlare's `DistOptController` sends. Out: this node's messages, over
NVFlare and in its folder. Secrets, checkpoints and what is refused are those of `real_nodes`.

NVFlare's own executors of this family (`DGDExecutor`) compute gradients without clipping and noise, store the training
loss, accept values of any site, and after a timeout go on with the values that came. Here a step is
`PrivateNode.step`, only parameters leave, only neighbours are heard, and a site that misses a value stops.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_opt.p2p.executors.sync_executor import SyncAlgorithmExecutor

import mfdl
from experiments.real_nodes.folder import NodeFolder
from experiments.real_nodes.frames import Refused, packed, unpacked
from experiments.real_nodes.hello import Hello
from experiments.real_nodes.launching import node_folder, spent
from experiments.real_nodes.setting import Setting, begun
from mfdl import PrivateNode, files
from mfdl.training.keys import NoiseKey
from mfdl.training.shared_randomness import HolderKeys, Holders, pair_key

HELLO = -1  # the iteration before the first step
FINAL, REFUSED, SPENT = "final.safetensors", "refused.txt", "spent.txt"  # how a site ended, in its folder
TOPIC = "send_value"  # of NVFlare's synchronous executor


def site_name(node: int) -> str:
    """NVFlare counts sites from 1."""
    return f"site-{node + 1}"


def node_of(site: str) -> int:
    """The inverse of `site_name`."""
    return int(site.removeprefix("site-")) - 1


class PrivateSite(SyncAlgorithmExecutor):
    """Trains one node of a run.

    Args:
        out: folder of the run, which holds `run.json` and this node's folder; a deployment gives each site its own.
        patience: seconds without a neighbour's value after which it counts as gone.
        kill_at: for a test, the step whose message is recorded and not sent, as the process gets SIGKILL; once.
    """

    def __init__(self, out: str, patience: float = 60.0, kill_at: int = -1) -> None:
        super().__init__(sync_timeout=patience)
        self.out, self.patience, self.kill_at = out, patience, kill_at
        self._arrived = threading.Condition()

    # ---- values of neighbours ----------------------------------------------------------------------------------------

    def _send(self, fl_ctx: FLContext, body: bytes, iteration: int, sites: Sequence[str]) -> None:
        """Sends to the sites and waits until each has the value.

        Raises: Refused: a site did not take it.
        """
        value = DXO(DataKind.APP_DEFINED, data={"value": body, "iteration": iteration}).to_shareable()
        replies = fl_ctx.get_engine().send_aux_request(
            targets=list(sites), topic=TOPIC, request=value, timeout=self.patience, fl_ctx=fl_ctx
        )
        for site in sites:
            code = replies[site].get_return_code() if site in replies else ReturnCode.COMMUNICATION_ERROR
            if code != ReturnCode.OK:
                raise Refused(f"{site} did not take the value of step {iteration}: {code}.")

    def _exchange_values(self, fl_ctx: FLContext, value: bytes, iteration: int) -> dict[int, bytes]:
        """The values of all neighbours, by node.

        Raises: Refused: one did not come in time.
        """
        sites = [neighbor.id for neighbor in self.neighbors]
        self._send(fl_ctx, value, iteration, sites)
        with self._arrived:
            values = self.neighbors_values[iteration]
            if not self._arrived.wait_for(lambda: len(values) == len(sites), self.patience):
                missing = sorted(set(sites) - values.keys())
                raise Refused(f"{missing} sent nothing for step {iteration} within {self.patience:g} seconds.")
            return {node_of(site): values[site] for site in sites}

    def _handle_neighbor_value(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Keeps the first value of a neighbour for an iteration; a site that is no neighbour is refused."""
        sender = request.get_peer_prop(key=ReservedKey.IDENTITY_NAME, default=None)
        data = from_shareable(request).data
        if sender not in {neighbor.id for neighbor in self.neighbors} or not isinstance(data.get("value"), bytes):
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        with self._arrived:
            first = self.neighbors_values[data["iteration"]].setdefault(sender, data["value"])
            self._arrived.notify_all()
        return make_reply(ReturnCode.OK if first == data["value"] else ReturnCode.BAD_REQUEST_DATA)

    # ---- training ----------------------------------------------------------------------------------------------------

    def run_algorithm(self, fl_ctx: FLContext, shareable: Shareable, abort_signal: Signal) -> None:
        """Trains to the last step; a refusal ends the run of all sites, and what was saved stays."""
        torch.set_num_threads(1)
        node = node_of(fl_ctx.get_identity_name())
        place = node_folder(Path(self.out), node)
        try:
            with files.held_alone(place):  # a second process of this site would repeat its noise
                trained = self._trained(fl_ctx, begun(Path(self.out)), node, abort_signal)
        except (Refused, mfdl.InvalidInput) as error:
            files.atomic_write_text(place / REFUSED, str(error))
            self.system_panic(str(error), fl_ctx)
            return
        files.atomic_write_bytes(place / FINAL, packed(trained.message()))
        files.atomic_write_text(place / SPENT, spent(trained))

    def _trained(self, fl_ctx: FLContext, setting: Setting, node: int, abort_signal: Signal) -> PrivateNode:
        folder = NodeFolder(node_folder(Path(self.out), node), setting.run_id)
        files.atomic_write_text(folder.path / "pid", str(os.getpid()))
        self._require_accounted_neighbours(setting, node)
        lacks = max(0, folder.saved_step() - 1)
        hello = Hello(folder.identity.public_bytes, lacks, setting.plan).encoded()
        hellos = {peer: Hello.of(body, peer) for peer, body in self._exchange_values(fl_ctx, hello, HELLO).items()}
        for peer, theirs in hellos.items():
            setting.require_plan(theirs.plan, peer)
            theirs.require_near(peer, lacks)
            folder.require_pinned(peer, theirs.public)
        trained = setting.private_node(node, _keys(setting, node, folder, hellos))
        folder.load(trained)
        for peer, theirs in hellos.items():  # a neighbour that is behind gets again what it has not averaged
            for step, _, body in folder.recorded(range(theirs.lacks, lacks), 1):
                self._send(fl_ctx, body, step, [site_name(peer)])
        for step in range(lacks, trained.num_steps):
            if abort_signal.triggered:
                raise Refused("NVFlare aborted the run.")
            if trained.steps_taken == step:
                features, targets, records = setting.batch(node, step)
                trained.step(features, targets, records=records)
                folder.save(trained)  # before anything of this step is sent
            self._average(fl_ctx, setting, folder, trained, step)
        return trained

    def _average(
        self, fl_ctx: FLContext, setting: Setting, folder: NodeFolder, trained: PrivateNode, step: int
    ) -> None:
        """Sends the model, and takes the average with the neighbours'."""
        model = trained.message()
        sent_before = folder.message_file(step, 0).exists()
        body = folder.record(trained, step, 0)
        if step == self.kill_at and not sent_before:
            os.kill(os.getpid(), signal.SIGKILL)
        messages = {trained.node: dict(model)}
        for peer, theirs in self._exchange_values(fl_ctx, body, step).items():
            messages[peer] = unpacked(theirs, model, peer)
        trained.receive(mfdl.gossip.average(messages, setting.gossip, trained.node, step=step))
        del self.neighbors_values[step]

    def _require_accounted_neighbours(self, setting: Setting, node: int) -> None:
        """Refuses a network of the server other than the one that was accounted."""
        row = setting.gossip.weights[[node], :].toarray()[0]
        given = {node_of(neighbor.id): neighbor.weight for neighbor in self.neighbors}
        expected = {peer: float(row[peer]) for peer in setting.heard(node)}
        if given != expected:
            raise Refused(
                f"the server sent neighbours and weights {given}, the mechanism was accounted for {expected}."
            )


def _keys(setting: Setting, node: int, folder: NodeFolder, hellos: dict[int, Hello]) -> HolderKeys:
    """The secrets of the holder sets of a node: its own, and one for each pair with a neighbour."""
    keys: dict[Holders, NoiseKey] = {}
    for holders in (each for each in setting.holder_sets if node in each):
        peers = sorted(holders - {node})
        if len(peers) > 1:
            raise Refused(f"{setting.mechanism_name} shares secrets in groups of {len(holders)}; see real_nodes.")
        keys[holders] = folder.own_key
        for peer in peers:
            ends: dict[str, Any] = {"run_id": setting.run_id, "own_label": node, "peer_label": peer}
            keys[holders] = pair_key(folder.identity, hellos[peer].public, **ends)
    return HolderKeys.given(keys)
