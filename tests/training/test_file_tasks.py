"""Tasks of data files and of functions in Python files: formats agree, doubt is refused."""

import sys

import networkx as nx
import numpy as np
import pytest
import torch
from vocabulary import each, given, refuses, st

from mfdl import graphs, tasks
from mfdl.errors import MissingExtra
from mfdl.training.tasks import table_files

RNG = np.random.default_rng(0)
TABLE = {
    "id": [f"p{row}" for row in range(40)], "age": RNG.integers(18, 80, 40).tolist(),
    "income": RNG.normal(5e4, 1e4, 40).round(2).tolist(), "price": RNG.normal(3, 1, 40).round(3).tolist(),
    "left": (np.arange(40) % 3 % 2).tolist(), "answer": ["no" if row % 3 else "yes" for row in range(40)],
    "owner": ["Bea" if row < 10 else "Al" for row in range(40)],
}  # fmt: skip
RECORDS = "drop=id,answer,owner"


def write(path, table=TABLE, order=None):
    rows = zip(*(table[name] for name in order or table), strict=True)
    lines = [",".join(order or table), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "own.csv")
    return tmp_path


def arrays(task):
    return task.features, task.targets, task.test_features, task.test_targets


def test_the_text_and_the_function_make_one_task(folder):
    text = (
        "own.csv:target=price,drop=id, answer,owner,test_fraction=0.25,model=mlp,hidden=3,ranges=age:0:100,income:0:1e5"
    )
    task = tasks.load(text, 4)
    options = {"drop": ["id", "answer", "owner"], "test_fraction": 0.25, "model": "mlp", "hidden": 3}
    same = tasks.from_file("own.csv", 4, target="price", ranges={"age": (0, 100), "income": (0, 1e5)}, **options)
    mixed = tasks.load("own.csv:target=price", 4, **options, ranges="age:0:100,income:0:1e5")
    assert task.content_hash == same.content_hash == mixed.content_hash
    assert repr(task) == (
        "Task price-mlp (regression) on 4 nodes: 30 train and 10 test records of shape (3,), partition uniform"
    )
    assert task.public_constants == "none"
    assert task.instance(seed=0, period=1).dimension == 3 * 3 + 3 + 3 + 1
    together = np.concatenate([task.features, task.test_features])
    expected = np.stack([np.array(TABLE["age"]) / 100, np.array(TABLE["income"]) / 1e5, TABLE["left"]], axis=1)
    np.testing.assert_allclose(np.sort(together, axis=0), np.sort(expected, axis=0).clip(0, 1), rtol=1e-6)


def test_the_hash_is_of_the_content_and_not_of_the_path(folder):
    write(folder / "other.csv")
    changed = {**TABLE, "age": [19, *TABLE["age"][1:]]}
    write(folder / "changed.csv", changed)
    first, other, third = (tasks.load(f"{name}.csv:target=price,{RECORDS}", 4) for name in ("own", "other", "changed"))
    assert (first.name, first.content_hash) == (other.name, other.content_hash)
    assert first.content_hash != third.content_hash
    assert first.content_hash != tasks.load(f"own.csv:target=price,{RECORDS},model=mlp", 4).content_hash


def test_formats_agree(folder):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(TABLE), "own.parquet")
    (folder / "own.tsv").write_text((folder / "own.csv").read_text().replace(",", "\t"))
    hashes = {
        (suffix, target): tasks.load(f"own.{suffix}:target={target},{drop}", 4).content_hash
        for suffix in ("csv", "tsv", "parquet")
        for target, drop in (
            ("price", RECORDS),
            ("answer", "drop=id,owner"),
            ("left", f"{RECORDS},kind=classification"),
        )
    }
    assert len({*hashes.values()}) == 3


@given(40, st.data())
def test_archives_libsvm_and_csv_files_hold_the_same_records(tmp_path_factory, data):
    folder, rows = tmp_path_factory.mktemp("same"), data.draw(st.integers(8, 20))
    cells = data.draw(st.lists(st.integers(1, 99), min_size=2 * rows, max_size=2 * rows))
    x, y = np.array(cells).reshape(rows, 2) / 8, np.arange(rows) % 2 * 2 - 1
    np.savez(folder / "own.npz", X=x, y=y)
    (folder / "own.svm").write_text("".join(f"{t} 1:{a} 2:{b}\n" for t, (a, b) in zip(y, x.tolist(), strict=True)))
    write(folder / "own.csv", {"a": x[:, 0].tolist(), "b": x[:, 1].tolist(), "y": y.tolist()})
    made = [
        tasks.from_file(folder / name, 2, kind="classification", target=target)
        for name, target in (("own.npz", None), ("own.svm", None), ("own.csv", "y"))
    ]
    for task in made:
        for array, expected in zip(arrays(task), arrays(made[0]), strict=True):
            np.testing.assert_array_equal(array, expected)
    assert "which classes occur" in made[0].public_constants
    public = tasks.from_file(folder / "own.npz", 2, classes=[-1, 1])
    assert (public.kind, public.public_constants) == ("classification", "none")
    np.testing.assert_array_equal(public.targets, made[0].targets)


def test_a_test_file_goes_by_names(folder):
    names = [*TABLE]
    write(folder / "test.csv", {name: values[:7] for name, values in TABLE.items()}, order=names[::-1])
    task = tasks.load(f"own.csv:target=price,{RECORDS},test=test.csv", 4)
    assert (len(task.targets), len(task.test_targets)) == (40, 7)
    np.testing.assert_array_equal(task.test_features, task.features[:7])
    np.testing.assert_array_equal(task.test_targets, task.targets[:7])
    write(folder / "less.csv", {name: values for name, values in TABLE.items() if name != "age"})
    refuses(r"test: 'less.csv' has no column 'age'", tasks.load, f"own.csv:target=price,{RECORDS},test=less.csv", 4)
    write(folder / "more.csv", {**TABLE, "aged": TABLE["age"]})
    refuses("got 'aged' besides; did you mean 'age'", tasks.load, f"own.csv:target=price,{RECORDS},test=more.csv", 4)
    assert tasks.load("own.csv:target=price,features=age,left,test=more.csv", 4).features.shape == (40, 2)
    write(folder / "words.csv", {**TABLE, "answer": ["perhaps"] * 40})
    refuses("must be one of the classes no, yes", tasks.load, "own.csv:target=answer,drop=id,owner,test=words.csv", 4)


def test_test_records_of_an_archive_and_of_libsvm_files(folder):
    x, y = RNG.normal(size=(20, 1, 2, 3)), np.arange(20) % 2
    np.savez("own.npz", X=x, y=y, X_test=x[:5], y_test=y[:5], node=np.arange(20) // 5)
    task = tasks.load("own.npz:kind=classification,model=mlp", 4)
    assert task.features.shape == (20, 1, 2, 3)
    np.testing.assert_array_equal(task.test_features, task.features[:5])
    np.testing.assert_array_equal(task.owners(0), np.arange(20) // 5)
    instance = task.instance(seed=0, period=5)
    assert instance.evaluate(instance.initial_parameters).loss.shape == (4,)
    refuses("test_fraction must be left out", tasks.load, "own.npz:kind=classification,test_fraction=0.5", 4)
    refuses("test must be left out", tasks.load, "own.npz:kind=classification,test=own.npz", 4)
    (folder / "a.svm").write_text("1 1:2 3:4\n-1 1:3\n" * 4)
    (folder / "b.svm").write_text("1 2:5 5:1\n-1 1:3\n")
    task = tasks.load("a.svm:classes=-1,1,test=b.svm", 2)
    np.testing.assert_array_equal(task.features[:2], [[2, 0, 4, 0, 0], [3, 0, 0, 0, 0]])
    np.testing.assert_array_equal(task.test_features, [[0, 5, 0, 0, 1], [3, 0, 0, 0, 0]])


def test_a_column_says_who_holds_a_record(folder):
    graph, text = nx.Graph([("Al", "Bea")]), "own.csv:target=price,drop=id,answer,node=owner"
    task = tasks.load(text, graph)
    assert np.bincount(task.owners(0)).tolist() == [24, 8]  # a fifth of each node is held back
    refuses("got 'Al'; did", tasks.load, text, nx.Graph([("Alf", "Bea")]))
    refuses("owners give none to node 2", tasks.load, text, nx.Graph([("Al", "Bea"), ("Bea", "Cy")]))
    refuses("partition must", tasks.load, f"{text},partition=uniform", graph)


def test_logistic_is_the_linear_model_of_classes(folder):
    first = tasks.load(f"own.csv:target=left,{RECORDS},model=logistic", 4)
    same = tasks.load(f"own.csv:target=left,{RECORDS},kind=classification", 4)
    assert first.content_hash == same.content_hash
    own = tasks.from_file("own.csv", 4, target="price", drop=RECORDS[5:], model=lambda: torch.nn.Linear(3, 1))
    assert own.kind == "regression"
    refuses("path must be a path alone, got .*; give", tasks.from_file, "own.csv:target=price", 4)


def test_ranges_of_a_file_and_of_all_others(folder):
    write(folder / "public.csv", {"column": ["age", "*"], "low": [0, 0], "high": [100, 1e5]})
    of_file = tasks.load(f"own.csv:target=price,{RECORDS},ranges=public.csv", 4)
    of_text = tasks.load(f"own.csv:target=price,{RECORDS},ranges=age:0:100,*:0:1e5", 4)
    assert of_file.content_hash == of_text.content_hash
    scaled = tasks.load(f"own.csv:target=price,{RECORDS},ranges=price:2:3", 4)
    assert (scaled.targets.min(), scaled.targets.max()) == (0, 1)


def test_decimal_commas_are_no_classes(folder):
    (folder / "commas.csv").write_text("age;price\n" + "".join(f"{i};{i % 3},5\n" for i in range(30)))
    refuses("must hold numbers, got '0,5' in row 1; write", tasks.load, "commas.csv:target=price", 4)
    assert tasks.load("commas.csv:target=price,kind=classification", 4).kind == "classification"


@each(
    "options, message",
    ("", "target must be the column that is predicted; 'own.csv' has the columns id, age"),
    (":target=pric", "has no column 'pric'; did you mean 'price'"),
    (":target=price,drop=idd", "drop: 'own.csv' has no column 'idd'; did you mean 'id'"),
    (":target=price,drop=price", "drop must not name the target or the node, got 'price'"),
    (":target=price", r"column 'id' of 'own.csv' must hold numbers, got 'p0' in row 1.*drop=id"),
    (f":target=left,{RECORDS}", "kind must be given .* say kind=regression or kind=classification"),
    (f":target=price,{RECORDS},kind=classification", "must hold classes for kind=classification, got"),
    (":target=answer,drop=id,owner,kind=regression", "column 'answer' of 'own.csv' must hold numbers, got 'yes'"),
    (":target=id,drop=answer,owner", "must hold classes that recur, got 40 different values in 40 rows"),
    (":target=answer,drop=id,owner,classes=yes,nein", "one of the classes yes, nein, got 'no' in row 2"),
    (":target=answer,drop=id,owner,classes=yes", "classes must be two or more different labels, got 'yes'"),
    (":target=price,kind=regression,classes=2", "classes are for kind='classification'"),
    (":target=price,kind=clasification", "unknown kind 'clasification'; did you mean 'classification'"),
    (":target=price,standardise=yes", "standardise is refused, .* not public; give public ranges"),
    (":target=price,tset=x.csv", "unknown parameter 'tset'; did you mean 'test'"),
    (":target=price,test_fraction=1", "test_fraction must be a number strictly between 0 and 1"),
    (":target=price,age", "options are written key=value, got 'age'"),
    (f":target=price,{RECORDS},model=logistic", "must hold classes for kind=classification"),
    (f":target=price,{RECORDS},model=cnn", "unknown model for regression 'cnn'"),
    (f":target=price,{RECORDS},hidden=5", "hidden is the layer of model='mlp'"),
    (f":target=price,{RECORDS},features=age", "features and drop exclude each other"),
    (f":target=price,{RECORDS},ranges=age:0", "ranges must be two numbers for each column"),
    (f":target=price,{RECORDS},ranges=age:5:5", "low < high, got 5.0 and 5.0"),
    (f":target=price,{RECORDS},ranges=aged:0:1", "got 'aged'; did you mean 'age'"),
    (f":target=price,{RECORDS},ranges=age:0:1,age:0:2", "each column once, got 'age' twice"),
    (f":target=price,{RECORDS},test_fraction=0.1,test=own.csv", "test and test_fraction exclude each other"),
    (f":target=price,{RECORDS},partition=dirichlet:alpha=1", "a Dirichlet partition skews classes"),
    (":target=owner,node=owner,drop=id,answer", "target and node must be different columns"),
)
def test_doubt_is_refused(folder, options, message):
    refuses(message, tasks.load, f"own.csv{options}", 4)


@each(
    "name, message",
    ("ow.csv:target=price", r"does not exist; did you mean 'own.csv'\?"),
    ("own.xlsx", "must end in .csv, .tsv, .parquet, .libsvm, .svm, .npz, or be FILE.py:FUNCTION; .*read_excel"),
    ("folder/data:target=x", "must end in .csv"),
    ("digitss", "unknown task 'digitss'; did you mean 'digits'"),
)
def test_texts_that_name_no_data_file_are_refused(folder, name, message):
    refuses(message, tasks.load, name, 4)


@pytest.mark.parametrize("classes", ["true,false", "True,False"])
def test_classes_are_spelled_as_the_column_is(folder, classes):
    write(folder / "flags.csv", {"x": range(8), "flag": ["TRUE", "false"] * 4, "number": [1, "0.0"] * 4})
    task = tasks.load(f"flags.csv:target=flag,drop=number,classes={classes}", 2)
    np.testing.assert_array_equal(task.targets, tasks.load("flags.csv:target=number,drop=flag,classes=+1,0", 2).targets)


def test_one_class_and_too_few_records_are_refused(folder):
    write(folder / "one.csv", {"x": [1.5, 2, 3], "y": ["a", "a", "a"]})
    refuses("must have two or more classes among", tasks.load, "one.csv:target=y", 1)
    write(folder / "few.csv", {"x": [1.5], "y": [0.5]})
    refuses("must have records for training", tasks.load, "few.csv:target=y", 1)


def test_parquet_without_pyarrow_names_the_extra(folder, monkeypatch):
    (folder / "own.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    refuses(r"pip install 'mfdl\[tables\]', or write", tasks.load, "own.parquet:target=price", 4, error=MissingExtra)
    assert "pyarrow" not in vars(table_files)


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
def python_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mytasks.py").write_text(CODE)
    (tmp_path / "beside_it.py").write_text("CLASSES = 2")
    yield tmp_path
    sys.modules.pop("beside_it", None)


@each(
    "text, name, width",
    ("mytasks.py:make_task", "mine Graph", 3),
    ("mytasks.py:make_task,width=5,name=ours", "ours Graph", 5),
    ("./mytasks.py:make_task, width=5", "mine Graph", 5),
    ("mytasks.py:by_count,more=0", "mine int", 3),
    ("mytasks.py:of_any,width=2,name=7", "7 Graph", 2),
)
@pytest.mark.parametrize("graph", ["ring:n=4", graphs.load_sparse("ring:n=4"), nx.cycle_graph(4)])
def test_a_function_makes_the_task(python_folder, text, name, width, graph):
    path, modules = list(sys.path), {*sys.modules} | {"beside_it"}
    task = tasks.load(text, graph)
    assert (task.name, task.features.shape, task.num_nodes) == (name, (40, width), 4)
    assert sys.path == path
    assert not [module for module in {*sys.modules} - modules if "task_file" in module]


def test_parameters_in_python_and_the_number_of_nodes_alone(python_folder):
    given = {"partition": "dirichlet:alpha=5"}
    task = tasks.load("mytasks.py:make_task,width=2", 4, **given)
    assert (task.name, task.partition.text) == ("mine int", "dirichlet:alpha=5,min_records=1")
    assert task.content_hash == tasks.load("mytasks.py:make_task", 4, width=2, **given).content_hash
    assert task.content_hash != tasks.load("mytasks.py:make_task,width=2", 4).content_hash


@each(
    "text, message",
    ("mytasks.py", "is written mytasks.py:FUNCTION, with FUNCTION the name of a function"),
    ("mytask.py:make_task", r"task file 'mytask.py' does not exist; did you mean 'mytasks.py'\?"),
    ("mytasks.py:make_taks", r"has no function 'make_taks'; did you mean 'make_task'\? Functions: make_task, by_count"),
    ("mytasks.py:number", "number of task file 'mytasks.py' must be a function of the graph, got 3"),
    ("mytasks.py:make_task,widht=5", r"unknown parameter 'widht'; did you mean 'width'\? Known: width, name, part"),
    ("mytasks.py:make_task,width=wide", "width must be an integer of at most 18 digits, got 'wide'"),
    ("mytasks.py:make_task,width=2,width=3", "parameter 'width' is given twice"),
    ("mytasks.py:make_task,5", "parameters are written key=value, got '5'"),
    ("mytasks.py:by_count", "needs the parameter 'more'; add more=VALUE"),
    ("mytasks.py:by_count,more=1", "must return a task on the 4 nodes of the graph, got 5"),
    ("mytasks.py:forgets", "must return a Task, as mfdl.tasks.from_module gives, got None; end it with `return task`"),
    ("mytasks.py:fails", r"mytasks.py:fails fails: ZeroDivisionError in line 31: division by zero\."),
    ("mytasks.py:refuses", "unknown digits model 'none'"),
    ("mytasks.py:alone", "must take the graph, or its num_nodes"),
    ("broken.py:make_task", r"task file 'broken.py' fails when it is run: SyntaxError in line 2: "),
    ("empty.py:make_task", r"task file 'empty.py' has no function 'make_task'\. It has no function\."),
)
def test_what_makes_no_task_is_refused(python_folder, text, message):
    (python_folder / "broken.py").write_text("x = 1\ndef make_task(:\n")
    (python_folder / "empty.py").write_text("")
    refuses(message, tasks.load, text, "ring:n=4")


def test_other_processes_get_the_functions_by_their_code(python_folder):
    cloudpickle = pytest.importorskip("cloudpickle")
    (python_folder / "beside_it.py").unlink()
    (python_folder / "mytasks.py").write_text(CODE.replace("import beside_it", "").replace("beside_it.CLASSES", "2"))
    task = tasks.load("mytasks.py:make_task", 4)
    assert cloudpickle.loads(cloudpickle.dumps(task)).content_hash == task.content_hash
