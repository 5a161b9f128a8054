"""A sweep's TOML file: its options by field, and the line of each, so that what is refused is found."""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from ..errors import InvalidInput, did_you_mean
from .comparison_config import ComparisonConfig
from .options import is_tuple, of_kind, spelled, split
from .tuning import Tuning

TABLE, TUNING = "sweep", "tuning"
OF_THE_CALLER = ("out", "engine", "scheduler")
"""Keys that say where, not what."""
LISTED_KINDS = (str, float, float | None)
"""Of fields that hold one value and may be a list in a sweep."""

Made = TypeVar("Made")


@dataclasses.dataclass(frozen=True)
class Written:
    """What a file says.

    Attributes: path: the file; options: by field of `ComparisonConfig`; tuning: by field of `Tuning`, None without that
        table; caller: by key of `OF_THE_CALLER`; lines: of each of them, by the same names.
    """

    path: Path
    options: dict[str, Any]
    tuning: dict[str, Any] | None
    caller: dict[str, Any]
    lines: dict[str, tuple[int, str]]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a file.

        Raises: InvalidInput: it cannot be read, is no TOML, or has an unknown key or one of another type.
        """
        source = Path(path)
        try:
            text = source.read_text(encoding="utf-8")
            content = tomllib.loads(text)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise InvalidInput(f"cannot read {source}: {reason}; give a TOML file of options.") from None
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{source} is not valid TOML: {error}") from None
        made = cls(source, {}, {} if TUNING in content else None, {}, {})
        tables = {key: value for key, value in content.items() if isinstance(value, dict)}
        for table, values in ((None, content), (TABLE, tables.get(TABLE, {})), (TUNING, tables.get(TUNING, {}))):
            for key, value in values.items():
                if table is not None or key not in tables:
                    made._keep(table, key, value, _line(text, table, key))
        for table in tables:
            if table not in (TABLE, TUNING):
                raise made._refusal(_line(text, table, None), table, f"unknown table; known: {TABLE}, {TUNING}.")
        return made

    def _keep(self, table: str | None, key: str, value: Any, line: int) -> None:
        if table == TUNING:
            known = {field.name.replace("_", "-"): field.name for field in dataclasses.fields(Tuning)}
            name = self._known(key, known, line)
            assert self.tuning is not None
            self.tuning[name] = value
            self.lines[f"{TUNING}.{name}"] = line, key
            return
        fields = {option.flags[0].lstrip("-"): name for name, (_, option, _) in ComparisonConfig.fields().items()}
        name = self._known(key, fields | {name: name for name in OF_THE_CALLER}, line)
        self.lines[name] = line, key
        if name in OF_THE_CALLER:
            self.caller[name] = self._of_kind(str, value, line, key)
        else:
            self.options[name] = self._typed(name, value, line, key)

    def _known(self, key: str, known: dict[str, str], line: int) -> str:
        flag = spelled(key.replace("_", "-"))
        if flag not in known:
            hint = did_you_mean(flag, known)
            raise self._refusal(line, key, f"unknown key{hint} Known: {', '.join(sorted(known))}.")
        return known[flag]

    def _typed(self, name: str, value: Any, line: int, key: str) -> Any:
        """As the field holds it, or a list of such values where a sweep takes several."""
        kind, option, _ = ComparisonConfig.fields()[name]
        if is_tuple(kind):
            texts = split(value) if isinstance(value, str) and option.listed else value
            kind, value = str, texts if isinstance(texts, list | tuple) else [texts]
        elif not (isinstance(value, list) and kind in LISTED_KINDS):
            return self._of_kind(kind, value, line, key)
        return [self._of_kind(kind, item, line, key) for item in value]

    def _of_kind(self, kind: Any, value: Any, line: int, key: str) -> Any:
        return of_kind(kind, value, self._place(line, key))

    def tried(self, make: Callable[[dict[str, Any], dict[str, Any] | None], Made]) -> Made:
        """`make(options, tuning)`; what it refuses is told with the line of the key that is to blame.

        That is the last one without which it would not be refused; where there is none the file alone is named.
        """
        try:
            return make(dict(self.options), self.tuning)
        except InvalidInput as error:
            to_blame = None
            for name in self.options:
                try:
                    make({key: value for key, value in self.options.items() if key != name}, self.tuning)
                except InvalidInput:
                    continue
                to_blame = name
            for name in self.tuning or {}:
                try:
                    make(dict(self.options), {key: value for key, value in (self.tuning or {}).items() if key != name})
                except InvalidInput:
                    continue
                to_blame = f"{TUNING}.{name}"
            if to_blame is None:
                raise InvalidInput(f"{self.path}: {error}") from None
            raise self._refusal(*self.lines[to_blame], str(error)) from None

    def _refusal(self, line: int, key: str, why: str) -> InvalidInput:
        return InvalidInput(f"{self._place(line, key)} {why}")

    def _place(self, line: int, key: str) -> str:
        return f"{self.path}, line {line}, {key}:"


def _line(text: str, table: str | None, key: str | None) -> int:
    """The line on which a table begins, or a key of it is written; 1 where it is written in another way."""
    inside: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
            inside = header.group(1).strip("\"'")
            if key is None and inside == table:
                return number
        elif key is not None and inside == table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return number
    return 1
