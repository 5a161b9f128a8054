"""The executor: the rounds of a LinearAlgorithm applied to torch tensors, by the maps that the accountant read.

Rounding must not come between gradient and noise. State + gradient in float32 lies on the grid of the state, which may
be coarser than the gradient: a record then moves the message by more than its clipped gradient, and noise added later
does not take that back. So noise is added first, in float64: fl(g + e) is a function of g + e, as are all that follow.
(Not so fl(g + fl(e)): shared noise may be a million times what hides a record, and g is then rounded to the grid of
that noise.) Where noise enters elsewhere (messages, as Zip-DL), the state is float64, and messages are rounded last.

The last bits of a product may depend on where its operands begin in memory: torch allocates at multiples of 64 bytes,
numpy at multiples of 16. A resumed run repeats its steps bit for bit, so tensors copy arrays and share no memory.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import scipy.sparse as sp
import torch

from .. import matrices
from ..algorithms import LinearAlgorithm
from ..check import FloatArray
from ..errors import InvalidInput
from ..operators import Map
from .distributed import Group, Share

COLUMNS_OF = {"gradient": "nodes", "noise": "injection slots"}
REUSED_BYTES = 2**25 - 2**16  # once freed, glibc reuses the memory of smaller blocks: fresh pages take twice as long
DENSE_ENTRIES = 512 * 512  # maps up to this many entries are applied dense: faster than sparse kernels


class _TorchMap:
    """A sparse map for (rows, dim) tensors: zero, diagonal, dense or csr, whichever is cheapest."""

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
            self.kind, self.data = "matrix", torch.tensor(matrix.toarray(), dtype=dtype, device=device)
        else:
            csr = sp.csr_array(matrix, copy=True)
            csr.sum_duplicates()  # torch needs sorted column indices
            self.kind = "matrix"
            # csr is beta, only its product with a dense matrix is used; its invariants are checked
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
                warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly disabled", UserWarning)
                rows, columns = (torch.tensor(part, dtype=torch.int64) for part in (csr.indptr, csr.indices))
                values = torch.tensor(csr.data, dtype=dtype)
                self.data = torch.sparse_csr_tensor(
                    rows, columns, values, csr.shape, device=device, check_invariants=True
                )

    def add_to(self, total: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor | None:
        if self.kind == "zero":
            return total
        if self.kind == "scale":
            if total is not None:
                return torch.add(total, x, alpha=self.scale)
            return x if self.scale == 1.0 else self.scale * x
        term = self.data * x if self.kind == "diagonal" else self.data @ x
        return term if total is None else total + term


def _applied(rows: int, *terms: tuple[_TorchMap, torch.Tensor]) -> torch.Tensor:  # sum of map @ x, (rows, dim)
    total = None
    for term, x in terms:
        total = term.add_to(total, x)
    return x.new_zeros(rows, x.shape[1]) if total is None else total


class Executor:
    """One algorithm on one device, or one rank's share of it; n, state, slots and messages count the rows of this rank.

    Args: dtype, device: of the models; group: the ranks that share it, default this process alone.
    """

    def __init__(
        self,
        algorithm: LinearAlgorithm,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        group: Group | None = None,
    ) -> None:
        self.algorithm, self.dtype, self.device = algorithm, dtype, torch.device(device)
        torch.empty(REUSED_BYTES, dtype=torch.uint8)  # freed at once, never written
        self.share = Share(algorithm, group or Group(), self.device)
        self.noise_on_gradients = algorithm.noise_enters_with_gradients
        self.state_dtype = dtype if self.noise_on_gradients else torch.float64
        torch_map = matrices.once(lambda matrix: _TorchMap(matrix, self.state_dtype, self.device))
        kinds = []
        for kind in algorithm.kinds:  # those that differ in one map share the rest
            maps, seen = self.share.round_maps(kind)
            kinds.append(SimpleNamespace(**{name: torch_map(matrix) for name, matrix in maps.items()}, seen=seen))
        self.rounds_of_step: list[list[SimpleNamespace]] = [[] for _ in range(algorithm.num_steps)]
        step = 0
        for kind, step_of_round in zip(algorithm.kind_of_round, algorithm.step_of_round, strict=True):
            step = step_of_round if step_of_round >= 0 else step  # a pure gossip round belongs to the step before it
            self.rounds_of_step[step].append(kinds[kind])
        start = algorithm.state_from_start
        start = sp.csr_array(algorithm.model_from_state.T) if start is None else start
        single = self.share.single_map
        sides = single(algorithm.model_from_state, "nodes", "state"), single(start, "state", "nodes")
        self._model, self._state_from_start = ((torch_map(matrix), seen) for matrix, seen in sides)

    def initial_state(self, models: torch.Tensor) -> torch.Tensor:
        matrix, seen = self._state_from_start
        return _applied(self.share.size("state"), (matrix, seen(models.to(self.state_dtype))))

    def models(self, state: torch.Tensor) -> torch.Tensor:
        matrix, seen = self._model
        return _applied(self.share.size("nodes"), (matrix, seen(state))).to(self.dtype)

    def step(
        self,
        t: int,
        state: torch.Tensor,
        gradients: torch.Tensor,
        noise: torch.Tensor | FloatArray,
        rule: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(messages of all rounds of step t, state after them) from gradient sums (n, dim) and noise (slots, dim).

        Noise is added in float64 and rounded with what it hides, both only read: of an array on a CPU in one pass.

        Args: rule: maps privatised sums to directions, where noise enters with gradients.
        Raises: InvalidInput: t is not a step of the algorithm, whose guarantee ends with the last one.
        """
        if not 0 <= t < len(self.rounds_of_step):
            raise InvalidInput(
                f"step must lie in [0, {len(self.rounds_of_step)}), got {t}: the algorithm was accounted for its "
                "own steps and no further; build a longer one."
            )
        sent, num_messages = [], self.share.size("messages")
        if self.noise_on_gradients:
            entering = {"noise": self._privatised(gradients, noise, rule)}
        else:
            entering = {"gradient": gradients.double(), "noise": self._wide(noise)}
        for kind in self.rounds_of_step[t]:
            seen = {name: kind.seen[COLUMNS_OF[name]](x) for name, x in entering.items()}
            seen_state = kind.seen["state"](state)
            to_message = [(getattr(kind, f"message_from_{name}"), x) for name, x in seen.items()]
            to_state = [(getattr(kind, f"state_from_{name}"), x) for name, x in seen.items()]
            messages = _applied(num_messages, (kind.message_from_state, seen_state), *to_message)
            sent.append(messages.to(self.dtype))
            received = kind.seen["messages"](sent[-1]).to(self.state_dtype)
            carried = (kind.state_from_message, received), (kind.state_from_state, seen_state)
            state = _applied(len(state), *carried, *to_state)
        return sent[0] if len(sent) == 1 else torch.cat(sent), state

    def _wide(self, noise: torch.Tensor | FloatArray) -> torch.Tensor:
        copy = noise if isinstance(noise, torch.Tensor) else torch.tensor(noise)
        return copy.to(self.device, torch.float64)

    def _privatised(
        self,
        gradients: torch.Tensor,
        noise: torch.Tensor | FloatArray,
        rule: Callable[[torch.Tensor], torch.Tensor] | None,
    ) -> torch.Tensor:
        """The float64 sum of gradients and noise, rounded once."""
        if rule is not None or self.device.type != "cpu":
            total = gradients.double() + self._wide(noise)
            return (total if rule is None else rule(total)).to(self.state_dtype)
        out = torch.empty_like(gradients, dtype=self.state_dtype)  # numpy casts piece by piece, torch whole tensors
        np.add(gradients.numpy(), np.asarray(noise), out=out.numpy(), dtype=np.float64, casting="same_kind")
        return out


class Releasing:
    """The running sum of a `ReleasedModel`, float64 (n, dim), None where the last models are released; its gossip."""

    def __init__(self, executor: Executor, dimension: int) -> None:
        algorithm = executor.algorithm
        self.executor, self.total = executor, None
        self.weights = algorithm.released.weights_by_step(algorithm.num_steps).tolist()
        if not algorithm.released.is_last:
            shape = executor.share.size("nodes"), dimension
            self.total = torch.zeros(shape, dtype=torch.float64, device=executor.device)

    def after(self, step: int, state: torch.Tensor) -> None:
        if self.total is not None and self.weights[step]:
            self.total += self.weights[step] * self.executor.models(state).double()

    def models(self, state: torch.Tensor) -> torch.Tensor:
        """The released models, from the state after the last step."""
        if self.total is None:
            return self.executor.models(state)
        algorithm, share = self.executor.algorithm, self.executor.share
        if not algorithm.released.rounds_of_gossip:
            return self.total.to(self.executor.dtype)
        released = share.gathered("nodes", self.total)
        for round_ in range(algorithm.released.rounds_of_gossip):
            W = algorithm.dynamics.gossip.at(algorithm.num_steps * algorithm.dynamics.gossip_rounds + round_).weights
            released = torch.tensor(W @ released.cpu().numpy(), device=released.device)
        return share.own_rows("nodes", released).to(self.executor.dtype)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
