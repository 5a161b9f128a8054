"""Decorators of builders: names in the registry, checks of their arguments and of the algorithms that they return.

A trust model reads receivers, what is sent and who holds noise, so these must be those of the maps. Which node computes
an entry of the state cannot be told from the maps: the author answers for it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from .. import check, matrices
from ..check import FloatArray
from ..dynamics import Dynamics
from ..errors import InvalidInput
from ..noise import NoiseOperator
from ..operators import Map
from ..participation import Participation
from ..spec import Entry, Registry
from ..spec import bound_arguments as bound
from .round import LinearRecursion, Round

ALL_SEEN = ("ldp", "eavesdropper", "colluding", "coalitions", "full-collusion")
LOCAL = (*ALL_SEEN, "pndp")  # noise that one node alone holds: good against all of them
SHARED = ("eavesdropper", "coalitions", "colluding")
ALONE = ("ldp", "full-collusion")  # where only noise that the victim alone holds is unknown


@dataclasses.dataclass(frozen=True)
class MechanismEntry(Entry):
    """One mechanism; defaults are those of noise that one node alone holds.

    Attributes:
        erratum: what its paper or public code has wrong and this library does otherwise.
        trust: the trust models it is meant for, in words; models: their names, its own first.
        release: the released models it can bear, where that is less than all of them.
        tuned: the builder with free parameters at their best; None: `build`.
    """

    paper: str = "-"
    erratum: str = "-"
    trust: str = "ldp"
    models: tuple[str, ...] = LOCAL
    release: str | None = None
    tuned: Callable[..., Any] | None = None

    @property
    def summary(self) -> str:
        return self.help.rstrip(".")

    @property
    def form(self) -> str:
        first = next(iter(self.parameters.values()), None)
        return self.name if first is None else f"{first.name}=<{first.type_name}>"

    @property
    def best(self) -> Callable[..., Any]:
        return self.tuned or self.build

    def takes(self, parameter: str) -> bool:
        return parameter in inspect.signature(self.best).parameters

    @property
    def weighted(self) -> bool:
        return self.takes("weights")


OF_SEARCHES = ("tolerance", "max_iterations", "solver", "allow_stopped", "counted_models")  # for Python alone
SUPPLIED = ("dynamics", "participation", *OF_SEARCHES)
BUILDERS = ("gossip_sgd", "factorized", "maps", "other_exchanges", "over_nodes", "noise_for_trust")
PLACES = tuple(f"mfdl.algorithms.{module}" for module in BUILDERS)
MECHANISMS: Registry[MechanismEntry] = Registry("mechanism", MechanismEntry, supplied=SUPPLIED, places=PLACES)
OF_BALLS_IN_BINS: Registry[MechanismEntry] = Registry("mechanism", MechanismEntry, supplied=SUPPLIED, places=PLACES)
"""Mechanisms for balls-in-bins alone, made for a target: their builders take the `noise_std` that meets it."""


def shares_noise(algorithm: LinearRecursion) -> bool:
    """Whether several nodes hold some part of its noise, which counts as known where all but one collude."""
    noise = algorithm.noise
    return not (noise.local or noise.is_zero) and bool((noise.holders().astype(int).sum(axis=1) > 1).any())


def misplaced(algorithm: LinearRecursion, trust: str) -> str:
    """Warning about shared noise under a trust model in which it counts as known; empty elsewhere."""
    if trust not in ALONE or not shares_noise(algorithm):
        return ""
    return (
        f"Under {trust} noise shared between nodes is assumed to be known, so only noise that the "
        f"victim alone holds protects it: shared noise is meant for {', '.join(SHARED)}."
    )


# ---- checks ---------------------------------------------------------------------------------------------------------


MAX_DIVISOR_RATIO = 1e6  # columns fainter than that could pass for rounding


TYPES: dict[str, type] = {"dynamics": Dynamics, "participation": Participation, "noise": NoiseOperator}
Made = TypeVar("Made")
Given = ParamSpec("Given")


def require_types(**given: Any) -> None:
    """Raises: InvalidInput: a part, by the names of TYPES, of another type."""
    for name, value in given.items():
        check.instance(TYPES[name], **{name: value})


def builder(build: Callable[Given, Made]) -> Callable[Given, Made]:
    """Refuses, before any work, dynamics or participation that is none."""
    signature = inspect.signature(build)

    @functools.wraps(build)
    def checked(*args: Given.args, **named: Given.kwargs) -> Made:
        given = bound(build.__name__, signature, args, named)
        require_types(dynamics=given["dynamics"], participation=given["participation"])
        return build(*args, **named)

    return checked


def solved_by(
    solve: Callable[Given, Any], *, without: Collection[str] = (), **fixed: Any
) -> Callable[[Callable[[Mapping[str, Any], Any], Made]], Callable[Given, Made]]:
    """A builder with the arguments of `solve`, called with these by name and with the answer; its docstring says so.

    Args: without: arguments that the builder does not take; fixed: those that it decides.
    """
    signature = inspect.signature(solve)
    left = [parameter for name, parameter in signature.parameters.items() if name not in {*without, *fixed}]
    signature = signature.replace(parameters=left)

    def decorated(build: Callable[[Mapping[str, Any], Any], Made]) -> Callable[Given, Made]:
        @functools.wraps(build)
        def called(*args: Given.args, **named: Given.kwargs) -> Made:
            given = bound(build.__name__, signature, args, named)
            require_types(dynamics=given["dynamics"], participation=given["participation"])
            return build(given, solve(**given, **fixed))  # type: ignore[call-arg]

        seen: Any = called
        form = "".join(f" with {name}={value!r}" for name, value in fixed.items())
        seen.__doc__ = f"{inspect.getdoc(build)}\n\nArgs: those of `{solve.__module__}.{solve.__name__}`{form}."
        seen.__signature__ = signature.replace(return_annotation=inspect.signature(build).return_annotation)
        return called

    return decorated


def require_rounds(rounds: Any) -> None:
    try:
        kinds = {type(exchange) for exchange in rounds}
    except TypeError:
        raise InvalidInput(f"rounds must be a sequence of Round, got {type(rounds).__name__}.") from None
    if kinds != {Round}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds)) or "none"
        raise InvalidInput(f"rounds must be Round objects, at least one, got {names}.")


def divisors(given: ArrayLike, num_nodes: int) -> FloatArray:
    """One finite number > 0 per node, all within MAX_DIVISOR_RATIO, as an own read-only array."""
    try:
        m = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        m = np.zeros(0)
    if m.shape != (num_nodes,) or not (np.isfinite(m) & (m > 0)).all():
        raise InvalidInput(f"divisors must be {num_nodes} finite numbers > 0, one per node, got {given!r}.")
    if m.max() > MAX_DIVISOR_RATIO * m.min():
        raise InvalidInput(
            f"divisors must lie within a factor of {MAX_DIVISOR_RATIO:g}, got {m.min():g} to {m.max():g}; give "
            "nodes batches of comparable size."
        )
    return np.asarray(matrices.read_only(m))


def step_of_round(steps_given: Sequence[int], rounds: Sequence[Round]) -> tuple[int, ...]:
    """The steps 0 .. T - 1 in order, each in one round, and -1 in the rounds of pure gossip that follow a step."""
    R = len(rounds)
    given = np.asarray(steps_given if len(steps_given) else np.arange(R))
    if given.shape != (R,) or given.dtype.kind not in "iu":
        raise InvalidInput(f"step_of_round must hold {R} integers, one per round, got {steps_given!r}.")
    steps = given[given != -1]
    if given[0] != 0 or not np.array_equal(steps, np.arange(steps.size)):
        raise InvalidInput(
            f"step_of_round must hold the steps 0 .. T - 1 in order, each once, and -1 for the gossip rounds after a "
            f"step, got {_shortened(given)}; put the rounds in the order in which they run."
        )
    for r, (exchange, step) in enumerate(zip(rounds, given, strict=True)):
        if step < 0 and exchange.injects:
            raise InvalidInput(
                f"round {r} is pure gossip (step -1) but has a map of gradients or noise; give it a step of its own, "
                "or leave these maps None."
            )
    return tuple(given.tolist())


def transmitted(marks: ArrayLike, num_rounds: int, num_messages: int) -> NDArray[np.bool_]:
    """bool (messages per round,), or (rounds, messages per round) where rounds differ; read-only."""
    R, S = num_rounds, num_messages
    given = np.asarray(marks)
    if not given.size and S:
        given = np.ones(S, dtype=bool)
    if given.dtype != bool or given.shape not in ((S,), (R, S)):
        raise InvalidInput(
            f"transmitted must be a boolean array of shape ({S},), or ({R}, {S}) for each round, got shape "
            f"{given.shape} of {given.dtype}."
        )
    if given.ndim == 2 and (given == given[0]).all():
        given = given[0]
    return np.asarray(matrices.read_only(given.copy()))


def close(has: Map, wanted: Map) -> bool:
    if has is None or wanted is None or has.shape != wanted.shape:
        return has is None and wanted is None
    difference = abs(has - wanted)
    return bool(difference.nnz == 0 or difference.max() <= 1e-13 * abs(wanted).max())


def require_models(model_from_state: sp.csr_array, num_nodes: int) -> None:
    if model_from_state.shape[0] != num_nodes:
        raise InvalidInput(
            f"model_from_state must have one row for each of {num_nodes} nodes, got shape {model_from_state.shape}."
        )


def require_receivers(
    rounds: Sequence[Round], model_from_state: sp.csr_array, sender: NDArray[np.intp], sent: NDArray[np.bool_]
) -> None:
    """Raises: InvalidInput: a message that a node uses without receiving it; sent: (rounds, messages)."""
    unsent = ~sent
    if unsent.any():
        alone = unsent & used_by_others(rounds, model_from_state, sender)
        if alone.any():
            r, j = (int(index[0]) for index in np.nonzero(alone))
            raise InvalidInput(
                f"message {j} of round {r} enters models of other nodes than its sender {sender[j]}, "
                "but is not sent; mark it in transmitted."
            )
    if all(exchange.receivers is None for exchange in rounds):
        return
    number, looked = matrices.numbered(), set()
    for r, users in message_users(rounds, model_from_state, sender):
        receivers = rounds[r].receivers
        if receivers is None or (number(receivers), number(users)) in looked:
            continue
        looked.add((number(receivers), number(users)))
        deaf = sp.coo_array(users > receivers)
        if deaf.nnz:
            j, u = int(deaf.coords[0][0]), int(deaf.coords[1][0])
            raise InvalidInput(
                f"message {j} of round {r}, sent by node {sender[j]}, enters the models of node {u}, "
                "which is not among its receivers; mark it there, or leave receivers None."
            )


def used_by_others(
    rounds: Sequence[Round], model_from_state: sp.csr_array, sender: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """Messages that other nodes than the sender use, now or later: bool (rounds, messages)."""
    used = np.zeros((len(rounds), sender.size), dtype=bool)
    for r, users in message_users(rounds, model_from_state, sender):
        used[r] = np.diff(users.indptr) > 0
    return used


def message_users(
    rounds: Sequence[Round], model_from_state: sp.csr_array, sender: NDArray[np.intp]
) -> Iterator[tuple[int, sp.csr_array]]:
    """(round, who uses each of its messages: bool csr (messages, n)), last round first; equal answers are one object.

    A node uses a message of another if it reaches, over the state, a message that the node sends or a model of its own.
    """
    n, S = model_from_state.shape[0], sender.size
    sends = sp.csr_array((np.ones(S, dtype=bool), (np.arange(S), sender)), shape=(S, n))
    models = _pattern(sp.csr_array(model_from_state.T))
    uses = models  # (state, n): who uses an entry of the state from here on
    uses_by_round = [uses]
    number = matrices.numbered()
    places = matrices.once_for_places(_pattern)
    done: dict[tuple[int, ...], tuple[sp.csr_array, sp.csr_array]] = {}
    for r in range(len(rounds) - 1, -1, -1):
        maps = rounds[r].state_from_message, rounds[r].state_from_state, rounds[r].message_from_state
        K, F, P = (None if matrix is None else places(matrix) for matrix in maps)
        key = (*map(number, (K, F, P, uses)),)
        if key not in done:
            users = sp.csr_array((S, n), dtype=bool)
            if K is not None:
                users = sp.csr_array(sp.csr_array(K.T @ uses, dtype=bool) > sends)
            before = models
            if F is not None:
                before = before + F.T @ uses
            if P is not None:
                before = before + P.T @ sends
            before = _pattern(sp.csr_array(before))
            uses_by_round.append(
                next((u for u in uses_by_round[-2:] if u.nnz == before.nnz and (u != before).nnz == 0), before)
            )
            done[key] = uses_by_round[-1], users
        uses, users = done[key]
        yield r, users


def require_held_by_senders(kinds: Sequence[Round], noise: NoiseOperator, sender: NDArray[np.intp]) -> None:
    may_enter = sp.csr_array(noise.holders().T, dtype=bool)[sender]  # (messages, parts)
    for kind in kinds:
        if kind.message_from_noise is None:
            continue
        foreign = sp.coo_array(_pattern(_pattern(kind.message_from_noise) @ noise.pattern()) > may_enter)
        if foreign.nnz:
            j, c = (int(index[0]) for index in foreign.coords)
            raise InvalidInput(
                f"a node can only add noise that it holds, but message {j} of node {sender[j]} has part {c} of the "
                "noise, which that node does not hold; add it to holders."
            )


def _pattern(matrix: sp.csr_array) -> sp.csr_array:
    return sp.csr_array(matrix != 0)


def _shortened(values: NDArray[np.intp]) -> str:
    return f"{values[:12].tolist()}{' ...' if values.size > 12 else ''}"
