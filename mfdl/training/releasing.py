"""What a run releases, summed up while it trains: no model is kept longer than its step."""

from __future__ import annotations

import torch

from .executor import Executor


class Releasing:
    """The running sum of a `Released` in float64, and its gossip at the end.

    Attributes: total: sum of a_r theta_{r+1} so far, of the executor's nodes, shape (n, dim); None where the last
        models are released.
    """

    def __init__(self, executor: Executor, dimension: int) -> None:
        algorithm = executor.algorithm
        self.executor, self.total = executor, None
        self.weights = algorithm.released.of_steps(algorithm.num_steps).tolist()
        if not algorithm.released.is_last:
            shape = executor.share.size("nodes"), dimension
            self.total = torch.zeros(shape, dtype=torch.float64, device=executor.device)

    def after(self, step: int, state: torch.Tensor) -> None:
        """Takes in the models after a step."""
        if self.total is not None and self.weights[step]:
            self.total += self.weights[step] * self.executor.models(state).double()

    def models(self, state: torch.Tensor) -> torch.Tensor:
        """What is released after the last step, from the state then; shape (n, dim), of the executor's dtype."""
        if self.total is None:
            return self.executor.models(state)
        algorithm, share = self.executor.algorithm, self.executor.share
        if not algorithm.released.rounds_of_gossip:
            return self.total.to(self.executor.dtype)
        released = share.gathered("nodes", self.total)
        for round_ in range(algorithm.released.rounds_of_gossip):
            W = algorithm.dynamics.gossip.at(algorithm.num_steps * algorithm.dynamics.gossip_rounds + round_).weights
            released = torch.as_tensor(W @ released.cpu().numpy(), device=released.device)
        return share.own("nodes", released).to(self.executor.dtype)
