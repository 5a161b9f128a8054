"""Sums on a grid: the law of their noise, trade-offs, and rounded normals against mpmath."""

import dataclasses
import decimal
import math
from decimal import Decimal
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch
from scipy import special
from vocabulary import dynamics_on, given, refuses, st

import mfdl
from mfdl import Cyclic, Mechanism, NoiseKey, Privacy, algorithms, calibrate, trust
from mfdl.noise import IndependentNoise, LocalNoise
from mfdl.training import grid_sums
from mfdl.training.clipping import clipped_rows
from mfdl.training.grid_sums import GridSums, RoundedNormals, rounded, upper_tail
from mfdl.training.keys import normals
from mfdl.training.shared_randomness import HolderKeys

KEYS = HolderKeys.simulated(mfdl.NoiseKey(bytes(range(32))))
NODES = 3
DYNAMICS = dynamics_on(f"ring:n={NODES}", 0.3)


@dataclasses.dataclass(frozen=True)
class Case:
    """One node of a mechanism, and the step h of its grid. Its outputs: two steps of one coordinate, or one of two."""

    mechanism: Mechanism
    node: int
    step: float

    @property
    def dim(self):
        return 2 // self.mechanism.algorithm.num_steps

    @property
    def scale(self):
        """nu F / q of the noise that is accounted for this node: a fraction."""
        F = Fraction(float(self.mechanism.algorithm.noise.causal.node_scales[self.node]))
        return Fraction(self.mechanism.noise_std) * F * finest(self.encoder) / Fraction(self.step)

    @property
    def claimed_mu(self):
        return self.mechanism.guarantee.by_victim()[str(self.node)].mu

    def sums(self):
        return GridSums(self.mechanism, self.node, KEYS, self.step)

    @property
    def encoder(self):
        return self.mechanism.algorithm.noise.causal.column_encoder(self.node)

    def clipped(self, rows):
        return clipped_rows(rows, torch.ones(len(rows), dtype=torch.bool), self.mechanism.clip_norm)

    def released(self, sums, batches):
        """The y of each step, as the library computes them from the contributions of its records."""
        rows = [sums.privatised(t, batch) for t, batch in enumerate(batches)]
        if sums.released is not None:
            return np.array(sums.released)
        y = np.array(rows) * self.encoder.diagonal()[: len(rows), None] * finest(self.encoder) / self.step
        np.testing.assert_allclose(y, np.rint(y), rtol=1e-12)
        return np.rint(y).astype(int)


def finest(encoder):
    return max(Fraction(entry).denominator for entry in encoder.flat)


def case_of(noise, node, *, scale, clip, step, adjacency, scales):
    """Args: scale: in units q of the node; clip: in steps of the grid."""
    plain = algorithms.dp_dsgd(DYNAMICS, Cyclic(noise.num_steps, 1))
    algorithm = dataclasses.replace(plain, noise=noise.scaled(np.array(scales)))
    bits = finest(algorithm.noise.causal.column_encoder(node))
    about = {"trust": trust.LDP(), "adjacency": adjacency, "clip_norm": clip * step}
    return Case(calibrate(algorithm, Privacy(**about), noise_std=scale * step / bits / scales[node]), node, step)


@st.composite
def noises(draw):
    num_steps = draw(st.sampled_from([1, 2]))
    if draw(st.booleans()):
        return IndependentNoise(num_steps, NODES)
    diagonal, entry = st.integers(4, 12), st.integers(-8, 8)
    encoders = [[[draw(diagonal), 0], [draw(entry), draw(diagonal)]] for _ in range(NODES)]
    return LocalNoise(np.array(encoders)[:, :num_steps, :num_steps] / 8, NODES)


@st.composite
def cases(draw):
    return case_of(
        draw(noises()), draw(st.integers(0, NODES - 1)),
        scale=draw(st.floats(-4.3, 3.5).map(lambda exponent: 2.0**exponent)), clip=draw(st.floats(1.0, 9.0)),
        step=draw(st.integers(-20, 3).map(lambda exponent: 2.0**exponent)),
        adjacency=draw(st.sampled_from(["zero-out", "replace-one"])),
        scales=draw(st.lists(st.floats(0.05, 20.0), min_size=NODES, max_size=NODES)),
    )  # fmt: skip


@given(40, case=cases())
def test_the_noise_of_a_node_is_a_rounded_normal_of_its_scale(case):
    """At 2^12 words in equal distances, against the distribution function in 30 digits."""
    tails = np.arange(2**11, dtype=np.uint64) * np.uint64(2**53) + np.uint64(2**52)
    words = np.concatenate([tails, tails + np.uint64(1)])  # the lowest bit is the sign
    sums = case.sums()
    sums._normals._drawn.words = lambda step, dim: words[None, :dim]
    (y,) = case.released(sums, [torch.zeros((0, words.size))])
    with mpmath.workdps(30):
        scale = mpmath.mpf(case.scale.numerator) / case.scale.denominator
        for k in range(int(abs(y).max()) + 2):
            expected = words.size * mpmath.ncdf(-(k + mpmath.mpf(0.5)) / scale)
            assert abs((y > k).sum() - expected) <= 0.5 + 1e-9
            assert (y > k).sum() == (y < -k).sum()


def log_probabilities(scale, reach):
    """log P(k), |k| <= reach; far in the tails with a small absolute error as well."""
    upper = special.log_ndtr(-(np.arange(1, reach + 2) - 0.5) / scale)  # log P(noise >= k), k from 1 on
    tail = upper[:-1] + np.log(-np.expm1(np.diff(upper)))
    return np.concatenate([tail[::-1], [math.log1p(-2 * math.exp(upper[0]))], tail])


def log_overlap(scale, shift, epsilon):
    """log sum_y min(P(y), e^epsilon P(y - shift)), y in one or two dimensions: log(1 - delta) of the hockey stick."""
    shift = shift[shift != 0]  # a coordinate that is not moved tells nothing
    reach = int(np.abs(shift, dtype=int).max(initial=0) + 12 * scale) + 3
    same, moved = np.zeros(()), np.zeros(())
    for by in np.abs(shift).tolist():  # its sign is that of the outputs
        row = log_probabilities(scale, reach + by)
        same, moved = np.add.outer(same, row[by : len(row) - by]), np.add.outer(moved, row[: len(row) - 2 * by])
    return special.logsumexp(np.minimum(same, moved + epsilon))


def log_overlap_of_gaussians(mu, epsilon):
    """log(1 - delta) of mu-Gaussian DP."""
    return np.logaddexp(special.log_ndtr(epsilon / mu - mu / 2), epsilon + special.log_ndtr(-epsilon / mu - mu / 2))


@st.composite
def contributions(draw, case, count):
    """Clipped gradients, shape (count, dim), each at the clipping norm or below, along an axis or not."""
    angles = draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75]) | st.floats(0, 1), min_size=count, max_size=count))
    sizes = draw(st.lists(st.just(2.0) | st.floats(0, 1), min_size=count, max_size=count))
    turns = 2 * np.pi * np.array(angles)
    directions = np.sign(np.cos(turns) + 1e-9)[:, None] if case.dim == 1 else np.array([np.cos(turns), np.sin(turns)]).T
    rows = torch.tensor(directions.reshape(count, case.dim) * np.array(sizes)[:, None] * case.mechanism.clip_norm)
    return case.clipped(rows) if count else rows


@given(40, case=cases(), data=st.data(), at=st.floats(-1.0, 1.0))
def test_no_event_tells_neighbours_apart_better_than_the_claimed_gaussian(case, data, at):
    num_steps = case.mechanism.algorithm.num_steps
    record, replacement = (data.draw(contributions(case, num_steps)) for _ in range(2))
    if case.mechanism.guarantee.adjacency == "zero-out":
        replacement = 0 * record
    elif data.draw(st.booleans()):
        replacement = -record
    others = [data.draw(contributions(case, data.draw(st.integers(0, 2)))) for _ in range(num_steps)]
    y, neighbour = (
        case.released(case.sums(), [torch.cat([rest, row[None]]) for rest, row in zip(others, rows, strict=True)])
        for rows in (record, replacement)
    )
    mu = case.claimed_mu
    for epsilon in (0.0, mu**2 / 2, max(0.0, mu**2 / 2 + at * 3 * mu)):
        attained = log_overlap(float(case.scale), (y - neighbour).ravel(), epsilon)
        assert attained >= log_overlap_of_gaussians(mu, epsilon) - 1e-9 * (1 + abs(attained))


@pytest.mark.parametrize("scales", [(1.0, 1.0, 1.0), (0.05, 20.0, 3.0)])
@pytest.mark.parametrize("node", [0, 1])
def test_the_claim_is_not_loose_on_a_fine_grid(scales, node):
    fine = {"scale": 1024.0, "clip": 512.1, "step": 2.0**-9, "adjacency": "replace-one"}
    case = case_of(IndependentNoise(1, NODES), node, scales=scales, **fine)
    y, neighbour = (case.released(case.sums(), [case.clipped(torch.tensor([[sign, 0.0]]))])[0] for sign in (1.0, -1.0))
    assert ((y - neighbour).tolist(), case.claimed_mu) == ([1024, 0], pytest.approx(1.0, rel=1e-3))
    for epsilon in (0.0, 0.5, 2.0):
        attained, claimed = log_overlap(1024.0, y - neighbour, epsilon), log_overlap_of_gaussians(1.0, epsilon)
        assert math.expm1(attained) == pytest.approx(math.expm1(claimed), rel=1e-3)


KEY = NoiseKey(bytes(range(32)))
WORD = st.integers(0, 2**64 - 1) | st.integers(0, 64).map(lambda bits: 2**bits - 1)
MORE = st.integers(0, 2**512 - 1)
SCALE = st.floats(-10, 40).map(lambda exponent: 2.0**exponent)


def nearest(word, more, scale):
    """The nearest integer to scale z, in 200 digits: bisection of integers by the tail of their upper edges."""
    with mpmath.workdps(200):
        tail = mpmath.mpf(max(1, ((word >> 1) << 512) + more)) / mpmath.mpf(2) ** 576
        low, high = 0, int(40 * scale) + 1
        while low < high:
            middle = (low + high) // 2
            edge = (mpmath.mpf(middle) + mpmath.mpf(1) / 2) / mpmath.mpf(scale)
            low, high = (low, middle) if tail >= mpmath.ncdf(-edge) else (middle + 1, high)
    return -low if word & 1 else low


@given(60, st.lists(st.tuples(WORD, MORE), min_size=1, max_size=4), SCALE)
def test_integers_are_the_nearest_to_real_normals(bits, scale):
    words = np.array([word for word, _ in bits], dtype=np.uint64)
    integers = rounded(words, scale, lambda place: bits[place][1])
    assert integers.tolist() == [nearest(word, more, scale) for word, more in bits]


@given(
    40, edge=st.integers(0, 2**18), scale=st.floats(15, 30).map(lambda exponent: 2.0**exponent), beyond=st.booleans()
)
def test_bits_that_end_next_to_an_edge_are_decided_by_the_last_of_them(edge, scale, beyond):
    with mpmath.workdps(200):
        tail = mpmath.ncdf(-(mpmath.mpf(edge) + mpmath.mpf(1) / 2) / mpmath.mpf(scale)) * mpmath.mpf(2) ** 576
        bits = int(mpmath.floor(tail)) + (0 if beyond else 1)
    word, more = divmod(bits, 2**512)
    (integer,) = rounded(np.array([2 * word], dtype=np.uint64), scale, lambda _: more)
    assert integer == edge + beyond


@pytest.mark.parametrize("scale", [0.0, 0.3, 2.0**20])
def test_floats_decide_as_the_decimals_would(scale, monkeypatch):
    row = RoundedNormals(KEY).row(3, 200, scale)
    monkeypatch.setattr(grid_sums, "_ERROR", 1.0)
    monkeypatch.setattr(grid_sums, "_SURE", -1.0)
    again = RoundedNormals(KEY).row(3, 200, scale)
    assert row.tolist() == again.tolist()
    assert scale or not row.any()


@given(
    60,
    x=st.integers(0, 30 * 2**20).map(lambda numerator: Decimal(numerator) / 2**20),
    digits=st.sampled_from([60, 240]),
)
def test_tails_have_the_stated_error(x, digits):
    with decimal.localcontext(prec=digits):
        tail = upper_tail(x)
    with mpmath.workdps(digits + 30):
        assert abs(mpmath.mpf(str(tail)) - mpmath.ncdf(-mpmath.mpf(str(x)))) < mpmath.mpf(10) ** (6 - digits)


def test_ndtri_has_the_assumed_error():
    """At 300 tails of all sizes, an error 16 times below the assumption."""
    rng = np.random.default_rng(0)
    tails = np.concatenate([rng.uniform(0, 0.5, 150), 2.0 ** rng.uniform(-576, -1, 150)])
    for tail, z in zip(tails.tolist(), -grid_sums.ndtri(tails), strict=True):
        with mpmath.workdps(40):
            edge = mpmath.mpf(z)
            exact = edge + (mpmath.ncdf(-edge) - mpmath.mpf(tail)) / mpmath.npdf(edge)  # a step of Newton's method
            assert abs(exact - edge) < mpmath.mpf(2) ** -50 * max(1.0, z)


def test_rows_depend_on_key_step_and_coordinate_alone():
    row = RoundedNormals(KEY).row(1, 50, 1e6)
    assert row[:20].tolist() == RoundedNormals(KEY).row(1, 20, 1e6).tolist()
    others = [RoundedNormals(KEY).row(2, 50, 1e6), RoundedNormals(KEY.derive(1)).row(1, 50, 1e6)]
    assert len(np.unique(np.concatenate([row, *others]))) == 150
    same_key = normals(KEY, 1, [0], 50)[0]
    assert 5 < (np.sign(same_key) == np.sign(row)).sum() < 45  # other random bits than those of float normals


def test_pieces_do_not_change_a_row(monkeypatch):
    row = RoundedNormals(KEY).row(1, 100, 2.0**40)
    monkeypatch.setattr(grid_sums, "PIECE", 7)
    assert row.tolist() == RoundedNormals(KEY).row(1, 100, 2.0**40).tolist()


def test_refusals():
    for scale in (-1.0, 2.0**41, float("nan")):
        refuses(r"scale must lie in \[0, 2\^40\].*coarser grid", RoundedNormals(KEY).row, 0, 2, scale)
    refuses("dim must be at most", lambda: RoundedNormals(KEY).row(0, 2**32 + 1, 1.0))


@pytest.mark.parametrize("scale", [0.4, 3.0])
def test_integers_have_the_distribution_of_a_rounded_normal(scale):
    size = 100_000
    row = RoundedNormals(KEY).row(0, size, scale)
    reach = int(3.5 * scale) + 1
    counts = np.array([(row == k).sum() for k in range(-reach, reach + 1)])
    edges = (np.arange(-reach, reach + 2) - 0.5) / scale
    expected = size * np.diff(scipy.stats.norm.cdf(edges))
    counts, expected = np.append(counts, size - counts.sum()), np.append(expected, size - expected.sum())
    assert 1e-6 < scipy.stats.chisquare(counts, expected).pvalue < 1 - 1e-6
