"""Learning tasks: records on nodes, a torch module and a per-record loss.

>>> names()
['a9a', 'digits', 'digits-mlp', 'housing', 'least-squares', 'mnist', 'mnist-mlp', 'rotated-quadratics']
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

from ...errors import InvalidInput, require_known
from . import partition
from ._data_sets import a9a, digits, housing, mnist
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
    "least-squares": least_squares,
    "mnist": mnist,  # one linear layer
    "mnist-mlp": functools.partial(mnist, model="mlp"),
    "rotated-quadratics": rotated_quadratics,
}


def names() -> list[str]:
    """The names that `load` knows."""
    return sorted(_TASKS)


def load(name: str, graph: Any, data_home: str | os.PathLike[str] | None = None, **params: Any) -> Task:
    """The task of a name on the nodes of a graph.

    Args:
        name: one of `names()`.
        graph: a networkx graph, or the number of nodes.
        data_home: where downloaded data are cached; ignored by tasks that download nothing.
        params: further parameters of the task's function, such as partition="dirichlet:alpha=10" of a9a, digits and
            MNIST.

    Raises:
        InvalidInput: unknown name or parameter, or what the task's function refuses.
    """
    require_known("task", name, _TASKS)
    make = _TASKS[name]
    allowed = list(inspect.signature(make).parameters)[1:]
    if isinstance(make, functools.partial):
        allowed = [parameter for parameter in allowed if parameter not in make.keywords]
    if "data_home" in allowed:
        params["data_home"] = data_home
    unknown = sorted(set(params) - set(allowed))
    if unknown:
        raise InvalidInput(
            f"task {name!r} has no parameter {unknown[0]!r}; known: {', '.join(sorted(allowed)) or 'none'}."
        )
    return make(graph, **params)
