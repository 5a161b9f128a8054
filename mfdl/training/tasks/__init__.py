"""Learning tasks: records on nodes, a torch module and a per-record loss.

>>> names()  # doctest: +NORMALIZE_WHITESPACE
['a9a', 'digits', 'digits-mlp', 'housing', 'housing-linear', 'housing-mlp', 'least-squares', 'logistic', 'mnist',
 'mnist-mlp', 'rotated-quadratics']
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

from ...errors import InvalidInput, require_known
from . import partition
from ._data_sets import FEATURE_BOUND, a9a, digits, housing, mnist
from ._generated import logistic
from ._quadratic import least_squares, quadratic, rotated_quadratics
from ._task import Task, from_module
from .instance import Evaluation, TaskInstance

__all__ = [
    "Evaluation",
    "Task",
    "TaskInstance",
    "a9a",
    "digits",
    "from_module",
    "housing",
    "least_squares",
    "load",
    "logistic",
    "mnist",
    "names",
    "partition",
    "quadratic",
    "rotated_quadratics",
]


def __dir__() -> list[str]:
    return sorted(__all__)


_TASKS: dict[str, Callable[..., Task]] = {
    "a9a": a9a,
    "digits": digits,
    "digits-mlp": functools.partial(digits, model="mlp"),
    "housing": housing,
    "housing-linear": functools.partial(housing, model="linear", clip=FEATURE_BOUND),
    "housing-mlp": functools.partial(housing, clip=FEATURE_BOUND),
    "least-squares": least_squares,
    "logistic": logistic,
    "mnist": mnist,  # one linear layer
    "mnist-mlp": functools.partial(mnist, model="mlp"),
    "rotated-quadratics": rotated_quadratics,
}


def names() -> list[str]:
    """The names that `load` knows."""
    return sorted(_TASKS)


def load(name: str, graph: Any, data_home: str | os.PathLike[str] | None = None, **params: Any) -> Task:
    """The task of a name on the nodes of a graph.

    >>> load("digits:test_fraction=0.2", 4)
    Task digits (classification) on 4 nodes: 1438 train and 359 test records of shape (64,), partition uniform

    Args:
        name: one of `names()`, perhaps with parameters of its function, "mnist:split=pool,fraction=0.2"; numbers and
            words only.
        graph: a networkx graph, or the number of nodes.
        data_home: where downloaded data are cached; ignored by tasks that download nothing.
        params: further parameters of the task's function, such as partition="dirichlet:alpha=10" of a9a, digits and
            MNIST.

    Raises:
        InvalidInput: unknown name or parameter, one given twice or of another type; what the task's function refuses.
    """
    base, _, text = str(name).partition(":")
    require_known("task", base, _TASKS)
    make = _TASKS[base]
    allowed = dict(list(inspect.signature(make, eval_str=True).parameters.items())[1:])
    if isinstance(make, functools.partial):
        allowed = {key: parameter for key, parameter in allowed.items() if key not in make.keywords}
    if "data_home" in allowed:
        params["data_home"] = data_home
    for part in text.split(",") if text.strip() else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key in params:
            raise InvalidInput(
                f"task {base}: cannot use {part.strip()!r}; parameters are written key=value, each once, such as "
                "mnist:split=pool,fraction=0.2."
            )
        params[key] = _value(base, key, value, allowed[key]) if key in allowed else value
    unknown = sorted(set(params) - set(allowed))
    if unknown:
        known = ", ".join(sorted(allowed)) or "none"
        raise InvalidInput(f"task {base!r} has no parameter {unknown[0]!r}; known: {known}.")
    return make(graph, **params)


def _value(task: str, key: str, text: str, parameter: inspect.Parameter) -> str | int | float:
    """What stands behind key= in a text, of the type of that parameter's default."""
    kind = type(parameter.default)
    try:
        return text if kind not in (int, float) else kind(text)
    except ValueError:
        raise InvalidInput(f"task {task}: {key} must be {kind.__name__}, got {text!r}.") from None
