"""Values of options: those of files, TOML or the results.json of an earlier run, and objects of the caller.

An object (graph, gossip, task, mechanism, trust model) becomes a `Given` text, named by its content.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput, did_you_mean, require_known
from ..spec import PREFIX, Given

if TYPE_CHECKING:
    from ..algorithms import LinearAlgorithm
    from ..trust import TrustModel

WORDS_OF_KINDS = {float: "a number", int: "an integer", str: "a text", bool: "true or false", Path: "a path"}


@dataclasses.dataclass(frozen=True)
class Option:
    """Command line option of a field, and constraints on its values.

    Attributes: flags: its names there; the first one is its name in files; default `--field-name`. listed: a tuple that
        is written A,B there; other tuples are given by repeating the option. instead_of: fields that say the same in
        another way: a typed option replaces theirs of a file. rule: a function of `mfdl.check`; least: the smallest
        integer; among: all allowed values.
        decides: the "algorithm" and its losses, a "run" alone, or "nothing" but where numbers are computed.
    """

    help: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    listed: bool = False
    instead_of: tuple[str, ...] = ()
    rule: str | None = None
    least: int | None = None
    among: Collection[str] = ()
    decides: str = "algorithm"

    def require(self, name: str, value: Any) -> None:
        """Refuses a value that the field cannot have; None, not given, is allowed."""
        from .. import check

        if value is None:
            return
        if self.rule is not None:
            getattr(check, self.rule)(**{name: value})
        if self.least is not None:
            check.integer_at_least(self.least, **{name: value})
        if self.among:
            require_known(name, value, self.among)


Known = Mapping[str, tuple[str, Any, Option | None]]
"""Name in files -> field, type of its values, and its option where it has one."""


def spelled(flag: str) -> str:
    """The documented flag: `--mechanisms` is read as `--mechanism`, whether a command takes one or several."""
    return "mechanism" if flag == "mechanisms" else flag


def split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def is_tuple(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple or any(typing.get_origin(part) is tuple for part in typing.get_args(kind))


@dataclasses.dataclass(frozen=True)
class GivenOption:
    """A value in a file: name, kind and option of its field, key and value as written, line, and place in words."""

    name: str
    kind: Any
    option: Option | None
    key: str
    value: Any
    line: int
    place: str

    @property
    def is_of_texts(self) -> bool:
        return is_tuple(self.kind)

    def checked(self, value: Any, kind: Any = None) -> Any:
        """A value, of this entry or of its list, converted to the type of its field or to `kind`."""
        kind = self.kind if kind is None else kind
        (plain,) = [each for each in typing.get_args(kind) if each is not types.NoneType] or [kind]
        allowed = {float: (int, float), Path: (str,)}.get(plain, (plain,))
        if not isinstance(value, allowed) or (isinstance(value, bool) and plain is not bool):
            quoted = isinstance(value, str) and plain in (int, float, bool)
            way_out = "; write it without quotes." if quoted else "."
            raise InvalidInput(f"{self.place} must be {WORDS_OF_KINDS[plain]}, got {value!r}{way_out}")
        try:
            return plain(value)
        except OverflowError:
            raise InvalidInput(f"{self.place} must be {WORDS_OF_KINDS[plain]} of float64, got one beyond it.") from None


class OptionFile:
    """A file of options; path: as messages name it; content: its keys and tables."""

    def __init__(self, path: Path, flag: str = "") -> None:
        """flag: the option that gives the path, where it may be a results.json too."""
        self.path = f"{flag} {path}".strip()
        self._is_json = bool(flag) and path.suffix == ".json"
        try:
            self._text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise InvalidInput(f"cannot read {self.path}: {reason}; give a TOML file of options.") from None
        try:
            content: Any = json.loads(self._text) if self._is_json else tomllib.loads(self._text)
        except (ValueError, RecursionError) as error:
            kinds = "a .toml file of options, or the .json file of an earlier run" if flag else "a TOML file"
            raise InvalidInput(
                f"{self.path} is not valid {'JSON' if self._is_json else 'TOML'}: {error}; give {kinds}."
            ) from None
        if self._is_json:
            content = content.get("config") if isinstance(content, dict) else None
            if not isinstance(content, dict):
                raise InvalidInput(
                    f"{self.path} holds no `config` object; give a results.json that `mfdl compare` or `mfdl account` "
                    "wrote, or a TOML file of options."
                )
        self.content: dict[str, Any] = content

    @property
    def tables(self) -> dict[str, dict[str, Any]]:
        return {} if self._is_json else {key: v for key, v in self.content.items() if isinstance(v, dict)}

    def entries(self, known: Known, table: str | None = None) -> Iterator[GivenOption]:
        """The entries of a table, or those outside of all tables. Raises: InvalidInput: an unknown key."""
        tables = self.tables
        outside = {key: value for key, value in self.content.items() if key not in tables}
        for key, value in (outside if table is None else tables.get(table, {})).items():
            flag, line = spelled(key.replace("_", "-")), self.line(table, key)
            if flag not in known:
                hint = did_you_mean(flag, known)
                raise self.refusal(line, key, f"unknown key{hint} Known: {', '.join(sorted(known))}.")
            yield GivenOption(*known[flag], key, value, line, self.place(line, key))

    def refusal(self, line: int, key: str, why: str) -> InvalidInput:
        return InvalidInput(f"{self.place(line, key)} {why}")

    def place(self, line: int, key: str) -> str:
        return f"{self.path}, {key}:" if self._is_json else f"{self.path}, line {line}, {key}:"

    def line(self, table: str | None, key: str | None) -> int:
        """The line on which a table begins, or a key of it is written; 1 if it is written in another way."""
        inside: str | None = None
        for number, line in enumerate(self._text.splitlines(), start=1):
            if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
                inside = header.group(1).strip("\"'")
                if key is None and inside == table:
                    return number
            elif key is not None and inside == table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
                return number
        return 1


def _graph(graph: Any) -> Given[Any]:
    from .. import check, graphs

    if not (isinstance(graph, graphs.SparseGraph) or graphs.is_networkx(graph)):
        raise InvalidInput(f"graph must be a networkx graph, the name of one or a file, got {check.brief(graph)}.")
    return Given.named(str(graph.name or "graph"), graphs.content_hash(graph), graph)


def _gossip(weights: Any) -> Given[Any]:
    from .. import gossip

    if isinstance(weights, gossip.GossipMatrix):
        return Given.named(str(weights.name or "gossip"), weights.content_hash, weights)
    return Given.named("gossip", gossip.from_array(weights).content_hash, weights)  # rows in label order of the graph


def _task(task: Any) -> Given[Any]:
    from .. import check
    from ..training.tasks import Task

    check.instance(Task, task=task)
    return Given.named(task.name, task.content_hash, task)


def _mechanism(mechanism: Any) -> Given[Any]:
    from ..algorithms import LinearAlgorithm
    from ..mechanism import Mechanism

    if isinstance(mechanism, Mechanism):
        mechanism = mechanism.algorithm
    if not isinstance(mechanism, LinearAlgorithm) and callable(mechanism) and not isinstance(mechanism, type):
        from ..training.tasks import records

        name = getattr(mechanism, "__name__", type(mechanism).__name__)
        return Given.named(name, records.callable_digest(mechanism).hex(), mechanism)
    if not isinstance(mechanism, LinearAlgorithm):
        from ..check import brief

        raise InvalidInput(
            "a mechanism must be a name, a LinearAlgorithm, or a function of (dynamics, participation) that returns "
            f"one, got {brief(mechanism)}."
        )
    return Given.named(mechanism.name, mechanism.content_hash, mechanism)


def _mechanisms(mechanisms: Any) -> Any:
    if isinstance(mechanisms, list | tuple):
        return tuple(each if isinstance(each, str) else _mechanism(each) for each in mechanisms)
    return (_mechanism(mechanisms),)


AS_TEXT: dict[str, Callable[[Any], Any]]
AS_TEXT = {"graph": _graph, "gossip": _gossip, "task": _task, "mechanisms": _mechanisms}
"""Conversions by option; the trust model has `trust_text`, since it needs an algorithm."""


def as_text(option: str, value: Any) -> Any:
    """The value of an option in configs: texts unchanged, paths as texts, objects as `Given`."""
    if value is None or isinstance(value, str) or option not in AS_TEXT:
        return value
    return os.fspath(value) if isinstance(value, os.PathLike) else AS_TEXT[option](value)


def trust_text(trust: TrustModel, algorithm: LinearAlgorithm) -> Given[TrustModel]:
    return Given.named(trust.name, trust.fingerprint(algorithm), trust)


def shipped_trust(model: TrustModel) -> dict[str, Any]:
    """Options of a trust model of the library, nodes as labels or as #INDEX; empty for the caller's own."""
    from ..trust import named
    from ..trust.base import MODELS

    if model.name not in MODELS:
        return {}
    nodes = {"attackers": "attacker_nodes", "colluders": "colluders"}
    values: dict[str, Any] = {
        option: tuple(node if isinstance(node, str) else f"#{node}" for node in getattr(model, attribute))
        for option, attribute in nodes.items()
        if hasattr(model, attribute)
    }
    values |= {"coalition_size": model.size} if hasattr(model, "size") else {}
    options = {name: values[name] for name in MODELS.entry(model.name).signature if name in values}
    try:
        same = type(named(model.name, **options)) is type(model)
    except InvalidInput:
        return {}
    return {"trust": model.name, **options} if same else {}


def is_own(text: str) -> bool:
    return text.startswith(PREFIX)
