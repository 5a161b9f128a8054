"""The thin executor: the rounds of a LinearAlgorithm applied to torch tensors, all nodes at once.

It holds no algorithm of its own: state, messages and models follow from the maps the accountant read.

Rounding must not come between gradient and noise. State + gradient in float32 lies on the grid of the state, which may
be coarser than the gradient: a record then moves the message by more than its clipped gradient, up to several times
in large models with a small learning rate, and noise added later does not take that back. So noise is added first:
fl(g + e) is a function of g + e, as are all that follow, and nothing is lost. Where an algorithm noises something else
than its gradients (messages, as Zip-DL), its state is kept in float64, and messages are rounded last.
"""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import scipy.sparse as sp
import torch

from ..algorithms import LinearAlgorithm, Round
from ..errors import InvalidInput
from ..operators.recursion import Map

DENSE_ENTRIES = 512 * 512  # maps up to this many entries are applied dense: faster than sparse kernels


class _TorchMap:
    """A sparse map ready for (rows, dim) tensors: zero, diagonal, dense or csr, whichever is cheapest."""

    def __init__(self, matrix: Map, dtype: torch.dtype, device: torch.device) -> None:
        self.kind, self.data = "zero", torch.empty(0)
        if matrix is None or matrix.nnz == 0:
            return
        m, n = matrix.shape
        diagonal = matrix.diagonal()
        if m == n and np.count_nonzero(diagonal) == np.count_nonzero(matrix.data):
            uniform = bool((diagonal == diagonal[0]).all())
            self.kind = "scale" if uniform else "diagonal"
            self.scale = float(diagonal[0])
            self.data = torch.tensor(diagonal[:, None], dtype=dtype, device=device)
        elif m * n <= DENSE_ENTRIES:
            self.kind, self.data = "matrix", torch.as_tensor(matrix.toarray(), dtype=dtype, device=device)
        else:
            csr = sp.csr_array(matrix, copy=True)
            csr.sum_duplicates()  # torch needs sorted column indices
            self.kind = "matrix"
            with warnings.catch_warnings():  # torch calls csr beta; only the product with a dense matrix is used
                warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
                self.data = torch.sparse_csr_tensor(
                    torch.tensor(csr.indptr.astype(np.int64)),
                    torch.tensor(csr.indices.astype(np.int64)),
                    torch.tensor(csr.data, dtype=dtype),
                    size=csr.shape,
                    device=device,
                    check_invariants=True,
                )

    def add_to(self, total: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor | None:
        """total + map @ x, with None for zero."""
        if self.kind == "zero":
            return total
        if self.kind == "scale":
            if total is not None:
                return torch.add(total, x, alpha=self.scale)
            return x if self.scale == 1.0 else self.scale * x
        term = self.data * x if self.kind == "diagonal" else self.data @ x
        return term if total is None else total + term


@dataclasses.dataclass(frozen=True, eq=False)
class _TorchRound:
    message_from_state: _TorchMap
    message_from_gradient: _TorchMap
    message_from_noise: _TorchMap
    state_from_message: _TorchMap
    state_from_state: _TorchMap
    state_from_gradient: _TorchMap
    state_from_noise: _TorchMap


class Executor:
    """One algorithm on one device.

    Args: algorithm: what runs; dtype, device: of the models.
    """

    def __init__(
        self,
        algorithm: LinearAlgorithm,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.algorithm, self.dtype, self.device = algorithm, dtype, torch.device(device)
        self.noise_on_gradients = algorithm.noise_enters_with_gradients
        self.state_dtype = dtype if self.noise_on_gradients else torch.float64
        # by identity (the map itself is kept, so no other can get its id): rounds that differ in one map share the rest
        self._made: dict[int, tuple[Map, _TorchMap]] = {}
        kinds = [self._round(kind) for kind in algorithm.kinds]
        self.rounds_of_step: list[list[_TorchRound]] = [[] for _ in range(algorithm.num_steps)]
        step = 0
        for kind, own in zip(algorithm.kind_of_round, algorithm.step_of_round, strict=True):
            step = own if own >= 0 else step  # a pure gossip round belongs to the step before it
            self.rounds_of_step[step].append(kinds[kind])
        self._model = self._map(algorithm.model_from_state)
        start = algorithm.state_from_start
        self._state_from_start = self._map(sp.csr_array(algorithm.model_from_state.T) if start is None else start)

    def _map(self, matrix: Map) -> _TorchMap:
        if id(matrix) not in self._made:
            self._made[id(matrix)] = matrix, _TorchMap(matrix, self.state_dtype, self.device)
        return self._made[id(matrix)][1]

    def _round(self, one: Round) -> _TorchRound:
        return _TorchRound(**{f.name: self._map(getattr(one, f.name)) for f in dataclasses.fields(_TorchRound)})

    def initial_state(self, models: torch.Tensor) -> torch.Tensor:
        """State before step 0 from the start models, shape (n, dim); of type `state_dtype`."""
        models = models.to(self.state_dtype)
        size = self.algorithm.model_from_state.shape[1]
        return self._or_zero(self._state_from_start.add_to(None, models), size, models)

    def models(self, state: torch.Tensor) -> torch.Tensor:
        """Models held in a state, shape (n, dim)."""
        models = self._or_zero(self._model.add_to(None, state), self.algorithm.num_nodes, state)
        return models.to(self.dtype)

    @staticmethod
    def _or_zero(total: torch.Tensor | None, rows: int, like: torch.Tensor) -> torch.Tensor:
        return like.new_zeros(rows, like.shape[1]) if total is None else total

    def step(
        self, t: int, state: torch.Tensor, gradients: torch.Tensor, noise: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(messages of all rounds of step t, state after them) from gradient sums (n, dim) and noise (slots, dim).

        Raises: InvalidInput: t is not a step of the algorithm, whose guarantee ends with the last one.
        """
        if not 0 <= t < len(self.rounds_of_step):
            raise InvalidInput(
                f"step must lie in [0, {len(self.rounds_of_step)}), got {t}: the algorithm was accounted for its "
                "own steps and no further; build a longer one."
            )
        sent = []
        gradients, noise = gradients.to(self.state_dtype), noise.to(self.state_dtype)
        noisy = gradients + noise if self.noise_on_gradients else None
        for one in self.rounds_of_step[t]:
            messages = one.message_from_state.add_to(None, state)
            if noisy is None:
                messages = one.message_from_gradient.add_to(messages, gradients)
                messages = one.message_from_noise.add_to(messages, noise)
            else:
                messages = one.message_from_noise.add_to(messages, noisy)
            messages = self._or_zero(messages, self.algorithm.messages_per_round, state).to(self.dtype)
            after = one.state_from_message.add_to(None, messages.to(self.state_dtype))
            after = one.state_from_state.add_to(after, state)
            if noisy is None:
                after = one.state_from_gradient.add_to(after, gradients)
                after = one.state_from_noise.add_to(after, noise)
            else:
                after = one.state_from_noise.add_to(after, noisy)
            sent.append(messages)
            state = self._or_zero(after, len(state), state)
        return sent[0] if len(sent) == 1 else torch.cat(sent), state
