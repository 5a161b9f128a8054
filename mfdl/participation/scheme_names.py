"""Participations by name, as the command line takes them: every scheme is registered where it is defined."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..spec import Entry, Registry


@dataclasses.dataclass(frozen=True)
class SchemeEntry(Entry):
    """A scheme whose parameters follow from a run.

    Attributes: called: parameters that are something of the run under another name, by that name: {"bins": "period"}.
    """

    called: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def takes(self) -> set[str]:
        """What it needs of epochs, period and steps; the rest follows."""
        return {self.called.get(name, name) for name, parameter in self.signature.items() if parameter.required}

    def of_run(self, **run: int) -> Any:
        """The participation of a run. Args: run: epochs k, period b and steps T."""
        return self(**{name: run[self.called.get(name, name)] for name in self.signature})


SCHEMES: Registry[SchemeEntry] = Registry("participation", SchemeEntry)
