"""What is public and equal at all nodes: mechanism, graph, data split, run id.

In: the name of a mechanism, steps, a nonce. Out: a `Setting`, from which each node makes itself.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import mfdl
from mfdl import PrivateNode, files
from mfdl.mechanism import Mechanism
from mfdl.training import tasks
from mfdl.training.shared_randomness import HolderKeys, Holders, columns_by_holders
from mfdl.trust import LDP, Eavesdropper, TrustModel

from .frames import Refused

NODES, PERIOD, RATE = 4, 8, 0.5
GRAPH = f"ring:n={NODES}"
TRUST: dict[str, TrustModel] = {"mafalda": LDP(), "decor": Eavesdropper(), "corn": Eavesdropper()}
SPLIT_SEED = 0  # of records over nodes and steps: public


@dataclasses.dataclass(frozen=True)
class Setting:
    """One run, as all nodes know it.

    Args:
        mechanism_name: "mafalda" (no shared secret), "decor" (one secret an edge) or "corn" (one secret of all nodes).
        steps: a multiple of PERIOD; each record takes part once in PERIOD steps.
        nonce: drawn for this run alone; with another nonce the same keys make other noise.
        gossip_rounds: averagings after each step.
    """

    mechanism_name: str
    steps: int
    nonce: str
    gossip_rounds: int = 1
    epsilon: float = 8.0

    def __post_init__(self) -> None:
        if self.mechanism_name not in TRUST:
            raise mfdl.InvalidInput(f"mechanism must be one of {', '.join(TRUST)}, got {self.mechanism_name!r}.")
        if self.steps < PERIOD or self.steps % PERIOD:
            raise mfdl.InvalidInput(f"steps must be a positive multiple of {PERIOD}, got {self.steps}.")
        if not self.nonce:
            raise mfdl.InvalidInput("nonce must not be empty; draw one for each run, e.g. secrets.token_hex(16).")

    @property
    def trust(self) -> TrustModel:
        """Who reads the messages: everybody; under LDP shared secrets are known as well."""
        return TRUST[self.mechanism_name]

    @functools.cached_property
    def gossip(self) -> mfdl.gossip.Gossip:
        return mfdl.gossip.metropolis_hastings(GRAPH)

    @functools.cached_property
    def mechanism(self) -> Mechanism:
        """Calibrated, the same at every node."""
        dynamics = mfdl.Dynamics(self.gossip, RATE, gossip_rounds=self.gossip_rounds)
        participation = mfdl.Cyclic(self.steps // PERIOD, PERIOD)
        algorithm = mfdl.algorithms.build(self.mechanism_name, dynamics, participation)
        bound = {"adjacency": "replace-one", "clip_norm": 1.0}
        return mfdl.calibrate(algorithm, mfdl.Privacy(self.trust, **bound), epsilon=self.epsilon, delta=1e-05)

    @functools.cached_property
    def data(self) -> tasks.instance.TaskInstance:
        """Digits on all nodes; a node of this example takes its own part. Nodes of a deployment hold no other."""
        return tasks.digits(NODES).instance(SPLIT_SEED, PERIOD)

    @functools.cached_property
    def run_id(self) -> bytes:
        """SHA-256 of mechanism, graph, data split and nonce, 32 bytes: in every frame, and in every agreed key."""
        contents = (self.mechanism.content_hash, self.gossip.weights.toarray().tolist(), self.data.task.content_hash)
        return hashlib.sha256(repr((*contents, SPLIT_SEED, PERIOD, self.nonce)).encode()).digest()

    @functools.cached_property
    def plan(self) -> dict[str, str]:
        """What peers compare before the first message: that of the mechanism, and the run id."""
        return {**self.mechanism.plan, "run": self.run_id.hex()}

    def require_plan(self, theirs: Mapping[str, Any], peer: int) -> None:
        """Raises: Refused: a peer has another plan, with the field that differs."""
        try:
            self.mechanism.require_plan(theirs, f"node {peer}")
        except mfdl.InvalidInput as error:
            raise Refused(str(error)) from None
        if theirs.get("run") != self.plan["run"]:
            raise Refused(
                f"node {peer} is of another run, {str(theirs.get('run'))[:16]} and not {self.plan['run'][:16]}: data, "
                "split and nonce must be the same for all nodes."
            )

    @functools.cached_property
    def holder_sets(self) -> list[Holders]:
        """Who shares which secret, in one order at all nodes."""
        return sorted(columns_by_holders(self.mechanism.algorithm.noise), key=sorted)

    def heard(self, node: int) -> list[int]:
        """Whose messages the node averages, besides its own."""
        row = self.gossip.weights[[node], :].tocoo()
        return sorted({int(j) for j in row.col} - {node})

    def peers(self, node: int) -> list[int]:
        """To whom the node is connected: those it hears, and those it shares a secret with."""
        shared = {v for holders in self.holder_sets if node in holders for v in holders}
        return sorted({*self.heard(node), *shared} - {node})

    def private_node(self, node: int, keys: HolderKeys) -> PrivateNode:
        """The node at the public start, ready to step."""
        task = self.data.task
        module = task.build_module()
        start = self.data.model.unflatten(self.data.initial_parameters[[node]])
        module.load_state_dict({name: rows[0].clone() for name, rows in start.items()})
        optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
        size = float(self.data.public_batch_sizes[node])
        return PrivateNode(optimizer, module, self.mechanism, node=node, keys=keys, loss=task.loss, batch_size=size)

    def batch(self, node: int, step: int) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """Features, targets and numbers of the records that take part."""
        data, of_epoch = self.data, step % PERIOD
        present = data.mask[node, of_epoch]
        records = data.record_index[node, of_epoch][present].tolist()
        return data.features[node, of_epoch][present], data.targets[node, of_epoch][present], records


def begun(out: Path, wanted: Mapping[str, Any] | None = None) -> Setting:
    """The setting of the run in a folder; with `wanted`, fields of `Setting`, a new one with a nonce of its own.

    Raises: mfdl.InvalidInput: no run was begun there, or one with other fields.
    """
    place = out / "run.json"
    if not place.exists():
        if wanted is None:
            raise mfdl.InvalidInput(f"{place} is missing: no run was begun here; start the run as a whole first.")
        setting = Setting(**wanted, nonce=secrets.token_hex(16))
        files.atomic_write_json(place, dataclasses.asdict(setting))
    setting = Setting(**json.loads(place.read_text()))
    for name, value in (wanted or {}).items():
        if getattr(setting, name) != value:
            raise mfdl.InvalidInput(
                f"{out} holds a run with {name} {getattr(setting, name)!r}, asked for {value!r}; take another folder."
            )
    return setting
