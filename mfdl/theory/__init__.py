"""What the papers state: `facts` in one table, `bounds` of privacy, `rates` and constants of averaging, what `one_step`
does and `convergence` of many, `reduction` of a view to what is not redundant in it.

Nothing here decides a guarantee; it is there to be compared with.
"""

from __future__ import annotations

from types import ModuleType

from ..submodules import submodule


def __getattr__(name: str) -> ModuleType:
    return submodule(__name__, name)
