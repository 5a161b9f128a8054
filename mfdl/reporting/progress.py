"""What a long run says while it runs: nothing, or, at the command line, a line or a bar on stderr."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any


class Silent:
    """Says nothing; the base of those that do."""

    def status(self, doing: str) -> contextlib.AbstractContextManager[Any]:
        """For as long as something of unknown length takes."""
        return contextlib.nullcontext()

    def bar(self, doing: str, total: int) -> contextlib.AbstractContextManager[Callable[[], None]]:
        """For `total` steps; what is entered is called after each."""
        return contextlib.nullcontext(lambda: None)


SILENT = Silent()
