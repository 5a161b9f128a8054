"""How many threads linear algebra gets: the rule of `mfdl_solvers.threads`, which knows nothing of this package."""

from mfdl_solvers.threads import blas_threads

__all__ = ["blas_threads"]
