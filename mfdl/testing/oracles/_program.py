"""The value of a reference program, by cvxpy and Clarabel, or an error."""

from __future__ import annotations

import warnings
from typing import Any


def optimal_value(objective: Any, constraints: list[Any], *, inaccurate: bool = False) -> float:
    """Optimum of `cvxpy.Minimize` or `Maximize`, accurate to about 1e-7 of its scale.

    Raises: RuntimeError: the solver ends otherwise; inaccurate solutions count only where they are asked for.
    """
    import cvxpy as cp  # a second, which `import mfdl.testing` need not take

    program = cp.Problem(objective, constraints)
    with warnings.catch_warnings():  # the status says it
        warnings.simplefilter("ignore", UserWarning)
        program.solve(solver=cp.CLARABEL)
    if program.status not in ((cp.OPTIMAL, cp.OPTIMAL_INACCURATE) if inaccurate else (cp.OPTIMAL,)):
        raise RuntimeError(f"the reference solver ended with status {program.status!r}.")
    return float(program.value)
