"""Data sets whose files other libraries download, check and write: California housing and FEMNIST.

In: the data folder. Out: the arrays as published; the file is fetched first if it is not there. The bytes of these
files depend on the version of the library: there are no published checksums to compare with.

FEMNIST, as Flower Datasets publishes it, is one Parquet file with a row for each image and the columns `image` (a PNG
of 28 x 28 grey pixels, as `bytes` of a struct), `character` (0 to 61) and `writer_id`. Flower's library reports its use
to Flower unless FLWR_TELEMETRY_ENABLED=0 is set when it is imported; `download_femnist` sets it if it is not set.

The data folder is `data_home=`, else `MFDL_DATA`, else the user's cache folder; files already there need no network.
pooch is imported inside a function: importing it costs more than this whole package.
"""

from __future__ import annotations

import io
import os
import warnings
import zlib
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput, imported
from ..files import NotDelivered, reason, temporary_beside
from ..progress import SILENT, reporter

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


HOUSING, FEMNIST = "sklearn/cal_housing_py3.pkz", "femnist/train.parquet"
HOUSING_URL = "https://ndownloader.figshare.com/files/5976036"
FEMNIST_SOURCE = "flwrlabs/femnist"
"""The data set on huggingface.co."""
TELEMETRY = "FLWR_TELEMETRY_ENABLED"
"""Environment variable that flwr_datasets 0.5 reads at import: it sends telemetry to Flower if the value is "1"."""

CHARACTERS, PIXELS = 62, (28, 28)
FEMNIST_COLUMNS = ("image", "character", "writer_id")

FEMNIST_URL = f"https://huggingface.co/datasets/{FEMNIST_SOURCE}"


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
    return read_femnist(_femnist_path(home(data_home)), num_writers)


def _femnist_path(folder: Path) -> Path:
    """Of the file, fetched first if it is not there."""
    path = folder / FEMNIST
    if not path.is_file():
        try:
            with temporary_beside(path) as arrived, reporter().status(f"fetching {FEMNIST}"):
                download_femnist(arrived, f"put the Parquet file of its training split at {path}")
                os.replace(arrived, path)
        except (NotDelivered, OSError) as failed:
            raise InvalidInput(
                f"could not fetch {FEMNIST} ({FEMNIST_URL}: {failed}); "
                + way_out("the Parquet file of its training split", path, FEMNIST)
            ) from failed
    return path


def download_femnist(target: Path, alternative: str) -> None:
    """Writes all rows to a Parquet file.

    Args: alternative: what else can be done, in words.
    Telemetry of Flower Datasets is off, unless the program has imported flwr_datasets before or sets TELEMETRY itself.
    Raises: MissingExtra: flwr-datasets is not installed; NotDelivered: it fails.
    """
    os.environ.setdefault(TELEMETRY, "0")
    flower = imported("flwr_datasets", f"fetching {FEMNIST_SOURCE}", alternative)
    try:
        flower.FederatedDataset(dataset=FEMNIST_SOURCE, partitioners={}, shuffle=False).load_split("train").to_parquet(
            str(target)
        )
    except Exception as error:  # of several libraries, by network, disk or format
        raise NotDelivered(reason(error)) from error


def read_femnist(path: Path, num_writers: int) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """The records of the first writers of the file.

    Args: num_writers: how many, in the order in which they appear.
    Returns: images (N, 28, 28), characters (N,) and the number of the writer (N,), in the order of the file.
    Raises: InvalidInput: no such file of FEMNIST, or fewer writers; MissingExtra: pyarrow is not installed.
    Cost: about 50 microseconds an image.
    """
    imported("pyarrow", f"reading {path}")
    import pyarrow as pa
    import pyarrow.parquet as pq

    num_writers = check.integer_at_least(1, num_writers=num_writers)
    try:
        table = pq.read_table(path, columns=list(FEMNIST_COLUMNS))
        ids, writers = np.unique(table["writer_id"].to_numpy(), return_inverse=True)
        first = np.full(len(ids), len(writers))
        np.minimum.at(first, writers, np.arange(len(writers)))
        numbers = np.argsort(np.argsort(first))[writers]  # exact: integers
        if len(ids) < num_writers:
            raise InvalidInput(
                f"{path} has records of {len(ids)} writers, and {num_writers} are needed; take a smaller graph, fewer "
                "writers for each node, or a file with more."
            )
        rows = np.flatnonzero(numbers < num_writers)
        table = table.take(rows)
        images = np.stack([_pixels(row["bytes"]) for row in table["image"].to_pylist()])
        characters = table["character"].to_numpy().astype(np.int64)
        if not 0 <= characters.min() <= characters.max() < CHARACTERS:
            raise ValueError(f"characters from {characters.min()} to {characters.max()}")
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError, SyntaxError, zlib.error) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(
            f"{path} cannot be read as FEMNIST ({reason(error)}); it must be a Parquet file "
            f"with the columns {', '.join(FEMNIST_COLUMNS)} of {FEMNIST_SOURCE} on huggingface.co."
        ) from error
    return images, characters, numbers[rows].astype(np.int64)


def _pixels(png: Any) -> NDArray[np.uint8]:
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        pixels = np.asarray(image)
    if pixels.shape != PIXELS or pixels.dtype != np.uint8:
        raise ValueError(f"an image of shape {pixels.shape} and type {pixels.dtype}")
    return pixels
