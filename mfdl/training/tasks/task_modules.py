"""Tasks of a user's Python file: the text `FILE.py:FUNCTION,key=value,...`.

The file is run as Python code, with its folder on the import path, so it must be trusted like any program.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ... import check, graphs
from ...errors import InvalidInput, did_you_mean
from ...spec import Entry, setting
from ._task import Task, node_count

SUPPLIED = ("graph", "num_nodes", "graph_or_num_nodes", "data_home")
EXAMPLE = "mytasks.py:make_task"
_PYTHON = re.compile(r"(?P<path>.+?\.py)(?::(?P<rest>.*))?", re.IGNORECASE | re.DOTALL)
_MODULE = "_mfdl_task_file"


class ModuleText(NamedTuple):
    """A text that names a function of a Python file, in its parts."""

    path: str
    function: str
    settings: tuple[tuple[str | None, str], ...]


def parse_module_text(text: str) -> ModuleText | None:
    """The parts of `FILE.py:FUNCTION,key=value,...`; None for a text that begins with no Python file.

    >>> parse_module_text("mytasks.py:make_task,width=8")
    ModuleText(path='mytasks.py', function='make_task', settings=(('width', '8'),))
    >>> parse_module_text("digits") is None
    True
    """
    match = _PYTHON.fullmatch(text.strip())
    if match is None:
        return None
    function, _, rest = (match["rest"] or "").partition(",")
    function = function.strip()
    if not function.isidentifier():
        raise InvalidInput(
            f"a task file is written {match['path']}:FUNCTION, with FUNCTION the name of a function that makes a task, "
            f"got {text.strip()!r}; e.g. {EXAMPLE}."
        )
    return ModuleText(match["path"], function, tuple(map(setting, rest.split(","))) if rest.strip() else ())


def load_from_module(text: ModuleText, graph: Any, given: Mapping[str, Any], data_home: Any = None) -> Task:
    """The task that the function of a file makes.

    Args:
        graph: goes to a parameter `graph` (a networkx graph, or the number of nodes if only that is known) or to the
            first parameter; its number of nodes to a parameter `num_nodes`.
        given: parameters in Python, beside those of the text.
    Raises: InvalidInput: no such file or function, code that fails, a value that is no task, another number of nodes.
    """
    where = f"{Path(text.path).name}:{text.function}"
    num_nodes = node_count(graph)
    with _folder_on_path(Path(text.path)):
        module = _executed(Path(text.path))
        function = _function(module, text)
        arguments = _arguments(function, where, text, given)
        supplied = _supplied(function, where, graph, num_nodes, data_home)
        try:
            task = function(**supplied, **arguments)
        except InvalidInput:
            raise
        except Exception as error:
            raise InvalidInput(f"task file {where} fails: {_last_place(error, text.path)}.") from error
    if not isinstance(task, Task):
        hint = "; end it with `return task`" if task is None else ""
        raise InvalidInput(
            f"task file {where} must return a Task, as mfdl.tasks.from_module gives, got {check.brief(task)}{hint}."
        )
    if task.num_nodes != num_nodes:
        raise InvalidInput(
            f"task file {where} must return a task on the {num_nodes} nodes of the graph, got {task.num_nodes}; pass "
            "the graph on to mfdl.tasks.from_module."
        )
    return task


@contextmanager
def _folder_on_path(path: Path) -> Iterator[None]:
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _executed(path: Path) -> ModuleType:
    """The module of a file.

    It leaves `sys.modules` after it ran: cloudpickle then sends its functions to other processes by their code.
    """
    if not path.is_file():
        near = [other.name for other in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise InvalidInput(f"task file {str(path)!r} does not exist{did_you_mean(path.name, near)}")
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"task file {str(path)!r} is no Python file; give one that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module  # dataclasses of the file look it up
    try:
        spec.loader.exec_module(module)
    except InvalidInput:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidInput(f"task file {str(path)!r} fails when it is run: {_last_place(error, str(path))}.") from error
    finally:
        sys.modules.pop(_MODULE, None)
    return module


def _last_place(error: BaseException, path: str) -> str:
    name = os.path.basename(path)
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if os.path.basename(frame.filename) == name
    ]
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else next(reversed(lines), None)
    message = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}{f' in line {line}' if line else ''}{message and f': {message}'}".rstrip(".")


def _function(module: ModuleType, text: ModuleText) -> Callable[..., Any]:
    functions = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and inspect.isfunction(value) and value.__module__ == _MODULE
    ]
    function = getattr(module, text.function, None)
    if function is None:
        some = f" Functions: {', '.join(functions)}." if functions else " It has no function."
        raise InvalidInput(
            f"task file {text.path!r} has no function {text.function!r}{did_you_mean(text.function, functions)}{some}"
        )
    if not callable(function):
        raise InvalidInput(
            f"{text.function} of task file {text.path!r} must be a function of the graph, got {check.brief(function)}."
        )
    chosen: Callable[..., Any] = function
    return chosen


def _supplied(function: Callable[..., Any], where: str, graph: Any, num_nodes: int, data_home: Any) -> dict[str, Any]:
    names = _parameters(function)
    given = graphs.resolved_name(graph)
    known = {
        "graph": given.networkx() if isinstance(given, graphs.SparseGraph) else given,
        "num_nodes": num_nodes,
        "data_home": data_home,
    }
    known["graph_or_num_nodes"] = known["graph"]
    first = _first(names)
    if first is None:
        raise InvalidInput(f"task file {where} must take the graph, or its num_nodes; write def FUNCTION(graph): ...")
    return {name: known[name] for name in SUPPLIED if name in names} | {first: known.get(first, known["graph"])}


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except ValueError:  # of code in C
        return {}


def _first(names: Mapping[str, inspect.Parameter]) -> str | None:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    usable = [name for name, parameter in names.items() if parameter.kind in kinds]
    by_name = [name for name in SUPPLIED[:3] if name in usable]
    return next(iter([*by_name, *usable]), None)


def _arguments(function: Callable[..., Any], where: str, text: ModuleText, given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of the text and of Python; a text whose parameter has no type is read as a number if it is one."""
    names = _parameters(function)
    example = f"{text.path}:{text.function},KEY=VALUE"
    entry = Entry("task file", where, function, example, supplied=(*SUPPLIED, _first(names) or ""))
    variadic = {name for name, parameter in names.items() if parameter.kind.name.startswith("VAR")}
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in names.values())
    arguments = dict(given)
    entry.arguments((), {key: value for key, value in given.items() if key in entry.free or not takes_any})
    for key, value in text.settings:
        parameter = entry.free.get(key or "")
        if key is None:
            raise InvalidInput(f"task file {where}: parameters are written key=value, got {value!r}; e.g. {example}.")
        if key in arguments:
            raise InvalidInput(f"task file {where}: parameter {key!r} is given twice; give it once.")
        if parameter is None and not takes_any:
            entry.arguments((), {key: value})  # refuses it
        typed = parameter is not None and parameter.type is not None
        arguments[key] = parameter.read(value, f"task file {where}") if parameter and typed else _literal(value)
    required = {name for name, parameter in entry.free.items() if parameter.required}
    if missing := sorted(required - arguments.keys() - variadic):
        raise InvalidInput(f"task file {where} needs the parameter {missing[0]!r}; add {missing[0]}=VALUE.")
    return arguments


def _literal(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
