"""The code of a page in an interpreter of its own, which has imported nothing of mfdl before.

A server that has imported the libraries beside mfdl forks it, so that it costs no start of these. Imports nothing heavy
itself: the server and its forks import it.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import multiprocessing
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
CONTEXT = multiprocessing.get_context("forkserver" if sys.platform != "win32" else "spawn")
PRELOADED = [  # what mfdl imports for most pages; names that are missing are skipped
    "numpy", "scipy.fft", "scipy.linalg", "scipy.sparse.csgraph", "scipy.stats", "torch._dynamo", "dp_accounting",
    "flint", "joblib", "matplotlib.figure", "networkx", "pandas", "rich.console", "sklearn.datasets",
    "sklearn.model_selection",
]  # fmt: skip
SECONDS = 1200  # ends what hangs


def blocks(page: str) -> list[tuple[str, str]]:
    """(kind, code) of what a page shows in Python, in order."""
    return re.findall(r"```(python|pycon)\n(.*?)```", page, re.DOTALL)


def run_page(code: list[tuple[str, str]], name: str, checks: str = "") -> None:
    """Runs the blocks of a page one after another, in one session; then `checks`, which sees their names."""
    in_fresh_interpreter(_session, code, name, checks)


def in_fresh_interpreter(work: Callable[..., str], *arguments: Any) -> None:
    """Calls a function of this module, or of another that imports nothing of mfdl; its text is what went wrong."""
    if CONTEXT.get_start_method() == "forkserver":
        CONTEXT.set_forkserver_preload(PRELOADED)
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_sent, args=(sender, os.getcwd(), sys.path, work, arguments))
    process.start()
    sender.close()
    wrong = f"no end within {SECONDS} seconds"
    try:
        if receiver.poll(SECONDS):
            wrong = receiver.recv()
    except EOFError:
        wrong = "the interpreter ended without a word"
    finally:
        process.kill()  # its work is done, or hangs
        process.join()
    assert not wrong, wrong


def _sent(sender: Any, folder: str, path: list[str], work: Callable[..., str], arguments: tuple[Any, ...]) -> None:
    os.chdir(folder)
    sys.path[:] = path
    before = sorted(name for name in sys.modules if name.split(".")[0] == "mfdl")
    try:
        reply = f"not fresh: {before}" if before else work(*arguments)
    except BaseException:
        reply = traceback.format_exc()
    sender.send(reply)
    sender.close()


def _session(code: list[tuple[str, str]], name: str, checks: str) -> str:
    names: dict[str, Any] = {"__name__": "__main__"}
    replies: list[str] = []
    for kind, block in code:
        if kind == "python":
            with contextlib.redirect_stdout(names.setdefault("printed", io.StringIO())):
                exec(compile(block, name, "exec"), names)
            continue
        test = doctest.DocTestParser().get_doctest(block, names, name, name, 0)
        doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(test, out=replies.append, clear_globs=False)
        names.update(test.globs)
    exec(compile(checks, f"checks of {name}", "exec"), names)
    return "".join(replies)


def dotted_names(text: str) -> set[str]:
    """Names that begin with `mfdl.`; what `python -m` or an import statement names is imported by that."""
    text = re.sub(r"-m mfdl[.\w]*|^[> .]*(from|import) mfdl.*$", "", text, flags=re.MULTILINE)
    return set(re.findall(r"(?<![\w./-])mfdl(?:\.[A-Za-z_]\w*)+", text))


def unresolved(names: list[str]) -> str:
    """Those that do not resolve after `import mfdl` alone; names with one second part share a fork.

    What packages list in `__all__` resolves whatever else was imported, so it needs no fork.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.split(".")[1], []).append(name)
    import mfdl  # a light import, which brings no module of its own

    listed = [group for first, group in groups.items() if first in mfdl.__all__]
    others = [group for first, group in groups.items() if first not in mfdl.__all__]
    wrong = [name for group in others if not _resolve_alone(group) for name in group]
    doubtful = [[name] for group in listed for name in group if not _is_listed(name)]
    return ", ".join(wrong + [name for [name] in doubtful if not _resolve_alone([name])])


def _is_listed(name: str) -> bool:
    value: Any = sys.modules["mfdl"]
    for part in name.split(".")[1:]:
        if isinstance(value, ModuleType) and part not in getattr(value, "__all__", ()):
            return False
        value = getattr(value, part, None)
    return value is not None


def _resolve_alone(names: list[str]) -> bool:
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for module in [name for name in sys.modules if name.split(".")[0] == "mfdl"]:
        del sys.modules[module]
    import mfdl

    ends = False
    for name in names:
        value: Any = mfdl
        for part in name.split(".")[1:]:
            value = getattr(value, part, None)
        ends |= value is None
    os._exit(ends)


def text_of(pages: list[Path]) -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)
