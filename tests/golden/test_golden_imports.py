"""The modules of the library that `import mfdl` loads, and the heavy packages that each start loads."""

import json
import subprocess
import sys

from _stored import compare

HEAVY = (
    "cvxpy", "flint", "joblib", "matplotlib", "networkx", "numpy", "pandas", "pyarrow", "rich", "scipy", "scipy.fft",
    "scipy.optimize", "scipy.spatial", "sklearn", "sympy", "torch", "torch._dynamo",
)  # fmt: skip
STARTS = {
    "import mfdl": "import mfdl",
    **{
        f"mfdl {words}": f"from mfdl.commands import main; main({words.split()!r})"
        for words in ("--version", "--help", "account --help", "account", "graph inspect sites.edges")
    },
}
TRAINING = """
import mfdl
W = mfdl.gossip.metropolis_hastings("ring:n=4")
privacy = mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=1.0)
mechanism = mfdl.calibrate(mfdl.algorithms.dp_dsgd(mfdl.Dynamics(W, 0.1), mfdl.Cyclic(2, 1)), privacy, mu=1.0)
for task in (mfdl.tasks.load("logistic:dimension=3,train_records=40", 4), mfdl.tasks.least_squares(4, dimension=3)):
    mfdl.replay(mechanism, task, seeds=[0], progress=False)
"""
STARTS["training"] = TRAINING
CODE = f"""
import contextlib, io, json, sys
before = set(sys.modules)
with contextlib.redirect_stdout(io.StringIO()):
    exec(sys.argv[1])
new = set(sys.modules) - before
ours = sorted(name for name in new if name.split(".")[0].startswith("mfdl"))
print(json.dumps({{"modules": ours, "heavy": [name for name in {HEAVY!r} if name in new]}}))
"""


def test_what_each_start_loads(tmp_path):
    (tmp_path / "sites.edges").write_text("a b\nb c\n", encoding="utf-8")
    loaded = {}
    for start, code in STARTS.items():
        ran = [sys.executable, "-c", CODE, code]
        done = subprocess.run(ran, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
        loaded[start] = json.loads(done.stdout)
    heavy = {start: " ".join(each["heavy"]) for start, each in loaded.items()}
    compare("imports", {"modules of import mfdl": loaded["import mfdl"]["modules"], "heavy": heavy})
