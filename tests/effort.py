"""How many examples a property is tried on, and which: a share at every change, all in the long suite.

MFDL_EFFORT=1 pytest        # `make test-all`, the mutation check
MFDL_SEED=7 pytest          # other examples, those of seed 7; without it the same ones in every run

A property that says nothing gets Hypothesis's 100, by the profile that `conftest.py` loads.
"""

import os

from hypothesis import settings

EFFORT = float(os.environ.get("MFDL_EFFORT", "0.05"))
FEWEST = 2
SEED = int(os.environ["MFDL_SEED"]) if os.environ.get("MFDL_SEED") else None


def examples(count: int) -> settings:
    """Settings of a property that deserves this many examples; no deadline, as the first call imports or compiles."""
    return settings(max_examples=max(min(count, FEWEST), round(EFFORT * count)), deadline=None)
