"""Frames on the wire: what one node sends to another, and every reason to refuse what comes.

In: an asyncio stream and what is expected of it. Out: frames in order, or `Refused`, with what was wrong in words.
A frame is a fixed header and a body whose length the header says. Bodies are JSON, sealed bytes, or tensors in
safetensors: nothing that is read can run code.

Headers are not authenticated: who can write to the connection can forge them. Against that a deployment needs TLS with
certificates of both ends, or another authenticated channel. The checks here are against faults, other runs, other
versions and replays of what was said before.
"""

from __future__ import annotations

import asyncio
import dataclasses
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch

MAGIC = b"mfdlRN\x00\x01"
HEADER = struct.Struct("<8sB32sHIHQI")  # magic, kind, run id, sender, step, round, sequence number, length of the body
HELLO, GROUP_KEY, MESSAGE, DONE = range(4)
KINDS = ("hello", "group key", "message", "done")
ROOM = 4096  # bytes: a hello, a sealed key, or what safetensors adds to the numbers of a message


class Refused(Exception):
    """A frame or a peer that is not accepted; the connection is closed and the node stops."""


@dataclasses.dataclass(frozen=True)
class Frame:
    """What the header says, and the body.

    Attributes: sequence: 0, 1, ... of one connection in one direction.
    """

    kind: int
    run_id: bytes
    sender: int
    step: int
    round: int
    sequence: int
    body: bytes

    def encoded(self) -> bytes:
        """The bytes on the wire."""
        header = (MAGIC, self.kind, self.run_id, self.sender, self.step, self.round, self.sequence, len(self.body))
        return HEADER.pack(*header) + self.body


class Channel:
    """One connection to one peer, both directions.

    Args:
        run_id: 32 bytes, of the only run that is spoken of here.
        node: this node; peer: whom the connection is to, None until its hello says so.
        largest: bytes of a body; nothing longer is read.
        patience: seconds without a frame after which the peer counts as gone.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        run_id: bytes,
        node: int,
        largest: int,
        patience: float,
        peer: int | None = None,
    ) -> None:
        self._reader, self._writer = reader, writer
        self.run_id, self.node, self.peer, self.largest, self.patience = run_id, node, peer, largest, patience
        self._sent = self._received = 0

    async def send(self, kind: int, body: bytes, *, step: int = 0, round: int = 0) -> None:
        """Sends one frame, under the next sequence number."""
        frame = Frame(kind, self.run_id, self.node, step, round, self._sent, body)
        self._sent += 1
        try:
            self._writer.write(frame.encoded())
            await self._writer.drain()
        except OSError:
            raise Refused(f"{self._whom} closed the connection.") from None

    async def receive(self, kind: int, *, step: int = 0, round: int = 0) -> bytes:
        """The body of the next frame, which must be of this kind, step and round.

        Raises: Refused: anything else; the connection is closed.
        """
        try:
            frame = await asyncio.wait_for(self._next(), self.patience)
            self._require_expected(frame, kind, step, round)
        except TimeoutError:
            self.close()
            raise Refused(f"{self._whom} said nothing for {self.patience:g} seconds.") from None
        except Refused:
            self.close()
            raise
        self._received += 1
        self.peer = frame.sender
        return frame.body

    def close(self) -> None:
        """Ends the connection, both directions."""
        self._writer.close()

    @property
    def _whom(self) -> str:
        return "a peer that has not said who it is" if self.peer is None else f"node {self.peer}"

    async def _next(self) -> Frame:
        try:
            magic, kind, run_id, *numbers, length = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            if magic != MAGIC:
                raise Refused(f"{self._whom} sent a malformed frame: it begins with {magic!r}, not {MAGIC!r}.")
            if length > self.largest:  # before any of it is read
                raise Refused(f"{self._whom} sent an oversized frame: {length} bytes, at most {self.largest} are read.")
            return Frame(kind, run_id, *numbers, await self._reader.readexactly(length))
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise Refused(
                    f"{self._whom} sent a malformed frame: it ends after {len(error.partial)} bytes."
                ) from None
            raise Refused(f"{self._whom} closed the connection.") from None
        except OSError:
            raise Refused(f"{self._whom} closed the connection.") from None

    def _require_expected(self, frame: Frame, kind: int, step: int, round: int) -> None:
        if frame.run_id != self.run_id and kind != HELLO:  # a hello says what differs (`Setting.require_plan`)
            raise Refused(
                f"{self._whom} is of another run, {frame.run_id.hex()[:16]} and not {self.run_id.hex()[:16]}: "
                "mechanism, graph, data and nonce must be the same for all nodes."
            )
        if self.peer is not None and frame.sender != self.peer:
            raise Refused(f"a frame on the connection to node {self.peer} says that node {frame.sender} sent it.")
        if frame.sequence != self._received:
            known = "replayed" if frame.sequence < self._received else "reordered, or one before it is lost"
            raise Refused(f"{self._whom} sent frame {frame.sequence} where {self._received} comes next: it is {known}.")
        if (frame.kind, frame.step, frame.round) != (kind, step, round):
            got = KINDS[frame.kind] if frame.kind < len(KINDS) else f"kind {frame.kind}"
            raise Refused(
                f"{self._whom} sent a {got} of step {frame.step}, round {frame.round}, where a {KINDS[kind]} of step "
                f"{step}, round {round} comes next: it is replayed, reordered or of another program."
            )


def packed(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Tensors as the body of a message; equal tensors give equal bytes."""
    return safetensors.torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def unpacked(body: bytes, like: Mapping[str, torch.Tensor], peer: int) -> dict[str, torch.Tensor]:
    """The tensors of a message, of the names, shapes and types of `like`, all finite.

    Raises: Refused: anything else.
    """
    try:
        tensors = safetensors.torch.load(body)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"node {peer} sent a malformed message: {error}.") from None
    got, wanted = ({name: (tuple(t.shape), str(t.dtype)) for name, t in of.items()} for of in (tensors, like))
    if got != wanted:
        raise Refused(f"node {peer} sent a wrongly shaped message: {got} where the model has {wanted}.")
    for name, tensor in tensors.items():
        if not bool(np.isfinite(tensor.numpy()).all()):
            raise Refused(f"node {peer} sent {name!r} with numbers that are not finite.")
    return {name: tensors[name] for name in like}


def require_fields(value: Any, fields: Mapping[str, type], peer: str) -> dict[str, Any]:
    """A JSON object with exactly these fields of these types.

    Raises: Refused: anything else.
    """
    if not isinstance(value, dict) or {name: type(x) for name, x in value.items()} != dict(fields):
        raise Refused(f"{peer} sent a malformed hello: it must hold {', '.join(fields)} alone.")
    return value
