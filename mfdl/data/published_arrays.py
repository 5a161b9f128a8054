"""a9a and MNIST as published: the arrays that their registered files hold.

In: a part of a data set, the data folder. Out: features or images, and labels, neither split nor scaled: that is for
the training tasks.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .. import check
from ..check import FloatArray
from ..errors import InvalidInput, require_known
from ..files import reason
from .data_folder import Folder
from .registered_files import fetch

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
