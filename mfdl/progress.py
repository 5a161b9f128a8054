"""Progress of long computations: rows with time left in a terminal or notebook, calls of a user's function, or nothing.

In: `progress=` of a function that may take long. "auto" shows rows if stderr is a terminal or this is a notebook, lines
in a log during a command (`in_logs`), and nothing under pytest, in CI or in a worker process; the environment variable
`MFDL_PROGRESS` overrides it: 0 never, 1 always. True always shows them, False and None never.

All work of a process shares one screen: work inside other work adds a row below it, and a row appears only after
`SHOWN_AFTER` seconds. The worker counts in plain attributes, which a thread of the screen reads `PER_SECOND` times a
second. rich is imported only when something is drawn.
"""

from __future__ import annotations

import contextlib
import io
import math
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from .errors import InvalidInput

if TYPE_CHECKING:
    from rich.progress import TaskID

ENVIRONMENT_VARIABLE = "MFDL_PROGRESS"
QUIET_UNDER = ("PYTEST_CURRENT_TEST", "CI")  # environment variables of pytest and CI
SHOWN_AFTER = 0.5  # seconds: shorter work is not worth a row
PER_SECOND = 2  # drawings; one takes a millisecond or two of the worker's time
LOG_AFTER, LOG_SECONDS = 2, 10  # before the first line, and between lines, where nothing can be redrawn
SWITCHES = {"": None, "auto": None, **dict.fromkeys(("0", "off", "false", "no"), False)}
SWITCHES |= dict.fromkeys(("1", "on", "true", "yes"), True)

_shown_in_logs = False

Advance = Callable[..., None]
"""Called by the work: `advance(done=1, doing=None)`, the amount just finished and, if it changed, the current task."""


class Silent:
    """Reports nothing; the base class of those that do. counts: whether a total is used and worth computing."""

    counts = False

    def status(self, doing: str) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def bar(self, doing: str, total: float | None, *, unit: str = "") -> contextlib.AbstractContextManager[Advance]:
        """For `total` steps, or as many of a unit; what is entered is an `Advance`."""
        return contextlib.nullcontext(_nothing)

    def search(
        self, doing: str, tolerance: float
    ) -> contextlib.AbstractContextManager[Callable[[int, float], object] | None]:
        """For iterations until a gap is within a tolerance; what is entered takes both, or is None."""
        return contextlib.nullcontext(None)

    def within(self) -> Silent:
        """The reporter for nested work: the same, except that a user's function counts the outer work only."""
        return self


Progress = bool | Literal["auto"] | Callable[..., object] | Silent | None
SILENT = Silent()


def _nothing(done: float = 1, doing: str | None = None) -> None:
    pass


class Callback(Silent):
    """Calls a user's function, with the first `words` of (amount done, current task), or with iterations and gap."""

    def __init__(self, function: Callable[..., object], words: int) -> None:
        self.function, self.words = function, words

    def bar(self, doing: str, total: float | None, *, unit: str = "") -> contextlib.AbstractContextManager[Advance]:
        current = doing

        def advance(done: float = 1, doing: str | None = None) -> None:
            nonlocal current
            current = doing or current
            self.function(*(done, current)[: self.words])

        return contextlib.nullcontext(advance)

    def search(self, doing: str, tolerance: float) -> contextlib.AbstractContextManager[Callable[[int, float], object]]:
        return contextlib.nullcontext(self.function)

    def within(self) -> Silent:
        return SILENT


class Row:
    """One piece of work: the worker writes, the screen reads."""

    def __init__(self, doing: str, total: float | None, unit: str = "") -> None:
        self.doing, self.total, self.unit, self.done, self.status_text = doing, total, unit, 0.0, ""
        self.began = time.monotonic()

    def is_due(self) -> bool:
        return time.monotonic() - self.began >= SHOWN_AFTER

    def advance(self, done: float = 1, doing: str | None = None) -> None:
        self.done += done
        if doing is not None:
            self.doing = doing

    def amount(self) -> str:
        if self.status_text:
            return self.status_text
        size, unit, digits = (1e6, " MB", 1) if self.unit == "bytes" else (1, "", 0)
        whole = "" if self.total is None else f"/{self.total / size:.{digits}f}"
        return f"{self.done / size:.{digits}f}{whole}{unit}" if whole or unit else ""


class OnScreen(Silent):
    """Rows on the screen of this process."""

    counts = True

    def status(self, doing: str) -> contextlib.AbstractContextManager[Any]:
        return _on_screen(Row(doing, None))

    @contextlib.contextmanager
    def bar(self, doing: str, total: float | None, *, unit: str = "") -> Iterator[Advance]:
        with _on_screen(Row(doing, total, unit)) as row:
            yield row.advance

    @contextlib.contextmanager
    def search(self, doing: str, tolerance: float) -> Iterator[Callable[[int, float], object]]:
        """The row fills as the logarithm of the gap falls, in which solvers are about linear: time left is a guess."""
        widest = tolerance
        with _on_screen(Row(doing, 1.0)) as row:

            def report(iterations: int, gap: float) -> None:
                nonlocal widest
                if math.isfinite(gap) and gap > 0:
                    widest = max(widest, gap)
                    way = math.log(widest / tolerance)
                    row.done = 1.0 if way == 0 else min(max(math.log(widest / gap) / way, row.done), 1.0)
                row.status_text = f"{iterations} iterations, gap at most {gap:.2g}, tolerance {tolerance:.2g}"

            yield report


@contextlib.contextmanager
def _on_screen(row: Row) -> Iterator[Row]:
    SCREEN.add(row)
    try:
        yield row
    finally:
        SCREEN.remove(row)


class Screen:
    """The rows of this process, and the thread that draws them while there are any."""

    def __init__(self) -> None:
        self.lock, self.over = threading.Lock(), threading.Event()
        self.rows: list[Row] = []
        self.thread: threading.Thread | None = None

    def add(self, row: Row) -> None:
        with self.lock:
            self.rows.append(row)
            if self.thread is None:
                self.over = threading.Event()
                self.thread = threading.Thread(target=self._draw, args=(self.over,), name="mfdl progress", daemon=True)
                self.thread.start()

    def remove(self, row: Row) -> None:
        """Takes a row away; the last one clears the screen before this returns."""
        with self.lock:
            self.rows.remove(row)
            ended = None if self.rows else self.thread
            if ended is not None:
                self.thread = None
                self.over.set()
        if ended is not None:
            ended.join()

    def _draw(self, over: threading.Event) -> None:
        drawn: _InTerminal | _InLog | None = None  # made for the first row that lasts: most work is over before
        with contextlib.suppress(OSError, ValueError):  # a closed stderr
            while not over.wait(1 / PER_SECOND):
                with self.lock:
                    rows = [row for row in self.rows if row.is_due()]
                if rows and drawn is None:
                    drawn = _drawing()
                if drawn is not None:
                    drawn.show(rows)
            if drawn is not None:
                drawn.close()


SCREEN = Screen()


class _InTerminal:
    """Rows by rich on stderr, in the order in which they began; gone at the end."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        texts = ("description", "fields[amount]", "fields[left]")
        doing, amount, left = (TextColumn(f"{{task.{name}}}", markup=False) for name in texts)
        columns = (doing, BarColumn(), amount, TimeElapsedColumn(), left, TimeRemainingColumn())
        self.tasks: dict[Row, TaskID] = {}
        to_terminal = sys.stdout.isatty()  # else what is printed into a file would land on the terminal
        options: dict[str, Any] = {"auto_refresh": False, "transient": True, "redirect_stdout": to_terminal}
        self.progress = Progress(*columns, console=Console(stderr=True), **options)

    def show(self, rows: list[Row]) -> None:
        for row in [row for row in self.tasks if row not in rows]:
            self.progress.remove_task(self.tasks.pop(row))
        for row in rows:
            if row not in self.tasks:
                self.tasks[row] = self.progress.add_task("", amount="", left="")
            # the total in each call: that of a row may be known only later
            known: dict[str, Any] = {"total": row.total, "completed": row.done, "description": row.doing}
            left = "" if row.total is None else "left"
            self.progress.update(self.tasks[row], amount=row.amount(), left=left, **known)
        if self.tasks:
            self.draw()

    def draw(self) -> None:
        self.progress.start()  # does something the first time only
        self.progress.refresh()

    def close(self) -> None:
        self.progress.stop()

    def text(self) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=100, force_terminal=False, force_jupyter=False)
        console.print(self.progress.get_renderable())
        return console.file.getvalue().rstrip()  # type: ignore[attr-defined]


class _InNotebook(_InTerminal):
    """The same as the text of a cell's output: widgets would need another package."""

    handle: Any = None

    def draw(self) -> None:
        from IPython.display import display

        text = {"text/plain": self.text()}
        if self.handle is None:
            self.handle = display(text, raw=True, display_id=True)
        else:
            self.handle.update(text, raw=True)

    def close(self) -> None:
        if self.handle is not None:
            self.handle.update({"text/plain": ""}, raw=True)


class _InLog:
    """Output into a file: a line for all rows now and then, outer work first; none is erased."""

    def __init__(self) -> None:
        self.next = time.monotonic() + LOG_AFTER - SHOWN_AFTER

    def show(self, rows: list[Row]) -> None:
        now = time.monotonic()
        if rows and now >= self.next:
            self.next = now + LOG_SECONDS
            work = " | ".join(f"{row.doing} {row.amount()}".strip() for row in rows)
            print(f"{work}, {now - rows[0].began:.0f} s", file=sys.stderr, flush=True)  # noqa: T201

    def close(self) -> None:
        pass


@contextlib.contextmanager
def in_logs() -> Iterator[None]:
    """While it lasts, "auto" also shows lines where stderr is neither terminal nor notebook: for commands."""
    global _shown_in_logs
    before, _shown_in_logs = _shown_in_logs, True
    try:
        yield
    finally:
        _shown_in_logs = before


def _drawing() -> _InTerminal | _InLog:
    return _InNotebook() if _in_notebook() else _InTerminal() if sys.stderr.isatty() else _InLog()


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


def _somebody_looks() -> bool:
    """Whether "auto" shows rows. Raises: InvalidInput: the environment variable holds something else."""
    switch = os.environ.get(ENVIRONMENT_VARIABLE, "").lower()
    if switch not in SWITCHES:
        raise InvalidInput(f"{ENVIRONMENT_VARIABLE} must be 0 (off), 1 (on) or auto, got {switch!r}.")
    if SWITCHES[switch] is not None:
        return bool(SWITCHES[switch])
    if multiprocessing.parent_process() is not None or any(name in os.environ for name in QUIET_UNDER):
        return False
    return sys.stderr.isatty() or _in_notebook() or _shown_in_logs


def reporter(progress: Progress = "auto", *, words: int = 1) -> Silent:
    """The reporter for the `progress=` argument of a function.

    Args: words: how many of (amount done, current task) a given function takes.
    Raises: InvalidInput: neither True, False, None, "auto" nor a function.
    """
    if isinstance(progress, Silent):
        return progress
    if isinstance(progress, str) and progress == "auto":
        return OnScreen() if _somebody_looks() else SILENT
    if progress is None or isinstance(progress, bool):
        return OnScreen() if progress else SILENT
    if callable(progress):
        return Callback(progress, words)
    raise InvalidInput(f"progress must be True, False, 'auto' or a function to call, got {progress!r}.")
