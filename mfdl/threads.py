"""How many threads linear algebra gets: the rule of `mfdl_solvers.arithmetic`, which knows nothing of this package."""

from mfdl_solvers.arithmetic import blas_threads

__all__ = ["blas_threads"]
