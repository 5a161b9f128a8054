"""Algorithms from their maps: of one's own, with everything inferred that can be, and D-SGD with memory.

The maps are named P, Q, R, K, F, J, L, as in `round`, or by the long names of `Round`.

In D-SGD with memory nodes track gradients, correct their averages, or use messages that are late or forwarded. Noise
enters where gradients do, so all messages together show the injected sums i = g + e and no more: with them seen the
privacy of a noise is that of plain D-SGD, an upper bound where messages are hidden. W is the averaging matrix of a
step, eta its learning rate; `noise` is on gradient sums, by default fresh and independent. Unless said otherwise the
builders refuse (UnsupportedMechanism) momentum, weight decay and several gossip rounds per step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from .. import check, matrices
from ..dynamics import Dynamics
from ..errors import InvalidInput, UnsupportedMechanism, UnusualSetting, unknown_name
from ..gossip import GossipMatrix
from ..noise import IndependentNoise, NoiseOperator
from ..participation import Participation
from .building import MECHANISMS, builder, message_users, require_models, require_types
from .gossip_sgd import receivers
from .linear_algorithm import LinearAlgorithm
from .round import MAPS, SHAPES, Round, distinct

Maps: TypeAlias = Mapping[str, Any]
Step: TypeAlias = Maps | Round | Sequence[Maps | Round]

MAX_STATE = 1000  # entries of the state up to which eigenvalues are worth their O(state^3)
GROWTH = 1e-4  # beyond 1: eigenvalues of marginally stable maps, as of tracked gradients, are found to its square
_KEYS = {**dict(zip("PQRKFJL", MAPS, strict=True)), **{name: name for name in SHAPES}}


def from_maps(
    rounds: Step | Callable[[int], Step],
    participation: Participation,
    dynamics: Dynamics | None = None,
    *,
    noise: NoiseOperator | None = None,
    model_from_state: ArrayLike | None = None,
    state_from_start: ArrayLike | None = None,
    message_sender: ArrayLike | None = None,
    transmitted: ArrayLike | None = None,
    noise_on_messages: bool | None = None,
    name: str = "custom",
) -> LinearAlgorithm:
    """An algorithm from its maps.

    >>> from mfdl import EveryStep
    >>> W = np.array([[0.5, 0.5], [0.5, 0.5]])
    >>> own = from_maps({"P": np.eye(2), "Q": -0.1 * np.eye(2), "K": W}, EveryStep(3))
    >>> own.num_steps, own.num_nodes, own.rounds[0].receivers.toarray().tolist()
    (3, 2, [[False, True], [True, False]])

    Args:
        rounds: the maps of a step by name (or a `Round`), the same at every step, or a function of the step t that
            returns them. A list of several is one gradient step followed by rounds of pure gossip. Arrays are dense or
            sparse; a map that is left out is zero, but R is Q and L is J unless they are named (None is then zero):
            noise enters where gradients do. `receivers`, bool (messages, n), may be given like a map.
        dynamics: gossip, learning rate and node labels as reports show them; the maps alone decide. Default: uniform
            weights over whom each node hears, rate 1.
        noise: N; default fresh independent noise at every node and step.
        model_from_state, state_from_start, transmitted: default the first n entries of the state, their transpose, and
            all messages.
        message_sender: default the node whose gradient a message holds, else the node whose model it reads.
        noise_on_messages: default whether noise has other slots than one for each node.

    Receivers that are not given are the nodes whose models use a message, in any round: name them where links change.
    Raises: InvalidInput: an unknown map, a message whose sender cannot be told, no way from a gradient to the state,
        and all that `LinearAlgorithm` refuses.
    """
    optional = {name: part for name, part in (("dynamics", dynamics), ("noise", noise)) if part is not None}
    require_types(participation=participation, **optional)
    T = participation.num_steps
    of_step = rounds if callable(rounds) else lambda t: rounds
    n, state, messages = _sizes(_listed(of_step(0))[0], noise, dynamics)
    if state < n and model_from_state is None:
        raise InvalidInput(f"the state has {state} entries for {n} nodes; give model_from_state, (n, state).")
    noise = IndependentNoise(T, n) if noise is None else noise
    together = noise.slots_per_step == n
    if not isinstance(noise_on_messages, bool | None):
        raise InvalidInput(f"noise_on_messages must be True, False or None, got {check.brief(noise_on_messages)}.")
    times = (T, 1) if callable(rounds) else (1, T)
    M = matrices.sparse_matrix(
        model_from_state=sp.eye_array(n, state) if model_from_state is None else model_from_state
    )
    require_models(M, n)
    known = {"messages": messages, "state": M.shape[1], "nodes": n, "injection slots": noise.slots_per_step}
    given: set[str] = set()
    of_steps: list[list[Round]] = []
    for t in range(times[0]):
        where = f"step {t}: " if callable(rounds) else ""
        with _refused_at(where):
            listed = _listed(of_step(t))
        given.update(*map(_named, listed))
        of_steps.append([_round(maps, together, known, where) for maps in listed])
    rounds_by_step = of_steps * times[1]
    kinds, kind_of_round = distinct(exchange for step in rounds_by_step for exchange in step)
    step_of_round = [t if j == 0 else -1 for t, step in enumerate(rounds_by_step) for j in range(len(step))]
    if message_sender is None:
        message_sender = _senders(kinds, M, messages)
    sender = matrices.integers(messages, n, message_sender=message_sender)
    users = _users([kinds[kind] for kind in kind_of_round], M, sender)
    # what is sent in one round is sent again: those who use a message, be it in another round, hear it in each
    heard = [kind if kind.receivers is not None else dataclasses.replace(kind, receivers=users) for kind in kinds]
    algorithm = LinearAlgorithm(
        name=name,
        dynamics=_heard(users, sender) if dynamics is None else dynamics,
        participation=participation,
        rounds=tuple(heard[kind] for kind in kind_of_round),
        noise=noise,
        model_from_state=M,
        message_sender=sender,
        divisors=np.ones(n),
        step_of_round=tuple(step_of_round),
        transmitted=np.ones(0, dtype=bool) if transmitted is None else check.as_array(transmitted=transmitted),
        state_from_start=state_from_start,
        noise_on_messages=not together if noise_on_messages is None else noise_on_messages,
    )
    _require_learning(given)
    per_step = {tuple(kind_of_round[t * len(step) : (t + 1) * len(step)]) for t, step in enumerate(rounds_by_step)}
    if len(per_step) == 1:
        _warn_where_unstable([kinds[kind] for kind in per_step.pop()], M.shape[1], T)
    return algorithm


def _warn_where_unstable(step: Sequence[Round], state: int, num_steps: int) -> None:
    """Warns where the map of the state over one step has an eigenvalue beyond 1."""
    if state > MAX_STATE:
        return
    transition = np.eye(state)
    for maps in step:
        passed = np.zeros_like(transition) if maps.state_from_state is None else maps.state_from_state @ transition
        if maps.state_from_message is not None and maps.message_from_state is not None:
            passed = passed + maps.state_from_message @ (maps.message_from_state @ transition)
        transition = np.asarray(passed)
    if not np.isfinite(transition).all():
        return
    radius = float(np.abs(np.linalg.eigvals(transition)).max(initial=0.0))
    if radius > 1 + GROWTH:
        with np.errstate(over="ignore"):
            grown = float(np.float64(radius) ** num_steps)
        warnings.warn(
            f"the maps are unstable: without gradients and noise the state grows {radius:.4g} times in each step "
            f"(spectral radius of F + K P), {grown:.3g} times in {num_steps} steps; scale them so that it is at most "
            "1, as with rows of K that sum to 1.",
            UnusualSetting,
            stacklevel=4,
        )


def _listed(step: Any) -> list[Maps | Round]:
    listed = [step] if isinstance(step, Mapping | Round) else step
    kinds = {isinstance(exchange, Mapping | Round) for exchange in listed} if isinstance(listed, Sequence) else set()
    if kinds != {True}:
        raise InvalidInput(
            "rounds must be the maps of a step by name, a list of those of a step and of gossip rounds after it, or a "
            f"function of the step that returns such, got {type(step).__name__}."
        )
    return list(listed)


def _round(maps: Maps | Round, together: bool, known: dict[str, int], where: str) -> Round:
    if isinstance(maps, Round):
        with _refused_at(where):
            maps.require_sizes(known)
        return maps
    named: dict[str, Any] = {}
    with _refused_at(where, {_KEYS[key]: key for key in maps if key in _KEYS and key not in SHAPES}):
        for key, value in maps.items():
            if key not in _KEYS:
                raise unknown_name("map", str(key), _KEYS)
            named[_KEYS[key]] = value
        if together:
            named.setdefault("message_from_noise", named.get("message_from_gradient"))
            named.setdefault("state_from_noise", named.get("state_from_gradient"))
        exchange = Round(**named)
        exchange.require_sizes(known)
    return exchange


@contextlib.contextmanager
def _refused_at(where: str, letters: Mapping[str, str] | None = None) -> Iterator[None]:
    """Adds to a refusal the step, and to the name of a map its letter."""
    try:
        yield
    except InvalidInput as error:
        written = letters or {}
        text = re.sub(
            r"\w+", lambda word: f"{written[word[0]]} = {word[0]}" if word[0] in written else word[0], str(error)
        )
        raise type(error)(where + text) from None


def _named(maps: Maps | Round) -> list[str]:
    items = vars(maps) if isinstance(maps, Round) else maps
    return [_KEYS.get(key, key) for key, value in items.items() if value is not None]


def _require_learning(given: set[str]) -> None:
    """Raises: InvalidInput: no map is given by which a gradient enters the state."""
    if "state_from_gradient" in given or {"message_from_gradient", "state_from_message"} <= given:
        return
    way_out = "K (state from message)" if "message_from_gradient" in given else "Q (message from gradient) with K"
    raise InvalidInput(
        f"no gradient ever enters a model with the maps {', '.join(sorted(given))}: nothing would be trained; give "
        f"{way_out}, e.g. the weights W of the averaging, or J (state from gradient)."
    )


def _sizes(maps: Maps | Round, noise: NoiseOperator | None, dynamics: Dynamics | None) -> tuple[int, int, int]:
    """(nodes, entries of the state, messages), from the first round's maps."""
    sizes: dict[str, int] = {}
    for key, value in (vars(maps) if isinstance(maps, Round) else maps).items():
        if value is None or key not in _KEYS:
            continue
        shape = value.shape if hasattr(value, "shape") else check.finite_array(2, **{key: value}).shape
        if len(shape) == 2:
            for space, size in zip(SHAPES[_KEYS[key]], shape, strict=True):
                sizes.setdefault(space, int(size))
    if (given := dynamics or noise) is not None:
        sizes["nodes"] = given.num_nodes
    either = "P (message from state) or K (state from message)"
    ways_out = {"nodes": "a gradient map (Q or J), dynamics or noise", "state": either, "messages": either}
    for space, way_out in ways_out.items():
        if space not in sizes:
            raise InvalidInput(f"the number of {space} cannot be inferred from the maps; give {way_out}.")
    return sizes["nodes"], sizes["state"], sizes["messages"]


def _senders(rounds: Sequence[Round], M: sp.csr_array, messages: int) -> NDArray[np.intp]:
    """For each message the one node whose gradient it holds, else whose model it reads."""
    reads = [abs(P) @ abs(M).T for exchange in rounds if (P := exchange.message_from_state) is not None]
    holds = [Q for exchange in rounds if (Q := exchange.message_from_gradient) is not None]
    sender = np.full(messages, -1)
    for maps in (reads, holds):
        nodes = sum((sp.csr_array(matrix != 0) for matrix in maps), sp.csr_array((messages, M.shape[0]), dtype=bool))
        alone = np.flatnonzero(np.diff(nodes.indptr) == 1)
        sender[alone] = nodes.indices[nodes.indptr[alone]]
    if (sender < 0).any():
        message = int(np.argmax(sender < 0))  # exact: booleans
        raise InvalidInput(
            f"the sender of message {message} cannot be inferred: it holds gradients or models of none or several "
            "nodes; give message_sender."
        )
    return sender


def _users(rounds: Sequence[Round], M: sp.csr_array, sender: NDArray[np.intp]) -> sp.csr_array:
    """Nodes other than the sender that use each message in any round: bool csr (messages, n)."""
    number, none = matrices.numbered(), sp.csr_array((sender.size, M.shape[0]), dtype=bool)
    answers = {number(users): users for _, users in message_users(rounds, M, sender)}
    return sp.csr_array(sum(answers.values(), none), dtype=bool)


def _heard(users: sp.csr_array, sender: NDArray[np.intp]) -> Dynamics:
    n = users.shape[1]
    sends = sp.csr_array((np.ones(sender.size), (sender, np.arange(sender.size))), shape=(n, sender.size))
    links = sp.csr_array((sends @ users).T + sp.eye_array(n) != 0, dtype=np.float64)
    W = sp.csr_array(sp.diags_array(1 / links.sum(axis=1)) @ links)
    return Dynamics(GossipMatrix(W, tuple(range(n)), "inferred"))


# ---- D-SGD with memory -----------------------------------------------------------------------------------------------


@MECHANISMS.register(paper="arXiv:1607.03218; with momentum arXiv:2209.15505")
@builder
def gradient_tracking(
    dynamics: Dynamics, participation: Participation, *, noise: NoiseOperator | None = None
) -> LinearAlgorithm:
    """Gradient tracking: nodes follow an estimate y of the average gradient, so that data that differ do no harm.

        y_t = W y_{t-1} + v_t - v_{t-1},  v_t = momentum v_{t-1} + i_t,  theta_{t+1} = W (theta_t - eta_t y_t)

    A node sends theta - eta y and y. It is DIGing with averaging after the step; momentum is covered.

    Raises: UnsupportedMechanism: weight decay, or several gossip rounds per step.
    """
    n, beta = dynamics.num_nodes, dynamics.momentum
    eye, none = sp.eye_array(n), None

    def step(t: int, W: sp.csr_array, eta: float) -> Maps:  # state: theta, W y, v
        return {
            "P": sp.block_array([[eye, -eta * eye, -eta * (beta - 1) * eye], [none, eye, (beta - 1) * eye]]),
            "Q": sp.vstack([-eta * eye, eye]),
            "K": sp.block_array([[W, none], [none, W], [sp.csr_array((n, n)), sp.csr_array((n, n))]]),
            "F": sp.block_diag([sp.csr_array((2 * n, 2 * n)), beta * eye]) if beta else None,
            "J": sp.vstack([sp.csr_array((2 * n, n)), eye]),
            "receivers": sp.vstack([receivers(W)] * 2),
        }

    return _from_step("gradient-tracking", step, dynamics, participation, noise, momentum=True)


@MECHANISMS.register(paper="arXiv:1702.05122")
@builder
def exact_diffusion(
    dynamics: Dynamics, participation: Participation, *, noise: NoiseOperator | None = None
) -> LinearAlgorithm:
    """Exact diffusion: each step corrects the bias that the last one's averaging left.

        psi_{t+1} = theta_t - eta_t i_t,  theta_{t+1} = (I + W) / 2 (psi_{t+1} + theta_t - psi_t),  psi_0 = theta_0

    A node sends psi_{t+1} + theta_t - psi_t. EXTRA is the same with one gradient more on the way.

    Raises: UnsupportedMechanism: momentum, weight decay, or several gossip rounds per step.
    """
    n = dynamics.num_nodes
    eye, zero = sp.eye_array(n), sp.csr_array((n, n))

    def step(t: int, W: sp.csr_array, eta: float) -> Maps:  # state: theta, psi
        return {
            "P": sp.hstack([2 * eye, -eye]),
            "Q": -eta * eye,
            "K": sp.vstack([(eye + W) / 2, zero]),
            "F": sp.block_array([[zero, zero], [eye, zero]]),
            "J": sp.vstack([zero, -eta * eye]),
        }

    start = sp.vstack([eye, eye])
    return _from_step("exact-diffusion", step, dynamics, participation, noise, state_from_start=start)


@MECHANISMS.register(paper="arXiv:1710.06952, with one fixed delay")
@builder
def delayed_dsgd(
    dynamics: Dynamics, participation: Participation, *, delay: int = 1, noise: NoiseOperator | None = None
) -> LinearAlgorithm:
    """D-SGD on slow links: what others sent arrives `delay` steps later.

        theta'_u = w_uu m_u(t) + sum_{v != u} w_uv m_v(t - delay),  m(t) = theta_t - eta_t i_t, and theta_0 for t < 0

    Weights and links are those of the step in which a message is used. An attacker sees a message when it is sent.
    delay = 0 is D-SGD.

    Raises: UnsupportedMechanism: momentum, weight decay, or several gossip rounds per step.
    """
    check.integer_at_least(0, delay=delay)
    n = dynamics.num_nodes
    eye = sp.eye_array(n)

    def step(t: int, W: sp.csr_array, eta: float) -> Maps:  # state: theta, m of the last step, ..., of `delay` ago
        self_weights = sp.diags_array(W.diagonal())
        if delay == 0:
            return {"P": eye, "Q": -eta * eye, "K": W}
        ages = sp.coo_array(([1.0] * (delay - 1), (range(2, delay + 1), range(1, delay))), shape=(delay + 1,) * 2)
        late = sp.coo_array(([1.0], ([0], [delay])), shape=(delay + 1,) * 2)
        return {
            "P": sp.hstack([eye, sp.csr_array((n, delay * n))]),
            "Q": -eta * eye,
            "K": sp.vstack([self_weights, eye, sp.csr_array(((delay - 1) * n, n))]),
            "F": sp.kron(ages, eye) + sp.kron(late, W - self_weights),
            "receivers": receivers(dynamics.gossip.at(min(t + delay, num_steps - 1)).weights),
        }

    num_steps = participation.num_steps
    start = sp.vstack([eye] * (delay + 1))
    return _from_step("delayed-dsgd", step, dynamics, participation, noise, state_from_start=start)


@MECHANISMS.register(paper="this library")
@builder
def two_hop_dsgd(
    dynamics: Dynamics, participation: Participation, *, share: float = 0.5, noise: NoiseOperator | None = None
) -> LinearAlgorithm:
    """D-SGD in which each node also forwards last step's messages of its neighbours.

        theta' = (1 - share) W m(t) + share W^2 m(t - 1),  m(t) = theta_t - eta_t i_t,  m(-1) = theta_0

    A message of a neighbour is known to its receivers; one of a neighbour's neighbour comes forwarded.

    Raises: InvalidInput: share outside [0, 1]. UnsupportedMechanism: besides, gossip that changes.
    """
    if not dynamics.gossip.is_constant:
        raise UnsupportedMechanism("two-hop-dsgd covers constant gossip only: the forwarding pattern is fixed.")
    share = check.non_negative(share=share)
    if share > 1:
        raise InvalidInput(f"share must lie in [0, 1], got {share:g}.")
    n, W = dynamics.num_nodes, dynamics.gossip.at(0).weights
    eye, zero = sp.eye_array(n), sp.csr_array((n, n))
    links = sp.coo_array(W - sp.diags_array(W.diagonal()))
    links.eliminate_zeros()
    v, x = links.coords  # after the n own messages one per link: v forwards what x sent
    forwarded = sp.csr_array((np.ones(links.nnz), (np.arange(links.nnz), x)), shape=(links.nnz, n))
    # u weighs what v forwards of x by w_uv w_vx, unless it heard x itself
    near = sp.csr_array(W + eye) != 0
    paths = sp.coo_array(W[:, v] @ sp.diags_array(links.data))
    heard = sp.csr_array(near[:, x], dtype=np.float64)
    two_hops = sp.csr_array(share * (paths - sp.csr_array(paths) * heard))
    direct, reached = sp.csr_array(share * (W @ W)) * near, receivers(W)

    def step(t: int, W: sp.csr_array, eta: float) -> Maps:  # state: theta, m of the last step
        return {
            "P": sp.block_array([[eye, None], [None, forwarded]]),
            "Q": sp.vstack([-eta * eye, sp.csr_array((links.nnz, n))]),
            "K": sp.block_array([[(1 - share) * W, two_hops], [eye, None]]),
            "F": sp.block_array([[zero, direct], [zero, zero]]),
            "receivers": sp.vstack([reached, reached[v]]),
        }

    given = {"state_from_start": sp.vstack([eye, eye]), "message_sender": np.concatenate([np.arange(n), v])}
    return _from_step("two-hop-dsgd", step, dynamics, participation, noise, **given)


@MECHANISMS.register(paper="arXiv:2003.10422")
@builder
def local_steps(
    dynamics: Dynamics, participation: Participation, *, steps: int = 2, noise: NoiseOperator | None = None
) -> LinearAlgorithm:
    """D-SGD that gossips after every `steps` gradient steps, and after the last.

        theta_{t+1} = W (theta_t - eta_t i_t) where a gossip is due, theta_t - eta_t i_t elsewhere

    T counts gradient steps.

    Raises: UnsupportedMechanism: momentum, weight decay, or several gossip rounds per step.
    """
    check.integer_at_least(1, steps=steps)
    n, T = dynamics.num_nodes, participation.num_steps
    eye = sp.csr_array(sp.eye_array(n))
    due = [(t + 1) % steps == 0 or t + 1 == T for t in range(T)]

    def step(t: int, _: sp.csr_array, eta: float) -> Maps:
        W = dynamics.gossip.at(sum(due[:t])).weights if due[t] else eye  # the next, as gossip is not due in every step
        return {"P": eye, "Q": -eta * eye, "K": W, "receivers": receivers(W)}

    sent = np.outer(due, np.ones(n, dtype=bool))
    return _from_step("local-steps", step, dynamics, participation, noise, transmitted=sent)


def _from_step(
    name: str,
    step: Callable[[int, sp.csr_array, float], Maps],
    dynamics: Dynamics,
    participation: Participation,
    noise: NoiseOperator | None,
    *,
    momentum: bool = False,
    **given: Any,
) -> LinearAlgorithm:
    if not dynamics.has_one_round:
        raise UnsupportedMechanism(
            f"{name} covers one gossip round per step, got gossip_rounds={dynamics.gossip_rounds} and "
            f"polynomial={dynamics.polynomial!r}; leave both out."
        )
    if dynamics.weight_decay or (dynamics.momentum and not momentum):
        raise UnsupportedMechanism(
            f"{name} covers {'no weight decay' if momentum else 'neither momentum nor weight decay'}; leave it out, or "
            "write the recursion down with mfdl.algorithms.from_maps."
        )
    rates = dynamics.learning_rates(participation.num_steps).tolist()

    def maps(t: int) -> Maps:
        W = dynamics.gossip.at(t).weights
        named = {"receivers": receivers(W), **step(t, W, rates[t])}
        return {**named, "R": named.get("Q"), "L": named.get("J")}

    return from_maps(maps, participation, dynamics, noise=noise, name=name, **given)
