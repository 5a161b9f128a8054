"""The oracles of `mfdl.testing` compared with each other.

Every line of the table is one statement of `_oracle_statements.py` on which two oracles, or an oracle and the library,
must agree, tried on random cases. A case is drawn from numpy's generator seeded with (seed, statement, number), so it
can be drawn again. Statements that solve a program or integrate take a share of the cases. Any disagreement ends the
command with status 1.

    python experiments/oracle_agreement.py [--cases 10000] [--seed 0] [--jobs 2] [--only WORDS] [--out table.json]
"""

from __future__ import annotations

from _campaign import Excluded, Statement, Tally, run
from _campaign import compare as _compare
from _oracle_statements import STATEMENTS

__all__ = ["STATEMENTS", "Excluded", "Statement", "Tally", "compare"]


def compare(name: str, numbers: range, seed: int) -> Tally:
    """Tries the cases with these numbers."""
    return _compare(STATEMENTS, name, numbers, seed)


if __name__ == "__main__":
    raise SystemExit(run(STATEMENTS, __doc__.splitlines()[0], cases=10_000))
