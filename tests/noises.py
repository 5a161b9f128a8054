"""Noises of every kind with the matrix each stands for, written out from its parts, and their base noise."""

import hashlib
import hmac

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

from mfdl.factorization.encoders import Banded, Buffered, Inverse, Toeplitz
from mfdl.noise import (
    CausalNoise,
    IndependentNoise,
    JointNoise,
    LocalNoise,
    NoiseOperator,
    ScheduledNoise,
    SpatioTemporalNoise,
    StepNoise,
    ZeroNoise,
)
from mfdl.testing.strategies import encoders, random_encoder
from mfdl.training.column_generators import encode_context
from mfdl.training.keys import normals

LOCAL = ("independent", "shared", "per node")
OVER_BOTH = ("kronecker", "per-mode", "joint")
STRUCTURED = ("toeplitz", "banded", "buffered", "inverse", "inverse banded")
CAUSAL = (*LOCAL, "step", "messages", "kronecker", "per-mode", "zero", *STRUCTURED)
KINDS = (*CAUSAL, "joint", "block", "scheduled", "own")


class OwnNoise(NoiseOperator):
    """A user's: each node adds what it drew minus what the node before drew with it, minus that of the step before."""

    def __init__(self, num_steps, num_nodes):
        self.num_steps, self.num_nodes = num_steps, num_nodes
        ring = np.eye(num_nodes) - np.roll(np.eye(num_nodes), 1, axis=0) * 0.5
        self.dense = np.kron(np.eye(num_steps) - np.eye(num_steps, k=-1), ring)
        super().__init__(self.dense.shape)

    def holders(self):
        identity = np.eye(self.num_nodes, dtype=bool)
        return sp.csr_array(identity | np.roll(identity, 1, axis=1))

    def _matmat(self, X):
        return self.dense @ X

    def _rmatmat(self, X):
        return self.dense.T @ X

    def variances(self):
        return (self.dense**2).sum(axis=1).reshape(self.num_steps, self.num_nodes)


def by_definition(C, F, num_steps):
    """N[(t, i), (s, k)] = F[i, k] (C_k^-1)[t, s], one entry at a time; C None: the identity."""
    slots, columns = F.shape
    E = np.broadcast_to(np.eye(num_steps) if C is None else np.linalg.inv(C), (columns, num_steps, num_steps))
    N = np.zeros((num_steps, slots, num_steps, columns))
    for t, i, s, k in np.ndindex(N.shape):
        N[t, i, s, k] = F[i, k] * E[k][t, s]
    return N.reshape(num_steps * slots, num_steps * columns)


def noise_of_kind(kind, C, F, holders, num_steps, num_nodes):
    """The noise of a kind by the name it has in `mfdl.noise`."""
    if kind == "independent":
        return IndependentNoise(num_steps, num_nodes)
    if kind in LOCAL:
        return LocalNoise(C, num_nodes)
    if kind in ("step", "messages"):
        return StepNoise(F, holders, num_steps, num_nodes)
    if kind in STRUCTURED and F is None:
        return LocalNoise(C, num_nodes)
    return ZeroNoise(num_steps, num_nodes) if kind == "zero" else SpatioTemporalNoise(C, F, holders, num_nodes)


def structured_encoder(kind, numbers, T):
    """An encoder with structure of a kind from enough numbers; diagonals of at least 1."""
    width = min(T, 3)
    if kind in ("toeplitz", "inverse"):
        toeplitz = Toeplitz([1.0 + abs(numbers[0]), *numbers[1:width]], T)
        return toeplitz if kind == "toeplitz" else Inverse(toeplitz)
    if kind == "buffered":
        return Buffered(numbers[:2], np.clip(numbers[2:4], -1, 1), T, 1.0 + abs(numbers[4]))
    bands = np.tril(np.ones((T, width))) * np.resize(numbers, (T, width))
    bands[:, 0] = 1.0 + np.abs(bands[:, 0])
    return Banded(bands) if kind == "banded" else Inverse(Banded(bands))


def whole(draw, low, high, *shape):
    size = int(np.prod(shape))
    return np.array(draw(st.lists(st.integers(low, high), min_size=size, max_size=size)), dtype=float).reshape(shape)


@st.composite
def cases(draw, kinds=KINDS, max_steps=4, max_nodes=4, *, num_nodes=None):
    """(noise, its matrix); factors of small integers, zero rows, unused columns and singular ones included."""
    kind, T = draw(st.sampled_from(kinds)), draw(st.integers(1, max_steps))
    n = draw(st.integers(1, max_nodes)) if num_nodes is None else num_nodes
    if kind == "joint":
        C = draw(encoders(size=T * n))
        return JointNoise(C, T, n), np.linalg.inv(C)
    if kind == "block":  # full inside a step
        C = np.kron(np.eye(T), np.eye(n) + np.triu(whole(draw, -2, 2, n, n), 1)) @ draw(encoders(size=T * n))
        return JointNoise(C, T, n, holders="use"), np.linalg.inv(C)
    if kind == "own":
        return OwnNoise(T, n), OwnNoise(T, n).dense
    if kind == "scheduled":
        return draw(scheduled(T, n))
    F = holders = None
    slots = n + 1 if kind == "messages" else n
    columns = {"zero": 0, "messages": n + 2}.get(kind, n)
    if kind in ("step", "messages", "kronecker", "per-mode") or (kind in STRUCTURED and draw(st.booleans())):
        columns = draw(st.integers(1, n + 2))
        F, more = whole(draw, -2, 2, slots, columns), whole(draw, 0, 1, columns, n) == 1
        holders = more if kind == "messages" else (F.T != 0) | more
    C = None
    if kind in ("shared", "kronecker"):
        C = draw(encoders(size=T))
    elif kind in ("per node", "per-mode"):
        C = np.stack([draw(encoders(size=T)) for _ in range(columns)])
    if kind in STRUCTURED:
        C = structured_encoder(kind, whole(draw, -3, 3, 8) / 2, T)
    dense = by_definition(C.dense() if kind in STRUCTURED else C, np.eye(n, columns) if F is None else F, T)
    if kind == "zero":
        F, holders = np.zeros((n, 0)), np.zeros((0, n), dtype=bool)
    if draw(st.booleans()) and not (kind in STRUCTURED and F is not None and not F.size):
        return noise_of_kind(kind, C, F, holders, T, n), dense
    F = F if F is None or draw(st.booleans()) else sp.csr_array(F)
    return CausalNoise(C, F, holders, num_steps=T, num_nodes=n), dense


@st.composite
def scheduled(draw, T, n):
    """Columns that slots add in some steps and not in others."""
    columns = draw(st.integers(1, n + 1))
    C = draw(st.none() | encoders(size=T))
    F, adds = whole(draw, -2, 2, n, columns), whole(draw, 0, 1, T, n, columns)
    dense = by_definition(C, F, T).reshape(T, n, T, columns) * adds[:, :, None]
    S = sp.block_diag([sp.csr_array(block) for block in F * adds], format="csr")
    return ScheduledNoise(C, S, F.T != 0, num_steps=T, num_nodes=n), dense.reshape(T * n, T * columns)


def example(kind, num_steps, num_nodes=3, decay=0.2):
    """A noise of a kind; with a factor, private columns, one seed for nodes 0 and 1 and one column unused."""
    T, n = num_steps, num_nodes
    rng = np.random.default_rng(2)

    def fading(size, *blocks):
        return random_encoder(rng, size, *blocks) * decay ** np.subtract.outer(range(size), range(size)).clip(0)

    if kind in ("joint", "block"):
        turn = np.kron(np.eye(T), np.eye(n) + np.triu(np.ones((n, n)), 1) * (kind == "block"))
        return JointNoise(turn @ fading(T * n), T, n, holders="use" if kind == "block" else None)
    if kind == "own":
        return OwnNoise(T, n)
    F = np.hstack([np.eye(n), np.array([[1.0, -2.0, 0.0], [0.5, 1.0, 0.0]] + [[0.0, 0.0, 0.0]] * (n - 2))])
    holders = np.vstack([F.T != 0])
    if kind in STRUCTURED:
        return noise_of_kind(kind, structured_encoder(kind, 0.5 * rng.standard_normal(8), T), F, holders, T, n)
    if kind == "scheduled":  # node 1 adds half of step 1 in the next
        plan = np.kron(np.eye(T), F)
        if T > 2:
            plan[2 * n + 1] += plan[n + 1] / 2
            plan[n + 1] /= 2
        return ScheduledNoise(fading(T), plan, holders, num_steps=T, num_nodes=n)
    C = fading(T) if kind in ("shared", "kronecker") else fading(T, n if kind == "per node" else F.shape[1])
    return noise_of_kind(kind, C, F, holders, T, n)


def philox_key(secret):
    """What the generator is keyed with; by the documented rule."""
    return hmac.digest(secret, encode_context(("philox",)), hashlib.sha256)[:16]


def base_noise(noise, key, dim, tensor=0):
    """Z one (step, column) at a time: the j-th column of a holder set is stream j of that set's key."""
    columns, seen = [], {}
    for column_holders in noise.holders().toarray():
        holders = tuple(int(u) for u in np.flatnonzero(column_holders))
        columns.append((key.derive("holders", *holders), seen.setdefault(holders, 0)))
        seen[holders] += 1
    rows = [normals(column, t, [j], dim, tensor=tensor) for t in range(noise.num_steps) for column, j in columns]
    return np.concatenate(rows) if rows else np.zeros((0, dim))


def all_steps(stream):
    return np.stack([stream.step(t) for t in range(stream.noise.num_steps)])
