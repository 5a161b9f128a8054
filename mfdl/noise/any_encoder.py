"""The noise C^-1 of an encoder in any form: whose it is follows from which nodes use which columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

from mfdl_solvers.encoders import Encoder

from ..entries import to_dense
from ..errors import InvalidInput, UnsupportedMechanism
from .base import NoiseOperator
from .causal import MAX_JOINT_SIZE, JointNoise, LocalNoise


def is_encoder(given: Any) -> bool:
    """Whether a value is C: an array, a sparse matrix, an operator, an encoder with structure, or a result with one."""
    if isinstance(given, NoiseOperator):
        return False
    kinds = np.ndarray | list | LinearOperator | Encoder
    return isinstance(given, kinds) or sp.issparse(given) or hasattr(given, "encoder")


def encoded_noise(encoder: Any, num_steps: int, num_nodes: int) -> NoiseOperator:
    """C^-1: each node's own noise if C does not join nodes, else noise held by all nodes that use it."""
    given: Any = getattr(encoder, "encoder", encoder)
    if isinstance(encoder, NoiseOperator):
        raise InvalidInput(
            f"encoder must be C, got the noise {encoder.kind}, which is C^-1; mfdl.algorithms.from_maps takes a noise."
        )
    if sp.issparse(given) or isinstance(given, LinearOperator):
        if max(given.shape) > MAX_JOINT_SIZE:
            raise UnsupportedMechanism(
                f"an encoder as a sparse matrix or an operator is written out, up to {MAX_JOINT_SIZE} rows, got "
                f"{given.shape}; encoders with structure (mfdl.factorization.encoders) are not."
            )
        given = given.toarray() if sp.issparse(given) else to_dense(given)
    if num_nodes == 1 or isinstance(given, Encoder) or np.shape(given) != (num_steps * num_nodes,) * 2:
        return LocalNoise(given, num_nodes)
    joint = JointNoise(given, num_steps, num_nodes, holders="use")
    if joint.holders().nnz > num_nodes or not joint.holders().diagonal().all():
        return joint
    blocks = np.einsum("tusu->uts", joint.encoder.array.reshape((num_steps, num_nodes) * 2))
    return LocalNoise(blocks[0] if (blocks == blocks[0]).all() else blocks, num_nodes)
