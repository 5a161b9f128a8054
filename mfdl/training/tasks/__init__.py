"""Learning tasks: records on nodes, a torch module and a per-record loss.

>>> names()  # doctest: +NORMALIZE_WHITESPACE
['a9a', 'digits', 'digits-mlp', 'femnist', 'housing', 'housing-linear', 'housing-mlp', 'least-squares', 'logistic',
 'mnist', 'mnist-mlp', 'rotated-quadratics']
"""

from __future__ import annotations

import os
from typing import Any

from . import partition
from ._data_sets import a9a, digits, femnist, housing, mnist
from ._synthetic import least_squares, logistic, quadratic, rotated_quadratics
from ._task import TASKS, Task, from_module
from .instance import Evaluation, TaskInstance
from .preconditioner import Preconditioner

__all__ = [
    "Evaluation",
    "Preconditioner",
    "Task",
    "TaskInstance",
    "a9a",
    "digits",
    "femnist",
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


def names() -> list[str]:
    """The names that `load` knows."""
    return sorted(TASKS)


def load(name: str, graph: Any, data_home: str | os.PathLike[str] | None = None, **params: Any) -> Task:
    """The task of a name on the nodes of a graph.

    >>> load("digits:test_fraction=0.2", 4)
    Task digits (classification) on 4 nodes: 1438 train and 359 test records of shape (64,), partition uniform

    Args:
        name: one of `names()`, perhaps with parameters of its function, "mnist:split=pool,fraction=0.2"; numbers and
            words only.
        graph: a networkx graph, the name of one, or the number of nodes.
        data_home: where downloaded data are cached; ignored by tasks that download nothing.
        params: further parameters of the task's function, such as partition="dirichlet:alpha=10" of a9a, digits and
            MNIST.

    Raises:
        InvalidInput: unknown name or parameter, one given twice or of another type; what the task's function refuses.
    """
    task: Task = TASKS.make(str(name), graph, given=params, data_home=data_home)
    return task
