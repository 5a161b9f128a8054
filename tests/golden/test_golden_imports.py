"""The modules of the library that `import mfdl` loads, and the heavy ones that it does not."""

import json
import subprocess
import sys

from _stored import compare

HEAVY = ("cvxpy", "joblib", "matplotlib", "networkx", "numpy", "pandas", "pyarrow", "rich", "scipy", "sklearn", "torch")
CODE = f"""
import json, sys
before = set(sys.modules)
import mfdl
new = set(sys.modules) - before
ours = sorted(name for name in new if name.split(".")[0].startswith("mfdl"))
heavy = sorted({{name.split(".")[0] for name in new}} & set({HEAVY!r}))
print(json.dumps({{"modules": ours, "heavy": heavy}}))
"""


def test_what_import_mfdl_loads():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=True)
    compare("imports", json.loads(done.stdout))
