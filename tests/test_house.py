"""The counts of `experiments/house.py`, on a tree of a few lines that has one of each."""

from pathlib import Path

import house
import pytest

FILES = {
    "mfdl/__init__.py": "",
    "mfdl/participation/__init__.py": "class Participation: ...\nclass Cyclic(Participation): ...\n",
    "mfdl/one.py": "from . import two\nfrom .participation import Cyclic\ndef f(scheme, encoder):\n"
    "    found = isinstance(scheme, Cyclic)\n    return found if encoder is None else two\n",
    "mfdl/two.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .three import T\nclass Twice: ...\n",
    "mfdl/three.py": "def late():\n    import mfdl.four\nclass Twice: ...\nclass TableConfig: ...\n"
    "class Mechanism: ...\n",
    "mfdl/four.py": "import importlib\nimportlib.import_module('mfdl.one')\nclass FirstGuarantee: ...\n"
    "def users_matrix(path): return np.load(path)\n",
    "mfdl/noise/six.py": "def of_node(noise):\n    return noise.joint is None\n",
    "mfdl/seven.py": "def gram_of(a):\n    return a.noise.causal is not None, a.fresh, a is None, of(a.secret)\n",
    "mfdl/audit/two.py": "import tomllib\ntomllib.loads('')\nnp.savez(file)\nnp.load(file)\n",
    "mfdl/five.py": "np.argmax(losses)\nmax(losses,\n    key=float)\nlosses.argsort()  # bound\n"
    "sorted(losses, key=float)  # exact: counts\nnp.argmax(losses > 1)\nsorted(labels, key=len)\nmax(losses)\n",
    "solvers/mfdl_solvers/ties.py": "np.argsort(values)\n",
    "mfdl/eight.py": "from .two import Twice\nis_twice = isinstance(object(), (Twice, int))\n",
    "solvers/mfdl_solvers/__init__.py": "",
    "docs/page.md": "# A page\n\nof words " + "word " * 1500,
    "docs/some_theorem.md": "word " * 1496 + f"\n```\n{'-' * 79}\n{'-' * 80}\n```\n" + "-" * 80,
    "tests/test_public_names.py": "NAMES = {'mfdl': 'a b', 'mfdl.trust': 'c', 'mfdl_papers': 'd'}\n",
    "tests/deep/test_two.py": "def test():\n    pass\n",
}
SOURCE = [text for name, text in FILES.items() if name.startswith(("mfdl", "solvers"))]
EXPECTED = {
    "files": 13, "lines": sum(text.count("\n") for text in SOURCE), "characters": sum(map(len, SOURCE)),
    "test-lines": 3, "words": 1505 + 1501, "long-pages": 1, "wide-code": 1, "names": 3, "top-level": 2,
    "circles": 1, "largest-circle": 4, "schemes": 1, "encoders": 1, "questions": 3, "instances": 2, "configs": 1,
    "toml": 1, "formats": 1, "audits": 0, "mechanisms": 1, "guarantees": 1, "file-names": 1, "class-names": 1,
    "ties": 2, "banned": 1, "genitives": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    root = tmp_path_factory.mktemp("house")
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return house.read(root)


@pytest.mark.parametrize(
    "count", [count for count in house.COUNTS if not count.name.startswith("reach-")], ids=lambda count: count.name
)
def test_each_count_sees_what_it_counts(count, project):
    assert count.value(count.places(project)) == EXPECTED[count.name]


def test_imports_of_types_in_functions_and_by_name_close_a_circle(project):
    (circle,) = house.circles(project)
    assert circle.startswith("4 files: mfdl.four, mfdl.one, mfdl.three, mfdl.two")


def test_what_statements_load_is_counted(project):
    assert house.reach("import mfdl.two")(project) == ["0 mfdl", "4 mfdl.two"]


def test_a_count_above_its_limit_is_named():
    files = house.COUNTS[0]
    assert house.exceeded({files: files.limit}) == []
    assert house.exceeded({files: files.limit + 1}) == [f"files: {files.limit + 1}, limit {files.limit}"]


def test_this_project_keeps_its_limits():
    project = house.read(Path(house.__file__).resolve().parents[1])  # half a minute
    assert house.exceeded(house.measured(project)) == []
