"""The registry of public data files: each is fetched once, its checksum compared, and stored in the data folder.

California housing and FEMNIST are written by other libraries, without checksums: their bytes depend on the version.
FEMNIST is one Parquet file with the columns `image` (a PNG of 28 x 28 grey pixels), `character` (0 to 61) and
`writer_id`. pooch and scikit-learn are imported inside functions: `graphs`, which must be cheap to import, needs this.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import math
import os
import struct
import warnings
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from . import check, files
from .check import FloatArray
from .errors import InvalidInput, imported, require_known, unknown_name
from .files import NotDelivered, reason, sha256, temporary_beside
from .progress import SILENT, reporter

__all__ = ["a9a", "california_housing", "expand", "femnist", "fetch", "home", "mnist", "names", "status"]

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
    return (
        f"check the network, or put {missing_file} at {path}, or set {ENVIRONMENT_VARIABLE} or --data-home to a folder "
        f"that holds {name}."
    )


HOUSING, FEMNIST = "sklearn/cal_housing_py3.pkz", "femnist/train.parquet"
HOUSING_URL = "https://ndownloader.figshare.com/files/5976036"
FEMNIST_SOURCE = "flwrlabs/femnist"
TELEMETRY = "FLWR_TELEMETRY_ENABLED"
"""Environment variable that flwr_datasets 0.5 reads at import: it sends telemetry to Flower if the value is "1"."""

CHARACTERS, PIXELS = 62, (28, 28)
FEMNIST_COLUMNS = ("image", "character", "writer_id")

FEMNIST_WORDS = "FEMNIST, about 814,000 characters by writer (fetched by flwr-datasets, the extra femnist)"
FEMNIST_URL = f"https://huggingface.co/datasets/{FEMNIST_SOURCE}"


def california_housing(data_home: Folder = None) -> tuple[FloatArray, FloatArray, tuple[str, ...]]:
    """California housing as scikit-learn publishes it, from its cache, a pickle: use only a data folder you trust.

    Returns: features (20640, 8) float64, targets (20640,) float64 in units of 100,000 dollars, the 8 feature names.
    Raises: InvalidInput: the file is absent and cannot be downloaded, or it cannot be read.
    """
    from sklearn.datasets import fetch_california_housing  # a second to import

    folder = home(data_home)
    path = folder / HOUSING
    present = path.exists()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its retry warnings; the error below says it once
            with (SILENT if present else reporter()).status(f"fetching {HOUSING}"):
                once: dict[str, Any] = {"n_retries": 1, "delay": 0.5, "download_if_missing": not present}
                bunch = fetch_california_housing(data_home=str(path.parent), **once)
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

    Returns: images (N, 28, 28), uint8; characters 0 to 61, shape (N,), digits before capital and small letters; writers
        0 to num_writers - 1, shape (N,).
    Raises: InvalidInput: the file cannot be fetched (extra femnist) or read, or has fewer writers.
    """
    return read_femnist(_femnist_path(home(data_home)), num_writers)


def _femnist_path(folder: Path) -> Path:
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

    Telemetry of Flower Datasets is off, unless the program has imported flwr_datasets before or sets TELEMETRY itself.

    Raises: MissingExtra: flwr-datasets is not installed; NotDelivered: it fails.
    """
    os.environ.setdefault(TELEMETRY, "0")
    flower = imported("flwr_datasets", f"fetching {FEMNIST_SOURCE}", alternative)
    try:
        data = flower.FederatedDataset(dataset=FEMNIST_SOURCE, partitioners={}, shuffle=False)
        data.load_split("train").to_parquet(str(target))
    except Exception as error:  # of several libraries, by network, disk or format
        raise NotDelivered(reason(error)) from error


def read_femnist(path: Path, num_writers: int) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """`femnist` from a file, in the order of the file. Cost: about 50 microseconds an image.

    Raises: InvalidInput: no such file of FEMNIST, or fewer writers; MissingExtra: pyarrow is not installed.
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


@dataclass(frozen=True)
class DataFile:
    """One published file, below the data folder; urls are tried in this order; size in bytes, 0: unknown.

    sha256: of the file itself, or of the `archive_member` of the tar archive at `urls`.
    """

    relative_path: str
    urls: tuple[str, ...]
    sha256: str
    description: str
    size: int
    archive_member: str | None = None


class FileStatus(NamedTuple):
    """State of one file; `verified` is None when it is absent or has no checksum to compare with."""

    name: str
    present: bool
    verified: bool | None
    size: int
    description: str


_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")


_MNIST_FILES = {  # sha256, bytes
    "train-images-idx3": ("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9912422),
    "train-labels-idx1": ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28881),
    "t10k-images-idx3": ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1648877),
    "t10k-labels-idx1": ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4542),
}


def _mnist(name: str, sha256: str, size: int) -> DataFile:
    part, content, _ = name.split("-")
    description = f"MNIST, {'60,000 training' if part == 'train' else '10,000 test'} {content}"
    urls = tuple(f"{mirror}{name}-ubyte.gz" for mirror in _MNIST)
    return DataFile(f"mnist/{name}-ubyte.gz", urls, sha256, description, size)


def _by_name(*rows: tuple[Any, ...]) -> dict[str, DataFile]:
    return {row[0]: DataFile(*row) for row in rows}


_EGO, _A9A = "facebook/414.edges", "libsvm/a9a"
REGISTRY = _by_name(
    (
        _EGO, ("https://snap.stanford.edu/data/facebook.tar.gz",),
        "1f5c9d43608a8cf6d56e27f1902f528cf7cf9ef1114afd3df7bc5888d7250fb1",
        "edges of one ego network of Facebook (SNAP user 414), the graph `ego-facebook`", 27082, _EGO,
    ),
    (
        _A9A, (_LIBSVM + "a9a",), "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
        "a9a (Adult), 32,561 training records, 123 binary features", 2329875,
    ),
    (
        f"{_A9A}.t", (_LIBSVM + "a9a.t",), "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
        "a9a (Adult), 16,281 test records, 123 binary features", 1164628,
    ),
) | {f"mnist/{name}-ubyte.gz": _mnist(name, *facts) for name, facts in _MNIST_FILES.items()}  # fmt: skip

_OF_LIBRARIES = _by_name(
    (HOUSING, (HOUSING_URL,), "", "California housing, 20,640 records, 8 features (fetched by scikit-learn)", 366871),
    (FEMNIST, (FEMNIST_URL,), "", FEMNIST_WORDS, 0),
)


def names() -> tuple[str, ...]:
    return (*REGISTRY, *_OF_LIBRARIES)


def expand(wanted: Iterable[str]) -> tuple[str, ...]:
    """File names for names or folders of the registry, in order and without repetition.

    Raises: InvalidInput: a name that is neither a file nor a folder of the registry.

    >>> expand(["libsvm", "libsvm/a9a"])
    ('libsvm/a9a', 'libsvm/a9a.t')
    """
    folders = {name.partition("/")[0] for name in names()}
    expanded: dict[str, None] = {}
    for text in check.listed("names of data files", wanted=wanted):
        folder = check.text("'mnist'", wanted=text).rstrip("/")
        if text not in names() and folder not in folders:
            raise unknown_name("data file", text, (*names(), *folders))
        expanded.update(dict.fromkeys(name for name in names() if name == text or name.startswith(folder + "/")))
    return tuple(expanded)


def fetch(name: str, data_home: Folder = None) -> Path:
    """Path of a registered file with the right content, downloaded first if it is not there; hashed on every call.

    Args: name: one of `names()`; data_home: the data folder, see `home`.
    Raises: InvalidInput: unknown name; another content in its place; no source delivered it; a folder without access.
    Guarantees: no interrupted or wrong download is used.
    Cost: one pass over the file for its checksum, on every call.
    """
    folder = home(data_home)
    require_known("data file", name, names())
    if name == FEMNIST:
        return _femnist_path(folder)
    if name == HOUSING:
        california_housing(folder)
        return folder / HOUSING
    file = REGISTRY[name]
    path = folder / file.relative_path
    if not path.exists():
        _bring(file, path)
    elif (content := sha256(path)) != file.sha256:
        raise InvalidInput(
            f"{path} is not the published {name}: expected sha256 {file.sha256}, got {content}; delete it "
            f"and fetch it again, or choose another folder with {ENVIRONMENT_VARIABLE} or --data-home."
        )
    return path


def _bring(file: DataFile, path: Path) -> None:
    failures = []
    with contextlib.ExitStack() as until_the_end:
        try:
            arrived, member = (until_the_end.enter_context(files.temporary_beside(path)) for _ in range(2))
        except OSError as error:
            raise InvalidInput(
                f"the data folder {path.parent} cannot be written ({reason(error)}); set {ENVIRONMENT_VARIABLE} "
                f"or --data-home to a folder you can write, or one that holds {path.name}."
            ) from error
        for url in file.urls:
            try:
                files.download(url, arrived)
                if file.archive_member is not None:
                    files.extract(arrived, file.archive_member, member)
            except files.NotDelivered as failed:
                failures.append(f"{url}: {failed}")
                continue
            ready = arrived if file.archive_member is None else member
            content = sha256(ready)
            if content == file.sha256:
                os.replace(ready, path)
                return
            failures.append(f"{url}: wrong content, expected sha256 {file.sha256}, got {content}")
    raise InvalidInput(
        f"could not fetch {file.relative_path} ({'; '.join(failures)}); "
        + way_out("the file", path, file.relative_path)
    )


def status(data_home: Folder = None) -> list[FileStatus]:
    """State of every file of the registry in the data folder; nothing is downloaded. Cost: one pass over each file."""
    folder = home(data_home)
    rows = []
    for file in (*REGISTRY.values(), *_OF_LIBRARIES.values()):
        path = folder / file.relative_path
        present = path.is_file()
        verified = sha256(path) == file.sha256 if present and file.sha256 else None
        rows.append(FileStatus(file.relative_path, present, verified, file.size, file.description))
    return rows


A9A_FEATURES = 123  # Features of a9a; the largest index in a9a.t is 122


def a9a(part: Literal["train", "test"], data_home: Folder = None) -> tuple[FloatArray, NDArray[np.int64]]:
    """One file of a9a (Adult) as LIBSVM publishes it.

    Returns: features (32561, 123), for "test" (16281, 123), float64 zeros and ones; labels -1 and +1 of shape (N,).
    """
    from sklearn.datasets import load_svmlight_file  # a second to import

    parts = {"train": "libsvm/a9a", "test": "libsvm/a9a.t"}
    require_known("part of a9a", str(part), parts)
    path = fetch(parts[part], data_home)
    try:
        features, labels = load_svmlight_file(str(path), n_features=A9A_FEATURES)
    except ValueError as error:
        raise InvalidInput(f"{path} is not in LIBSVM's format ({reason(error)}).") from error
    return np.asarray(features.toarray(), dtype=np.float64), np.asarray(labels, dtype=np.int64)


def mnist_files(part: Literal["train", "test"]) -> tuple[str, str]:
    """Registry names of the images and the labels of one part of MNIST.

    >>> mnist_files("test")
    ('mnist/t10k-images-idx3-ubyte.gz', 'mnist/t10k-labels-idx1-ubyte.gz')
    """
    prefixes = {"train": "train", "test": "t10k"}
    require_known("part of MNIST", str(part), prefixes)
    return f"mnist/{prefixes[part]}-images-idx3-ubyte.gz", f"mnist/{prefixes[part]}-labels-idx1-ubyte.gz"


def mnist(part: Literal["train", "test"], data_home: Folder = None) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """One part of MNIST as published.

    Returns: images (60000, 28, 28), for "test" (10000, 28, 28), uint8; labels 0 to 9 of shape (N,).
    """
    images, labels = (read_idx(fetch(name, data_home)) for name in mnist_files(part))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise InvalidInput(
            f"MNIST needs images (N, height, width) and N labels, got shapes {images.shape} and {labels.shape}."
        )
    return images, labels.astype(np.int64)


def read_idx(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """The array of bytes in an IDX file packed by gzip, the format of MNIST.

    Raises: InvalidInput: not gzip, not IDX, entries other than unsigned bytes, too few or too many of them.
    """
    try:
        with gzip.open(check.path(path=path)) as stream:
            content = stream.read()
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"{path} cannot be read as gzip ({reason(error)}); fetch it again.") from error
    # Two zero bytes, the type (8: unsigned byte), the number of dimensions, then each dimension as a big-endian int.
    if len(content) < 4 or content[:3] != b"\0\0\x08" or len(content) < 4 + 4 * content[3]:
        raise InvalidInput(
            f"{path} is not an IDX file of unsigned bytes, it starts with {content[:4].hex() or 'nothing'}."
        )
    start = 4 + 4 * content[3]
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise InvalidInput(f"{path} must hold {math.prod(shape)} bytes for shape {shape}, got {len(content) - start}.")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def __dir__() -> list[str]:
    return sorted(__all__)
