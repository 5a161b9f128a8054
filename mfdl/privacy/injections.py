"""Plain gossip: a message is the model itself with injections of one sign; forms for hidden messages assume it."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from ..algorithms import LinearAlgorithm


def is_plain_gossip(algorithm: LinearAlgorithm) -> bool:
    """Whether m = s + Q (g + e) with Q diagonal and negative (m = s in further gossip rounds), s' = K m, models = s.

    Decided on the maps, never by name.
    """
    eye = sp.eye_array(algorithm.num_nodes, format="csr")

    def is_identity(matrix: sp.csr_array | None) -> bool:
        return matrix is not None and matrix.shape == eye.shape and (matrix != eye).nnz == 0

    if not algorithm.noise_enters_with_gradients or not is_identity(algorithm.model_from_state):
        return False
    of_steps = set(algorithm.kind_of_round[np.array(algorithm.step_of_round) >= 0].tolist())
    for number, kind in enumerate(algorithm.kinds):
        if kind.state_from_state is not None or kind.state_from_gradient is not None:
            return False
        Q = kind.message_from_gradient
        if not is_identity(kind.message_from_state) or kind.state_from_message is None:
            return False
        if Q is None and number in of_steps:
            return False
        if Q is not None and not (Q.nnz == np.count_nonzero(Q.diagonal()) and (Q.diagonal() < 0).all()):
            return False
    return True
