"""Hypothesis strategies for views: bare (A, B) of small integers, and algorithms with their view written out.

Strategies for trust models shrink to LDP, those for mechanisms to independent noise of one node with mu = 1. Every
drawn model leaves at least one victim, so that there is a privacy loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from hypothesis import reject
from hypothesis import strategies as st
from numpy.typing import NDArray

from ... import algorithms, trust
from ...algorithms import LinearAlgorithm
from ...check import FloatArray, integer_at_least
from ...dynamics import Dynamics
from ...errors import InvalidInput
from ...gossip import Gossip
from ...mechanism import Mechanism
from ...noise_scale import calibrate
from ...participation import EveryStep
from ...privacy.gaussian import ADJACENCIES
from ...privacy.questions import Privacy
from ...trust.view import View
from ..claims import describe
from ..oracles.dense_views import gossip_messages, local_noising, received, round_matrix, without_noise
from .algorithms import ALL_NAMES, linear_algorithms
from .graphs import (
    dyadic_gossip,
    gossip_matrices,
    gossip_sequences,
    integer_arrays,
    polynomials,
    sized_lists,
    wanted_names,
)

VIEW_KINDS = ("regular", "rank-deficient", "leaking", "integer")


@st.composite
def integer_views(
    draw: st.DrawFn, max_rows: int = 5, max_noise: int = 5, max_steps: int = 3, largest: int = 2
) -> tuple[FloatArray, FloatArray]:
    """(A, B) of small integers, of any rank; they shrink to zero."""
    rows, noise, steps = (draw(st.integers(1, most)) for most in (max_rows, max_noise, max_steps))
    return draw(integer_arrays(largest, rows, steps)), draw(integer_arrays(largest, rows, noise))


@st.composite
def views(
    draw: st.DrawFn,
    kinds: Sequence[str] = VIEW_KINDS,
    *,
    max_rows: int = 4,
    max_steps: int = 3,
    max_nodes: int = 2,
    largest: int = 2,
) -> View:
    """Views of the given kinds, of `VIEW_KINDS`: O = A G + B Z with 1 to `max_rows` rows and small integers.

    Up to `max_nodes` nodes own the columns of A, time-major. B has at most one column more than rows. The arrays are
    `view.dense_gradients_by_time()` and `view.dense_noise()`; entries of independent rows are at most `largest`, others
    at most `max_rows * largest^2`, plus `largest` where they leak.

    Raises: InvalidInput: an unknown kind, or `rank-deficient` with `max_rows` below 2.
    """
    kind = draw(st.sampled_from(wanted_names(VIEW_KINDS, kinds)))
    smallest = 2 if kind == "rank-deficient" else 1
    if max_rows < smallest:
        raise InvalidInput(f"max_rows must be an integer >= {smallest} for {kind} views, got {max_rows}.")
    rows = draw(st.integers(smallest, max_rows))
    n = draw(st.integers(1, max_nodes))
    columns = n * draw(st.integers(1, max_steps))
    if kind == "integer":
        noise = draw(st.integers(1, rows + 1))
        A, B = draw(integer_arrays(largest, rows, columns)), draw(integer_arrays(largest, rows, noise))
        return View(A, B, num_nodes=n)
    low, high = {"regular": (rows, rows), "rank-deficient": (1, rows - 1), "leaking": (0, rows - 1)}[kind]
    r = draw(st.integers(low, high))  # 0: no noise at all
    A, B = draw(integer_arrays(largest, r, columns)), _full_row_rank(draw, r, max(r, 1), largest)
    E = draw(integer_arrays(largest, rows - r, r))  # dependent rows: A = [I; E] A_r and B = [I; E] B_r
    A, B = np.vstack([A, E @ A]), np.vstack([B, E @ B])
    if kind == "leaking":  # a column of A is in the range of [I; E] just if its last rows are E times its first
        D = draw(integer_arrays(largest, rows - r, columns))
        if not D.any():
            D[0, 0] = 1.0
        A[r:] += D
    order = draw(st.permutations(range(rows)))
    return View(A[order], B[order], num_nodes=n)


def _full_row_rank(draw: st.DrawFn, rows: int, least_columns: int, largest: int) -> FloatArray:
    """Lower triangular with a positive diagonal, and possibly a column more."""
    extra = draw(st.booleans())
    B = np.zeros((rows, least_columns))
    B[np.tril_indices(rows, -1)] = draw(integer_arrays(largest, 1, rows * (rows - 1) // 2))[0]
    B[np.arange(rows), np.arange(rows)] = draw(sized_lists(st.integers(1, largest), rows))
    if extra:
        B = np.hstack([B, draw(integer_arrays(largest, rows, 1))])
    return B


TRUST = ("ldp", "pndp", "eavesdropper", "colluding", "central", "released", "masks")
RELEASE = ("none", "average", "all")


@dataclasses.dataclass(frozen=True, eq=False)
class ViewCase:
    """An algorithm and a trust model, and the same view written out.

    Attributes:
        A, B: rows of the view; known noise columns of B are zero. honest: nodes that do not attack.
        round_of_row: round of each row; the number of rounds for released models.
        known_gradients, known_noise: bool (T, n), and columns of the base noise, that the attacker knows.
        noising: injected noise <- base noise, (T n, T n).
    """

    algorithm: LinearAlgorithm
    model: trust.TrustModel
    release: str
    A: FloatArray
    B: FloatArray
    honest: tuple[int, ...]
    round_of_row: NDArray[np.intp]
    known_gradients: NDArray[np.bool_]
    known_noise: tuple[int, ...]
    noising: FloatArray

    def __str__(self) -> str:
        return f"{describe(self.algorithm)}; seen by {describe(self.model)}, released: {self.release}"


class _Sight(NamedTuple):
    """A trust model, and what it means written out: (R, n) messages seen, (T, n) gradients and noise known."""

    model: trust.TrustModel
    seen: NDArray[np.bool_]
    inside: list[int]
    known_gradients: NDArray[np.bool_]
    known_noise: NDArray[np.bool_]


@st.composite
def view_cases(
    draw: st.DrawFn,
    *,
    kinds: tuple[str, ...] = TRUST,
    max_nodes: int = 4,
    max_steps: int = 3,
    exact: bool = False,
    noises: tuple[str, ...] = ("independent", "shared", "per node", "rounds"),
) -> ViewCase:
    """Plain gossip with noise of each node's own under any trust model and release, of last models or a mean of two.

    `exact`: all entries dyadic; an average stands there as the sum, of which an attacker knows the same.
    """
    any_gossip: st.SearchStrategy[Gossip] = st.one_of(gossip_matrices(2, max_nodes), gossip_sequences(2, max_nodes))
    W: Gossip = draw(dyadic_gossip(max_nodes=max_nodes) if exact else any_gossip)
    n = W.num_nodes
    noise = draw(st.sampled_from(noises))
    T = draw(st.integers(1, max_steps))
    K = draw(st.integers(2, 3)) if noise == "rounds" else 1
    if (length := getattr(W, "num_steps", None)) is not None:  # a sequence that does not repeat
        T, K = length, 1
    rate = draw(st.sampled_from([1.0, 0.5]))
    encoders = _encoders(draw, noise, n, T)
    polynomial = draw(polynomials(W)) if noise == "rounds" and not exact else "powers"
    dynamics, participation = Dynamics(W, rate, gossip_rounds=K, polynomial=polynomial), EveryStep(T)
    if noise in ("shared", "per node"):
        algorithm = algorithms.mf_dsgd(dynamics, participation, encoders if noise == "per node" else encoders[0])
    else:
        build = algorithms.muffliato if noise == "rounds" else algorithms.dp_dsgd
        algorithm = build(dynamics, participation)
    divisors = np.ones(n)
    if draw(st.booleans()):
        divisors = np.array(draw(sized_lists(st.sampled_from([1.0, 2.0, 4.0]), n)))
        algorithm = algorithm.with_divisors(divisors)
    if draw(st.booleans()):
        scales = np.array(draw(sized_lists(st.sampled_from([1.0, 2.0, 4.0]), n)))
        algorithm = dataclasses.replace(algorithm, noise=algorithm.noise.scaled(scales))
        encoders = encoders / scales[:, None, None]
    kind, release = draw(st.sampled_from(kinds)), draw(st.sampled_from(RELEASE))
    sight = _sight(draw, kind, W, T, T * K)
    messages, final = gossip_messages(
        W, T, gossip_rounds=K, shifts=dynamics.shifts, rate=rate, divisors=divisors.tolist()
    )
    rows, rounds = messages[sight.seen.ravel()], np.repeat(np.arange(T * K), n)[sight.seen.ravel()]
    over_nodes = np.sum if exact else np.mean
    if kind == "central":
        rows, rounds = over_nodes(messages.reshape(T * K, n, T * n), axis=1), np.arange(T * K)
    if kind != "central" and sight.seen.all():  # models are a function of what is seen
        release = "none"
    if release != "none" and T > 1 and draw(st.booleans()):
        algorithm = algorithm.releasing("average:2")
        sent = messages.reshape(T * K, n, T * n)
        late = (round_matrix(W, r, dynamics.shifts) @ sent[r] for r in (T * K - 1, T * K - K - 1))
        final = sum(late) / 2
    extra = {"none": final[:0], "average": over_nodes(final, axis=0, keepdims=True), "all": final}[release]
    A, N = np.vstack([rows, extra]), local_noising(encoders)
    known_noise = tuple(np.flatnonzero(sight.known_noise).tolist())
    return ViewCase(
        algorithm=algorithm,
        model=sight.model,
        release=release,
        A=A,
        B=without_noise(A @ N, known_noise),
        honest=tuple(u for u in range(n) if u not in sight.inside),
        round_of_row=np.concatenate([rounds, np.full(len(extra), T * K)]).astype(np.intp),
        known_gradients=sight.known_gradients,
        known_noise=known_noise,
        noising=N,
    )


def _encoders(draw: st.DrawFn, noise: str, n: int, T: int) -> FloatArray:
    """One encoder per node, (n, T, T), of small integers; the identity where noise is fresh."""
    encoders = np.stack([np.eye(T)] * n)
    for u in range({"shared": 1, "per node": n}.get(noise, 0)):
        encoders[u][np.tril_indices(T, -1)] = draw(sized_lists(st.integers(-1, 1).map(float), T * (T - 1) // 2))
        encoders[u] += np.diag(draw(sized_lists(st.sampled_from([0.0, 1.0]), T)))
    if noise == "shared":
        encoders[:] = encoders[0]
    return encoders


def _sight(draw: st.DrawFn, kind: str, W: Gossip, T: int, R: int) -> _Sight:
    n = W.num_nodes
    every, nothing = np.ones((R, n), dtype=bool), np.zeros((T, n), dtype=bool)
    if kind in ("pndp", "colluding"):
        inside = sorted(draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=n - 1)))
        known = nothing.copy()
        known[:, inside] = True
        if kind == "pndp":
            return _Sight(trust.PNDP(inside), received(W, R, inside), inside, known, known)
        return _Sight(trust.Colluding(tuple(inside)), every, inside, known, known)
    if kind != "masks":
        return _Sight(trust.named(kind), ~every if kind == "released" else every, [], nothing, nothing)
    seen = np.array(draw(sized_lists(st.booleans(), R * n))).reshape(R, n)
    if draw(st.booleans()):
        seen[:] = seen[0]
    noise = np.array(draw(sized_lists(st.integers(0, 3), T * n))).reshape(T, n) == 3
    if draw(st.booleans()):
        noise[:] = noise[0]
    gradients = nothing.copy()
    if draw(st.booleans()):
        gradients[:, draw(st.integers(1, n - 1)) :] = True
    model = trust.TrustModel.from_masks(seen=seen, known_gradients=gradients, known_noise=noise)
    return _Sight(model, seen, np.flatnonzero(gradients[0]).tolist(), gradients, noise)


OF_ANY_SIZE = ("ldp", "eavesdropper", "full-collusion", "coalitions", "central", "released")
OF_TWO_NODES = ("any-receiver", "pndp", "colluding")
"""Those whose attackers are nodes, so that a victim needs a second node."""
TRUST_MODELS = (*OF_ANY_SIZE, *OF_TWO_NODES, "masks")


@st.composite
def trust_models(
    draw: st.DrawFn, algorithm: LinearAlgorithm | int, *, kinds: Sequence[str] | None = None
) -> trust.TrustModel:
    """Trust models of the given kinds, of `TRUST_MODELS`, that fit an algorithm or a number of nodes.

    Attackers and colluders are any nodes but at least one; a coalition holds less than all. `masks` draws any messages
    among those that are sent, the gradients of any nodes, which are then left out as victims, and any parts of the
    noise, alike at all times or not; it needs an algorithm, since the masks have its shape.

    Args: kinds: default all that fit. Raises: InvalidInput: an unknown kind, or one that does not fit.
    """
    n = algorithm.num_nodes if isinstance(algorithm, LinearAlgorithm) else integer_at_least(1, num_nodes=algorithm)
    fitting = tuple(
        kind
        for kind in TRUST_MODELS
        if (n > 1 or kind not in OF_TWO_NODES) and (isinstance(algorithm, LinearAlgorithm) or kind != "masks")
    )
    why = f" for num_nodes={n}; {', '.join(OF_TWO_NODES)} need two nodes, masks an algorithm instead of a number"
    kind = draw(st.sampled_from(wanted_names(fitting, fitting if kinds is None else kinds, why=why)))
    if kind in ("pndp", "colluding"):
        nodes = sorted(draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=n - 1)))
        return trust.PNDP(nodes) if kind == "pndp" else trust.Colluding(tuple(nodes))
    if kind == "coalitions":
        return trust.Coalitions(draw(st.integers(0, n - 1)))
    if kind == "any-receiver":
        return trust.AnyReceiver()
    if kind != "masks":
        return trust.named(kind)
    assert isinstance(algorithm, LinearAlgorithm)
    inside = sorted(draw(st.sets(st.integers(0, n - 1), max_size=n - 1)))
    return trust.TrustModel.from_masks(
        seen=_mask(draw, len(algorithm.rounds), algorithm.messages_per_round) & algorithm.transmitted,
        known_gradients=np.isin(np.arange(n), inside),
        known_noise=_mask(draw, algorithm.num_steps, algorithm.noise.columns_per_step),
        attackers=inside,
        release=draw(st.sampled_from(RELEASE)),
    )


def _mask(draw: st.DrawFn, times: int, width: int) -> NDArray[np.bool_]:
    """(width,) for all times alike, or (times, width); it shrinks to nothing."""
    varying = draw(st.booleans())
    shape = (times, width) if varying else (width,)
    return np.array(draw(sized_lists(st.booleans(), int(np.prod(shape)))), dtype=bool).reshape(shape)


PROTECTING_NAMES = ("dp-dsgd", "anti-pgd", "bsr", "mf-shared", "mf-per-node", "muffliato", "decor")
ALL_SEEN_KINDS = ("ldp", "eavesdropper", "full-collusion", "coalitions", "colluding")


@st.composite
def mechanisms(
    draw: st.DrawFn,
    names: Sequence[str] = PROTECTING_NAMES,
    *,
    kinds: Sequence[str] = ("ldp",),
    max_epochs: int = 2,
    max_period: int = 2,
    max_nodes: int = 3,
) -> Mechanism:
    """Algorithms of `linear_algorithms` with the least noise for mu of 1, 2 or 1/2 under a trust model.

    Adjacency and clipping norm are drawn; mu of the guarantee is at most the target, and equal to it up to rounding.
    `PROTECTING_NAMES` under `ALL_SEEN_KINDS` nearly always have a finite loss. Cases that have none are left out, so
    other names and kinds draw slowly, or nothing where all losses are infinite.

    Raises: InvalidInput: an unknown name or kind, or "none", which has no noise to scale.
    """
    wanted_names(ALL_NAMES[1:], names, name="names")
    size = 2 if set(kinds) <= set(OF_TWO_NODES) else 1
    algorithm = draw(linear_algorithms(names, max_epochs, max_period, max_nodes, min_nodes=size))
    model = draw(trust_models(algorithm, kinds=[k for k in kinds if algorithm.num_nodes > 1 or k not in OF_TWO_NODES]))
    mu = draw(st.sampled_from([1.0, 2.0, 0.5]))
    adjacency = draw(st.sampled_from(ADJACENCIES))
    clip_norm = draw(st.sampled_from([1.0, 0.5, 3.0]))
    try:
        return calibrate(algorithm, Privacy(model, adjacency=adjacency, clip_norm=clip_norm), mu=mu)
    except InvalidInput as error:
        if "infinite loss" not in str(error) and "no noise to scale" not in str(error):
            raise
    return reject()
