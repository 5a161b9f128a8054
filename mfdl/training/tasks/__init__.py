"""Learning tasks: records on nodes, a torch module and a per-record loss.

>>> names()  # doctest: +NORMALIZE_WHITESPACE
['a9a', 'digits', 'digits-mlp', 'femnist', 'housing', 'housing-linear', 'housing-mlp', 'least-squares', 'logistic',
 'mnist', 'mnist-mlp', 'rotated-quadratics']
"""

from __future__ import annotations

import os
from typing import Any

from ...spec import parse
from . import partition
from ._data_sets import a9a, digits, femnist, housing, least_squares, logistic, mnist, quadratic, rotated_quadratics
from ._task import TASKS, Task, from_module
from .file_tasks import file_options, from_file, load_from_module, parse_file_text, parse_module_text
from .instance import Evaluation
from .preconditioner import Preconditioner

__all__ = [
    "Evaluation", "Preconditioner", "Task", "a9a", "digits", "femnist", "from_file", "from_module", "housing",
    "least_squares", "load", "logistic", "mnist", "names", "partition", "quadratic", "rotated_quadratics",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)


def names() -> list[str]:
    """The names that `load` knows."""
    return sorted(TASKS)


def load(name: str, graph: Any, data_home: str | os.PathLike[str] | None = None, **params: Any) -> Task:
    """The task of a name, of a data file or of a function in a Python file, on the nodes of a graph.

    Raises:
        InvalidInput: unknown name or parameter, one given twice or of another type; refusals of the task's function.

    >>> load("digits:test_fraction=0.2", 4)
    Task digits (classification) on 4 nodes: 1438 train and 359 test records of shape (64,), partition uniform

    Args:
        name: one of `names()`, perhaps with parameters, "mnist:split=pool,fraction=0.2"; a data file with the options
            of `from_file`, "own.csv:target=price,drop=id,name"; or a trusted Python file with a function of the graph,
            "mytasks.py:make_task,width=8".
        graph: a networkx graph, the name of one, or the number of nodes.
        data_home: cache of downloaded data; None for the usual place.
        params: further parameters of the function or the file, such as partition="dirichlet:alpha=10".
    """
    text = str(name)
    if parse(text).name not in TASKS:
        if (function := parse_module_text(text)) is not None:
            return load_from_module(function, graph, params, data_home)
        if (file := parse_file_text(text)) is not None:
            return from_file(file.path, graph, **file_options(file, params))
    task: Task = TASKS.make(text, graph, given=params, data_home=data_home)
    return task
