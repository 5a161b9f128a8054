"""The counts of `experiments/house.py`, on a tree of a few lines that has one of each."""

import subprocess
import sys
from pathlib import Path

import house
import pytest
from vocabulary import each

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
    "solvers/mfdl_solvers/__init__.py": "",
}
EXPECTED = {
    "files": 12, "schemes": 1, "encoders": 1, "questions": 3, "circles": 1, "configs": 1, "toml": 1,
    "formats": 1, "audits": 0,
    "mechanisms": 1, "guarantees": 1, "file-names": 1, "class-names": 1, "banned": 1, "genitives": 2,
    "ties": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    root = tmp_path_factory.mktemp("house")
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return house.read(root)


@pytest.mark.parametrize("count", house.COUNTS, ids=lambda count: count.name)
def test_each_count_sees_what_it_counts(count, modules):
    expected = EXPECTED.get(count.name, sum(map(len, FILES.values())))
    assert count.value(count.places(modules)) == expected


def test_imports_of_types_in_functions_and_by_name_close_a_circle(modules):
    (circle,) = house.circles(modules)
    assert circle.startswith("4 files: mfdl.four, mfdl.one, mfdl.three, mfdl.two")


NOT_REACHED = {"files", "characters", "circles"}


def test_this_project_keeps_the_goals_that_it_has_reached():
    project = house.read(Path(house.__file__).resolve().parents[1])  # seconds, once
    counts = [count for count in house.COUNTS if count.goal is not None and count.name not in NOT_REACHED]
    places = {count.name: count.places(project) for count in counts}
    missed = {count.name: places[count.name] for count in counts if count.value(places[count.name]) > count.goal}
    assert not missed
    assert all(circle.startswith(("2 files", "3 files")) for circle in house.circles(project))


ACCOUNT = """
import mfdl
W = mfdl.gossip.metropolis_hastings("ring:n=4")
algorithm = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(W), mfdl.Cyclic(epochs=1, period=2))
own = mfdl.TrustModel.from_masks(seen=[[True, False, True, True]] * 2)
mfdl.account(algorithm, mfdl.Privacy(own, adjacency="zero-out", clip_norm=1.0), noise_std=1.0)
"""
REACH = """
import sys
ours = [module for name, module in list(sys.modules.items()) if name.split(".")[0] in ("mfdl", "mfdl_solvers")]
print(sum(len(open(module.__file__, encoding="utf-8").readlines()) for module in ours if module.__file__))
"""


@each("asked, lines", ("import mfdl.trust", 12_000), (ACCOUNT, 27_500), ids=["trust", "account"])
def test_a_trust_model_and_its_account_load_a_part_of_the_library(asked, lines):
    done = subprocess.run([sys.executable, "-c", asked + REACH], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= lines
