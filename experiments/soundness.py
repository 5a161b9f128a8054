"""The soundness campaign: random algorithms, masks, participations and scales against exact fractions.

Every number of the accountant is compared with an oracle that shares no code with it (`_soundness_cases.py`): views
written out in rational arithmetic, all signs on all patterns, and runs whose gradients react. So are numbers of records
that several nodes hold (`_soundness_owners.py`) and bounds of encoders with structure (`_soundness_encoders.py`). A
number below the oracle's ends the command with status 1, which prints the smallest such case.

    python experiments/soundness.py [--cases 25000] [--seed 0] [--jobs 2] [--only WORDS] [--out table.json]
"""

from __future__ import annotations

import _soundness_bins
import _soundness_encoders
import _soundness_owners
import _soundness_patterns
import _soundness_training  # noqa: F401  registers its statements
from _campaign import run

STATEMENTS = (
    _soundness_encoders.STATEMENTS
    | _soundness_bins.STATEMENTS
    | _soundness_patterns.STATEMENTS
    | _soundness_owners.STATEMENTS
)

if __name__ == "__main__":
    raise SystemExit(run(STATEMENTS, __doc__.splitlines()[0], cases=25_000))
