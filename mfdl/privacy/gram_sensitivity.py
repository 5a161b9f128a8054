"""Sensitivity of views under a participation scheme: an upper bound, exact or certified, and what attains it.

Rounding errors of the Gram X_u (`forms`) and of the maximum over gradients and patterns (`mfdl.sensitivity`) are joined
here, and a leak becomes an infinite value.

`general_sensitivity` is sens_Pi(C; B), the sensitivity of the general theorem, for matrices of any shape and rank. A
view O = B (C G + Z) with standard deviation nu of the base noise is mu-GDP with mu = record_shift sens_Pi(C; B) / nu,

    sens_Pi(C; B) = max over nodes u, patterns pi of Pi and ||g_t|| <= 1 of || B^+ B C_u g ||,

C_u the columns of C that node u owns, g zero outside pi (arXiv:2510.17480, Definition 6 and Theorem 7; the square is
missing in its (8)). B^+ B projects on the row space of B, so X_u = C_u^T B^+ B C_u, and with B = R the rows of a basis
of its row space X_u = (R C_u)^T (R R^T)^-1 (R C_u), in rational arithmetic where the matrices are small. Where they are
not: X_u = C_u^T C_u if B has full column rank, by exact ranks; by a singular value decomposition with its rounding
bounded, if float64 finds the exact rank; else X_u <= C_u^T C_u, an upper bound.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from mfdl_solvers.ties import first_maximum

from .. import check
from ..check import FloatArray
from ..display import short_repr
from ..entries import RANK_TOLERANCE, checked_rank, exact_entries, fractions_of, rational, refuse_huge
from ..errors import InvalidInput, UnusualSetting, require_known
from ..floats import EPS, UNIT
from ..operators import TimeNodeAxis
from ..participation import Participation
from ..sensitivity.encoder_bounds import structured_bound
from ..sensitivity.patterns import METHODS, PatternBound, bounds, diagonal_bounds
from ..spec import storable
from .exact_arithmetic import MAX_ENTRIES, independent_rows, rank_and_outside
from .forms import INJECTIONS, ViewGram
from .forms import dense_form as rational_form
from .forms.base import Structured
from .forms.dense_form import NEARBY, may_be_rounded, nearby_in_words, row_space
from .owners import Victim

EXACT = 1e-6  # relative: noise whose inverse rounds by more has an upper bound, not a value
LARGEST = check.LARGEST
MAX_ANGLE = 0.0025  # sine, above which float64 is not trusted with the rows of B
NO_C = "no C gives A = B C in this column: a combination of rows shows the gradient of step {step} without noise"
MATCHES = 1e-9  # relative size of an entry of A - B C up to which A counts as B C


@storable
@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """How far one record moves the view, per unit record shift and unit noise.

    Attributes:
        squared: sens^2, never below the truth; may be inf.
        exact: True if `squared` is the true value up to `tolerance`, False if it is only an upper bound.
        pattern: the steps that attain `lower`; of several owners pairs, i T + t for step t of the i-th.
        node: index of the node that holds the record, or of all nodes that do.
        tolerance: relative slack of `squared` over `lower`, where exact.
        lower: attained by some gradients, never above the truth.
        why: what leaks, if the value is infinite; where it is an upper bound, what makes it one.
        form: how the Gram was computed.
    """

    __repr__ = short_repr

    squared: float
    exact: bool
    pattern: tuple[int, ...]
    node: Victim
    tolerance: float
    lower: float = 0.0
    why: str = ""
    form: str = ""

    @property
    def bound(self) -> str:
        """ "exact" or "upper"."""
        return "exact" if self.exact else "upper"

    @property
    def value(self) -> float:
        """sens, rounded up."""
        return math.inf if math.isinf(self.squared) else math.nextafter(math.sqrt(self.squared), math.inf)

    def at_node(self, node: Victim) -> Self:
        """The same number of another node, without the seconds of a million `dataclasses.replace`."""
        same = object.__new__(type(self))
        same.__dict__.update(self.__dict__, node=node)
        return same

    def raised_to(self, largest: Sensitivity) -> Self:
        """The same node and pattern with `squared` of a number that ties with this one, if that is larger."""
        if largest.squared <= self.squared:
            return self
        slack = max(self.tolerance, largest.squared / self.lower - 1) if self.lower > 0 else self.tolerance
        tolerance = largest.tolerance if largest.exact == self.exact else slack
        return dataclasses.replace(self, squared=largest.squared, tolerance=tolerance)


def largest_sensitivity(numbers: Iterable[Sensitivity]) -> Sensitivity:
    """The largest number, named after the lowest node that has it up to rounding."""
    by_node = sorted(numbers, key=lambda number: number.node)  # exact: node indices
    largest = max(by_node, key=attrgetter("squared"))  # bound
    return first_maximum(by_node, key=attrgetter("squared")).raised_to(largest)


def sensitivities(
    grams: Sequence[ViewGram], participation: Participation, *, nodes: Sequence[Victim], method: str = "exact"
) -> list[Sensitivity]:
    """One Sensitivity per Gram, of the victims `nodes`, or groups of owners.

    Guarantees: never below the true value; infinite where a record can take part in a step that leaks.
    Raises: InvalidInput: a participation with another number of steps.
    """
    distinct = {id(g): g for g in grams}
    for gram in distinct.values():
        if participation.num_steps != len(gram.values):
            raise InvalidInput(
                f"participation must have the mechanism's {len(gram.values)} steps, got {participation.num_steps} "
                f"({participation.describe()}); patterns of another length miss steps that a record can join."
            )
    bound_by_gram: dict[int, PatternBound] = {}
    of_shape: dict[int, dict[int, ViewGram]] = {}
    for key, gram in distinct.items():
        if _leaks(gram, participation):
            continue
        if gram.structured is not None:
            bound_by_gram[key] = _weighted(gram.structured, participation, method)
        else:
            of_shape.setdefault(gram.values.ndim, {})[key] = gram
    for ndim, chosen in of_shape.items():
        values, errors = np.stack([g.values for g in chosen.values()]), np.stack([g.errors for g in chosen.values()])
        if ndim == 1:
            bounded = diagonal_bounds(values, participation, errors)
        else:
            bounded = bounds(values, participation, method, errors)
        bound_by_gram |= {key: bounded[i] for i, key in enumerate(chosen)}
    shared = {key: _number(gram, bound_by_gram.get(key), nodes[0]) for key, gram in distinct.items()}
    return [shared[id(gram)].at_node(node) for gram, node in zip(grams, nodes, strict=True)]


def _number(gram: ViewGram, bound: PatternBound | None, node: Victim) -> Sensitivity:
    """The Sensitivity of a Gram; no bound where a step leaks."""
    if bound is None:
        step = int(np.argmax(gram.leaks))  # exact: flags
        lower = 0.0 if gram.upper else math.inf
        return Sensitivity(math.inf, not gram.upper, (step,), node, 0.0, lower, gram.why, gram.form)
    upper = bound.upper * gram.inflation * (1 + 4 * UNIT)
    attained = bound.lower / gram.inflation * (1 - 4 * UNIT)  # the order holds downward by the same factor
    exact = bound.exact and not gram.upper and gram.inflation <= 1 + EXACT and NEARBY not in gram.form
    lower = 0.0 if gram.upper else attained
    slack = upper / attained - 1 if attained > 0 else 0.0
    why = "" if exact else _why_upper(gram, bound)
    return Sensitivity(upper, exact, bound.pattern, node, max(slack, 0.0), lower, why, gram.form)


def _weighted(of: Structured, participation: Participation, method: str) -> PatternBound:
    """Bounds on weight ||C g||^2."""
    of_encoder = structured_bound(of.encoder, participation, method)
    upper = of_encoder.upper * (of.weight + of.error) * (1 + 4 * UNIT)
    lower = of_encoder.lower * max(of.weight - of.error, 0.0) * (1 - 4 * UNIT)
    return PatternBound.between(upper, lower, of_encoder.pattern)


def _why_upper(gram: ViewGram, bound: PatternBound) -> str:
    if gram.upper and gram.form == INJECTIONS:
        return (
            "the rank of this view cannot be determined in float64, or the view is too large, so every "
            "injected sum (gradient plus noise) is assumed to be seen; fewer steps or nodes, or noise of "
            "one size, would give the number of the view itself"
        )
    if NEARBY in gram.form:
        return f"a bound for {gram.form}; rank='exact' gives the number of the entries as they are"
    if gram.upper:
        return f"bounded by a view that shows more ({gram.form}); a smaller problem would give its own number"
    if gram.inflation > 1 + EXACT:
        return (
            f"rounding of the noise as it is injected may add a factor {gram.inflation:.3g}; a better conditioned "
            "encoder would make it exact"
        )
    return (
        "the upper and lower bounds over gradients and participation patterns differ; "
        "method='exact', or a participation with fewer patterns, may give a smaller number"
    )


def _leaks(gram: ViewGram, participation: Participation) -> bool:
    if math.isinf(gram.inflation):
        return True
    return bool(gram.leaks.any()) and participation.patterns_of_record().reaches(gram.leaks)


def general_sensitivity(
    C: Any,
    B: Any,
    participation: Participation,
    *,
    num_nodes: int = 1,
    workload: Any = None,
    method: str = "exact",
    rank: str | None = None,
    rank_tolerance: float = RANK_TOLERANCE,
) -> Sensitivity:
    """sens_Pi(C; B) per unit record shift and unit base noise, of the node where it is largest.

    Args:
        C: shape (p, T n), columns time-major: column t n + u is node u's at step t. Array (also of Fractions), sparse
            matrix, or a list of such factors; entries count as exactly the numbers that they are.
        B: shape (m, p), any shape and rank.
        participation: Pi, over T steps; of all nodes, or `ParticipationByNode`.
        num_nodes: n. Default 1: one owner of all columns.
        workload: A, shape (m, T n), if it is to be checked: the theorem needs A = B C. Where a column of A lies outside
            the range of B, no C exists (the range condition fails), and the value is infinite for a record that takes
            part in that step.
        method: "exact" or "certified", as of `mfdl.privacy.sensitivity_by_victim`.
        rank, rank_tolerance: as of `mfdl.View`, for B whose rows are rounded; C is taken as it is.

    Returns: `value` is never below the truth; `bound` "exact" or "upper", `lower` a squared value that is attained,
        `why`.
    Raises: InvalidInput: shapes that do not fit, a C that does not give A. UnsupportedMechanism: participation in
        secret.
    Cost: small matrices up to seconds of rational arithmetic; else a singular value decomposition of B.

    >>> import mfdl
    >>> prefix = [[1, 0], [1, 1]]  # all noise is seen: sens^2 = 1 + 4
    >>> round(general_sensitivity(prefix, [[1, 0], [0, 1]], mfdl.EveryStep(2)).squared, 6)
    5.0
    >>> round(general_sensitivity(prefix, [[1, -1]], mfdl.EveryStep(2)).squared, 6)  # a single row, of rank one
    0.5
    """
    encoder, noise = _matrix("C", C), _matrix("B", B)
    check.instance(Participation, participation=participation)
    participation.require_public()
    scheme = participation
    require_known("method", method, METHODS)
    n, T = check.integer_at_least(1, num_nodes=num_nodes), scheme.num_steps
    scheme.require_nodes(n)
    if encoder.shape[1] != T * n or encoder.shape[0] != noise.shape[1]:
        raise InvalidInput(
            f"C must have shape (p, {T * n}) for {T} steps of {n} nodes, and B shape (m, p), got {encoder.shape} and "
            f"{noise.shape}."
        )
    axis = TimeNodeAxis(T, n)
    rank, tolerance = checked_rank(rank, rank_tolerance)
    if rank == "numerical" and workload is not None:
        raise InvalidInput("workload must be left out with rank='numerical': its range is that of the entries given.")

    def largest(of_nodes: list[ViewGram]) -> Sensitivity:
        grams = _with_leaks(of_nodes, encoder, noise, workload, axis)
        return largest_sensitivity(
            sensitivity
            for shared, nodes in scheme.shared_by(range(n))
            for sensitivity in sensitivities([grams[u] for u in nodes], shared, nodes=nodes, method=method)
        )

    if rank == "numerical":
        return largest(_grams(encoder, noise, axis, tolerance))
    exact = largest(_grams(encoder, noise, axis))
    if rank is None and may_be_rounded(noise, tolerance):
        warn_of_rank([(exact, largest(_grams(encoder, noise, axis, tolerance)))])
    return exact


def _matrix(name: str, given: Any) -> NDArray[Any]:
    """Entries as they are, dense; sizes whose squares stay within float64."""
    entries = exact_entries(name, given)
    refuse_huge(*entries.shape)
    dense: NDArray[Any] = entries.toarray() if sp.issparse(entries) else entries
    sizes = np.abs(dense[dense != 0].astype(np.float64))
    if sizes.size and not (sizes.min() >= 1 / LARGEST and sizes.max() <= LARGEST):
        raise InvalidInput(
            f"{name} must have entries that are 0 or between {1 / LARGEST:g} and {LARGEST:g} in size, got "
            f"{sizes.min():g} to {sizes.max():g}; scale it: rows of B by any factors, C with the noise."
        )
    return dense


def _grams(C: NDArray[Any], B: NDArray[Any], axis: TimeNodeAxis, tolerance: float | None = None) -> list[ViewGram]:
    """X_u of every node; with a tolerance that of every B of this numerical rank near the one given."""
    columns = [axis.node_columns(u) for u in range(axis.num_nodes)]
    few = len(B) <= rational_form.MAX_RATIONAL_ROWS and B.size + C.size <= rational_form.MAX_RATIONAL_ENTRIES
    if tolerance is None and few:
        rows = B[independent_rows(B)]
        seen = fractions_of(rational(rows) * rational(C))
        exact = [rational_form.rounded(rational_form.gram_of_rows(seen[:, c], rows)) for c in columns]
        if all(X is not None for X in exact):
            return [ViewGram(*X, form="rational arithmetic") for X in exact if X is not None]
    inexact = UNIT if object in (C.dtype, B.dtype) else 0.0
    encoder, form = C.astype(np.float64), "projection on the rows of B"
    if tolerance is None:
        seen_part, angle = _seen_part(B, inexact)
    else:
        rank, seen_part, angle = row_space(B.astype(np.float64), tolerance)
        form = nearby_in_words(rank, tolerance)
    Y = encoder if seen_part is None else seen_part @ encoder
    products, upper = max(len(B), len(C)) + 8, angle is None
    slack = 4 * products * np.sqrt(products) * EPS + 4 * inexact + (angle or 0.0)
    norms = np.linalg.norm(encoder, axis=0)
    return [
        ViewGram(
            Y[:, c].T @ Y[:, c],
            2 * slack * np.outer(norms[c], norms[c]),
            form="C^T C, a bound for any B" if upper else form,
            upper=upper,
        )
        for c in columns
    ]


def _seen_part(B: NDArray[Any], inexact: float) -> tuple[FloatArray | None, float | None]:
    """(orthonormal rows that span those of B, or None for all; the sine of their angle to these, None if unknown).

    The projectors on two row spaces of one rank differ by the sine at most, and the rank is the exact one.
    """
    if B.size > MAX_ENTRIES:
        return None, None
    exact_rank, _ = rank_and_outside(B, np.zeros((len(B), 0)))
    if exact_rank == B.shape[1]:
        return None, 0.0
    rank, rows, angle = row_space(B.astype(np.float64), inexact)
    return (rows, angle) if rank == exact_rank and angle <= MAX_ANGLE else (None, None)


def _with_leaks(
    grams: list[ViewGram], C: NDArray[Any], B: NDArray[Any], workload: Any, axis: TimeNodeAxis
) -> Sequence[ViewGram]:
    """Columns of A = `workload` outside the range of B leak; the others must be those of B C."""
    if workload is None:
        return grams
    A = _matrix("workload", workload)
    if A.shape != (len(B), axis.size):
        raise InvalidInput(f"workload must have shape {(len(B), axis.size)}, rows of B by columns of C, got {A.shape}.")
    if A.size + B.size > MAX_ENTRIES:
        raise InvalidInput(f"workload can be checked with at most {MAX_ENTRIES} entries of A and B; leave it out.")
    _, outside = rank_and_outside(B, A)
    signal, noise, encoder = (matrix.astype(np.float64) for matrix in (A, B, C))
    differs = (np.abs(signal - noise @ encoder) > MATCHES * (np.abs(noise) @ np.abs(encoder))).any(axis=0) & ~outside
    if differs.any():
        step, node = divmod(int(np.argmax(differs)), axis.num_nodes)  # exact: flags
        raise InvalidInput(
            f"C must give workload = B C, got another column for step {step} of node {node}; a C that does is B^+ A, "
            "e.g. numpy.linalg.lstsq(B, workload)."
        )

    shows = [outside[axis.node_columns(u)] for u in range(axis.num_nodes)]
    return [
        dataclasses.replace(gram, leaks=leaks, why=NO_C.format(step=np.flatnonzero(leaks)[0])) if leaks.any() else gram
        for gram, leaks in zip(grams, shows, strict=True)
    ]


APART = 0.01  # relative difference of two numbers of one view from which both are named


def warn_of_rank(pairs: Iterable[tuple[Sensitivity, Sensitivity]]) -> None:
    """Warns where numbers of the entries and of matrices near them differ by more than 1 %, for the worst victim."""

    def difference(pair: tuple[Sensitivity, Sensitivity]) -> float:
        low, high = sorted(number.squared for number in pair)
        return 0.0 if low == high else 1.0 if math.isinf(high) else (high - low) / high

    exact, nearby = first_maximum(list(pairs), key=difference)
    if difference((exact, nearby)) > APART:
        warnings.warn(
            f"rows depend on each other up to rounding: the squared sensitivity of node {exact.node} is "
            f"{exact.squared:.6g} for the entries as they are, which counts, and {nearby.squared:.6g} for "
            f"{nearby.form}. If entries are computed products give the factors, as in View([S, M], [S, M, N]) or "
            "View.processed, or fractions; or choose rank='exact' or rank='numerical'.",
            UnusualSetting,
            stacklevel=4,
        )
