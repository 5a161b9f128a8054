"""Modules as attributes of their package, imported when they are first used, so that `import mfdl` alone names them.

In: a package and a name. Out: the module. What a package lists in `__all__` does not come from here.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType


def submodule(package: str, name: str) -> ModuleType:
    """For a package's `__getattr__`: its module of that name.

    Raises: AttributeError: it has none, or a private one.
    """
    path = f"{package}.{name}"
    if name.startswith("_") or importlib.util.find_spec(path) is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return importlib.import_module(path)
