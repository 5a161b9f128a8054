"""`mfdl data inspect`: what is printed of a data file, and the exit code where a task is refused."""

import json

import pytest
from finished_runs import answer_of

from mfdl.commands import main
from mfdl.training import tasks


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"p{row},{row % 7},{row % 5 / 4},{row % 2},{row % 4}" for row in range(40)]
    (tmp_path / "own.csv").write_text("\n".join(["id,age,price,left,node", *rows]))
    return tmp_path


def answer(capsys, *arguments, code=0):
    assert main(["data", "inspect", *arguments]) == code
    return capsys.readouterr()


def test_a_bare_file_shows_its_columns(folder, capsys):
    out, err = answer(capsys, "own.csv")
    assert all(word in out for word in ("CSV, 40 rows", "integers", "numbers", "words"))
    assert "no task yet: target must be the column that is predicted" in out
    assert not err


def test_json_says_what_a_task_reads(folder, capsys):
    text = "own.csv:target=left,drop=id,kind=classification,node=node"
    out, _ = answer(capsys, text, "--graph", "ring:n=4", "--json")
    value = json.loads(out)
    columns = {column.pop("name"): column for column in value.pop("columns")}
    assert {name: column["role"] for name, column in columns.items()} == {
        "id": "unused", "age": "feature", "price": "feature", "left": "target", "node": "node",
    }  # fmt: skip
    assert value == {
        "path": "own.csv", "format": "CSV", "rows": 40, "target": "left", "kind": "classification",
        "classes": ["0", "1"], "features": 2, "train_records": 32, "test_records": 8, "nodes": 4,
        "records_of_nodes": [8, 8], "task": "left-linear", "content_hash": tasks.load(text, "ring:n=4").content_hash,
        "refused": None,
    }  # fmt: skip
    out, _ = answer(capsys, text)
    assert "train records of a node: 8 to 8, on 4 nodes" in out
    assert "content hash" not in out


def test_a_refusal_is_an_error_beside_what_could_be_read(folder, capsys):
    out, err = answer(capsys, "own.csv:target=left,drop=id", code=2)
    assert "target: left" in out
    assert err.startswith("mfdl: kind must be given for target 'left'")
    out, err = answer(capsys, "own.csv:target=price", "--json", code=2)
    assert json.loads(out)["refused"] in err
    _, err = answer(capsys, "ovn.csv", code=2)
    assert "does not exist; did you mean 'own.csv'?" in err


def test_named_tasks_and_python_files_need_a_graph(folder, capsys):
    (folder / "mytasks.py").write_text("import mfdl\ndef make_task(graph):\n    return mfdl.tasks.digits(graph)\n")
    _, err = answer(capsys, "mytasks.py:make_task", code=2)
    assert "give one, --graph ring:n=16" in err
    for text in ("mytasks.py:make_task", "digits"):
        out, _ = answer(capsys, text, "--graph", "ring:n=4")
        assert "records: 1198 train, 599 test" in out


def test_a_comparison_trains_on_a_data_file(folder, capsys):
    options = ["--graph", "ring:n=4", "--epochs", "1", "--period", "2", "--seeds", "1", "--mechanisms", "none"]
    text = "own.csv:target=price,drop=id,node"
    value = answer_of(capsys, "compare", "--task", text, *options, "--out", "out")
    assert "price-linear" in json.dumps(value)
