"""Guards of live nodes: no copy, no repeated step, no record in a step that its participation does not allow.

A copy would add the noise of its next step to other data. Refused: copying, pickling, a forked process, a second thread
inside a step, a second object that repeats a step with the same keys in this process, and a second one on one folder.
Not noticed: the same secrets or a copied folder in another process, and a machine restored from a snapshot.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import socket
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, SupportsIndex

import torch

from .. import check, files
from ..errors import InvalidInput
from ..participation import Participation

REPEATS = "its next step would add the same noise to other data, and the difference of the two messages has no noise"
steps_of_keys: dict[str, int] = {}  # number of steps taken with each set of secrets in this process, by `key_id`


class SingleCopy:
    """An object of one process, used by one thread at a time."""

    def __init__(self) -> None:
        self._process, self._in_use = os.getpid(), threading.Lock()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise InvalidInput(
            f"a live {type(self).__name__} must not be copied or pickled: {REPEATS}; save its state_dict() and go on "
            "in one place."
        )

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Raises: InvalidInput: this is a process that was forked from the object's, or another thread is inside."""
        if os.getpid() != self._process:
            raise InvalidInput(
                f"this {type(self).__name__} lives in process {self._process}, and process {os.getpid()} is a copy: "
                f"{REPEATS}; build it after the fork, from its saved state, and go on in one place."
            )
        if not self._in_use.acquire(blocking=False):
            raise InvalidInput(f"another thread is using this {type(self).__name__}: {REPEATS}; step from one thread.")
        try:
            yield
        finally:
            self._in_use.release()


class NodeFile:
    """The last step of a live node, in a folder that is locked until `close`, or until this and its node are gone.

    Raises: InvalidInput: another node holds the folder, or it cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path, lock = Path(folder) / "node.pt", contextlib.ExitStack()
        try:
            lock.enter_context(files.held_alone(folder))
        except InvalidInput as error:
            reason = str(error).split(";")[0]  # another folder would begin the run anew, with the same noise
            raise InvalidInput(f"{reason}{self._writer}; a node goes on in one place: end the other one.") from None
        self.close = weakref.finalize(self, lock.close)
        self._stamp = self._stamped()

    def save(self, state: dict[str, Any]) -> None:
        """Replaces the file, readable by its owner alone; it has the records of each step, and no key."""
        torch.save({**state, "writer": f"process {os.getpid()} on {socket.gethostname()}"}, buffer := io.BytesIO())
        files.atomic_write_bytes(self.path, buffer.getvalue(), private=True)
        self._stamp = self._stamped()

    def load(self) -> dict[str, Any]:
        """The last saved state, empty without one. Raises: InvalidInput: a damaged file."""
        try:
            return dict(torch.load(self.path, weights_only=True)) if self.path.exists() else {}
        except (RuntimeError, OSError, EOFError, ValueError, TypeError, pickle.UnpicklingError) as error:
            raise InvalidInput(f"{self.path} is damaged: {error}; begin a new run with new keys.") from None

    def require_last(self) -> None:
        """Raises: InvalidInput: the folder was released, or another node has written the file."""
        if not self.close.alive or self._stamped() != self._stamp:
            raise InvalidInput(
                f"{self.path} is no longer this node's{self._writer}: a node built on its folder goes on, and this one "
                "would repeat its noise."
            )

    def _stamped(self) -> tuple[int, int] | None:
        status = self.path.stat() if self.path.exists() else None
        return status and (status.st_ino, status.st_mtime_ns)

    @property
    def _writer(self) -> str:
        with contextlib.suppress(InvalidInput):
            return f", and {self.load()['writer']} saved it last" if self.path.exists() else ""
        return ""


class RecordSteps:
    """Steps that the numbered records of one node have joined, as the participation of a record allows; None: all."""

    def __init__(self, participation: Participation | None) -> None:
        self._participation = participation
        self.steps: dict[int, list[int]] = {}

    def with_batch(self, t: int, records: Sequence[int] | None) -> dict[int, list[int]]:
        """The steps of each record of a batch, step t included; in `steps` they count.

        Raises: InvalidInput: the first record that stands twice or may not take part.
        """
        if records is None or self._participation is None:
            return {}
        joined: dict[int, list[int]] = {}
        for record in (check.integer_at_least(0, record=record) for record in records):
            if record in joined:
                raise InvalidInput(
                    f"record {record} stands twice in the batch of step {t}; a guarantee counts it once."
                )
            joined[record] = [*self.steps.get(record, []), t]
            if not self._participation.allows(joined[record]):
                raise InvalidInput(
                    f"record {record} would take part in steps {joined[record]}, and {self._participation.describe()} "
                    "does not allow that; feed each record when its participation says, or calibrate for another one."
                )
        return joined
