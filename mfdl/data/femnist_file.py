"""FEMNIST as Flower Datasets publishes it: one Parquet file in the data folder, fetched with the extra `femnist`.

In: the path of the file. Out: images, characters and writers. `library_files` says where it lies and fetches it.
The file has a row for each image and the columns `image` (a PNG of 28 x 28 grey pixels, as `bytes` of a struct),
`character` (0 to 61: digits, capital and small letters) and `writer_id`. Flower's library reports its use to Flower
unless FLWR_TELEMETRY_ENABLED=0 is set when it is imported; `download` sets it if it is not set.
"""

from __future__ import annotations

import io
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import check
from ..errors import InvalidInput
from ..extras import imported
from ..files import NotDelivered, reason

SOURCE = "flwrlabs/femnist"
"""The data set on huggingface.co."""
TELEMETRY = "FLWR_TELEMETRY_ENABLED"
"""Environment variable that flwr_datasets 0.5 reads at import: it sends telemetry to Flower if the value is "1"."""

CHARACTERS, PIXELS = 62, (28, 28)
COLUMNS = ("image", "character", "writer_id")


def download(target: Path, alternative: str) -> None:
    """Writes all rows to a Parquet file.

    Args: alternative: what else can be done, in words.
    Telemetry of Flower Datasets is off, unless the program has imported flwr_datasets before or sets TELEMETRY itself.
    Raises: MissingExtra: flwr-datasets is not installed; NotDelivered: it fails.
    """
    os.environ.setdefault(TELEMETRY, "0")
    flower = imported("flwr_datasets", f"fetching {SOURCE}", alternative)
    try:
        flower.FederatedDataset(dataset=SOURCE, partitioners={}, shuffle=False).load_split("train").to_parquet(
            str(target)
        )
    except Exception as error:  # of several libraries, by network, disk or format
        raise NotDelivered(reason(error)) from error


def read(path: Path, num_writers: int) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
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
        table = pq.read_table(path, columns=list(COLUMNS))
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
            f"with the columns {', '.join(COLUMNS)} of {SOURCE} on huggingface.co."
        ) from error
    return images, characters, numbers[rows].astype(np.int64)


def _pixels(png: Any) -> NDArray[np.uint8]:
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        pixels = np.asarray(image)
    if pixels.shape != PIXELS or pixels.dtype != np.uint8:
        raise ValueError(f"an image of shape {pixels.shape} and type {pixels.dtype}")
    return pixels
