"""Cases in words short enough to check by hand: fractions instead of binary floats, edges instead of object ids."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import networkx as nx
import numpy as np

from ...algorithms import LinearAlgorithm
from ...factorization import Factorization, FactorizationProblem
from ...gossip import Gossip, GossipMatrix, GossipSequence
from ...mechanism import Mechanism
from ...view import View

LARGEST_DENOMINATOR = 120


def describe(value: Any) -> str:
    """One line that says what the value is.

    >>> describe(nx.path_graph(3))
    '{0-1, 1-2}'
    >>> describe(np.array([[1, 0.25], [0, 1 / 3]]))
    '[[1, 1/4], [0, 1/3]]'
    """
    if isinstance(value, nx.Graph):
        alone = [str(node) for node in nx.isolates(value)]
        return "{" + ", ".join([f"{u}-{v}" for u, v in value.edges] + alone) + "}"
    if isinstance(value, GossipMatrix):
        return f"W = {describe(value.dense())}"
    if isinstance(value, GossipSequence):
        return f"{'repeated ' if value.repeat else ''}sequence of " + ", ".join(describe(W) for W in value.matrices)
    if isinstance(value, Gossip):
        return value.describe()
    if isinstance(value, LinearAlgorithm):
        return _algorithm(value)
    if isinstance(value, Mechanism):
        g = value.guarantee
        strength = g.epsilon_in_words if g.mu is None else f"mu = {_number(g.mu)}"
        private = f"{strength} under {g.trust}, {g.adjacency}, clip_norm {_number(g.clip_norm)}"
        return f"{_algorithm(value.algorithm)}; noise_std {_number(value.noise_std)}, {private}"
    if isinstance(value, View):
        owners = f" of {value.axis.num_nodes} nodes" if value.axis.num_nodes > 1 else ""
        return f"A = {_array(value.dense_gradients_by_time())}{owners}, B = {_array(value.dense_noise())}"
    if isinstance(value, FactorizationProblem):
        return f"H = {_array(value.error_gram)}, classes {_array(value.classes)}"
    if isinstance(value, Factorization):
        return f"{value.status} C = {_array(value.encoder)}"
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, bool | np.bool_ | int | np.integer | str) or value is None:
        return str(value)
    if isinstance(value, float | np.floating):
        return _number(float(value))
    if isinstance(value, list | tuple):
        return f"[{', '.join(describe(part) for part in value)}]"
    if isinstance(value, dict):
        return ", ".join(f"{name} = {describe(part).removeprefix(f'{name} = ')}" for name, part in value.items())
    if dataclasses.is_dataclass(value) and type(value).__str__ is object.__str__:
        return _fields(value)
    return str(value)


def _algorithm(algorithm: LinearAlgorithm) -> str:
    """Name, gossip and participation, and of step size and noise what these do not say."""
    parts = [f"{algorithm.name} on {describe(algorithm.dynamics.gossip)}", describe(algorithm.participation)]
    if np.any(np.asarray(algorithm.dynamics.learning_rate) != 1):
        parts.append(f"learning rate {describe(algorithm.dynamics.learning_rate)}")
    if algorithm.dynamics.gossip_rounds > 1:
        parts.append(f"{algorithm.dynamics.gossip_rounds} gossip rounds")
    if (algorithm.divisors != 1).any():
        parts.append(f"divisors {_array(algorithm.divisors)}")
    noise = algorithm.noise.causal
    if noise is not None and not noise.fresh:
        parts.append(f"C = {_array(np.asarray(noise.written.array))}")
    if algorithm.noise_on_messages:
        parts.append(f"noise variance per message {describe(algorithm.noise.variances()[0])}")
        parts += ["self-messages sent"] if algorithm.transmitted.all() else []
    elif noise is not None and noise.factor is not None and not noise.is_zero:
        held = sorted({"+".join(map(str, np.flatnonzero(row))) for row in noise.holders().toarray()})
        covariance = _array((noise.factor @ noise.factor.T).toarray())
        parts.append(f"R = {covariance} from secrets held by {', '.join(held)}")
    return ", ".join(parts)


def _fields(value: Any) -> str:
    """A dataclass like its repr, without fields that have their default, and with arrays in short."""
    shown = []
    for field in dataclasses.fields(value):
        part = getattr(value, field.name)
        if field.repr and (isinstance(part, np.ndarray) or part is not field.default):
            shown.append(f"{field.name}={describe(part)}")
    return f"{type(value).__name__.lstrip('_')}({', '.join(shown)})"


def _array(value: np.ndarray) -> str:
    if value.ndim:
        return f"[{', '.join(_array(row) for row in value)}]"
    return describe(int(value) if value.dtype == bool else value.item())


def _number(value: float) -> str:
    """A fraction of small integers where the float is one to rounding, else six digits."""
    if not np.isfinite(value):
        return str(value)
    near = Fraction(value).limit_denominator(LARGEST_DENOMINATOR)
    return str(near) if abs(float(near) - value) <= 1e-12 * max(1.0, abs(value)) else f"{value:.6g}"
