"""Noise of messages that is a rounded product: rows that round to one, and terms that cancel in float64 alone."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

from mfdl import Dynamics, EveryStep, TrustModel, algorithms, gossip
from mfdl.noise import StepNoise
from mfdl.privacy import exact_arithmetic, sensitivity_by_victim
from mfdl.privacy.forms import dense_form
from mfdl.privacy.forms.node_recursions import recursions
from mfdl.testing import exact_run, exact_view, exact_view_gram, to_float

MH = gossip.metropolis_hastings


@pytest.mark.parametrize("too_large_for_exact_ranks", [False, True])
@pytest.mark.parametrize("faint", [1.0, 2.0**-10])
def test_noise_that_is_a_rounded_product_makes_no_row_redundant(faint, too_large_for_exact_ranks, monkeypatch):
    """M N rounds both messages to one row; their true difference is noise that cancels most of the noise of both."""
    M = sp.csr_array([[2.0**25, 2.0], [2.0**25, 2.0 + 2.0**-19]])
    noise = StepNoise([[3 * 2.0**35, -1.0], [faint, -0.5]], np.ones((2, 2), bool), 3, 2)
    start = algorithms.dp_dsgd(Dynamics(MH("path:n=2")), EveryStep(3))
    maps = {
        "message_from_state": sp.csr_array([[2.0**-40, 0.5]] * 2),
        "state_from_message": sp.csr_array([[0.125, 0.0], [0.5, 0.0]]),
    }
    rounds = [dataclasses.replace(r, message_from_gradient=M, message_from_noise=M, **maps) for r in start.rounds]
    algorithm = dataclasses.replace(start, rounds=tuple(rounds), noise=noise)
    model = TrustModel.from_masks(seen=np.ones((3, 2), bool), release="none")
    assert recursions(model.view(algorithm, 0)) is not None
    if too_large_for_exact_ranks:
        monkeypatch.setattr(exact_arithmetic, "MAX_ENTRIES", 0)
        monkeypatch.setattr(dense_form, "MAX_ENTRIES", 0)
    A, B = exact_view(exact_run(algorithm), np.ones((3, 2), bool), [])
    truth = float(sum(np.abs(to_float(exact_view_gram([row[0::2] for row in A], B))).ravel()))
    (loss,) = sensitivity_by_victim(algorithm, model, victims=[0], unit="user")
    assert truth * (1 - 1e-9) <= loss.sensitivity_squared < math.inf
    assert loss.bound == "upper" or loss.sensitivity_squared == pytest.approx(truth, rel=1e-6)


X_NOISE, FACTOR = 0.23604808973743452, 0.1031660342307158
"""Two floats whose product is rounded."""


def moved(maps, noise, n):
    """A user's algorithm of three steps with these maps."""
    start = algorithms.dp_dsgd(Dynamics(MH(f"path:n={n}")), EveryStep(3))
    sparse = {name: sp.csr_array(matrix) for name, matrix in maps.items()}
    rounds = tuple(dataclasses.replace(r, **sparse) for r in start.rounds)
    holders = np.ones((n, np.shape(noise)[1]), bool)
    return dataclasses.replace(start, rounds=rounds, noise=StepNoise(noise, holders.T, 3, n))


def test_noise_that_cancels_up_to_rounding_alone_reveals_what_it_shares():
    """Message 0 carries the rounding of y x - fl(y x) times z, which is not 0, and with it the noise z of message 1."""
    algorithm = moved(
        {
            "message_from_noise": [[FACTOR, -1.0], [1.0, 0.0]], "message_from_gradient": [[0.0, 0.0], [1.0, 0.0]],
            "message_from_state": [[0.0, 0.0], [1.0, 0.0]], "state_from_message": [[0.0, 0.5], [0.0, 0.5]],
        },
        [[X_NOISE, 0.0], [FACTOR * X_NOISE, 0.0]], 2,
    )  # fmt: skip
    assert Fraction(FACTOR) * Fraction(X_NOISE) != Fraction(FACTOR * X_NOISE)
    model = TrustModel.from_masks(seen=np.ones((3, 2), bool), release="none")
    (loss,) = sensitivity_by_victim(algorithm, model, victims=[0], unit="user")
    assert loss.sensitivity_squared == math.inf


def test_hidden_noise_that_cancels_up_to_rounding_alone_counts_in_later_messages():
    """What a hidden message leaves of the noise z in a state is tiny, and meets noise that is tinier."""
    faint = 2.0**-64
    algorithm = moved(
        {
            "message_from_noise": [[0, 0, faint], [FACTOR, -1.0, 0], [1.0, 0, 0]],
            "message_from_gradient": [[0.0, 0, 0], [0, 0, 0], [0, 0, 1.0]],
            "message_from_state": [[1.0, 0, 0], [0, 0, 0], [0, 0, 0]],
            "state_from_message": [[0, 1.0, 0], [0, 0, 0.5], [0, 0, 0.5]],
        },
        [[X_NOISE, 0.0], [FACTOR * X_NOISE, 0.0], [0.0, 1.0]], 3,
    )  # fmt: skip
    left = Fraction(FACTOR) * Fraction(X_NOISE) - Fraction(FACTOR * X_NOISE)
    known = 1 + left**2 / Fraction(faint) ** 2  # of the noise of steps 0 and 1, seen again a step later
    truth = float((2 * known + 1) / Fraction(X_NOISE) ** 2)
    model = TrustModel.from_masks(seen=np.array([[True, False, True]] * 3), release="none")
    (loss,) = sensitivity_by_victim(algorithm, model, victims=[2], unit="user")
    assert loss.sensitivity_squared >= truth * (1 - 1e-9)
