"""One step and many of D-SGD with pairwise noise: terms written out, and where the published constants fail.

The inequalities themselves are claims of `decor.convergence`, on random graphs and losses.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from refusals import refuses

from mfdl import gossip
from mfdl_papers import (
    decor_constant,
    decor_corollary,
    decor_descent,
    decor_disagreement,
    decor_rate,
    decor_rate_non_convex,
    decor_step_size,
    decor_theorem_2,
    decor_theorem_2_non_convex,
)

RING = gossip.metropolis_hastings("ring:n=16")
KNOWN = {
    "smoothness": 4.0, "gradient_variance": 2.0, "gradient_divergence": 0.7, "growth_of_variance": 0.3,
    "growth_of_divergence": 1.2, "initial_loss": 5.0, "initial_disagreement": 0.1,
}  # fmt: skip
NOISE = {"sigma_ldp": 1.5, "sigma_cor": 3.0, "dimension": 10}
P_RING = 1 - (1 / 3 + 2 / 3 * math.cos(math.pi / 8)) ** 2


def added():
    """What a step of rate 1 adds to the disagreement on the ring: by gradients, pairwise and local noise."""
    W = RING.dense()
    pairs = 2 * (1 / 9) * 16 * 10 * 3.0**2 / 16  # H_G = 1/9
    return (1 - P_RING) * (6 * 0.7 / P_RING + 2.0), pairs, (np.sum(W**2) - 1) * 10 * 1.5**2 / 16


def test_one_step_written_out():
    eta, f, g, Xi, n, p = 0.1, 3.0, 2.0, 0.5, 16, P_RING
    descent = decor_descent(
        RING, learning_rate=eta, loss=f, gradient_squared=g, disagreement=Xi, sigma_ldp=1.5, dimension=10, **KNOWN
    )
    m = 2 * eta * 4 * 0.3 / n
    expected = f - eta / 2 * (1 - m) * g + eta * 16 / 2 * (1 + m) * Xi + 4 * eta**2 / 32 * (2 + 10 * 1.5**2)
    assert_allclose(descent, expected, rtol=1e-12)
    left = decor_disagreement(RING, learning_rate=eta, gradient_squared=g, disagreement=Xi, **NOISE, **KNOWN)
    factor = 1 - 2 * p / 3 + 2 * (1 - p) * (3 + p * 0.3) * eta**2 * 16 / p
    expected = factor * Xi + 2 * (1 - p) * (3 * 1.2 + p * 0.3) / p * eta**2 * g + eta**2 * sum(added())
    assert_allclose(left, expected, rtol=1e-10)
    for under_root, share in ((6, 3), (12, 2)):  # the contraction at the steps of the lemma, and at those it needs
        eta = p / (4 * math.sqrt(under_root * (1 - p) * (3 + p * 0.3)))
        at = {"learning_rate": eta, "gradient_squared": g, **NOISE, **KNOWN}
        difference = decor_disagreement(RING, disagreement=1.0, **at) - decor_disagreement(RING, disagreement=0.0, **at)
        assert_allclose(difference, 1 - p / share, rtol=1e-9)


def test_theorem_2_non_convex_term_by_term():
    T, p, L, variance = 1_000_000, P_RING, 4.0, 2 + 10 * 1.5**2
    computed = decor_theorem_2_non_convex(RING, num_steps=T, **NOISE, **KNOWN)
    eta = math.sqrt(2 * 16 * 5 / (L * T * variance))
    assert_allclose(decor_step_size(RING, T, sigma_ldp=1.5, dimension=10, **KNOWN), eta, rtol=1e-12)
    first = [3.2 * eta * L * variance / 16, 6.4 * 5 / (eta * T), 14.4 * L**2 * 0.1 / (p * T)]
    assert_allclose(list(computed), first + [14.4 * eta**2 * L**2 / p * part for part in added()], rtol=1e-10)
    # few steps: the largest that the lemmas allow, c = 4 sqrt(3 (1 - p) (3 P + p M)) here
    c = decor_constant(RING, **KNOWN)
    assert_allclose(c, 4 * math.sqrt(3 * (1 - p) * (3.6 + p * 0.3)))
    assert_allclose(decor_step_size(RING, 1, sigma_ldp=0.0, dimension=1, **KNOWN), p / (c * L), rtol=1e-12)
    for T in (1, 100, 10**6):
        bound = decor_theorem_2_non_convex(RING, num_steps=T, **NOISE, **KNOWN)
        leading = 6.4 * math.sqrt(2 * L * 5 * variance / (16 * T)) + 6.4 * c * L * 5 / (p * T)
        assert bound.average_noise + bound.initial_loss <= leading * (1 + 1e-12)
    noiseless = {**KNOWN, "gradient_variance": 0.0}
    assert_allclose(decor_step_size(RING, 9, sigma_ldp=0.0, dimension=1, **noiseless), p / (c * L), rtol=1e-12)


def test_the_non_convex_part_has_no_pl_constant():
    """mu / L, which may be 1, is at most 2 p where p is 1/2: only graphs of slow mixing show it, with small P and M."""
    steep = {**KNOWN, "pl_constant": 4000.0}
    assert_allclose(decor_constant(RING, **steep), 1000.0)
    assert decor_theorem_2_non_convex(RING, num_steps=9, **NOISE, **steep) == decor_theorem_2_non_convex(
        RING, num_steps=9, **NOISE, **KNOWN
    )
    refuses("pl_constant must be", decor_theorem_2, RING, num_steps=9, **NOISE, **KNOWN)


def test_nodes_of_one_loss_part_for_good_at_steps_that_ignore_mixing():
    """Three nodes on a path, W_ij = 1/10, loss 1 - cos x, so L = 1, M = P = zeta* = 0: in the valleys 0, 0 and 2 pi."""
    W = np.eye(3) - np.array([[1, -1, 0], [-1, 2, -1], [0, -1, 1]]) / 10
    path, start, T = gossip.from_array(W), np.array([0, 0, 2 * math.pi]), 20_000
    p = path.mixing_parameter
    known = {"smoothness": 1.0, "initial_loss": 1 - math.cos(start.mean()), "initial_disagreement": start.var()}

    def gradients(eta):
        x, squares = start, []
        for _ in range(T):
            squares.append(math.sin(x.mean()) ** 2)
            x = W @ (x - eta * np.sin(x))
        return np.array(squares), x

    squares, x = gradients(1 / 2)  # p / (c L) with c = 2 p
    assert_allclose(W @ (x - np.sin(x) / 2), x, atol=1e-12)  # they stay there
    assert_allclose(squares[-1], 0.894**2, rtol=1e-3)
    printed = 6.4 * 2 * known["initial_loss"] / T + 14.4 * known["initial_disagreement"] / (p * T)
    assert squares.mean() > 10 * printed
    eta = decor_step_size(path, T, sigma_ldp=0.0, dimension=1, **known)
    squares, x = gradients(eta)
    assert np.abs(x).max() < 1e-12
    bound = decor_theorem_2_non_convex(path, sigma_ldp=0, sigma_cor=0, num_steps=T, dimension=1, **known)
    assert squares.mean() <= bound.total < 0.3


@pytest.mark.parametrize("q", [0, 1])
def test_rates_are_the_leading_terms_of_theorem_2(q):
    budget = {"epsilon": 2.0, "delta": 1e-5, "num_colluders": q, "num_steps": 1000}
    known = {**KNOWN, "pl_constant": 0.5}
    local = decor_corollary("ring:n=16", **budget).sigma_ldp
    rate = decor_rate("ring:n=16", **budget, dimension=10, **known)
    theorem = decor_theorem_2(RING, sigma_ldp=local, sigma_cor=0, num_steps=1000, dimension=10, **known)
    assert_allclose(rate.total, theorem.average_noise, rtol=1e-12)
    assert_allclose(rate.sampling, 4 * 2 / (0.25 * 16 * 1000), rtol=1e-12)
    gradient = decor_rate_non_convex("ring:n=16", **budget, dimension=10, **known)
    assert_allclose(gradient.sampling, math.sqrt(4 * 5 * 2 / (16 * 1000)), rtol=1e-12)
    assert_allclose(gradient.privacy**2 / rate.privacy, 5 * 0.25, rtol=1e-12)
    # both with all steps: the price of privacy stays
    longer = {**budget, "num_steps": 4000}
    assert_allclose(decor_rate("ring:n=16", **longer, dimension=10, **known).privacy, rate.privacy, rtol=1e-12)


AT = {"loss": 0.0, "gradient_squared": 1.0, "disagreement": 0.0}
SHORT = {"delta": 1e-5, "num_steps": 5, "dimension": 1, "smoothness": 1.0}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: decor_descent(RING, learning_rate=0.3, **AT, **KNOWN),
            r"learning_rate must be at most 1 / smoothness = 0.25 .* got 0.3",
        ),
        (lambda: decor_descent(gossip.uniform("star:n=5"), learning_rate=0.1, **AT, **KNOWN), "doubly stochastic"),
        (
            lambda: decor_disagreement(
                gossip.from_array(np.eye(3)), learning_rate=0.1, gradient_squared=0, disagreement=0, **KNOWN
            ),
            "gossip must mix",
        ),
        (lambda: decor_step_size(RING, 5, sigma_ldp=1, dimension=1, smoothness=1.0), "initial_loss must be"),
        (lambda: decor_rate_non_convex("ring:n=16", epsilon=2, **SHORT), "initial_loss must be"),
        (lambda: decor_rate("ring:n=16", epsilon=40, **SHORT, pl_constant=1.0), r"epsilon must be at most 2.343"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    refuses(message, call)
