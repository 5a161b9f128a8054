"""Claims: a statement as a function from a case to (claimed bound, truth), and the search for its counterexample.

`claim` and `check_claim` are for yours; those of the papers are in `mfdl_papers`, run by `mfdl claims`.
"""

from ._claim import Claim, ClaimResult, Verdict, check_claim, claim
from ._describe import describe

__all__ = ["Claim", "ClaimResult", "Verdict", "check_claim", "claim", "describe"]
