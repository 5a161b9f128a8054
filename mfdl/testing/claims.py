"""Claims: a statement as a function from a case to (claimed bound, truth), and the search for its counterexample.

A claim holds when the truth never exceeds the claimed bound. An identity is the claim that a difference has norm at
most 0. Nothing is proved by trying: "holds" says that the search found no counterexample, and how many cases it tried.
Cases are printed in words short enough to check by hand (`describe`). The claims of the papers are in `mfdl_papers`,
run by `mfdl claims`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import random
import re
import warnings
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Literal

import hypothesis
import networkx as nx
import numpy as np
from hypothesis import strategies as st

from mfdl_solvers.ties import first_largest

from ..algorithms import LinearAlgorithm
from ..errors import InvalidInput
from ..factorization import Factorization, FactorizationProblem
from ..gossip import Gossip, GossipMatrix, GossipSequence
from ..mechanism import Mechanism
from ..trust.view import View

__all__ = ["Claim", "ClaimResult", "Verdict", "check_claim", "claim", "describe"]

Verdict = Literal["holds", "refuted", "untested"]
VERDICTS = ("holds", "refuted")
OPTIONS = ("id", "expect", "erratum", "tolerance", "examples")
DEFAULT_EXAMPLES = 200
LARGEST_DENOMINATOR = 120
OF_CLAIM = "The function of claim"


@dataclasses.dataclass(frozen=True, eq=False)
class Claim:
    """A statement of a paper as a property; call it with one case to get (claimed, truth).

    Attributes:
        paper, item: where it is claimed.
        function: the case's parts as keywords -> (claimed bound, truth), floats or arrays of one shape, inf allowed.
        strategies: one for each parameter of the function.
        id: stable name, words joined by hyphens; default: made of paper and item.
        expect: the registered verdict, "holds" or "refuted".
        erratum: what is true instead, for refuted claims; a remark otherwise.
        tolerance: how far the truth may exceed the claim, relative to the larger of both and 1, before it counts.
    """

    paper: str
    item: str
    function: Callable[..., Any]
    strategies: Mapping[str, st.SearchStrategy[Any]]
    id: str
    expect: Verdict = "holds"
    erratum: str = ""
    tolerance: float = 1e-9
    examples: int = DEFAULT_EXAMPLES

    @property
    def statement(self) -> str:
        return (inspect.getdoc(self.function) or "").strip().split("\n", 1)[0]

    def __call__(self, **case: Any) -> tuple[Any, Any]:
        with warnings.catch_warnings():  # outside of a search, `assume` in the function warns
            warnings.simplefilter("ignore", hypothesis.errors.HypothesisDeprecationWarning)
            try:
                pair: tuple[Any, Any] = self.function(**case)
            except hypothesis.errors.HypothesisException:  # `assume` among them
                raise
            except Exception as error:
                error.add_note(f"{OF_CLAIM} {self.id!r} raised {type(error).__name__} for {describe(case)}.")
                raise
        return pair

    def excess(self, case: Mapping[str, Any]) -> tuple[float, float, float]:
        """(how far the truth is above the claim, claimed, truth) at the worst entry; above 0 is a violation.

        Raises: InvalidInput: the function does not return two numbers, or returns nan.
        """
        pair = self(**case)
        try:
            sides = [np.asarray(side, dtype=np.float64) for side in pair]
            claimed, truth = (np.atleast_1d(side).ravel() for side in np.broadcast_arrays(*sides))
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"claim {self.id!r} must return (claimed, truth), two numbers or two arrays of one shape: {error}."
            ) from error
        if np.isnan(claimed).any() or np.isnan(truth).any():
            raise InvalidInput(f"claim {self.id!r} returned nan for {describe(dict(case))}; return inf or reject it.")
        if not claimed.size:
            return -math.inf, math.inf, -math.inf
        above = np.full(claimed.shape, -math.inf)  # an infinite claim is never exceeded
        above[(np.isposinf(truth) & ~np.isposinf(claimed)) | (np.isneginf(claimed) & ~np.isneginf(truth))] = math.inf
        both = np.isfinite(truth) & np.isfinite(claimed)
        larger = np.maximum(np.abs(claimed[both]), np.abs(truth[both]))
        above[both] = truth[both] - claimed[both] - self.tolerance * np.maximum(1.0, larger)
        worst = first_largest(above)
        return float(above[worst]), float(claimed[worst]), float(truth[worst])


def claim(paper: str, item: str, **strategies: Any) -> Callable[[Callable[..., Any]], Claim]:
    """Makes a claim of a function from a case to (claimed bound, truth).

    The docstring's first line is the statement. Keywords are strategies, one for each parameter, or options:
    `id`, `expect` ("holds" or "refuted"), `erratum`, `tolerance`, `examples`; see `Claim`.

    >>> @claim("a draft", "Lemma 1", n=st.integers(0, 10))
    ... def squares(n):
    ...     '''Squares are at most ten times their root.'''
    ...     return 10 * n, n * n
    >>> squares.id, squares.statement
    ('a-draft-lemma-1', 'Squares are at most ten times their root.')
    >>> squares(n=3)
    (30, 9)

    Raises: InvalidInput: a parameter without strategy, a strategy without parameter, no docstring, unknown verdict.
    """
    options = {name: strategies.pop(name) for name in OPTIONS if name in strategies}
    return functools.partial(_build_claim, paper, item, strategies, options)


def _build_claim(
    paper: str, item: str, strategies: dict[str, Any], options: dict[str, Any], function: Callable[..., Any]
) -> Claim:
    name = getattr(function, "__name__", "the claim")
    parameters = set(inspect.signature(function).parameters)
    if parameters != set(strategies) or not parameters:
        raise InvalidInput(
            f"{name} takes {sorted(parameters) or 'nothing'} and has strategies for {sorted(strategies) or 'nothing'}: "
            "give one strategy for each parameter, as a keyword of its name (parameters cannot be called "
            f"{', '.join(OPTIONS)})."
        )
    for parameter, strategy in strategies.items():
        if not isinstance(strategy, st.SearchStrategy):
            raise InvalidInput(f"{parameter} of {name} must be a Hypothesis strategy, got {strategy!r}.")
    if not (inspect.getdoc(function) or "").strip():
        raise InvalidInput(f"{name} has no docstring: its first line is the statement that is tested.")
    if options.get("expect", "holds") not in VERDICTS:
        raise InvalidInput(f"expect must be one of {', '.join(VERDICTS)}, got {options['expect']!r}.")
    words = re.sub(r"[^a-z0-9]+", "-", f"{paper} {item}".lower()).strip("-")
    return Claim(paper, item, function, dict(strategies), **{"id": words, **options})


@dataclasses.dataclass(frozen=True, eq=False)
class ClaimResult:
    """What a search found.

    Attributes:
        verdict: "refuted" (a counterexample was found), "holds" (none was), "untested" (no case met the conditions).
        case: the smallest counterexample as the search shrank it, by parameter; None unless refuted.
        claimed, truth: of that case; nan unless refuted.
        tried: number of cases that met the claim's conditions, those of shrinking included.
    """

    claim: Claim
    verdict: Verdict
    case: Mapping[str, Any] | None
    claimed: float
    truth: float
    tried: int

    @property
    def counterexample(self) -> str | None:
        """The case in words with both numbers; None unless refuted."""
        if self.case is None:
            return None
        return f"{describe(dict(self.case))}: claimed {self.claimed:.6g}, true {self.truth:.6g}"

    @property
    def as_registered(self) -> bool:
        return self.verdict == self.claim.expect

    def __str__(self) -> str:
        if self.verdict == "refuted":
            return f"refuted by {self.counterexample}"
        if self.verdict == "holds":
            return f"holds in {self.tried} cases"
        return "untested: no case met the conditions of the claim"


def check_claim(claim: Claim, *, examples: int | None = None, seed: int = 0) -> ClaimResult:
    """Searches for a case whose truth exceeds the claimed bound, and shrinks it.

    Args:
        claim: from `@claim`; conditions on a case are stated with `hypothesis.assume` inside its function.
        seed: of the search; one seed gives one result.

    Returns: the verdict; compare with `expect`, or use `pytest`, which collects claims as tests.
    Raises: InvalidInput: the function returns no pair of numbers; whatever else it raises, with a note that names the
        claim and the smallest such case.
    """
    if not isinstance(claim, Claim):
        raise InvalidInput(f"check_claim takes what @claim made, got {claim!r}: decorate the function first.")
    tried = 0

    def violates(case: dict[str, Any]) -> bool:
        nonlocal tried
        excess, _, _ = claim.excess(case)
        tried += 1
        return excess > 0

    settings = hypothesis.settings(
        max_examples=claim.examples if examples is None else examples,
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
    )
    cases = st.fixed_dictionaries(dict(claim.strategies))
    try:
        case = hypothesis.find(cases, violates, settings=settings, random=random.Random(seed))
    except hypothesis.errors.NoSuchExample:
        return ClaimResult(claim, "holds" if tried else "untested", None, math.nan, math.nan, tried)
    except hypothesis.errors.Unsatisfiable:
        return ClaimResult(claim, "untested", None, math.nan, math.nan, 0)
    except Exception as error:
        _shorten(error, claim.function)
        raise
    _, claimed, truth = claim.excess(case)
    return ClaimResult(claim, "refuted", case, claimed, truth, tried)


def _shorten(error: Exception, function: Callable[..., Any]) -> None:
    """Takes from an error the frames of the search, which drew the case, and its print of the case."""
    error.__notes__ = [note for note in getattr(error, "__notes__", []) if note.startswith(OF_CLAIM)][-1:]
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code is not getattr(function, "__code__", None):
        frames = frames.tb_next
    error.__traceback__ = frames or error.__traceback__


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
    if noise is not None and (C := noise.written.array) is not None:
        parts.append(f"C = {_array(C)}")
    if algorithm.noise_on_messages:
        parts.append(f"noise variance per message {describe(algorithm.noise.variances()[0])}")
        parts += ["self-messages sent"] if algorithm.transmitted.all() else []
    elif noise is not None and noise.factor is not None and not noise.is_zero:
        holders = sorted({"+".join(map(str, np.flatnonzero(row))) for row in noise.holders().toarray()})
        covariance = _array((noise.factor @ noise.factor.T).toarray())
        parts.append(f"R = {covariance} from secrets held by {', '.join(holders)}")
    return ", ".join(parts)


def _fields(value: Any) -> str:
    """A dataclass like its repr, without fields that have their default, and with arrays in short."""
    parts = []
    for field in dataclasses.fields(value):
        part = getattr(value, field.name)
        if field.repr and (isinstance(part, np.ndarray) or part is not field.default):
            parts.append(f"{field.name}={describe(part)}")
    return f"{type(value).__name__.lstrip('_')}({', '.join(parts)})"


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
