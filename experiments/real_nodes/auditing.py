"""What the recorded messages of a run show, against what was claimed of it.

In: the setting, the messages that nodes kept, and, as auditors have them, all data. Out: a `Findings`.

The auditor takes from the messages what gradients account for; what is left is the noise that was really there, one
sample for each of the d coordinates, which the claim calls independent and Gaussian. For each canary of `mfdl.audit` it
measures how far that noise spreads along the attacker's statistic: half of the coordinates choose statistics and a
canary of their own, the other half measure. Noise that is right in each coordinate but the same in all is not seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray

from mfdl import files
from mfdl.audit import bounds, canaries, reconstruct
from mfdl.privacy import gaussian
from mfdl.training.executor import Executor
from mfdl.training.keys import NoiseKey
from mfdl.training.shared_randomness import HolderKeys, Holders, pair_key
from mfdl.training.streams import noise_stream

from .folder import NodeFolder
from .setting import NODES, Setting

Array = NDArray[np.float64]

FAILURE = 0.01  # probability that any of the lower bounds of one audit is above the truth
RIDGE = 1e-9  # of the largest variance: directions of less measured noise count as nearly free of it


@dataclasses.dataclass(frozen=True)
class Findings:
    """One audit.

    Attributes:
        mu_claimed: of the guarantee; mu_shown: a lower bound on what the noise in the messages really loses.
        canary: which canary shows that, of which victim.
        difference: largest difference of a message from what the mechanism's executor sends with the nodes' keys and
            data, in units of the largest number sent; None where no secrets were given.
    """

    mu_claimed: float
    mu_shown: float
    canary: str
    victim: int
    difference: float | None = None

    @property
    def violated(self) -> bool:
        return self.mu_shown > self.mu_claimed

    def __str__(self) -> str:
        """In words, one finding a line."""
        verdict = "REFUTED" if self.violated else "not refuted"
        claim = (
            f"claim {verdict}: mu = {self.mu_claimed:.4g} claimed, at least {self.mu_shown:.4g} shown "
            f"(node {self.victim}, {self.canary}; {1 - FAILURE:.0%} confidence)"
        )
        if self.difference is None:
            return claim
        where = "largest difference from the executor with the same keys and data"
        return f"{where}: {self.difference:.1e} of the largest number\n{claim}"


def written(setting: Setting, folders: Sequence[NodeFolder], place: Path, **more: object) -> Findings:
    """Audits the messages in the folders of all nodes, and writes what they show with `more` fields as JSON."""
    messages = recorded(setting, folders)
    difference = difference_from_executor(setting, messages, all_keys(setting, folders))
    findings = dataclasses.replace(audited(setting, messages), difference=difference)
    more = {**more, "violated": findings.violated, "run_id": setting.run_id.hex()}
    files.atomic_write_json(place, {**dataclasses.asdict(findings), **more})
    return findings


def recorded(setting: Setting, folders: Sequence[NodeFolder]) -> Array:
    """All messages of a run from the files of its nodes, (rounds, nodes, d), rounds of a step following one another.

    Raises: OSError: a message was never sent.
    """
    names, rounds = list(setting.data.model.shapes), setting.gossip_rounds

    def row(body: bytes) -> Array:
        tensors = safetensors.torch.load(body)
        return torch.cat([tensors[name].reshape(-1) for name in names]).double().numpy()

    by_node = [[row(body) for *_, body in folder.recorded(range(setting.steps), rounds)] for folder in folders]
    return np.array(by_node).transpose(1, 0, 2)


def audited(setting: Setting, messages: Array) -> Findings:
    """The largest loss that the messages show, of any victim."""
    mechanism = setting.mechanism
    algorithm = mechanism.algorithm.with_divisors(setting.data.public_batch_sizes.numpy())
    noise = noise_left(setting, messages)
    claims = dict.fromkeys(range(NODES), float(mechanism.guarantee.mu))
    tried = [
        canary
        for canary in canaries.candidates(algorithm, setting.trust, list(claims))
        if canary.direction is canaries.ALONG and canary.name != "adaptive gradients"  # models were what they were
    ]
    chosen = np.arange(noise.shape[1]) % 2 == 0
    pilot, measured = noise[:, chosen], noise[:, ~chosen]
    precision = _precision(pilot)
    tried.append(canaries.learned(tried[:NODES], [precision] * NODES, claims))
    shift = gaussian.record_shift(mechanism.guarantee.adjacency, mechanism.clip_norm)
    failure, measured_losses = FAILURE / (2 * len(tried)), []
    for canary in tried:
        P = canary.view.whitener()
        for weights in (P.T @ (P @ canary.shift), precision @ canary.shift):
            spread = bounds.std_upper_bound(weights @ measured, failure)
            measured_losses.append((shift * float(weights @ canary.shift) / max(spread, 1e-300), canary))
    mu, canary = max(measured_losses, key=lambda pair: pair[0])
    return Findings(claims[canary.victim], mu, canary.name, canary.victim)


def noise_left(setting: Setting, messages: Array) -> Array:
    """The rows of the attacker's view without gradients: B Z as it was, (rows, d)."""
    mechanism, data = setting.mechanism, setting.data
    algorithm = mechanism.algorithm.with_divisors(data.public_batch_sizes.numpy())
    view = reconstruct(
        algorithm, setting.trust, noise_std=mechanism.noise_std, clip_norm=mechanism.clip_norm, release="none"
    )
    start = data.initial_parameters
    rows = view.observations(messages, start_models=start.double().numpy())
    last = torch.tensor(messages[setting.gossip_rounds - 1 :: setting.gossip_rounds])  # of each step
    gradients = []
    for step in range(setting.steps):
        models = start
        if step:
            at = step * setting.gossip_rounds - 1
            weights = torch.tensor(setting.gossip.at(at).weights.toarray())
            models = (weights @ last[step - 1]).to(start.dtype)
        gradients.append(data.clipped_gradients(models, step, mechanism.clip_norm, "record").double().numpy())
    return rows - view.view.gradients.matmat(np.concatenate(gradients))


def difference_from_executor(setting: Setting, messages: Array, keys: HolderKeys) -> float:
    """Largest difference of a message from the executor's with these keys, relative to the largest number sent."""
    mechanism, data = setting.mechanism, setting.data
    algorithm = mechanism.algorithm.with_divisors(data.public_batch_sizes.numpy())
    executor = Executor(algorithm, dtype=torch.float32)
    stream = noise_stream(algorithm.noise, mechanism.noise_std, keys, data.dimension)
    state, sent = executor.initial_state(data.initial_parameters), []
    for step in range(setting.steps):
        gradients = data.clipped_gradients(executor.models(state), step, mechanism.clip_norm, "record")
        out, state = executor.step(step, state, gradients, torch.tensor(stream.step(step)))
        sent.append(out.double().numpy().reshape(setting.gossip_rounds, NODES, -1))
    return float(np.abs(np.concatenate(sent) - messages).max() / np.abs(messages).max())


def all_keys(setting: Setting, folders: Sequence[NodeFolder]) -> HolderKeys:
    """The secrets of all nodes together, which only a test on a single machine has."""

    def key(holders: Holders) -> NoiseKey:
        first, *others = sorted(holders)
        if len(others) != 1:
            return folders[first].group_key(holders) if others else folders[first].own_key
        public = folders[others[0]].identity.public_bytes
        ends = {"own_label": first, "peer_label": others[0]}
        return pair_key(folders[first].identity, public, run_id=setting.run_id, **ends)

    return HolderKeys.given({holders: key(holders) for holders in setting.holder_sets})


def _precision(samples: Array) -> Array:
    """Inverse covariance of rows over coordinates, its smallest eigenvalues raised."""
    values, vectors = np.linalg.eigh(np.cov(samples))
    return np.asarray((vectors / np.maximum(values, RIDGE * max(values[-1], 1e-300))) @ vectors.T)
