"""Random questions to the accountant, and their answers by an oracle of its own: exact rational views, written out.

Drawn are algorithms (every mechanism of the registry, and random maps), their dynamics, divisors and scales,
participations, trust models with their masks, releases, units. The oracle writes the three masks of each trust model
anew from the table of trust models, runs the algorithm in fractions (`oracles.exact_run`), and gives a lower bound on
the true loss: all signs on all patterns for non-adaptive gradients, and for adaptive ones a run in which gradients
react to the models.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from _campaign import Excluded
from numpy.typing import NDArray

from mfdl import algorithms, gossip, trust
from mfdl.algorithms import LinearAlgorithm, from_maps
from mfdl.algorithms.building import used_by_others
from mfdl.check import FloatArray
from mfdl.dynamics import Dynamics
from mfdl.errors import InvalidInput
from mfdl.noise import CausalNoise, IndependentNoise, JointNoise, LocalNoise, NoiseOperator, StepNoise
from mfdl.participation import (
    Cyclic,
    EveryStep,
    Explicit,
    MinSeparation,
    OncePerEpoch,
    Participation,
    ParticipationByNode,
    Single,
)
from mfdl.testing import oracles

Mask = NDArray[np.bool_]
SCALE = 50  # binary orders of magnitude, either way: 30 decades


@dataclasses.dataclass(frozen=True, eq=False)
class Question:
    """One question: what is asked of the library, and the masks against each victim that the oracle uses."""

    algorithm: LinearAlgorithm
    model: trust.TrustModel
    kind: str
    release: str | None
    unit: str
    participation: Participation
    victim: int | tuple[int, ...]
    views: list[Knows]
    same_steps: bool = False

    @property
    def owners(self) -> tuple[int, ...]:
        """The nodes that hold the record: one, or several."""
        return self.victim if isinstance(self.victim, tuple) else (self.victim,)

    def patterns(self) -> list[tuple[tuple[int, int], ...]]:
        """Pairs (step, owner) in which the record takes part: of each owner by itself, or the same steps."""
        of_owners = [[(tuple(map(int, p)), u) for p in self.participation.at_node(u).patterns()] for u in self.owners]
        chosen = zip(*of_owners, strict=True) if self.same_steps else itertools.product(*of_owners)
        return [tuple((t, u) for pattern, u in each for t in pattern) for each in chosen]

    @property
    def label(self) -> str:
        return f"{self.algorithm.name} | {self.kind} | {type(self.participation).__name__}, {self.unit}"

    @property
    def size(self) -> int:
        algorithm = self.algorithm
        entries = sum(m.nnz for kind in algorithm.kinds for m in kind.maps()) + algorithm.noise.shape[1]
        return algorithm.num_nodes * algorithm.num_steps * 100 + entries

    @property
    def words(self) -> str:
        maps = [
            {name: m.toarray().tolist() for name, m in vars(kind).items() if m is not None}
            for kind in self.algorithm.kinds
        ]
        noise = self.algorithm.noise.matmat(np.eye(self.algorithm.noise.shape[1])).tolist()
        views = [(v.seen.astype(int).tolist(), sorted(v.gradients), sorted(v.noise), v.release) for v in self.views]
        return (
            f"{self.label}; victim {self.victim}, release {self.release}, {self.participation.describe()}; kinds "
            f"{maps} in order {self.algorithm.kind_of_round.tolist()}, noise {noise}, sent "
            f"{self.algorithm.sent.tolist()}, views {views}"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Knows:
    """What one attacking set has: messages (rounds, messages), gradient columns, noise columns, released models."""

    seen: Mask
    gradients: frozenset[int]
    noise: frozenset[int]
    release: str
    average: bool = False


# ---- draws ---------------------------------------------------------------------------------------------------------


def drawn_question(rng: np.random.Generator, *, wide: bool, several: bool = False) -> Question:
    """wide: entries, rates, divisors and noise of very unequal size; several: nodes hold the record."""
    participation, T = drawn_participation(rng)
    victims_only = rng.random() < 0.5
    algorithm = drawn_user_algorithm(rng, T, wide) if victims_only else drawn_mechanism(rng, T, wide)
    n = algorithm.num_nodes
    if several and n == 1:
        raise Excluded("a single node")
    if several and rng.random() < 0.3 and not algorithm.noise_on_messages and algorithm.noise.slots_per_step == n:
        algorithm = dataclasses.replace(algorithm, noise=drawn_noise_over_nodes(rng, T, n, wide))
    if rng.random() < 0.15 and participation.num_steps == T:
        others = [drawn_participation(rng, T)[0] for _ in range(n)]
        participation = ParticipationByNode(others)
    if rng.random() < 0.3:
        sizes = 2.0 ** rng.integers(0, 20 if wide else 3, n)
        algorithm = algorithm.with_divisors(sizes)
    every = all(isinstance(p, EveryStep) for p in participation.distinct())
    unit = "user" if every and rng.random() < 0.3 else "record"
    victim: int | tuple[int, ...] = int(rng.integers(n))
    same_steps = False
    if several:
        unit, victim = "record", tuple(sorted(rng.permutation(n)[: rng.integers(2, n + 1)].tolist()))
        alike = all(participation.at_node(u) == participation.at_node(victim[0]) for u in victim)
        same_steps = alike and bool(rng.random() < 0.25)
    kind, model, views = drawn_trust(rng, algorithm, victim if isinstance(victim, tuple) else (victim,))
    release = None if rng.random() < 0.3 else str(rng.choice(["none", "average", "all"]))
    published = "all" if release is None else release
    if kind == "masks" and release is None:
        published = model.default_release
    views = [dataclasses.replace(view, release=published) for view in views]
    return Question(algorithm, model, kind, release, unit, participation, victim, views, same_steps)


def drawn_participation(rng: np.random.Generator, T: int | None = None) -> tuple[Participation, int]:
    T = int(rng.integers(1, 4)) if T is None else T
    kinds: list[Callable[[], Participation]] = [lambda: EveryStep(T), lambda: EveryStep(T), lambda: Single(T)]
    kinds += [lambda: MinSeparation(T, int(rng.integers(1, 3)), int(rng.integers(1, 3)))]
    kinds += [lambda: Explicit([np.flatnonzero(rng.random(T) < 0.6).tolist() or [0] for _ in range(2)], T)]
    if T > 1:
        kinds += [lambda: Cyclic(T, 1), lambda: Cyclic(1, T), lambda: OncePerEpoch(1, T)]
    return kinds[rng.integers(len(kinds))](), T


def dyadic_gossip(rng: np.random.Generator, n: int, *, symmetric: bool = False) -> gossip.GossipMatrix:
    """Weights of a few bits, rows that sum to one exactly: what the floats say is what is meant."""
    if n == 1:
        return gossip.from_array(np.eye(1))
    if not symmetric and rng.random() < 0.4:
        shares = rng.multinomial(8, np.full(n, 1 / n), n) / 8.0
        return gossip.from_array(shares)
    links = np.triu(rng.random((n, n)) < 0.6, 1).astype(float)
    links = links + links.T
    weight = float(rng.choice([0.25, 0.5 if n == 2 else 0.25]))
    W = weight * links
    return gossip.from_array(W + np.diag(1 - W.sum(axis=1)))


NAMES = [
    "dp-dsgd", "anti-pgd", "mf", "mf-per-node", "muffliato", "decor", "spatial", "zip-dl", "none", "gradient-tracking",
    "exact-diffusion", "delayed-dsgd", "two-hop-dsgd", "local-steps", "momentum", "cdp", "bsr",
]  # fmt: skip


def drawn_mechanism(rng: np.random.Generator, T: int, wide: bool) -> LinearAlgorithm:
    name, n = str(rng.choice(NAMES)), int(rng.integers(1, 4))
    W: gossip.Gossip = dyadic_gossip(rng, n, symmetric=name == "zip-dl")
    if rng.random() < 0.2 and name not in ("zip-dl", "two-hop-dsgd"):
        W = gossip.sequence([W, dyadic_gossip(rng, n)])
    reach = 20 if wide else 2
    rate: Any = 2.0 ** int(rng.integers(-reach, 1))
    if rng.random() < 0.3:
        rate = (rate * 2.0 ** -rng.integers(0, min(reach, 19), T)).tolist()
    plain = name not in ("momentum", "gradient-tracking")
    dynamics = Dynamics(W, rate, momentum=0.0 if plain else 0.5, weight_decay=0.25 if name == "momentum" else 0.0)
    every = EveryStep(T)
    if name == "mf" or name == "mf-per-node":
        return algorithms.mf_dsgd(dynamics, every, drawn_encoder(rng, T, wide, n if name == "mf-per-node" else None))
    if name == "muffliato":
        return algorithms.muffliato(dynamics, every, gossip_rounds=int(rng.integers(1, 3)))
    if name == "decor":
        size = 2.0 ** rng.integers(-SCALE, SCALE + 1) if wide else 2.0
        local = 0.0 if rng.random() < 0.2 else 1.0
        return algorithms.decor(dynamics, every, sigma_ldp=local, sigma_cor=float(size))
    if name == "spatial":
        factor = drawn_entries(rng, (n, n), wide)
        noise = StepNoise(factor, np.ones((n, n), dtype=bool), T, n)
        return dataclasses.replace(algorithms.dp_dsgd(dynamics, every), name=name, noise=noise)
    if name == "zip-dl":
        try:
            return algorithms.zip_dl(dynamics, every, self_messages=bool(rng.random() < 0.3))
        except InvalidInput as error:
            raise Excluded(f"zip-dl: {str(error)[:40]}") from None
    if name == "momentum":
        return dataclasses.replace(algorithms.dp_dsgd(dynamics, every), name=name)
    if name == "delayed-dsgd":
        return algorithms.delayed_dsgd(dynamics, every, delay=int(rng.integers(0, 3)))
    if name == "local-steps":
        return algorithms.local_steps(dynamics, every, steps=int(rng.integers(1, 4)))
    return algorithms.build(name, dynamics, every)


def drawn_entries(rng: np.random.Generator, shape: tuple[int, int], wide: bool, density: float = 0.7) -> FloatArray:
    values = rng.choice([1.0, -1.0, 0.5, -0.5, 2.0, 3.0], shape)
    if wide:
        values = values * 2.0 ** np.where(rng.random(shape) < 0.4, rng.integers(-SCALE, SCALE + 1, shape), 0)
    return np.asarray(np.where(rng.random(shape) < density, values, 0.0))


def drawn_encoder(rng: np.random.Generator, T: int, wide: bool, nodes: int | None) -> FloatArray:
    def encoder() -> FloatArray:
        powers = rng.integers(-10, 11, T) if wide else rng.integers(-1, 2, T)
        return np.tril(drawn_entries(rng, (T, T), False), -1) + np.diag(2.0**powers)

    return encoder() if nodes is None else np.stack([encoder() for _ in range(nodes)])


def drawn_noise_over_nodes(rng: np.random.Generator, T: int, n: int, wide: bool) -> NoiseOperator:
    """Correlated over nodes: fresh, by one encoder (a product with time) or one a column; or joint over both."""
    draw = rng.random()
    if draw < 0.15:
        size = T * n
        return JointNoise(np.tril(drawn_entries(rng, (size, size), False), -1) + np.eye(size), T, n)
    columns = n + int(rng.integers(0, 2)) if draw < 0.7 else n
    encoder = None if draw < 0.4 else drawn_encoder(rng, T, wide, None if draw < 0.7 else columns)
    holders = rng.random((columns, n)) < 0.7
    factor = np.eye(n, columns) * holders.T + drawn_entries(rng, (n, columns), wide) * holders.T
    return CausalNoise(encoder, factor, holders, num_steps=T, num_nodes=n)


def drawn_user_algorithm(rng: np.random.Generator, T: int, wide: bool) -> LinearAlgorithm:
    n = int(rng.integers(1, 4))
    state, messages = n + int(rng.integers(0, 3)), int(rng.integers(1, n + 2))
    together, same = rng.random() < 0.5, rng.random() < 0.5
    nearly = messages > 1 and wide and rng.random() < 0.2

    def maps(injects: bool) -> dict[str, Any]:
        maps_of: dict[str, Any] = {
            "P": drawn_entries(rng, (messages, state), wide),
            "K": drawn_entries(rng, (state, messages), wide),
            "F": drawn_entries(rng, (state, state), wide, 0.3),
        }
        if injects:
            maps_of |= {"Q": drawn_entries(rng, (messages, n), wide), "J": drawn_entries(rng, (state, n), wide, 0.2)}
        if injects and not together:
            maps_of |= {"R": drawn_entries(rng, (messages, n), wide), "L": drawn_entries(rng, (state, n), wide, 0.2)}
        if nearly:  # two messages that agree up to a part in 2^20 .. 2^48 of one entry
            for name in maps_of.keys() & {"P", "Q", "R"}:
                maps_of[name][1] = maps_of[name][0]
            maps_of["P" if not injects else "Q"][1, int(rng.integers(n))] *= 1 + 2.0 ** -int(rng.integers(20, 49))
        return maps_of

    rounds = [[maps(True), *([maps(False)] if rng.random() < 0.3 else [])] for _ in range(1 if same else T)]
    count = sum(len(rounds[0 if same else t]) for t in range(T))
    noise: NoiseOperator = IndependentNoise(T, n)
    draw = rng.random()
    if draw < 0.25:
        noise = LocalNoise(drawn_encoder(rng, T, wide, None), n)
    elif draw < 0.6:
        columns = int(rng.integers(1, n + 2))
        holders = rng.random((columns, n)) < 0.6
        noise = StepNoise(drawn_entries(rng, (n, columns), wide) * holders.T, holders, T, n)
    algorithm = from_maps(
        lambda t: rounds[0 if same else t],
        EveryStep(T),
        noise=noise,
        model_from_state=drawn_entries(rng, (n, state), wide) if rng.random() < 0.3 else None,
        message_sender=rng.integers(0, n, messages),
        name="user, noise with gradients" if together else "user, noise apart",
    )
    if rng.random() < 0.6:
        return algorithm
    used = used_by_others(algorithm.rounds, algorithm.model_from_state, algorithm.message_sender)
    return dataclasses.replace(algorithm, transmitted=used | (rng.random((count, messages)) < 0.6))


# ---- trust models, written again -------------------------------------------------------------------------------------


def drawn_trust(
    rng: np.random.Generator, algorithm: LinearAlgorithm, owners: tuple[int, ...]
) -> tuple[str, trust.TrustModel, list[Knows]]:
    n, T, R, S = algorithm.num_nodes, algorithm.num_steps, len(algorithm.rounds), algorithm.messages_per_round
    sent = np.array(algorithm.sent)
    holders = np.asarray(algorithm.noise.holders().toarray(), dtype=bool)

    def columns(parts: Mask) -> frozenset[int]:
        return frozenset(int(t * len(parts) + c) for t in range(T) for c in np.flatnonzero(parts))

    def of(nodes: list[int]) -> frozenset[int]:
        return frozenset(t * n + u for t in range(T) for u in nodes)

    def colluding(nodes: list[int]) -> Knows:
        return Knows(sent, of(nodes), columns(holders[:, nodes].any(axis=1)), "")

    def receiving(nodes: list[int]) -> Knows:
        receivers = [np.asarray(exchange.receivers.toarray()) for exchange in algorithm.rounds]
        got = np.array([matrix[:, nodes].any(axis=1) for matrix in receivers])
        return Knows(got & sent, of(nodes), columns(holders[:, nodes].any(axis=1)), "")

    everybody = [u for u in range(n) if u not in owners]
    others = [u for u in everybody if rng.random() < 0.5]
    kinds = [
        "ldp",
        "eavesdropper",
        "colluding",
        "full-collusion",
        "central",
        "released",
        "masks",
        "masks",
        "coalitions",
    ]
    if everybody:
        kinds += ["pndp", "pndp", "any-receiver"]
    kind = str(rng.choice(kinds))
    if kind == "ldp":
        alone = holders.sum(axis=1) == 1
        return kind, trust.LDP(), [Knows(sent, frozenset(), columns(~(alone & holders[:, owners].any(axis=1))), "")]
    if kind == "eavesdropper":
        return kind, trust.Eavesdropper(), [Knows(sent, frozenset(), frozenset(), "")]
    if kind == "colluding":
        return kind, trust.named("colluding", colluders=others), [colluding(others)]
    if kind == "full-collusion":
        return kind, trust.FullCollusion(), [colluding(everybody)]
    if kind == "coalitions":
        q = int(rng.integers(0, n))
        size = min(q, len(everybody))
        return kind, trust.Coalitions(q), [colluding(list(c)) for c in itertools.combinations(everybody, size)]
    if kind == "central":
        return kind, trust.Central(), [Knows(sent, frozenset(), frozenset(), "", average=True)]
    if kind == "released":
        return kind, trust.ReleasedOnly(), [Knows(sent & False, frozenset(), frozenset(), "")]
    if kind == "any-receiver":
        return kind, trust.AnyReceiver(), [receiving([u]) for u in everybody]
    if kind == "pndp":
        nodes = others or everybody[:1]
        return kind, trust.PNDP(nodes), [receiving(nodes)]
    seen = rng.random((R, S)) < rng.choice([0.3, 0.7, 1.0])
    seen = seen if rng.random() < 0.5 else np.tile(seen[0], (R, 1))
    gradients = np.zeros((T, n), dtype=bool)
    if everybody and rng.random() < 0.5:
        gradients[:, others] = rng.random((T, len(others))) < rng.choice([0.5, 1.0])
    parts = rng.random((T, len(holders))) < rng.choice([0.0, 0.3, 0.6])
    parts = parts if rng.random() < 0.5 else np.tile(parts[0], (T, 1))
    release = str(rng.choice(["none", "average", "all"]))
    model = trust.TrustModel.from_masks(seen=seen, known_gradients=gradients, known_noise=parts, release=release)
    known = frozenset(int(i) for i in np.flatnonzero(parts))
    return kind, model, [Knows(seen, frozenset(int(i) for i in np.flatnonzero(gradients)), known, "")]


# ---- the truth, from below -------------------------------------------------------------------------------------------


def least_loss(question: Question, reactions: FloatArray | None = None) -> Fraction | float:
    """A squared sensitivity that some gradients attain: exact, over all views, patterns and signs; inf where one leaks.

    Args: reactions: gradients that react to the models, (T, n); None: fixed in advance.
    """
    run = oracles.exact_run(question.algorithm, reactions)
    patterns = question.patterns()
    losses = [_loss_of_view(question, run, view, patterns, reactions) for view in question.views]
    return max(losses, default=Fraction(0))  # every node may be an owner, and nobody an attacker


def _loss_of_view(
    question: Question,
    run: oracles.ExactRun,
    view: Knows,
    patterns: list[tuple[tuple[int, int], ...]],
    reactions: FloatArray | None,
) -> Fraction | float:
    algorithm, n = question.algorithm, question.algorithm.num_nodes
    if any(t * n + u in view.gradients for pattern in patterns for t, u in pattern):
        return math.inf
    messages = algorithm.messages_per_round
    average = [[Fraction(float(1.0 / messages))] * messages] if view.average else None
    A, B = oracles.exact_view(run, view.seen, view.noise, release=view.release, combination=average)
    if reactions is not None:  # a known gradient shows how its model reacted
        hidden = [i not in view.noise for i in range(algorithm.noise.shape[1])]
        for column in sorted(view.gradients):
            t, v = divmod(column, n)
            row = [Fraction(float(reactions[t, v])) * x for x in run.models[t][v]]
            A = [*A, row[: run.num_gradients]]
            B = [*B, [x if keep else Fraction(0) for x, keep in zip(row[run.num_gradients :], hidden, strict=True)]]
    if not A:
        return Fraction(0)
    pairs = [(t, u) for u in question.owners for t in range(algorithm.num_steps)]
    place = {pair: i for i, pair in enumerate(pairs)}
    of_victim = [[row[t * n + u] for t, u in pairs] for row in A]
    without_noise = [any(row[i] for row in of_victim) for i in range(len(pairs))]
    leaks = oracles.exact_leaks(of_victim, B) if B[0] else without_noise
    joint = [[place[pair] for pair in pattern] for pattern in patterns]
    if any(leaks[i] for pattern in joint for i in pattern):
        return math.inf
    X = oracles.exact_view_gram(of_victim, B) if B[0] else [[Fraction(0)] * len(pairs)] * len(pairs)
    return max(oracles.largest_signed_sum([[X[i][j] for j in pattern] for i in pattern]) for pattern in joint)
