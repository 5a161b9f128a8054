"""The contract of a form of X_u, held by every form that covers a view, whichever of them the chooser would ask."""

import dataclasses
import math

import numpy as np
import scipy.linalg
from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from mfdl.privacy.forms import FORMS, LAST, Blocks, ViewGram, view_grams
from mfdl.testing import exact_leaks, exact_view_gram, of_node, rational, to_float, view_cases
from mfdl.trust.view import AlgorithmView


def view_of(case):
    if case.model.name == "central" or case.release == "average":
        assume(case.algorithm.num_nodes in (2, 4))  # else 1 / n is rounded, and redundant rows are redundant no more
    return case.model.view(case.algorithm, case.honest[0], release=case.release)


def forms_of(view):
    return [form for kind in (*FORMS, *LAST) if (form := kind.of(view)) is not None]


def whole(joint):
    """Blocks as one Gram: of owners that share no noise."""
    if not isinstance(joint, Blocks):
        return joint
    return ViewGram(
        scipy.linalg.block_diag(*(part.matrix for part in joint.parts)),
        scipy.linalg.block_diag(*(part.entry_error for part in joint.parts)),
        max(part.inflation for part in joint.parts),
        np.concatenate([part.leaks for part in joint.parts]),
        upper=any(part.upper for part in joint.parts),
    )


def infinite(gram):
    return math.isinf(gram.inflation) or gram.leaks.any()


def assert_within(gram, exact):
    """matrix / inflation - E <= exact <= inflation (matrix + E) for some |E| <= entry_error; above alone, if upper.

    An eigenvalue that is exactly 0 comes out as a rounding of the difference: of I - X, X = [[3/5, 1/5], [1/5, 9/10]].
    """
    compared = 4 * len(exact) * 2.0**-53 * np.abs(exact).max(initial=0.0)
    slack = np.abs(gram.entry_error).sum(axis=1).max() + compared + 1e-300
    assert np.linalg.eigvalsh(exact - gram.inflation * gram.matrix)[-1] <= gram.inflation * slack
    if not gram.upper:
        assert np.linalg.eigvalsh(gram.matrix / gram.inflation - exact)[-1] <= slack


HIDDEN = {"kinds": ("pndp",), "noises": ("independent", "shared")}  # what the structured forms are for


@examples(80)
@given(case=st.one_of(view_cases(exact=True), view_cases(exact=True, max_nodes=5, **HIDDEN)))
def test_the_exact_gram_is_within_its_errors_and_leaks_are_the_exact_ones(case):
    """Dyadic weights: the rationals are those of the very matrices that are multiplied in float64."""
    n, B = case.algorithm.num_nodes, rational(case.B)
    forms = forms_of(view := view_of(case))
    truths = {}
    for u in case.honest:
        A = rational(of_node(case.A, u, n))
        leaks = np.array(exact_leaks(A, B) if A else [False] * case.algorithm.num_steps)
        exact = to_float(exact_view_gram(A, B)) if A else np.zeros((case.algorithm.num_steps,) * 2)
        truths[u] = leaks, exact
    assert forms
    for form in forms:
        assert form.cost(case.honest) >= 0
        for u, gram in zip(case.honest, form.grams(case.honest), strict=True):
            leaks, exact = truths[u]
            if gram is None:
                continue
            assert (gram.leaks | math.isinf(gram.inflation))[leaks].all()
            if not leaks.any() and not infinite(gram):
                assert_within(gram, exact)
            if infinite(gram) and not leaks.any():
                assert gram.upper or view.known_gradients[:, u].any()


@examples(60)
@given(case=view_cases(kinds=("masks", "pndp"), max_nodes=4, max_steps=3, exact=True), data=st.data())
def test_one_who_sees_and_knows_more_never_learns_less(case, data):
    view = view_of(case)
    masks = view.knowledge
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    more = dataclasses.replace(
        masks,
        seen=masks.seen | (rng.random(masks.seen.shape) < 0.4),
        known_noise=masks.known_noise | (rng.random(masks.known_noise.shape) < 0.2),
    )
    assert more.covers(masks)
    wider = AlgorithmView(case.algorithm, more, release=view.release, attacker=view.attacker)
    for less, larger in zip(view_grams(view, case.honest), view_grams(wider, case.honest), strict=True):
        if infinite(larger) or larger.upper:
            continue
        assert not infinite(less) or less.upper
        if not less.upper:
            slack = np.abs(less.entry_error).sum() + np.abs(larger.entry_error).sum() + 1e-12
            grown = larger.inflation * larger.matrix - less.matrix / less.inflation
            assert np.linalg.eigvalsh(grown)[0] >= -slack


@examples(30)
@given(case=view_cases(max_nodes=4, max_steps=3))
def test_victims_asked_together_or_alone_and_in_any_order(case):
    """Up to rounding: a batch scales its columns alike."""
    view = view_of(case)
    together = view_grams(view, [*case.honest, case.honest[0]])
    assert together[0].matrix.tolist() == together[-1].matrix.tolist()
    for u, gram in zip(case.honest, together, strict=False):
        (alone,) = view_grams(view, [u])
        assert infinite(alone) == infinite(gram)
        if not infinite(gram) and alone.form == gram.form:
            scale = max(1.0, float(np.abs(gram.matrix).max()))
            assert (np.abs(alone.matrix - gram.matrix) <= 1e-6 * scale).all()


@examples(80)
@given(case=st.one_of(view_cases(exact=True), view_cases(exact=True, max_nodes=5, **HIDDEN)), data=st.data())
def test_the_joint_gram_of_owners_is_the_exact_one_cross_blocks_included(case, data):
    assume(len(case.honest) > 1)
    n, T, B = case.algorithm.num_nodes, case.algorithm.num_steps, rational(case.B)
    group = tuple(sorted(data.draw(st.permutations(case.honest))[: data.draw(st.integers(2, 3))]))
    columns = [t * n + u for u in group for t in range(T)]
    A = rational(case.A[:, columns])
    leaks = np.array(exact_leaks(A, B) if A else [False] * len(columns))
    exact = to_float(exact_view_gram(A, B)) if A else np.zeros((len(columns),) * 2)
    for form in forms_of(view_of(case)):
        (joint,) = form.joint_grams([group])
        if joint is None:
            continue
        gram = whole(joint)
        assert (gram.leaks | math.isinf(gram.inflation))[leaks].all()
        if not leaks.any() and not infinite(gram):
            assert_within(gram, exact)
        if infinite(gram) and not leaks.any():
            assert gram.upper
