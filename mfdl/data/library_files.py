"""Data sets whose files other libraries download, check and write: California housing and FEMNIST.

In: the data folder. Out: the arrays as published; the file is fetched first if it is not there. The bytes of these
files depend on the version of the library: there are no published checksums to compare with.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .. import files
from ..check import FloatArray
from ..errors import InvalidInput
from ..files import reason
from ..progress import SILENT, reporter
from . import femnist_file
from .data_folder import ENVIRONMENT_VARIABLE, Folder, home, way_out

HOUSING, FEMNIST = "sklearn/cal_housing_py3.pkz", "femnist/train.parquet"
HOUSING_URL = "https://ndownloader.figshare.com/files/5976036"
FEMNIST_URL = f"https://huggingface.co/datasets/{femnist_file.SOURCE}"


def fetch_library_file(name: str, folder: Path) -> Path:
    """The path of `HOUSING` or `FEMNIST`, fetched first if it is not there."""
    if name == FEMNIST:
        return _femnist_path(folder)
    california_housing(folder)
    return folder / HOUSING


def california_housing(
    data_home: Folder = None,
) -> tuple[FloatArray, FloatArray, tuple[str, ...]]:
    """California housing as scikit-learn publishes it.

    scikit-learn keeps its cache as a pickle, and reading a pickle can run code: use only a data folder you
    trust.

    Returns:
        Features of shape (20640, 8) float64, targets of shape (20640,) float64 (median house value in units
        of 100,000 dollars), and the 8 feature names.

    Raises:
        InvalidInput: the file is absent and cannot be downloaded, or it cannot be read.
    """
    from sklearn.datasets import fetch_california_housing  # a second to import

    folder = home(data_home)
    path = folder / HOUSING
    present = path.exists()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its retry warnings; the error below says it once
            with (SILENT if present else reporter()).status(f"fetching {HOUSING}"):
                bunch = fetch_california_housing(
                    data_home=str(path.parent), download_if_missing=not present, n_retries=1, delay=0.5
                )
        features = np.ascontiguousarray(bunch.data, dtype=np.float64)
        targets = np.ascontiguousarray(bunch.target, dtype=np.float64)
        if features.shape != (20640, 8) or targets.shape != (20640,):
            raise ValueError(f"shapes {features.shape} and {targets.shape}")
    except Exception as error:  # a damaged pickle can raise anything
        if present:
            raise InvalidInput(
                f"{path} cannot be read as California housing ({reason(error)}); delete it and fetch it "
                f"again, or choose another folder with {ENVIRONMENT_VARIABLE} or --data-home."
            ) from error
        raise InvalidInput(
            f"could not fetch {HOUSING} ({HOUSING_URL}: {reason(error)}); "
            + way_out("scikit-learn's cached file", path, HOUSING)
        ) from error
    return features, targets, tuple(bunch.feature_names)


def femnist(
    num_writers: int, data_home: Folder = None
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """The records of the first writers of FEMNIST, as Flower Datasets publishes it.

    Returns:
        Images of shape (N, 28, 28), uint8; characters 0 to 61 of shape (N,), digits before capital and small letters;
        the writer of each record, 0 to num_writers - 1, shape (N,).

    Raises:
        InvalidInput: the file is absent and cannot be fetched (which needs the extra femnist), cannot be read, or has
            fewer writers.
    """
    return femnist_file.read(_femnist_path(home(data_home)), num_writers)


def _femnist_path(folder: Path) -> Path:
    """Of the file, fetched first if it is not there."""
    path = folder / FEMNIST
    if not path.is_file():
        try:
            with files.temporary_beside(path) as arrived, reporter().status(f"fetching {FEMNIST}"):
                femnist_file.download(arrived, f"put the Parquet file of its training split at {path}")
                os.replace(arrived, path)
        except (files.NotDelivered, OSError) as failed:
            raise InvalidInput(
                f"could not fetch {FEMNIST} ({FEMNIST_URL}: {failed}); "
                + way_out("the Parquet file of its training split", path, FEMNIST)
            ) from failed
    return path
