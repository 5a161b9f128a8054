"""The papers of the mechanisms, to be cited: BibTeX by arXiv number.

In: `papers.bib`, and words that name arXiv numbers, such as the source of a mechanism in the registry. Out: the
entries as they stand in the file.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from mfdl.extensions import Citation

BIBLIOGRAPHY = Path(__file__).parent / "papers.bib"

_NUMBER = re.compile(r"\b(\d{4}\.\d{5})(?:v\d+)?\b")
_ENTRY = re.compile(r"^@\w+\{(?P<key>\w+),.*?^\}", re.DOTALL | re.MULTILINE)
_EPRINT = re.compile(r"eprint\s*=\s*\{(\d{4}\.\d{5})\}")


@functools.cache
def bibliography() -> Mapping[str, Citation]:
    """All entries by arXiv number."""
    entries = {}
    for entry in _ENTRY.finditer(BIBLIOGRAPHY.read_text(encoding="utf-8")):
        for number in _EPRINT.findall(entry[0]):
            entries[number] = Citation(number, entry["key"], entry[0])
    return MappingProxyType(entries)


def numbers_in(words: str) -> list[str]:
    """The arXiv numbers that a text names, in its order.

    >>> numbers_in("arXiv:2501.14644v2, problem (9), and 2405.01031")
    ['2501.14644', '2405.01031']
    """
    return list(dict.fromkeys(_NUMBER.findall(words)))


def cited(words: str) -> list[Citation]:
    """The papers that a text names by arXiv number and that the bibliography holds."""
    return [bibliography()[number] for number in numbers_in(words) if number in bibliography()]
