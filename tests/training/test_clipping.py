"""Clipping against exact rational arithmetic: the norm bound is an inequality, with no tolerance."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mfdl.errors import InvalidInput
from mfdl.training import clipping

DTYPES = [torch.float32, torch.float64]
BITS = {torch.float32: 32, torch.float64: 64}


def exact_norm_squared(values: torch.Tensor) -> Fraction:
    return sum((Fraction(v) ** 2 for v in values.double().flatten().tolist()), Fraction(0))


def clip_one(gradient: torch.Tensor, clip_norm: float) -> torch.Tensor:
    (clipped,) = clipping.clipped_sums([gradient.reshape(1, 1, -1)], torch.ones(1, 1, dtype=torch.bool), clip_norm)
    return clipped[0]


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data(), clip_norm=st.floats(1e-30, 1e30), size=st.integers(1, 12))
@examples(300)
def test_exact_norm_never_exceeds_the_clip_norm(dtype, data, clip_norm, size):
    floats = st.floats(width=BITS[dtype], allow_nan=False, allow_infinity=False)
    values = data.draw(hnp.arrays(f"f{BITS[dtype] // 8}", size, elements=floats))
    clipped = clip_one(torch.from_numpy(values), clip_norm)
    assert torch.isfinite(clipped).all()
    assert exact_norm_squared(clipped) <= Fraction(clip_norm) ** 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 3, 641, 5000])
def test_the_bound_is_tight_and_holds_for_ordinary_gradients(dtype, size):
    generator = torch.Generator().manual_seed(size)
    for scale in (1e-3, 1.0, 1e6, 1e30 if dtype == torch.float32 else 1e150):
        for clip_norm in (1.0, 0.1, 1 / 3):
            gradient = torch.randn(size, generator=generator, dtype=dtype) * scale
            clipped = clip_one(gradient, clip_norm)
            norm_squared = exact_norm_squared(clipped)
            assert norm_squared <= Fraction(clip_norm) ** 2
            if exact_norm_squared(gradient) > Fraction(clip_norm) ** 2:
                slack = clipping.relative_slack(size, dtype)
                assert norm_squared >= (Fraction(clip_norm) * (1 - 2 * Fraction(slack))) ** 2
            else:  # below the threshold nothing is scaled
                assert torch.equal(clipped, gradient)


def test_factors_below_the_normal_numbers_do_not_round_up():
    for factor in (1e-45, 2.2e-45, 5e-42, 1e-39):  # 1e-45 would round to 1.4e-45
        clip_norm = 3e38 * factor
        clipped = clip_one(torch.tensor([3e38]), clip_norm)
        assert exact_norm_squared(clipped) <= Fraction(clip_norm) ** 2


def test_slack_is_small():
    assert clipping.relative_slack(641, torch.float32) < 2.5e-7
    assert clipping.relative_slack(641, torch.float64) < 1.5e-13


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_norm_over_all_parameters(dtype):
    gradients = [torch.full((1, 1, 2, 3), 2.0, dtype=dtype), torch.full((1, 1), 5.0, dtype=dtype)]
    sums = clipping.clipped_sums(gradients, torch.ones(1, 1, dtype=torch.bool), 1.0)
    assert [tuple(s.shape) for s in sums] == [(1, 2, 3), (1,)]
    np.testing.assert_allclose(sums[0], np.full((1, 2, 3), 2 / 7), rtol=1e-6)  # norm sqrt(6 * 4 + 25) = 7
    np.testing.assert_allclose(sums[1], [5 / 7], rtol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_non_finite_gradient_becomes_zero_and_leaves_the_others_alone(bad, dtype):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 4, 5, 2, generator=generator, dtype=dtype)
    bias = torch.randn(3, 4, generator=generator, dtype=dtype)
    mask = torch.ones(3, 4, dtype=torch.bool)
    without = mask.clone()
    without[1, 2] = without[2, 0] = False
    expected = clipping.clipped_sums([weight, bias], without, 0.7)
    weight[1, 2, 3, 1] = bad  # one entry of the one parameter
    bias[2, 0] = bad  # and of the other
    for got, want in zip(clipping.clipped_sums([weight, bias], mask, 0.7), expected, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_records_contribute_exactly_zero_whatever_they_hold(dtype):
    generator = torch.Generator().manual_seed(1)
    gradients = torch.randn(2, 3, 4, generator=generator, dtype=dtype)
    mask = torch.tensor([[True, False, True], [False, False, False]])
    (sums,) = clipping.clipped_sums([gradients], mask, 1.0)
    for value in (0.0, 1e30, float("nan"), float("inf")):
        other = gradients.clone()
        other[~mask] = value
        assert torch.equal(clipping.clipped_sums([other], mask, 1.0)[0], sums)
    assert torch.equal(sums[1], torch.zeros(4, dtype=dtype))  # an empty batch is a normal step
    alone = clip_one(gradients[0, 0], 1.0) + clip_one(gradients[0, 2], 1.0)
    assert torch.equal(sums[0], alone)


def test_input_is_not_changed():
    gradients = torch.tensor([[[3.0, 4.0], [float("nan"), 1.0]]])
    before = gradients.clone()
    clipping.clipped_sums([gradients], torch.ones(1, 2, dtype=torch.bool), 1.0)
    assert torch.equal(gradients.nan_to_num(9.0), before.nan_to_num(9.0))


def test_norms_are_summed_in_float64():
    gradient = torch.full((1, 1, 1000), 3e38)  # squares overflow float32
    assert clipping.gradient_norms([gradient]).item() == pytest.approx(float(gradient[0, 0, 0]) * 1000**0.5, rel=1e-13)
    # 1 + many squares that float32 would lose beside it.
    tiny = torch.full((1, 1, 1 << 20), 2.0**-14)
    tiny[0, 0, 0] = 1.0
    exact = (1 + ((1 << 20) - 1) * 2.0**-28) ** 0.5
    assert clipping.gradient_norms([tiny]).item() == pytest.approx(exact, rel=1e-13)


def test_factors_of_special_norms():
    norms = torch.tensor([0.0, 1e-300, 0.5, 2.0, 1e60, 1e300, float("inf"), float("nan")], dtype=torch.float64)
    factor = clipping.clip_factor(norms, 1.0, dimension=1)
    assert factor.dtype == torch.float32
    assert factor[[0, 1, 2]].tolist() == [1.0, 1.0, 1.0]
    assert factor[3] == pytest.approx(0.5, rel=1e-6)
    assert factor[3] < 0.5
    assert factor[[4, 5, 6, 7]].tolist() == [0.0] * 4  # below the normal float32 numbers, or no number
    assert clipping.clip_factor(norms, 1.0, dimension=1, dtype=torch.float64)[4] > 0


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, float("nan"), float("inf"), 1e-31, 1e31, "1"])
def test_bad_clip_norms_are_refused(clip_norm):
    with pytest.raises(InvalidInput, match="clip_norm must be"):
        clipping.clip_factor(torch.ones(1, dtype=torch.float64), clip_norm, dimension=1)


def test_other_types_are_refused():
    with pytest.raises(InvalidInput, match=r"float32 or float64 to be clipped safely, got torch.float16"):
        clipping.clipped_sums([torch.ones(1, 1, 2).half()], torch.ones(1, 1, dtype=torch.bool), 1.0)
    with pytest.raises(InvalidInput, match=r"norms must be float64, got torch.float32"):
        clipping.clip_factor(torch.ones(1), 1.0, dimension=1)
