"""Solved problems, kept by their content, so that none is solved twice where somebody keeps them (`keeping`).

They are kept in memory, and in a folder that several processes may share, where every file is written whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mfdl_solvers.problem import Certified, Stopping

from .. import archive
from ..errors import InvalidInput

SOLUTION = "solution"

Solution = TypeVar("Solution", bound=Certified)


class Solutions:
    """Answers by the content of what was asked.

    Args: folder: where they are kept for other processes too, made when missing; None: in this process alone.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._known: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        """The answer of a key, None if there is none or its file is damaged."""
        if key not in self._known and self.folder is not None:
            with contextlib.suppress(InvalidInput):  # no file, or a damaged one
                self._known[key] = archive.read(self._file(key), SOLUTION)[SOLUTION]
        return self._known.get(key)

    def put(self, key: str, answer: Certified) -> None:
        """Keeps an answer; its seconds, which are of one run, are not written."""
        self._known[key] = answer
        if self.folder is not None:
            archive.write(self._file(key), SOLUTION, {SOLUTION: _timeless(answer)})

    def _file(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{key}{archive.SUFFIX}"


_KEEPER: ContextVar[Solutions | None] = ContextVar("solutions", default=None)


@contextlib.contextmanager
def keeping(solutions: Solutions) -> Iterator[None]:
    """Whatever is factorized inside is looked up there first, and kept there."""
    token = _KEEPER.set(solutions)
    try:
        yield
    finally:
        _KEEPER.reset(token)


def solved(solve: Callable[..., Solution], *problem: Any, stopping: Stopping, **options: Any) -> Solution:
    """`solve(*problem, stopping, **options)`, or what it answered before, bit for bit."""
    keeper = _KEEPER.get()
    if keeper is None:
        return solve(*problem, stopping, **options)
    key = _key(solve, stopping, (*problem, *sorted(options.items())))
    answer: Solution | None = keeper.get(key)
    if answer is None:
        answer = solve(*problem, stopping, **options)
        keeper.put(key, answer)
    return answer


def _key(solve: Callable[..., Any], stopping: Stopping, arguments: Any) -> str:
    digest = hashlib.sha256(f"{solve.__module__}.{solve.__qualname__}".encode())
    digest.update(repr((stopping.tolerance, stopping.max_iterations)).encode())
    _add(digest, arguments)
    return digest.hexdigest()[:32]


def _add(digest: Any, value: Any) -> None:
    """The content of a value: arrays, plain values, tuples and dataclasses of them."""
    if isinstance(value, np.ndarray):
        digest.update(repr((value.dtype.str, value.shape)).encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, tuple | list):
        digest.update(f"{len(value)} of".encode())
        for item in value:
            _add(digest, item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        digest.update(type(value).__qualname__.encode())
        _add(digest, [getattr(value, field.name) for field in dataclasses.fields(value) if field.compare])
    else:
        digest.update(repr(value).encode())


def _timeless(value: Any) -> Any:
    """Without the seconds that it and its parts took."""
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    parts = {name: _timeless(part) for name, part in fields.items() if isinstance(part, Certified)}
    return dataclasses.replace(value, seconds=0.0, **parts)
