"""Judges how an entry point of the library answers: its message, its time, and the files that it left."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import mfdl
from mfdl import archive, data, factorization, files
from mfdl.commands import main
from mfdl.errors import UnusualSetting

GOOD = ("accepted", "refused", "stopped")
FAULTS = ("traceback", "hang", "partial file", "no words", "wrong code")
SECONDS = 30.0  # of work on one case; the slowest valid one takes a tenth of it
TICKS, PATIENCE = 30, 5
"""The clock ticks this often in `SECONDS`; a case that waits and does no work hangs after so many times as long."""


class _TooLong(BaseException):
    """Not an Exception, so that nothing of the library takes it for one of its own."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a door answered; `detail` is what it said, or the traceback."""

    kind: str
    detail: str = ""

    @property
    def good(self) -> bool:
        return self.kind in GOOD


def judged(act: Callable[[], Outcome | None], seconds: float) -> Outcome:
    # ticks and not the time of day: a process that was stopped, or that shares its core with many, does not hang
    ticks, began = itertools.count(1), time.process_time()

    def too_long(*_: object) -> None:  # at every tick from then on: a callback of the garbage collector swallows one
        if time.process_time() - began >= seconds or next(ticks) >= PATIENCE * TICKS:
            raise _TooLong

    earlier = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds / TICKS, seconds / TICKS)
    try:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # a warning of numpy is a case that the checks miss
                warnings.simplefilter("ignore", UnusualSetting)  # ours, in words
                return act() or Outcome("accepted")
        finally:  # before the outcome is written: a tick would interrupt that
            signal.setitimer(signal.ITIMER_REAL, 0)
    except mfdl.InvalidInput as error:
        return Outcome("refused", str(error)) if len(str(error)) > 15 else Outcome("no words", repr(error))
    except factorization.NotConverged as error:
        return Outcome("stopped", str(error))
    except _TooLong:
        return Outcome("hang", f"more than {seconds:g} s: {''.join(traceback.format_exc()[-1500:])}")
    except BaseException as error:  # SystemExit too: the judge decides, and goes on
        if isinstance(error, KeyboardInterrupt):
            raise
        return Outcome("traceback", traceback.format_exc()[-3000:])
    finally:
        signal.signal(signal.SIGALRM, earlier)


@contextlib.contextmanager
def confined(folder: Path) -> Iterator[None]:
    """In the folder, without a network, and with an empty data folder."""

    def no_network(url: str, target: Path) -> None:
        raise files.NotDelivered("there is no network here")

    earlier, fetched, home = Path.cwd(), files.download, os.environ.get(data.ENVIRONMENT_VARIABLE)
    os.chdir(folder)
    files.download = no_network
    os.environ[data.ENVIRONMENT_VARIABLE] = str(folder / "data")
    try:
        yield
    finally:
        os.chdir(earlier)
        files.download = fetched
        if home is None:
            del os.environ[data.ENVIRONMENT_VARIABLE]
        else:
            os.environ[data.ENVIRONMENT_VARIABLE] = home


def command(arguments: list[str]) -> Outcome:
    """`mfdl ARGUMENTS` in this process, with streams as strict as a terminal's."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors=errors) for errors in ("strict", "backslashreplace"))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
        out.flush()
        err.flush()
    message = err.buffer.getvalue().decode("utf-8").strip()  # type: ignore[attr-defined]
    called = f"mfdl {' '.join(arguments)!a}: {message}"
    if code == 0:
        return Outcome("accepted", called)
    last = message.splitlines()[-1] if message else ""
    if code in (2, 3) and "Traceback" in message:
        return Outcome("traceback", called)
    if code == 3:
        return Outcome("stopped", called)
    if code != 2:
        return Outcome("wrong code", f"{code}: {called}")
    if not last.startswith("mfdl: ") or len(last) < 20:
        return Outcome("no words", called)
    return Outcome("refused", called)


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def check_files(folder: Path, before: dict[str, bytes], outcome: Outcome) -> Outcome:
    after = content_of(folder)
    for name, content in after.items():
        if before.get(name) != content and not whole(name, content):
            return Outcome("partial file", f"{name} ({len(content)} bytes) after: {outcome.detail}")
    gone = set(before) - set(after)
    if outcome.kind == "refused" and gone:
        return Outcome("partial file", f"{sorted(gone)[0]} is gone after: {outcome.detail}")
    return outcome


def whole(name: str, content: bytes) -> bool:
    """Whether a file the library wrote can be read to its end."""
    suffix = Path(name).suffix
    try:
        if suffix == ".json":
            json.loads(content)
        elif suffix == ".npz":
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                for array in arrays.files:
                    arrays[array]
        elif suffix == ".png":
            return content.endswith(b"IEND\xaeB`\x82")
        elif suffix == ".svg":
            return content.rstrip().endswith(b"</svg>")
        elif suffix in (".csv", ".jsonl"):
            return content.endswith(b"\n")
        elif suffix == ".tmp":
            return False
        else:
            return archive.decoded(content)[2]  # and nothing else should have been written
    except Exception:
        return False
    return True
