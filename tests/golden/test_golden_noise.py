"""Seeded noise never changes: whoever resumes a run, or holds one of its keys, must make the same numbers again.

Base normals are integers of Philox times a width of the ziggurat: the same bits on every machine, so their SHA-256 is
stored (the tail of the ziggurat, one normal in 3,700, takes a logarithm of the C library: no normal here is from it).
So is that of noise made by sums one number at a time. Noise that passes a product of matrices depends on the BLAS in
its last bits: its numbers are stored, and compared to 1e-12.
"""

import hashlib

import numpy as np
from _cases import SCHEMES, fixed, mechanism_names
from _stored import compare

import mfdl
from mfdl.factorization.encoders import Banded, Buffered, Inverse, Toeplitz
from mfdl.noise import CausalNoise, IndependentNoise, JointNoise, ScheduledNoise
from mfdl.training.shared_randomness import HolderKeys

NODES, STEPS = 3, 6
TAIL = 3.654  # where the tail of the ziggurat begins
KEY = mfdl.NoiseKey.from_seed(7)
CLOSE = {"relative": 1e-12, "absolute": 1e-12}


def sha256(array):
    return hashlib.sha256(np.ascontiguousarray(array, dtype="<f8").tobytes()).hexdigest()


def rows(noise, steps=None, *, dim=2, **options):
    """nu N Z of some steps, shape (steps, slots, dim)."""
    stream = mfdl.training.streams.noise_stream(noise, 1.5, KEY, dim, **options)
    return np.stack([stream.step(t) for t in (range(noise.num_steps) if steps is None else steps)])


def listed(noise, steps=None, **options):
    """The same as one row of numbers a step."""
    return [row.ravel().tolist() for row in rows(noise, steps, **options)]


# ---- keys and base normals -------------------------------------------------------------------------------------------


def test_keys():
    """Public names of keys: what they derive, by contexts of every type."""
    contexts = [("holders", 0), ("holders", 0, 1), ("pair", 3, -7), ("replay", "a", 2**70), ("b", b"\0\xff"), ("", b"")]
    ids = {str(seed): mfdl.NoiseKey.from_seed(seed).key_id for seed in (0, 1, 7, 2**64)}
    derived = {repr(context): KEY.derive(*context).key_id for context in contexts}
    secret = mfdl.NoiseKey(bytes(range(32)))
    compare("keys", {"from_seed": ids, "derived": derived, "of a secret": secret.key_id})


def test_base_normals():
    """Of few and of many rows, short and long, late steps, other tensors and shards: bit for bit."""
    few, many = IndependentNoise(STEPS, NODES), IndependentNoise(3, 300)
    cases = {
        "few rows": rows(few),
        "long rows": rows(few, dim=40),
        "many short rows": rows(many),
        "a late step": rows(IndependentNoise(10**6, 2), [999_999, 3]),
        "tensor 3": rows(few, tensor=3),
        "shard 2": rows(few, shard=2),
        "some slots": rows(few, slots=[2, 0]),
    }
    assert all(np.abs(case).max() < 1.5 * TAIL for case in cases.values())
    digests = {name: sha256(case) for name, case in cases.items()}
    first = {name: case.ravel()[:6].tolist() for name, case in cases.items()}  # to see what has changed
    compare("base_normals", {"sha256": digests, "first": first})


# ---- noise of mechanisms and encoders --------------------------------------------------------------------------------


def test_noise_of_every_mechanism():
    """What each slot adds in each step."""
    schemes = {name: "balls-in-bins" if name.endswith("-bins") else "cyclic" for name in mechanism_names()}
    compare("noise_of_mechanisms", {name: listed(fixed(name, schemes[name]).noise) for name in schemes}, **CLOSE)


def encoders():
    """One of every kind, of dyadic numbers."""
    steps = np.arange(STEPS)
    lags = np.subtract.outer(steps, steps)
    dense = np.tril(0.5 ** np.clip(lags, 0, None) * (1 + (steps[:, None] % 3) / 4))
    bands = np.array([[1.0, 0.0], *[[1.0 + (t % 4) / 4, -0.5 + (t % 3) / 4] for t in range(1, STEPS)]])
    return {
        "none": None,
        "dense": dense,
        "dense, one a node": np.stack([dense, dense + 0.5 * np.eye(STEPS), np.tril(np.ones((STEPS, STEPS)))]),
        "toeplitz": Toeplitz([1.0, 0.5, -0.25], STEPS),
        "banded": Banded(bands),
        "buffered": Buffered([0.5, 0.25], [0.5, -0.75], STEPS, 1.25),
        "inverse of toeplitz": Inverse(Toeplitz([1.0, -0.5, 0.125], STEPS)),
        "inverse of banded": Inverse(Banded(bands)),
    }


FACTOR = np.array([[1.0, 0.0, 0.0, 1.0, -2.0], [0.0, 0.5, 0.0, -1.0, 0.0], [0.0, 0.0, 2.0, 0.0, 1.0]])
OVER_NODES = {"num_steps": STEPS, "num_nodes": NODES}


def noises():
    """Every noise: local and spread over nodes by a factor, on messages, over both at once, by a plan, none at all."""
    holders = FACTOR.T != 0
    cases = {f"local, {name}": CausalNoise(encoder, **OVER_NODES) for name, encoder in encoders().items()}
    for name, encoder in encoders().items():
        columns = np.concatenate([encoder, encoder[:2]]) if name == "dense, one a node" else encoder
        cases[f"spread, {name}"] = CausalNoise(columns, FACTOR, holders, **OVER_NODES)
    on_messages = np.vstack([FACTOR, [[0.0, 0.0, 0.0, 0.5, 0.5]]])
    cases["on messages"] = CausalNoise(None, on_messages, holders, **OVER_NODES)
    size = STEPS * NODES
    lags = np.subtract.outer(np.arange(size), np.arange(size))
    cases["over time and nodes"] = JointNoise(np.tril(0.5 ** np.clip(lags, 0, None)), STEPS, NODES)
    plan = np.kron(np.eye(STEPS), FACTOR)
    plan[2 * NODES + 1] += plan[NODES + 1] / 2  # node 1 adds half of step 1 in step 2
    plan[NODES + 1] /= 2
    for name in ("none", "dense"):
        cases[f"by a plan, {name}"] = ScheduledNoise(encoders()[name], plan, holders, **OVER_NODES)
    return cases


ONE_BY_ONE = [f"local, {name}" for name in ("none", "toeplitz", "banded", "buffered", "inverse of toeplitz")]


def test_noise_of_every_encoder():
    values = {name: listed(noise) for name, noise in noises().items()}
    compare("noise_of_encoders", values, **CLOSE)


def test_noise_that_is_the_same_bit_for_bit_on_every_machine():
    """Encoders that step on base noise add and multiply one number at a time."""
    compare("noise_bits", {name: sha256(rows(noises()[name])) for name in ONE_BY_ONE})


def test_noise_of_some_slots_tensors_and_late_blocks():
    """The ways in which a stream is asked for."""
    cases = noises()
    long = 70  # more than two blocks of 32 steps
    dense = CausalNoise(np.tril(np.full((long, long), 1 / 8)) + np.eye(long), num_steps=long, num_nodes=2)
    values = {f"slot 1 of {name}": listed(noise, slots=[1]) for name, noise in cases.items()}
    values |= {f"tensor 2 of {name}": listed(cases[name], tensor=2) for name in ("spread, dense", "spread, banded")}
    values["steps 31, 32, 69 and 0 of a long run"] = listed(dense, [31, 32, 69, 0])
    compare("noise_of_slots", values, **CLOSE)


def test_noise_by_the_keys_of_holders():
    """Secrets that were agreed on, one for each set of nodes that holds noise together."""
    sets = [(0,), (1,), (2,), (0, 1), (0, 2)]
    keys = HolderKeys.given({nodes: mfdl.NoiseKey(bytes([i + 1]) * 32) for i, nodes in enumerate(sets)})
    values = {}
    for name, noise in noises().items():
        if name.startswith("spread"):
            stream = mfdl.training.streams.noise_stream(noise, 1.5, keys, 2)
            values[name] = [stream.step(t).ravel().tolist() for t in range(STEPS)]
    compare("noise_of_holders", values, **CLOSE)


def test_noise_does_not_depend_on_the_participation():
    """Only on the operator, the keys and the counters: a check of the cases above, which take one scheme."""
    for scheme in SCHEMES:
        assert listed(fixed("dp-dsgd", scheme).noise) == listed(fixed("dp-dsgd", "cyclic").noise)
