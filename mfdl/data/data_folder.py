"""The folder of data files: `data_home=` (command line `--data-home`), else `MFDL_DATA`, else the user's cache folder.

A file that is already there is used without network, also from a read-only folder. pooch is imported inside a function:
importing it costs more than this whole package.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from .. import check

ENVIRONMENT_VARIABLE = "MFDL_DATA"

Folder: TypeAlias = str | os.PathLike[str] | None


def home(data_home: Folder = None) -> Path:
    """The data folder: the argument, else `MFDL_DATA`, else the user's cache folder. It need not exist.

    >>> home("somewhere").name
    'somewhere'
    """
    if data_home is not None:
        return check.path(data_home=data_home).expanduser()
    if from_environment := os.environ.get(ENVIRONMENT_VARIABLE):
        return Path(from_environment).expanduser()
    import pooch

    return Path(pooch.os_cache("mfdl"))


def way_out(missing_file: str, path: Path, name: str) -> str:
    """What a user can do about a file that cannot be fetched."""
    return (
        f"check the network, or put {missing_file} at {path}, or set {ENVIRONMENT_VARIABLE} or --data-home to a folder "
        f"that holds {name}."
    )
