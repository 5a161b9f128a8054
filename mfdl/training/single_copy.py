"""Objects that go on with a run: a copy would add the noise of its next step to other data, so there is none.

Copying, pickling, a forked process, a second thread inside a step and a second object that repeats a step with the same
keys in this process are refused. Not noticed: the same secrets or a copied folder in another process or on another
machine, and a machine that is restored from a snapshot.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import NoReturn, SupportsIndex

from ..errors import InvalidInput

REPEATS = "its next step would add the same noise to other data, and the difference of the two messages has no noise"

steps_of_keys: dict[str, int] = {}
"""How many steps of each set of secrets have been taken in this process, by `key_id`."""


class SingleCopy:
    """Lives in one process, and is used by one thread at a time."""

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
