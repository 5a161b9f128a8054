"""A sweep's TOML file: its options by field, and the line of each, so that what is refused is found."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from ..errors import InvalidInput
from .experiment import Experiment
from .option_files import GivenOption, Known, OptionFile, split
from .tuning import Tuning

TABLE, TUNING = "sweep", "tuning"
OF_THE_CALLER = ("out", "engine", "scheduler")
"""Keys that say where, not what."""
LISTED_KINDS = (str, float, float | None)
"""Of fields that hold one value and may be a list in a sweep."""

Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class SweepFile:
    """What a file says.

    Attributes: options: by field of `Experiment`; tuning: by field of `Tuning`, None without that table; caller:
        by key of `OF_THE_CALLER`; entries: where each of them stands, by field, those of tuning as tuning.FIELD.
    """

    file: OptionFile
    options: dict[str, Any]
    tuning: dict[str, Any] | None
    caller: dict[str, Any]
    entries: dict[str, GivenOption]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a file.

        Raises: InvalidInput: it cannot be read, is no TOML, or has an unknown key or one of another type.
        """
        file = OptionFile(Path(path))
        read = cls(file, {}, {} if TUNING in file.content else None, {}, {})
        known = Experiment.known_in_files(dict.fromkeys(OF_THE_CALLER, str))
        for entry in (*file.entries(known), *file.entries(known, TABLE)):
            read.entries[entry.name] = entry
            if entry.name in OF_THE_CALLER:
                read.caller[entry.name] = entry.checked(entry.value)
            else:
                read.options[entry.name] = _typed(entry)
        of_tuning: Known = {
            field.name.replace("_", "-"): (field.name, None, None) for field in dataclasses.fields(Tuning)
        }
        for entry in file.entries(of_tuning, TUNING):
            read.entries[f"{TUNING}.{entry.name}"] = entry
            read.tuning[entry.name] = entry.value  # type: ignore[index]  # there is such a table
        for table in file.tables:
            if table not in (TABLE, TUNING):
                raise file.refusal(file.line(table, None), table, f"unknown table; known: {TABLE}, {TUNING}.")
        return read

    def tried(self, make: Callable[[dict[str, Any], dict[str, Any] | None], Config]) -> Config:
        """`make(options, tuning)`; what it refuses is reported with the line of the key that is to blame.

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
                raise InvalidInput(f"{self.file.path}: {error}") from None
            raise InvalidInput(f"{self.entries[to_blame].place} {error}") from None


def _typed(entry: GivenOption) -> Any:
    """As the field holds it, or a list of such values where a sweep takes several."""
    value, listed = entry.value, entry.option is not None and entry.option.listed
    if entry.is_of_texts:
        texts = split(value) if isinstance(value, str) and listed else value
        return [entry.checked(text, str) for text in (texts if isinstance(texts, list | tuple) else [texts])]
    if isinstance(value, list) and entry.kind in LISTED_KINDS:
        return [entry.checked(item) for item in value]
    return entry.checked(value)
