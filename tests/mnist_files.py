"""Files of the format of MNIST with images of a test, in a data folder that does not reach the network."""

import dataclasses
import gzip
import hashlib
import struct

import numpy as np

from mfdl import data


def idx(array, kind=8) -> bytes:
    """The content of an IDX file."""
    header = bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0)


def register_mnist(monkeypatch, folder, images, labels, num_train):
    """Registers the first `num_train` images as training images and the rest as test images.

    Returns: a function that puts files of some names into the data folder, which it returns.
    """
    contents = {}
    for part, rows in (("train", slice(0, num_train)), ("test", slice(num_train, None))):
        for name, array in zip(data.mnist_files(part), (images[rows], labels[rows]), strict=True):
            contents[name] = idx(array)
    for name, content in contents.items():
        changes = {"urls": ("http://127.0.0.1:9/x",), "sha256": hashlib.sha256(content).hexdigest()}
        file = dataclasses.replace(data.REGISTRY[name], **changes)
        monkeypatch.setitem(data.REGISTRY, name, file)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (folder / "mnist").mkdir()

    def put(*names):
        for name in names:
            (folder / name).write_bytes(contents[name])
        return folder

    return put
