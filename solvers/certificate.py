"""A lower bound on the best loss, from any feasible X.

For V_c >= 0 on each class and w = sum_c max diag(V_c), every X of unit sensitivity has
tr(V X) = sum_c <V_c, X_c> <= sum_c max diag(V_c) = w, because V_c / max diag(V_c) has diagonal <= 1 and is
positive semidefinite, i.e. a Gram matrix of admissible gradients. By the Cauchy-Schwarz inequality for the
trace norm,

    (tr[(H^1/2 V H^1/2)^1/2])^2 = ||V^1/2 H^1/2||_*^2 <= tr(V X) tr(H X^-1) <= w tr(H X^-1).

So the left side over w bounds the optimum from below, over all C and with the exact sensitivity. At an
optimal X, V = X^-1 H X^-1 restricted to the classes makes it tight.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from .problem import Array, FactorizationProblem

EPS = float(np.finfo(np.float64).eps)


def lower_bound(problem: FactorizationProblem, gram: Array, *, dual_from: Array | None = None) -> float:
    """Certified lower bound on min tr(H X^-1) at unit sensitivity; 0 when X is not positive definite.

    `dual_from` takes the place of H in V = X^-1 H X^-1, default H itself. Any choice gives a valid bound on the
    problem's own H; when X minimises for a regularised H, that one gives the tight bound.

    Rounding: the computed trace norm is lowered by T^2 eps of itself, above the backward error of the
    singular values; clipping negative rounding eigenvalues of V_c changes w and the trace norm consistently,
    since the V that is used is the clipped one. Cost: O(T^3).
    """
    try:
        factor = scipy.linalg.cho_factor(gram, lower=True)
    except np.linalg.LinAlgError:
        return 0.0
    H = problem.error_gram if dual_from is None else dual_from
    V = scipy.linalg.cho_solve(factor, scipy.linalg.cho_solve(factor, H).T)
    T = problem.size
    dual_root_times_root = np.empty((T, T))
    w = 0.0
    row = 0
    for label in range(problem.num_classes):
        members = np.flatnonzero(problem.classes == label)
        block = V[np.ix_(members, members)]
        values, vectors = np.linalg.eigh((block + block.T) / 2)
        root = vectors * np.sqrt(np.clip(values, 0.0, None))  # root root^T = V_c, exactly the matrix bounded
        w += float((root**2).sum(axis=1).max()) * (1 + 8 * members.size * EPS)
        dual_root_times_root[row : row + members.size] = root.T @ problem.root[members]
        row += members.size
    trace_norm = float(scipy.linalg.svdvals(dual_root_times_root, overwrite_a=True).sum())
    safe = max(trace_norm * (1 - T * T * EPS), 0.0)
    return safe * safe / w if w > 0 else 0.0
