"""A stand-in for FEMNIST: the digits of scikit-learn, 28 x 28 pixels, with writers, in a Parquet file of its format."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import sklearn.datasets
from PIL import Image


def digits_of_writers(num_writers, records_of_writer):
    """Images (N, 28, 28) uint8, characters (N,) and the names of their writers (N,), not in order of the alphabet."""
    digits = sklearn.datasets.load_digits()
    rows = np.arange(num_writers * records_of_writer)
    large = np.kron((15 * digits.images[rows]).astype(np.uint8), np.ones((3, 3), np.uint8))
    names = np.array([f"f{(7 * w + 3) % num_writers:04d}_{w}" for w in rows // records_of_writer])
    return np.pad(large, ((0, 0), (2, 2), (2, 2))), digits.target[rows], names


def png(image):
    content = io.BytesIO()
    Image.fromarray(image).save(content, "PNG")
    return content.getvalue()


def table_of(images, characters, writers):
    """The columns of flwrlabs/femnist."""
    columns = {"image": [{"bytes": png(image), "path": None} for image in images], "writer_id": writers}
    columns["hsf_id"] = np.zeros(len(writers), dtype=np.int64)
    return pa.table(columns | {"character": np.asarray(characters, dtype=np.int64)})


def put_femnist(data_home, num_writers=12, records_of_writer=20):
    """The stand-in at its place in a data folder, which is returned."""
    path = data_home / "femnist" / "train.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table_of(*digits_of_writers(num_writers, records_of_writer)), path)
    return data_home
