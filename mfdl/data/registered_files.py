"""The registry of public data files: each is fetched once, its checksum compared, and stored in the data folder.

In: the name of a file in the registry. Out: a verified path. Files of other libraries are `library_files`; downloads
are in `mfdl.files`.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import os
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import check, files
from ..check import FloatArray
from ..errors import InvalidInput, require_known, unknown_name
from ..files import reason, sha256
from .library_files import (
    ENVIRONMENT_VARIABLE,
    FEMNIST,
    FEMNIST_URL,
    HOUSING,
    HOUSING_URL,
    Folder,
    fetch_library_file,
    home,
    way_out,
)


@dataclass(frozen=True)
class DataFile:
    """One published file.

    Attributes:
        relative_path: where it lies below the data folder; also its name.
        urls: places to download it from, tried in this order.
        sha256: checksum of the file itself, of the member when it comes out of an archive.
        description: one line for `mfdl data list`.
        size: bytes of the file itself; 0: not known.
        archive_member: path inside the tar archive at `urls`, or None for a plain download.
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
_MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


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


REGISTRY: dict[str, DataFile] = {
    file.relative_path: file
    for file in (
        DataFile(
            "facebook/414.edges",
            ("https://snap.stanford.edu/data/facebook.tar.gz",),
            "1f5c9d43608a8cf6d56e27f1902f528cf7cf9ef1114afd3df7bc5888d7250fb1",
            "edges of one ego network of Facebook (SNAP user 414), the graph `ego-facebook`",
            27082,
            archive_member="facebook/414.edges",
        ),
        DataFile(
            "libsvm/a9a",
            (_LIBSVM + "a9a",),
            "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
            "a9a (Adult), 32,561 training records, 123 binary features",
            2329875,
        ),
        DataFile(
            "libsvm/a9a.t",
            (_LIBSVM + "a9a.t",),
            "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
            "a9a (Adult), 16,281 test records, 123 binary features",
            1164628,
        ),
        *(_mnist(name, *facts) for name, facts in _MNIST_FILES.items()),
    )
}

_OF_LIBRARIES = {
    file.relative_path: file
    for file in (
        DataFile(
            HOUSING,
            (HOUSING_URL,),
            "",
            "California housing, 20,640 records, 8 features (fetched by scikit-learn)",
            366871,
        ),
        DataFile(
            FEMNIST,
            (FEMNIST_URL,),
            "",
            "FEMNIST, about 814,000 characters by writer (fetched by flwr-datasets, the extra femnist)",
            0,
        ),
    )
}


def names() -> tuple[str, ...]:
    """Names of all files that `fetch` knows.

    >>> "facebook/414.edges" in names()
    True
    """
    return (*REGISTRY, *_OF_LIBRARIES)


def expand(wanted: Iterable[str]) -> tuple[str, ...]:
    """File names for names or folders of the registry, in order and without repetition.

    >>> expand(["libsvm", "libsvm/a9a"])
    ('libsvm/a9a', 'libsvm/a9a.t')

    Raises:
        InvalidInput: a name that is neither a file nor a folder of the registry.
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
    """Path of a registered file with the right content, downloaded first if it is not there.

    A download goes to a temporary name beside its place and is moved there only after its checksum agreed, so
    that neither an interrupted nor a wrong download can be taken for the file.

    Args:
        name: one of `names()`.
        data_home: the data folder, see `home`.

    Raises:
        InvalidInput: unknown name; a file with another content in its place; no place could deliver the file
            (each is named with its reason); the folder cannot be written.
    Cost: one pass over the file for its checksum, on every call.
    """
    folder = home(data_home)
    require_known("data file", name, names())
    if name in _OF_LIBRARIES:
        return fetch_library_file(name, folder)
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
    """Downloads the file to this path from the first of its places that delivers it."""
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
    """State of every file of the registry in the data folder; nothing is downloaded.

    Cost: one pass over each file that is there.
    """
    folder = home(data_home)
    rows = []
    for file in (*REGISTRY.values(), *_OF_LIBRARIES.values()):
        path = folder / file.relative_path
        present = path.is_file()
        verified = sha256(path) == file.sha256 if present and file.sha256 else None
        rows.append(FileStatus(file.relative_path, present, verified, file.size, file.description))
    return rows


A9A_FEATURES = 123
"""Of a9a; the largest index that occurs in a9a.t is 122, so the number cannot be read off each file."""


def a9a(part: Literal["train", "test"], data_home: Folder = None) -> tuple[FloatArray, NDArray[np.int64]]:
    """One file of a9a (Adult) as LIBSVM publishes it.

    Returns:
        Features of shape (32561, 123), for "test" (16281, 123), float64 zeros and ones; labels -1 and +1 of shape (N,).

    Raises:
        InvalidInput: another part; what `fetch` raises; a file that is not in LIBSVM's format.
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

    Returns:
        Images of shape (60000, 28, 28), for "test" (10000, 28, 28), uint8; labels 0 to 9 of shape (N,).

    Raises:
        InvalidInput: another part; what `fetch` and `read_idx` raise; images and labels of different number.
    """
    images, labels = (read_idx(fetch(name, data_home)) for name in mnist_files(part))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise InvalidInput(
            f"MNIST needs images (N, height, width) and N labels, got shapes {images.shape} and {labels.shape}."
        )
    return images, labels.astype(np.int64)


def read_idx(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """The array of bytes in an IDX file packed by gzip, the format of MNIST.

    Raises:
        InvalidInput: not gzip, not IDX, entries other than unsigned bytes, too few or too many of them.
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
