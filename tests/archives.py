"""Files of mfdl as somebody edits them who knows the rule of the checksum, which guards against damage alone."""

import json

import numpy as np
import safetensors.numpy

from mfdl import archive


def parsed(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    text = json.loads(data[8 : 8 + size])["__metadata__"][archive.MARK]
    arrays = {name: np.array(array) for name, array in safetensors.numpy.load(data).items()}
    return json.loads(text[len(archive.BLANK) :]), arrays


def edited(path, change):
    """The path, its file written anew with header and arrays that `change` edited, under a checksum that fits."""
    header, arrays = parsed(path)
    change(header, arrays)
    path.write_bytes(archive.encoded(header, arrays))
    return path


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
