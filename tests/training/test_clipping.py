"""Clipping and ghost clipping against exact rational arithmetic: the norm bounds hold with no tolerance."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis.extra import numpy as hnp
from vocabulary import given, refuses, st

from mfdl.errors import InvalidInput
from mfdl.training import clipping
from mfdl.training.clipping import Automatic, Flat

DTYPES = [torch.float32, torch.float64]
BITS = {torch.float32: 32, torch.float64: 64}
NORMS, GAMMAS = st.floats(1e-30, 1e30), st.sampled_from([1e-6, 0.01, 1e30]) | st.floats(1e-6, 1e30)
RULES = st.builds(Flat, NORMS) | st.builds(Automatic, NORMS, GAMMAS)


def exact_norm_squared(values: torch.Tensor) -> Fraction:
    return sum((Fraction(v) ** 2 for v in values.double().flatten().tolist()), Fraction(0))


def clip_one(gradient: torch.Tensor, clip_norm) -> torch.Tensor:
    (clipped,) = clipping.clipped_sums([gradient.reshape(1, 1, -1)], torch.ones(1, 1, dtype=torch.bool), clip_norm)
    return clipped[0]


@pytest.mark.parametrize("dtype", DTYPES)
@given(300, data=st.data(), rule=RULES, size=st.integers(1, 12))
def test_exact_norm_never_exceeds_the_clip_norm(dtype, data, rule, size):
    floats = st.floats(width=BITS[dtype], allow_nan=False, allow_infinity=False)
    values = data.draw(hnp.arrays(f"f{BITS[dtype] // 8}", size, elements=floats))
    clipped = clip_one(torch.from_numpy(values), rule)
    assert torch.isfinite(clipped).all()
    assert exact_norm_squared(clipped) <= Fraction(rule.norm) ** 2
    if not values.any():
        assert not clipped.any()


@pytest.mark.parametrize("dtype", DTYPES)
@given(200, seed=st.integers(0, 2**32 - 1), size=st.integers(1, 300), scale=st.integers(-30, 18), gamma=GAMMAS)
def test_every_gradient_is_normalised_and_ones_much_longer_than_gamma_are_rounded_down(dtype, seed, size, scale, gamma):
    """C / (||g|| + gamma) g up to twice the slack, in exact arithmetic; only weights below the normal numbers are 0."""
    gradient = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 10.0**scale
    rule, norm = Automatic(1 / 3, gamma), float(exact_norm_squared(gradient)) ** 0.5
    clipped, weight = clip_one(gradient, rule).double(), rule.norm / (norm + gamma)
    assert exact_norm_squared(clipped) <= Fraction(rule.norm) ** 2
    close = {"rtol": 2 * clipping.relative_slack(size, dtype), "atol": float(torch.finfo(dtype).tiny)}
    torch.testing.assert_close(clipped, gradient.double() * weight * (weight >= torch.finfo(dtype).tiny), **close)


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
    before = weight.clone(), bias.clone()
    for got, want in zip(clipping.clipped_sums([weight, bias], mask, 0.7), expected, strict=True):
        assert torch.equal(got, want)
    torch.testing.assert_close((weight, bias), before, rtol=0, atol=0, equal_nan=True)  # inputs are not changed


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


def test_norms_are_summed_in_float64():
    gradient = torch.full((1, 1, 1000), 3e38)  # squares overflow float32
    assert clipping.gradient_norms([gradient]).item() == pytest.approx(float(gradient[0, 0, 0]) * 1000**0.5, rel=1e-13)
    # 1 + many squares that float32 would lose beside it.
    tiny = torch.full((1, 1, 1 << 20), 2.0**-14)
    tiny[0, 0, 0] = 1.0
    exact = (1 + ((1 << 20) - 1) * 2.0**-28) ** 0.5
    assert clipping.gradient_norms([tiny]).item() == pytest.approx(exact, rel=1e-13)


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, float("nan"), float("inf"), 1e-31, 1e31, "1"])
def test_bad_clip_norms_are_refused(clip_norm):
    refuses("clip_norm must be", clipping.clip_factor, torch.ones(1, dtype=torch.float64), clip_norm, dimension=1)


def test_other_types_are_refused():
    with pytest.raises(InvalidInput, match=r"float32 or float64 to be clipped safely, got torch.float16"):
        clipping.clipped_sums([torch.ones(1, 1, 2).half()], torch.ones(1, 1, dtype=torch.bool), 1.0)
    refuses(r"norms must be float64, got torch.float32", clipping.clip_factor, torch.ones(1), 1.0, dimension=1)


UNIT = Fraction(1, 2**53)


def numbers(dtype: torch.dtype) -> st.SearchStrategy[float]:
    """Any float of the type, and some that cancel, overflow or leave the normal numbers when multiplied."""
    info = torch.finfo(dtype)
    near = [1.0, -1.0, 1 + info.eps, -1 - info.eps, 1 - info.eps / 2, 3.0, 2.0**60, -(2.0**-60)]
    edge = [info.tiny, info.smallest_normal**0.55, info.max**0.45]
    far = st.floats(width=info.bits, allow_nan=False, allow_infinity=False)
    values = st.sampled_from(near) | st.sampled_from(edge) | st.floats(-8, 8, width=16) | far
    return values.map(lambda value: torch.tensor(value, dtype=dtype).item())


@st.composite
def records(draw, dtype, sizes=(1,)):
    """Gradients of a batch at one node: of plain parameters, and factors of weights of random shapes."""
    B = draw(st.sampled_from(sizes))

    def tensor(*shape):
        array = f"f{torch.finfo(dtype).bits // 8}"
        values = draw(hnp.arrays(array, (1, B, *shape), elements=numbers(dtype), fill=numbers(dtype)))
        return torch.from_numpy(values)

    plain = [tensor(draw(st.integers(1, 4))) for _ in range(draw(st.integers(0, 2)))]
    factors = []
    for _ in range(draw(st.integers(1, 2))):
        groups, positions, inputs, outputs = (draw(st.integers(1, most)) for most in (2, 3, 3, 3))
        inputs_and_backprops = tensor(groups, positions, inputs), tensor(groups, positions, outputs)
        factors.append(clipping.Factors(*inputs_and_backprops))
    return plain, factors


def fractions(values: torch.Tensor) -> np.ndarray:
    exact = np.array([Fraction(v) for v in values.double().flatten().tolist()], dtype=object)
    return exact.reshape(values.shape)


def exact_norm_squared_of_factors(plain, factors, record: int) -> Fraction:
    """Of one record's gradient over all parameters together, multiplied out."""
    total = sum((v**2 for g in plain for v in fractions(g[0, record]).ravel()), Fraction(0))
    for weight in factors:
        for a, b in zip(fractions(weight.inputs[0, record]), fractions(weight.backprops[0, record]), strict=True):
            total += sum(((b[:, o] * a[:, i]).sum() ** 2 for o, i in np.ndindex(b.shape[1], a.shape[1])), Fraction(0))
    return total


def entries(plain, factors) -> int:
    return sum(g[0, 0].numel() for g in plain) + sum(weight.entries for weight in factors)


def clip(plain, factors, clip_norm, mask=None):
    B = factors[0].inputs.shape[1]
    given_mask = torch.ones(1, B, dtype=torch.bool) if mask is None else mask
    return list(itertools.chain(*clipping.ghost_clipped_sums(plain, factors, given_mask, clip_norm)))


@pytest.mark.parametrize("dtype", DTYPES)
@given(300, data=st.data())
def test_the_norm_is_never_below_the_exact_one(dtype, data):
    plain, factors = data.draw(records(dtype))
    bound = clipping.norm_bounds(plain, factors)
    assert bound.shape == (1, 1)
    assert bound.dtype == torch.float64
    if torch.isfinite(bound).all():
        exact, D = exact_norm_squared_of_factors(plain, factors, 0), entries(plain, factors)
        reached = Fraction(bound.item()) * (1 + (D + 11) * UNIT) + Fraction(1, 10**150) * D
        assert reached**2 >= exact


@pytest.mark.parametrize("dtype", DTYPES)
@given(300, data=st.data(), rule=RULES)
def test_the_sum_of_one_record_is_within_the_clip_norm_exactly(dtype, data, rule):
    sums = clip(*data.draw(records(dtype)), rule)
    assert all(part.dtype == torch.float64 and torch.isfinite(part).all() for part in sums)
    for rounded in (torch.float64, dtype):  # as it is, and as it is used
        squares = (v**2 for part in sums for v in fractions(part.to(rounded)).ravel())
        assert sum(squares, Fraction(0)) <= Fraction(rule.norm) ** 2


@given(150, data=st.data(), rule=st.sampled_from([Flat(1e-3), Flat(1e3), Automatic(1.0), Automatic(1e3, 1e-6)]))
def test_leaving_out_a_record_moves_the_rounded_sum_by_the_clip_norm(data, rule):
    plain, factors = data.draw(records(torch.float32, (2, 3, 4)))
    B, P = factors[0].inputs.shape[1], max(weight.inputs.shape[3] for weight in factors)
    without = torch.ones(1, B, dtype=torch.bool)
    without[0, -1] = False
    both = (clip(plain, factors, rule, mask) for mask in (None, without))
    pairs = (map(fractions, (x.float(), y.float())) for x, y in zip(*both, strict=True))
    moved = sum((((x - y) ** 2).sum() for x, y in pairs), Fraction(0))
    reach = Fraction(rule.norm) * (1 + 2 * B * Fraction(torch.finfo(torch.float32).eps) + Fraction(B * B * P, 2**36))
    assert moved <= reach**2


@pytest.mark.parametrize("dtype", DTYPES)
@given(
    60, seed=st.integers(0, 2**32 - 1), scale=st.integers(-60, 30),
    rule=st.sampled_from([Flat(1e-3), Flat(1.0), Flat(1e3), Automatic(1.0), Automatic(1e3, 1.0)]),
)  # fmt: skip
def test_sums_are_those_of_gradients_multiplied_out(dtype, seed, scale, rule):
    generator = torch.Generator().manual_seed(seed)

    def tensor(*shape):
        return torch.randn(2, 5, *shape, generator=generator, dtype=dtype)

    plain = [tensor(3, 2), tensor()]
    factors = [clipping.Factors(tensor(*lead, 7) * 10.0 ** (scale / 3), tensor(*lead, 4)) for lead in [(1, 1), (2, 3)]]
    mask = torch.rand(2, 5, generator=generator) < 0.7
    whole = [torch.einsum("nrgpo,nrgpi->nrgoi", w.backprops.double(), w.inputs.double()) for w in factors]
    expected = clipping.clipped_sums([g.double() for g in plain] + whole, mask, rule)
    sums = itertools.chain(*clipping.ghost_clipped_sums(plain, factors, mask, rule))
    for got, want in zip(sums, expected, strict=True):
        assert got.shape == want.shape
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-7 * rule.norm)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_or_absent_gives_zero_and_leaves_the_others_alone(bad, dtype):
    generator = torch.Generator().manual_seed(0)
    plain = [torch.randn(3, 5, 2, generator=generator, dtype=dtype)]
    factors = [clipping.Factors(*(torch.randn(3, 5, 1, 2, k, generator=generator, dtype=dtype) for k in (4, 3)))]
    present = torch.ones(3, 5, dtype=torch.bool)
    present[2] = False  # an empty batch
    remaining = present.clone()
    remaining[0, 1] = remaining[1, 4] = remaining[1, 0] = False
    expected = list(itertools.chain(*clipping.ghost_clipped_sums(plain, factors, remaining, 0.7)))
    plain[0][0, 1, 1] = factors[0].inputs[1, 4, 0, 1, 0] = factors[0].backprops[1, 0, 0, 0, 2] = bad
    plain[0][2] = factors[0].inputs[2] = bad  # masked
    sums = itertools.chain(*clipping.ghost_clipped_sums(plain, factors, present, 0.7))
    for got, want in zip(sums, expected, strict=True):
        assert torch.equal(got, want)
        assert not got[2].any()


@given(100, seed=st.integers(0, 2**32 - 1), size=st.integers(2, 40), small=st.integers(0, 30))
def test_the_norm_covers_what_rounding_leaves_of_positions_that_cancel(seed, size, small):
    """b a^T - b a'^T, a' beside a in one small entry: squares in float64 tell nothing of the difference."""
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(size, generator=generator), torch.randn(3, generator=generator)
    a[0] *= 2.0**-small
    other = a.clone()
    other[0] = torch.nextafter(a[0], torch.tensor(9.0))
    factors = [clipping.Factors(torch.stack([a, other])[None, None, None], torch.stack([b, -b])[None, None, None])]
    bound = clipping.norm_bounds([], factors).item()
    assert Fraction(bound) ** 2 >= exact_norm_squared_of_factors([], factors, 0)


@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize(("a", "b"), [(1e-170, 1e150), (1e140, 1e-165)])
def test_the_norm_covers_squares_that_underflow(positions, a, b):
    values = torch.full((1, 1, 1, positions, 3), 1.0, dtype=torch.float64)
    factors = [clipping.Factors(a * values, b * values)]
    bound = clipping.norm_bounds([], factors).item()
    assert Fraction(bound) ** 2 >= exact_norm_squared_of_factors([], factors, 0)
    assert bound < 1e10


def test_positions_that_cancel_are_not_taken_for_more_than_they_are():
    """1 - 1 at two positions: the gradient is zero, and its bound the share of the triangle inequality."""
    ones = torch.ones(1, 1, 1, 2, 1)
    factors = [clipping.Factors(ones, torch.tensor([1.0, -1.0]).reshape(1, 1, 1, 2, 1))]
    bound = clipping.norm_bounds([], factors).item()
    assert bound == pytest.approx(2**-12.5, rel=1e-9)
    plain = [torch.full((1, 1, 1), 0.5)]
    assert clip(plain, factors, 1.0)[0].item() == 0.5
