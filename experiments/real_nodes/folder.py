"""What one node keeps: its secrets, its peers' public keys, its checkpoint, and the messages that it has sent.

In: a folder of the node alone. Out: the same after a crash at any moment, each file the old one or the new one.
`secrets.json` is readable by its owner alone and never leaves the node; the rest is as public as the messages, but the
checkpoint, which says who took part when.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mfdl import PrivateNode, files
from mfdl.training import checkpoint
from mfdl.training.keys import SECRET_BYTES, NoiseKey
from mfdl.training.shared_randomness import Holders, NodeIdentity

from .frames import Refused, packed


class NodeFolder:
    """The folder of one node in one run."""

    def __init__(self, path: Path, run_id: bytes) -> None:
        """Opens the folder, or makes it with new secrets.

        Raises: Refused: it is of another run, whose secrets must not make noise again.
        """
        self.path = path
        self._secrets_file, self._pins_file = path / "secrets.json", path / "peers.json"
        if not self._secrets_file.exists():
            drawn = {name: secrets.token_hex(SECRET_BYTES) for name in ("private", "own")}
            self._write_secrets({"run_id": run_id.hex(), **drawn, "groups": {}})
        self._secrets = json.loads(self._secrets_file.read_text())
        if self._secrets["run_id"] != run_id.hex():
            raise Refused(
                f"{path} holds the secrets of run {self._secrets['run_id'][:16]}, and this is {run_id.hex()[:16]}: the "
                "same secrets in a second run repeat its noise; take a new folder."
            )

    def _write_secrets(self, content: dict[str, Any]) -> None:
        files.atomic_write_json(self._secrets_file, content, private=True)

    @property
    def identity(self) -> NodeIdentity:
        """The node's X25519 key pair."""
        return NodeIdentity(bytes.fromhex(self._secrets["private"]))

    @property
    def own_key(self) -> NoiseKey:
        """The secret that the node shares with no other."""
        return NoiseKey(bytes.fromhex(self._secrets["own"]))

    def group_key(self, holders: Holders) -> NoiseKey:
        """The secret of a group that this node draws for; drawn once, and stored before it is sent."""
        name = ",".join(map(str, sorted(holders)))
        if name not in self._secrets["groups"]:
            self._secrets["groups"][name] = NoiseKey.from_entropy().reveal_secret().hex()
            self._write_secrets(self._secrets)
        return NoiseKey(bytes.fromhex(self._secrets["groups"][name]))

    def require_pinned(self, peer: int, public: bytes) -> None:
        """Keeps the public key of a peer that comes first, and refuses any other from then on.

        Raises: Refused: another key than before.
        """
        pins = json.loads(self._pins_file.read_text()) if self._pins_file.exists() else {}
        known = pins.setdefault(str(peer), public.hex())
        if known != public.hex():
            raise Refused(
                f"node {peer} comes with another public key than before in this run, {public.hex()[:16]}... and not "
                f"{known[:16]}...: its secrets are stale or somebody else's, and its noise would not be what its "
                "peers count on; give it its secrets.json back, or begin a new run."
            )
        files.atomic_write_json(self._pins_file, pins)

    def save(self, node: PrivateNode) -> None:
        """Keeps the node after a step, before anything of the step is sent."""
        state = node.state_dict()
        state["records"] = {str(record): steps for record, steps in state["records"].items()}
        tensors = node.module.state_dict()
        checkpoint.save(self.path / "checkpoint", step=node.steps_taken, models=tensors, metadata=state)

    def saved_step(self) -> int:
        """How many steps the saved node had taken, 0 without one."""
        checkpoint_folder = self.path / "checkpoint"
        return checkpoint.load(checkpoint_folder).step if (checkpoint_folder / checkpoint.FILE).exists() else 0

    def load(self, node: PrivateNode) -> None:
        """Brings a node that has not stepped to where it was saved, if it was.

        Raises: mfdl.InvalidInput: a damaged checkpoint, or one of another mechanism, node or key.
        """
        if not self.saved_step():
            return
        saved = checkpoint.load(self.path / "checkpoint")
        node.load_state_dict(saved.metadata)
        node.module.load_state_dict(saved.models)

    def message_file(self, step: int, round: int) -> Path:
        """Where the message of a round is, from before it was sent."""
        return self.path / "sent" / f"{step:06d}-{round}.safetensors"

    def record(self, node: PrivateNode, step: int, round: int) -> bytes:
        """The message of a node, stored before it is sent; nothing else than `PrivateNode.message` is sent.

        Raises: Refused: it was sent before with other numbers, whose difference from these would be free of noise.
            mfdl.InvalidInput: something else than its steps and averages has changed the module.
        """
        body = packed(node.message())
        self.keep(step, round, body)
        return body

    def keep(self, step: int, round: int, body: bytes) -> None:
        """Stores the bytes of a message. Raises: as `record`."""
        place = self.message_file(step, round)
        if not place.exists():
            files.atomic_write_bytes(place, body)
        elif place.read_bytes() != body:
            raise Refused(
                f"the message of step {step}, round {round} was sent before with other numbers under the same noise; "
                "this node's checkpoint is not the one that it sent from: begin a new run."
            )

    def recorded(self, steps: Iterable[int], rounds: int) -> list[tuple[int, int, bytes]]:
        """(step, round, body) of messages that were sent, in order."""
        wanted = [(step, round) for step in steps for round in range(rounds)]
        return [(step, round, self.message_file(step, round).read_bytes()) for step, round in wanted]
