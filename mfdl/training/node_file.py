"""The file of a live node: its last step, in a folder that the node holds alone. The file says who goes on.

In: what a node needs to go on. Out: the same after a crash at any moment, or a refusal where another node holds the
folder or has written the file. A copy of the folder, or a file system without locks on two machines, is not noticed.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import socket
import weakref
from pathlib import Path
from typing import Any

import torch

from .. import files
from ..errors import InvalidInput

FILE = "node.pt"


class NodeFile:
    """Locks a folder until it is closed, or collected with its node.

    Attributes: close: releases the folder.
    Raises: InvalidInput: another node holds the folder, or it cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path, lock = Path(folder) / FILE, contextlib.ExitStack()
        try:
            lock.enter_context(files.held_alone(folder))
        except InvalidInput as error:
            reason = str(error).split(";")[0]  # another folder would begin the run anew, with the same noise
            raise InvalidInput(f"{reason}{self._writer()}; a node goes on in one place: end the other one.") from None
        self.close = weakref.finalize(self, lock.close)
        self._stamp = self._stamped()

    def save(self, state: dict[str, Any]) -> None:
        """Replaces the file, readable by its owner alone; who took part when is in it, and no key."""
        torch.save({**state, "writer": f"process {os.getpid()} on {socket.gethostname()}"}, buffer := io.BytesIO())
        files.atomic_write_bytes(self.path, buffer.getvalue(), private=True)
        self._stamp = self._stamped()

    def load(self) -> dict[str, Any] | None:
        """What was saved last, None if nothing was. Raises: InvalidInput: a damaged file."""
        if not self.path.exists():
            return None
        try:
            return dict(torch.load(self.path, weights_only=True))
        except (RuntimeError, OSError, EOFError, ValueError, TypeError, pickle.UnpicklingError) as error:
            raise InvalidInput(f"{self.path} is damaged: {error}; begin a new run with new keys.") from None

    def require_last(self) -> None:
        """Raises: InvalidInput: the folder was released, or the file is not the one that this node wrote or read."""
        if not self.close.alive:
            raise InvalidInput(f"this node has released {self.path.parent}; build a new one there, which goes on.")
        if self._stamped() != self._stamp:
            raise InvalidInput(
                f"{self.path} has changed since this node wrote it{self._writer()}: that node goes on, and this one "
                "would repeat its noise."
            )

    def _stamped(self) -> tuple[int, int] | None:
        with contextlib.suppress(FileNotFoundError):
            status = self.path.stat()
            return status.st_ino, status.st_mtime_ns
        return None

    def _writer(self) -> str:
        with contextlib.suppress(InvalidInput):
            return f", and {writer} saved it last" if (writer := (self.load() or {}).get("writer")) else ""
        return ""
