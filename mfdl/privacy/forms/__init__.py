"""The Gram matrix X_u of what a view reveals about one node, by the cheapest form that covers the view.

X_u = A_u^T (B B^T)^+ A_u, T x T, so that sens_u^2 = max over patterns and ||g_t|| <= 1 of
sum X_u[s, t] <g_s, g_t>. Six forms, all giving the same X:

- all messages seen: the gossip is an injective left factor of A and B and drops out; what is left is the noise
  (node-local: X_u = C_u^T C_u; fresh in each step with factor F: an n x n problem; both at once: `space_time_form`);
- one combination of the messages, where it is a recursion of its own (`combination_form`);
- states known up to the nodes' own gradients: messages some of which are never sent (`own_state_form`);
- range form and null-space form: part of the messages, node-local noise (`range_form`, `null_space_form`);
- dense form: everything else (`dense_form`).

Rounding errors are bounded and carried along; a step at which a noiseless combination shows the victim's
gradient is marked as a leak.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ...algorithms import LinearAlgorithm
from ...check import FloatArray
from ...errors import UnsupportedMechanism
from ...noise import CausalNoise
from ...threads import blas_threads
from ...trust import TrustModel
from ...view import Knowledge, View
from ..exact_rank import MAX_ENTRIES, range_of
from ..row_space import exact_range, meant_entries
from ..structure import is_plain_gossip
from .combination import step_values
from .null_space import NullSpaceForm
from .own_states import OwnStateGram, own_state_grams, own_states
from .range_form import RangeForm
from .separable import SINGULAR, SpaceTimeGram, space_time_grams
from .whitening import SPREAD, WhitenedColumns, spread, whiten

UNIT = float(np.finfo(np.float64).eps) / 2  # unit roundoff
INJECTIONS = "injections seen"
RANK_TOLERANCE = 1e-12
MAX_RELATIVE_ERROR = 0.1  # of a structured form; above it the dense form is asked
MAX_DENSE_WORK = 1e12  # rows^2 * columns of B, about a minute of singular value decomposition
MAX_WORK_BESIDE_A_BOUND = 2e10  # the same where all messages seen give a finite upper bound: a second or two


@dataclasses.dataclass(frozen=True, eq=False)
class ViewGram:
    """X of one victim with bounds on how far the float64 array can be from the truth.

    Attributes:
        values: X, shape (T, T); or its diagonal, shape (T,), where X is diagonal (noise fresh in every step).
        errors: the true X is, in the positive semidefinite order, between 1 / `inflation` and `inflation` times
            matrices within `errors` of `values`, entrywise. The shape of `values`.
        inflation: >= 1; infinite means that every step leaks.
        leaks: bool (T,), steps whose gradient shows in a noiseless combination: infinite loss for a record that
            takes part there.
        why: what leaks, in words; empty if nothing does.
        form: which form computed it.
        tolerance: relative size below which noise counts as absent (0 where no rank decision was made).
        upper: X is only known to be at most `matrix` (the Gram of a view that sees more, or with faint noise left out).
    """

    values: FloatArray
    errors: FloatArray
    inflation: float = 1.0
    leaks: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, dtype=bool))
    why: str = ""
    form: str = "all messages seen"
    tolerance: float = 0.0
    upper: bool = False

    def __post_init__(self) -> None:
        if not self.leaks.size:
            object.__setattr__(self, "leaks", np.full(len(self.values), math.isinf(self.inflation)))

    @property
    def is_diagonal(self) -> bool:
        """Only the diagonal is held."""
        return self.values.ndim == 1

    @property
    def matrix(self) -> FloatArray:
        """X, shape (T, T)."""
        return np.diag(self.values) if self.is_diagonal else self.values

    @property
    def entry_error(self) -> FloatArray:
        """`errors` for every entry, shape (T, T)."""
        return np.diag(self.errors) if self.is_diagonal else self.errors


def view_gram(algorithm: LinearAlgorithm, trust: TrustModel, node: int) -> ViewGram:
    """X_u of one node under a trust model with a single view; see `view_grams`."""
    return view_grams(trust.view(algorithm, node), [node])[0]


def view_grams(view: View, victims: Sequence[int]) -> list[ViewGram]:
    """X_u of each victim in one view; equal Grams are one object.

    Raises: UnsupportedMechanism: a view that only the dense form covers and that is too large for it.
    Cost: see the forms.
    """
    with blas_threads(view.noise.shape[0]):
        found = _by_structure(view, victims)
        if found is None:
            found = _dense(view, victims)
    return [with_known_gradients(view, u, gram) for u, gram in zip(victims, found, strict=True)]


def with_known_gradients(view: View, victim: int, gram: ViewGram) -> ViewGram:
    """The Gram with a leak at every step whose gradient of the victim the attacker knows."""
    known = view.known_gradients[:, victim]
    if not known.any():
        return gram
    step = int(np.argmax(known))
    return dataclasses.replace(gram, leaks=gram.leaks | known, why=f"the attacker knows the gradient of step {step}")


def _by_structure(view: View, victims: Sequence[int]) -> list[ViewGram] | None:
    algorithm, knowledge = view.algorithm, view.knowledge
    if algorithm is None or knowledge is None:
        return None
    if knowledge.combination is not None:
        return _one_combination_seen(view, victims)
    if view.flow is not None and view.flow.injections:
        return injection_grams(algorithm, knowledge, victims)
    if not algorithm.of_all_sent.injections:
        return _own_states_known(view, algorithm, knowledge, victims)
    return _partly_seen(view, algorithm, knowledge, victims) if is_plain_gossip(algorithm) else None


# ---- injections seen --------------------------------------------------------------------------------------------


def injection_grams(algorithm: LinearAlgorithm, knowledge: Knowledge, victims: Sequence[int]) -> list[ViewGram] | None:
    """The Grams of one who sees every injected sum, A = I and B = N without its known columns; None: too large.

    That is all messages seen, where they show the injections. Where noise enters exactly where gradients do, it bounds
    every view of the algorithm, whatever is seen or released, and it is adaptive: see `injection_bound`.
    """
    return _structured_injections(algorithm, knowledge, victims) or _dense_injections(algorithm, knowledge, victims)


def injection_bound(algorithm: LinearAlgorithm, knowledge: Knowledge, victims: Sequence[int]) -> list[ViewGram] | None:
    """The same as an upper bound on what these masks show of any messages and models; None where it is not one.

    Messages and models are functions of the injected sums and of public start models, so by data processing nobody who
    knows no more gradients and noise learns more. And every gradient is taken at a function of earlier sums, so the
    bound holds for gradients chosen adaptively.
    """
    found = injection_grams(algorithm, knowledge, victims) if algorithm.noise_enters_with_gradients else None
    if found is None:
        return None
    return [dataclasses.replace(g, upper=True, form=INJECTIONS) for g in found]


def _dense_injections(
    algorithm: LinearAlgorithm, knowledge: Knowledge, victims: Sequence[int]
) -> list[ViewGram] | None:
    size, columns = algorithm.axis.size, algorithm.noise.shape[1]
    if size**2 * columns > MAX_DENSE_WORK:
        return None
    unknown = ~knowledge.known_noise.ravel()
    N = algorithm.noise.matmat(np.eye(columns)) * unknown
    return _dense(View(sp.eye_array(size), N, num_nodes=algorithm.num_nodes), victims, given=False)


def _structured_injections(
    algorithm: LinearAlgorithm, knowledge: Knowledge, victims: Sequence[int]
) -> list[ViewGram] | None:
    noise, T = algorithm.noise.causal, algorithm.num_steps
    if algorithm.noise.is_zero:
        return [ViewGram(np.ones(T), np.zeros(T), math.inf, why="there is no noise")] * len(victims)
    if noise is not None and noise.fresh and not noise.local:
        return _step_noise_grams(noise, knowledge, victims)
    known = knowledge.known_noise
    if (known != known[0]).any():
        return None
    if noise is None or not noise.local:
        found = space_time_grams(algorithm.noise, known[0], victims, _local_gram)
        return None if found is None else [_of_space_time(one) for one in found]
    made: dict[int, ViewGram] = {}
    grams = []
    for u in victims:
        if known[0, u]:
            grams.append(ViewGram(np.ones(T), np.zeros(T), math.inf, why="the attacker knows its noise"))
        elif noise.fresh:
            grams.append(made.setdefault(0, ViewGram(np.ones(T), np.zeros(T))))
        else:
            which = 0 if noise.shared else u
            if which not in made:
                made[which] = _local_gram(noise.encoder_of(u), noise.inverse_of(u))
            grams.append(made[which])
    return grams


def _of_space_time(one: SpaceTimeGram) -> ViewGram:
    leaks = np.full(len(one.values), one.leaks)
    return ViewGram(one.values, one.errors, one.inflation, leaks, one.why, tolerance=one.tolerance, upper=one.upper)


def _local_gram(encoder: FloatArray, inverse: FloatArray) -> ViewGram:
    """C^T C for the noise N that is really injected, N = C^-1 up to rounding.

    The exact X is N^-T N^-1. With C N = I + E, N^-1 = (I + E)^-1 C, so X <= C^T C / (1 - ||E||)^2, and X is at least
    C^T C / (1 + ||E||)^2 >= C^T C (1 - ||E||)^2. Both products C^T C and C N carry at most T unit roundoffs per entry,
    relative to the products of absolute values.
    """
    T = encoder.shape[0]
    rounding = T * UNIT / (1 - T * UNIT)
    absolute = np.abs(encoder)
    with np.errstate(over="ignore", invalid="ignore"):  # an infinite or undefined size is not < 1: no claim
        defect = encoder @ inverse
        defect[np.diag_indices(T)] -= 1.0
        size = float(np.linalg.norm(defect)) + rounding * float(np.linalg.norm(absolute @ np.abs(inverse)))
    inflation = math.inf if not size < 1 else (1 - size) ** -2
    why = "" if size < 1 else SINGULAR
    return ViewGram(encoder.T @ encoder, rounding * (absolute.T @ absolute), inflation, why=why)


def _step_noise_grams(noise: CausalNoise, knowledge: Knowledge, victims: Sequence[int]) -> list[ViewGram]:
    """Noise fresh in each step: X_u is diagonal, entry t = [(F_t F_t^T)^+]_uu, F_t = F without its known columns."""
    T, n = noise.num_steps, noise.num_nodes
    F = noise.mixing.toarray()
    chosen = np.asarray(victims, dtype=np.intp)
    values, errors = np.zeros((len(victims), T)), np.zeros((len(victims), T))
    leaks = np.zeros((len(victims), T), dtype=bool)
    tolerance, assumed = 0.0, np.zeros(len(victims), dtype=bool)
    distinct, of_step = np.unique(knowledge.known_noise, axis=0, return_inverse=True)
    for number, known in enumerate(distinct):
        steps = np.flatnonzero(of_step.ravel() == number)
        white = whiten(np.eye(n)[:, chosen], F * ~known, given_noise=True)
        squared = (white.whitened**2).sum(axis=0)
        values[:, steps], errors[:, steps] = squared[:, None], np.diagonal(white.gram_error())[:, None]
        leaks[:, steps] = (white.leaks | white.undecided)[:, None]
        tolerance, assumed = max(tolerance, white.tolerance), assumed | white.undecided | (white.leaks & white.assumed)
    return [
        ViewGram(
            values[i],
            errors[i],
            leaks=leaks[i],
            why="noise that is known or missing cancels in a combination of the injections" if leaks[i].any() else "",
            tolerance=tolerance,
            upper=bool(assumed[i]),
        )
        for i in range(len(victims))
    ]


# ---- one combination of the messages ------------------------------------------------------------------------------


def _one_combination_seen(view: View, victims: Sequence[int]) -> list[ViewGram] | None:
    found = step_values(view)
    if found is None:
        return None
    values, errors, silent = found
    why = "the combination that is seen has no noise that the attacker does not know" if silent.any() else ""
    return [
        ViewGram(values[u], errors[u], leaks=silent.copy(), why=why, form="one combination of the messages")
        for u in victims
    ]


# ---- states known up to the nodes' own gradients -------------------------------------------------------------------


def _own_states_known(
    view: View, algorithm: LinearAlgorithm, knowledge: Knowledge, victims: Sequence[int]
) -> list[ViewGram] | None:
    """By the recursions of the nodes; or, where they are hidden and the dense form is slow, those with all messages."""
    found = _by_own_states(view, algorithm, victims)
    if found is not None or view.release not in ("none", "not applicable"):
        return found
    if view.noise.shape[0] ** 2 * view.noise.shape[1] <= MAX_WORK_BESIDE_A_BOUND:
        return None
    more = dataclasses.replace(knowledge, seen=knowledge.seen | algorithm.sent)
    if not more.covers(knowledge):
        return None
    found = _by_own_states(View.of(algorithm, more, release="none", attacker=view.attacker), algorithm, victims)
    if found is None or any(gram.leaks.any() for gram in found):
        return None
    form = "own-state form of all messages, as an upper bound"
    bounds = {id(g): dataclasses.replace(g, upper=True, form=form) for g in found}
    return [bounds[id(g)] for g in found]


def _by_own_states(view: View, algorithm: LinearAlgorithm, victims: Sequence[int]) -> list[ViewGram] | None:
    states = own_states(view)
    found = None if states is None else own_state_grams(states, victims)
    if found is None:
        return None

    def gram(one: OwnStateGram) -> ViewGram:
        why = "its rounding errors are not small" if math.isinf(one.inflation) else ""
        if one.shown is not None:
            step, turn, messages, combination = one.shown
            names = [_message_name(algorithm, turn, int(message)) for message in messages]
            why = _leak_in_words(step, combination, names)
        return ViewGram(one.values, one.errors, one.inflation, one.leaks, why, "own-state form")

    made = {id(one): gram(one) for one in found}
    return [made[id(one)] for one in found]


# ---- part of the messages, node-local noise ----------------------------------------------------------------------


def _partly_seen(
    view: View, algorithm: LinearAlgorithm, knowledge: Knowledge, victims: Sequence[int]
) -> list[ViewGram] | None:
    """Range or null-space form, or None where neither covers the view."""
    noise, T = algorithm.noise.causal, algorithm.num_steps
    if len(algorithm.rounds) != T or noise is None or not noise.local:
        return None
    seen, known = knowledge.seen, knowledge.known_noise
    if (seen != seen[0]).any() or (known != known[0]).any():
        return None
    weights = [algorithm.rounds[t].state_from_message for t in range(T)]
    if any(W is None for W in weights) or not _own_messages_are_implied(weights, knowledge):
        return None
    unknown = ~known[0]
    scale = np.stack([np.abs(one.message_from_gradient.diagonal()) for one in algorithm.rounds])  # type: ignore[union-attr]
    rows, hidden = np.flatnonzero(seen[0] & unknown), unknown & ~seen[0]
    released, told = _released_rows(view, weights[-1], seen[0] | ~unknown)
    if not told:
        return None
    chosen = np.asarray([u for u in victims if unknown[u]], dtype=np.intp)
    relative = absolute = 0.0
    if rows.size == 0 and released is None:
        grams, form = np.zeros((chosen.size, T, T)), "nothing seen"
    else:
        constant = all(W is weights[0] for W in weights)
        by_range = (T * rows.size) ** 2 * (T * rows.size / 3 + T * chosen.size / 3)
        by_null_space = T * hidden.sum() ** 2.0 * (hidden.sum() + 2.0 * T * chosen.size)
        if noise.fresh and released is None and (not constant or by_null_space < by_range / 4):
            null_space = NullSpaceForm(weights, hidden, unknown, scale)
            grams = np.stack([null_space.gram(int(u)) for u in chosen]) if chosen.size else np.zeros((0, T, T))
            absolute, form = null_space.absolute_error(), "null-space form"
        elif constant:
            try:
                range_form = RangeForm(weights[0], rows, unknown, scale, noise.inverse, released)
                relative = range_form.relative_error()
            except UnsupportedMechanism:  # not positive definite in float64
                relative = math.inf
            if relative >= MAX_RELATIVE_ERROR or range_form.undecided:
                # the dense form resolves ranks better, where it can be afforded
                affordable = view.noise.shape[0] ** 2 * view.noise.shape[1] <= MAX_DENSE_WORK
                return None if affordable else injection_bound(algorithm, knowledge, victims)
            grams = range_form.grams(chosen)
            relative, form = relative / (1 - relative), "range form"
        else:
            return None
    place = {int(u): i for i, u in enumerate(chosen)}
    out = []
    for u in victims:
        if u not in place:
            out.append(ViewGram(np.ones(T), np.zeros(T), math.inf, why="the attacker knows its noise"))
            continue
        X = grams[place[u]]
        # errors of a positive semidefinite X are bounded by its diagonal: |dX_st| <= c sqrt(X_ss X_tt) + c'
        spread = np.sqrt(np.clip(np.diagonal(X), 0.0, None))
        out.append(ViewGram((X + X.T) / 2, relative * np.outer(spread, spread) + absolute, form=form))
    return out


def _released_rows(view: View, last: sp.csr_array, available: np.ndarray) -> tuple[FloatArray | None, bool]:
    """(K, rank told): combinations of the released final models with noise of their own, or None.

    Final models are W times the last messages. Seen messages explain the rest, so only the column space of W over the
    hidden ones counts: an orthonormal basis of it. A singular value between rounding level and RANK_TOLERANCE leaves
    the rank of W untold.
    """
    n, hidden = available.size, np.flatnonzero(~available)
    if view.release not in ("all", "average") or not hidden.size:
        return None, True
    K = np.full((1, n), 1.0 / n) if view.release == "average" else np.eye(n)
    U, sigma, _ = np.linalg.svd(K @ last[:, hidden].toarray(), full_matrices=False)
    scale = float(np.linalg.norm(K @ last))
    told = not ((sigma > 4 * n * UNIT * scale) & (sigma <= RANK_TOLERANCE * scale)).any()
    kept = sigma > RANK_TOLERANCE * scale
    return (U[:, kept].T @ K if kept.any() else None), told


def _own_messages_are_implied(weights: Sequence[sp.csr_array | None], knowledge: Knowledge) -> bool:
    """Whether messages of nodes with known noise add nothing: they know their gradient and all they average."""
    inside = knowledge.known_noise[0]
    if not inside.any():
        return True
    if not knowledge.known_gradients[:, inside].all():
        return False
    available = knowledge.seen[0] | inside
    for W in {id(W): W for W in weights}.values():
        assert W is not None
        heard = np.asarray(abs(W[np.flatnonzero(inside)]).sum(axis=0)).ravel() > 0
        if (heard & ~available).any():
            return False
    return True


# ---- everything else ---------------------------------------------------------------------------------------------


def _dense(view: View, victims: Sequence[int], *, given: bool | None = None) -> list[ViewGram]:
    """The dense form. given: entries of B are what they are, not computed; default for bare views."""
    T = view.axis.num_steps
    rows, columns = view.noise.shape
    if rows**2 * columns > MAX_DENSE_WORK:
        bound = _bound_of(view, victims)
        if bound is not None:
            return bound
        raise UnsupportedMechanism(
            f"this view has no structured form, and its dense form needs a singular value decomposition of a {rows} x "
            f"{columns} matrix, which is too large; use fewer steps, release='none', or a model that sees all messages."
        )
    nodes = np.asarray(victims, dtype=np.intp)
    A, B = view.dense_gradients(nodes), view.dense_noise()
    given = view.algorithm is None if given is None else given
    rounding = view.noise_rounding()
    B, residue = _without_residue(B, rounding)
    white = whiten(A, B, given_noise=given, rounding=(view.gradient_rounding(nodes), rounding))
    if given and B.size + A.size <= MAX_ENTRIES:
        rank, outside = range_of(B, A)
        white = _with_exact_ranks(white, outside, other_rank=len(white.whitened) != rank)
    elif (exact := exact_range(view, victims)) is not None:
        rank, outside = exact
        if len(white.whitened) != rank or (outside != white.leaks).any():  # are floats what they stand for?
            stand_for = meant_entries(view)
            rank, outside = (stand_for and exact_range(view, victims, stand_for)) or (-1, outside & white.leaks)
        white = _with_exact_ranks(white, outside, other_rank=len(white.whitened) != rank)
    elif _may_hide_faint_shares(view, B, len(white.whitened), given=given):
        white = _with_exact_ranks(white, white.leaks, other_rank=True)
    undecided = white.undecided | (residue & ~white.leaks)
    more = (_bound_of(view, victims) or _unknown(T, len(victims))) if undecided.any() else []
    out = []
    for i, _ in enumerate(victims):
        columns = slice(i * T, (i + 1) * T)
        Y = white.whitened[:, columns]
        error = white.gram_error(columns)
        leaks, doubt = white.leaks[columns], undecided[columns]
        if doubt.any() and not leaks.any():
            out.append(more[i])
            continue
        why = _first_leak(view, white.noiseless[:, columns], leaks) if leaks.any() else ""
        upper = bool(leaks.any()) and (white.assumed or residue or bool(doubt.any()))
        out.append(ViewGram(Y.T @ Y, error, 1.0, leaks | doubt, why, "dense form", white.tolerance, upper=upper))
    return out


def _with_exact_ranks(white: WhitenedColumns, leaks: NDArray[np.bool_], *, other_rank: bool) -> WhitenedColumns:
    """Leaks as exact arithmetic has them; what float64 alone takes for one is undecided, and all at another rank."""
    undecided = (white.undecided | (white.leaks & ~leaks) | other_rank) & ~leaks
    return dataclasses.replace(white, leaks=leaks, undecided=undecided)


def _may_hide_faint_shares(view: View, B: FloatArray, rank: int, *, given: bool) -> bool:
    """Whether rows that combine without noise, as float64 has it, may show something that is lost in their sums.

    Where weights and noise are of like size, such a combination is redundant or a leak, or `whiten` sees singular
    values without a gap. A faint share of a noise or of a gradient in a row of others shows it all the same.
    """
    if rank >= np.count_nonzero(B.any(axis=1)):
        return False
    if given or view.algorithm is None:
        return spread([B]) > SPREAD
    return _has_faint_shares(view.algorithm)


def _has_faint_shares(algorithm: LinearAlgorithm) -> bool:
    """Whether weights, inputs and noise span more than SPREAD."""
    weights: list[FloatArray] = [algorithm.model_from_state.data]
    enters: list[FloatArray] = []
    for kind in algorithm.kinds:
        inputs = (kind.message_from_gradient, kind.message_from_noise, kind.state_from_gradient, kind.state_from_noise)
        for matrix in kind.maps():
            (enters if any(matrix is one for one in inputs) else weights).append(matrix.data)
    of_noise = math.prod(spread([part]) for part in algorithm.noise.factors())
    return of_noise * spread(enters) * spread(weights) > SPREAD


def _bound_of(view: View, victims: Sequence[int]) -> list[ViewGram] | None:
    if view.algorithm is None or view.knowledge is None:
        return None
    return injection_bound(view.algorithm, view.knowledge, victims)


def _unknown(num_steps: int, count: int) -> list[ViewGram]:
    """For views whose rank float64 cannot tell, and nothing else bounds."""
    why = "the rank of its noise, or its size beside the gradients, cannot be told in float64"
    infinite = ViewGram(np.ones(num_steps), np.zeros(num_steps), math.inf, why=why, form="dense form", upper=True)
    return [infinite] * count


def _without_residue(B: FloatArray, rounding: FloatArray) -> tuple[FloatArray, bool]:
    """(B, whether some row of it may hold nothing but rounding, entries of B being off by as much as `rounding`).

    Noise that cancels, as Zip-DL's does in the average, leaves a row of rounding. What it is then cannot be told: no
    noise at all, or a faint combination of it that is seen. So the row is taken for noiseless where it shows a
    gradient, which is a leak, and everything else is undecided. Rows are judged by their own products: entries that
    were given small are what they are.
    """
    norms = np.linalg.norm(B, axis=1)
    doubtful = (norms > 0) & (norms <= 2 * np.linalg.norm(rounding, axis=1))
    return np.where(doubtful[:, None], 0.0, B), bool(doubtful.any())


def _first_leak(view: View, noiseless: FloatArray, leaks: np.ndarray) -> str:
    step = int(np.argmax(leaks))
    combination = noiseless[:, step]
    largest = np.argsort(-np.abs(combination))[:4]
    names = {int(i): _row_name(view, int(i)) for i in largest}
    return _leak_in_words(step, combination, names)


def _leak_in_words(step: int, combination: FloatArray, names: Mapping[int, str] | Sequence[str]) -> str:
    """Names: of the rows with the four largest weights, at least."""
    if not combination.any():  # exact ranks tell of a leak that is faint in float64
        return f"the gradient of step {step} shows without noise in a combination of what is seen"
    top = np.argsort(-np.abs(combination))[:4]
    terms = " ".join(f"{combination[i] / np.abs(combination).max():+.2g} {names[int(i)]}" for i in top)
    more = " ..." if np.count_nonzero(np.abs(combination) > 1e-9 * np.abs(combination).max()) > 4 else ""
    return f"the gradient of step {step} shows without noise in {terms}{more}"


def _row_name(view: View, row: int) -> str:
    algorithm, knowledge = view.algorithm, view.knowledge
    if algorithm is None or knowledge is None or knowledge.combination is not None:
        return f"row {row}"
    seen = np.argwhere(knowledge.seen)
    if row >= len(seen):
        return f"released model row {row - len(seen)}"
    turn, message = seen[row]
    return _message_name(algorithm, int(turn), int(message))


def _message_name(algorithm: LinearAlgorithm, turn: int, message: int) -> str:
    return f"message of {algorithm.dynamics.gossip.labels[algorithm.message_sender[message]]} in round {turn}"
