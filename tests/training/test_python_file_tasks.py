"""Tasks of functions in Python files: what the function is given, what it may return, and refusals in words."""

import sys

import networkx as nx
import pytest
from refusals import refuses

from mfdl import graphs, tasks

CODE = """
from __future__ import annotations
import dataclasses
import functools
import torch
import beside_it
from mfdl import tasks

@dataclasses.dataclass
class Shape:
    width: int

def make_task(graph, width: int = 3, name="mine", *, partition="uniform"):
    x, y = torch.arange(40.0 * width).reshape(40, width) / 100, torch.arange(40) % beside_it.CLASSES
    return tasks.from_module(
        f"{name} {type(graph).__name__}", graph, kind="classification", partition=partition,
        build_module=functools.partial(torch.nn.Linear, Shape(width).width, 2),
        loss=torch.nn.functional.cross_entropy, features=x, targets=y, test_features=x, test_targets=y,
    )

def by_count(num_nodes, more):
    return make_task(num_nodes + more)

def of_any(network, **settings):
    return make_task(network, **settings)

def forgets(graph):
    make_task(graph)

def fails(graph):
    return 1 / 0

def refuses(graph):
    return tasks.load("digits:model=none", graph)

def alone():
    return 1

number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mytasks.py").write_text(CODE)
    (tmp_path / "beside_it.py").write_text("CLASSES = 2")
    yield tmp_path
    sys.modules.pop("beside_it", None)


@pytest.mark.parametrize(
    ("text", "name", "width"),
    [
        ("mytasks.py:make_task", "mine Graph", 3),
        ("mytasks.py:make_task,width=5,name=ours", "ours Graph", 5),
        ("./mytasks.py:make_task, width=5", "mine Graph", 5),
        ("mytasks.py:by_count,more=0", "mine int", 3),
        ("mytasks.py:of_any,width=2,name=7", "7 Graph", 2),
    ],
)
@pytest.mark.parametrize("graph", ["ring:n=4", graphs.load_sparse("ring:n=4"), nx.cycle_graph(4)])
def test_a_function_makes_the_task(folder, text, name, width, graph):
    path, modules = list(sys.path), {*sys.modules} | {"beside_it"}
    task = tasks.load(text, graph)
    assert (task.name, task.features.shape, task.num_nodes) == (name, (40, width), 4)
    assert sys.path == path
    assert not [module for module in {*sys.modules} - modules if "task_file" in module]


def test_parameters_in_python_and_the_number_of_nodes_alone(folder):
    task = tasks.load("mytasks.py:make_task,width=2", 4, partition="dirichlet:alpha=5")
    assert (task.name, task.partition.text) == ("mine int", "dirichlet:alpha=5,min_records=1")
    assert (
        task.content_hash == tasks.load("mytasks.py:make_task", 4, width=2, partition="dirichlet:alpha=5").content_hash
    )
    assert task.content_hash != tasks.load("mytasks.py:make_task,width=2", 4).content_hash


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mytasks.py", "is written mytasks.py:FUNCTION, with FUNCTION the name of a function"),
        ("mytask.py:make_task", r"task file 'mytask.py' does not exist; did you mean 'mytasks.py'\?"),
        (
            "mytasks.py:make_taks",
            r"has no function 'make_taks'; did you mean 'make_task'\? Functions: make_task, by_count",
        ),
        ("mytasks.py:number", "number of task file 'mytasks.py' must be a function of the graph, got 3"),
        (
            "mytasks.py:make_task,widht=5",
            r"unknown parameter 'widht'; did you mean 'width'\? Known: width, name, partition",
        ),
        ("mytasks.py:make_task,width=wide", "width must be an integer of at most 18 digits, got 'wide'"),
        ("mytasks.py:make_task,width=2,width=3", "parameter 'width' is given twice"),
        ("mytasks.py:make_task,5", "parameters are written key=value, got '5'"),
        ("mytasks.py:by_count", "needs the parameter 'more'; add more=VALUE"),
        ("mytasks.py:by_count,more=1", "must return a task on the 4 nodes of the graph, got 5"),
        (
            "mytasks.py:forgets",
            "must return a Task, as mfdl.tasks.from_module gives, got None; end it with `return task`",
        ),
        ("mytasks.py:fails", r"mytasks.py:fails fails: ZeroDivisionError in line 31: division by zero\."),
        ("mytasks.py:refuses", "unknown digits model 'none'"),
        ("mytasks.py:alone", "must take the graph, or its num_nodes"),
        ("broken.py:make_task", r"task file 'broken.py' fails when it is run: SyntaxError in line 2: "),
        ("empty.py:make_task", r"task file 'empty.py' has no function 'make_task'\. It has no function\."),
    ],
)
def test_what_makes_no_task_is_refused(folder, text, message):
    (folder / "broken.py").write_text("x = 1\ndef make_task(:\n")
    (folder / "empty.py").write_text("")
    refuses(message, tasks.load, text, "ring:n=4")


def test_other_processes_get_the_functions_by_their_code(folder):
    cloudpickle = pytest.importorskip("cloudpickle")
    (folder / "beside_it.py").unlink()
    (folder / "mytasks.py").write_text(CODE.replace("import beside_it", "").replace("beside_it.CLASSES", "2"))
    task = tasks.load("mytasks.py:make_task", 4)
    assert cloudpickle.loads(cloudpickle.dumps(task)).content_hash == task.content_hash
