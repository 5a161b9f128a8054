"""The encoder made for balls-in-bins: which one is kept, built by name, accounted, swept; what is refused."""

import dataclasses
import json

import numpy as np
import pytest
from numpy.testing import assert_allclose
from vocabulary import ZERO_OUT, dynamics_on, each, refuses, unsupported

import mfdl
from mfdl import BallsInBins, Cyclic, ErrorWeights, InvalidInput, UnsupportedMechanism, algorithms, sweep
from mfdl.algorithms import kronecker_bins, mafalda_bins, noise_error, registry
from mfdl.commands import main
from mfdl.factorization import factorize_balls_in_bins
from mfdl.factorization.solutions import Solutions, keeping
from mfdl.privacy.gaussian import epsilon_from_mu
from mfdl.runs import Store
from mfdl.runs.cells import shared_by
from mfdl.runs.experiment import Experiment
from mfdl.runs.sweep_config import SweepConfig

DYNAMICS = dynamics_on("path:n=3")
BINS = BallsInBins(2, 3)
TARGET = {"epsilon": 2.0, "delta": 1e-5, "adjacency": "zero-out"}
PRIVACY = mfdl.Privacy(mfdl.trust.LDP(), **ZERO_OUT)
NOISE = mfdl.privacy.noise_of_bins(bins=3, **TARGET)
ASKED = ["--graph", "path:n=3", "--epochs", "2", "--period", "3", "--delta", "1e-5", "--adjacency", "zero-out"]
SECRET = [*ASKED, "--participation", "balls-in-bins", "--epsilon", "2"]


def answer(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def calibrated(algorithm):
    return mfdl.calibrate(algorithm, PRIVACY, epsilon=2.0, delta=1e-5)


def hull(M):
    """A scale that grows in the diagonal and in the correlation, at no cost."""
    d, c = np.diagonal(M).max(), (M - np.diag(np.diagonal(M))).max()
    return d**0.5 * (0.5 + (c / d) ** 0.5)


@pytest.mark.parametrize("weights", [None, "released:average:2"])
@pytest.mark.slow
def test_the_name_is_the_factorization_for_what_counts(weights):
    counted = None if weights is None else mfdl.ErrorWeights.parse(weights)
    algorithm = mafalda_bins(DYNAMICS, BINS, noise_std=hull, weights=counted, progress=False)
    solved = factorize_balls_in_bins(DYNAMICS, 2, 3, hull, weights=counted, progress=False)
    assert np.array_equal(algorithm.noise.encoder.array, solved.encoder)
    named = registry.build("mafalda-bins" + (f"@{weights}" if weights else ""), DYNAMICS, BINS, noise_std=hull)
    assert np.array_equal(named.noise.encoder.array, algorithm.noise.encoder.array)
    assert (algorithm.participation, algorithm.name) == (BINS, "mafalda-bins")


@pytest.mark.slow
def test_calibrated_by_name_it_is_the_encoder_of_the_target():
    privacy = dataclasses.replace(PRIVACY, participation=BINS)
    named = mfdl.calibrate("mafalda-bins", privacy, dynamics=DYNAMICS, epsilon=2.0, delta=1e-5, progress=False)
    built = calibrated(mafalda_bins(DYNAMICS, BINS, noise_std=NOISE, progress=False))
    assert (named.content_hash, named.noise_std) == (built.content_hash, built.noise_std)


def test_calibrated_by_name_needs_bins_and_one_target():
    public, secret = (dataclasses.replace(PRIVACY, participation=scheme) for scheme in (Cyclic(2, 3), BINS))
    named = mfdl.calibrate("dp-dsgd", public, dynamics=DYNAMICS, mu=1.0)
    assert (named.algorithm.name, round(named.guarantee.mu, 6)) == ("dp-dsgd", 1)
    refuses("target", mfdl.calibrate, "mafalda-bins", secret, dynamics=DYNAMICS)
    refuses("balls-in-bins", mfdl.calibrate, "mafalda-bins", public, dynamics=DYNAMICS, mu=1.0)


@pytest.mark.slow
def test_its_noise_is_certified_and_at_most_that_of_encoders_for_public_batches():
    built = mafalda_bins(DYNAMICS, BINS, noise_std=NOISE, progress=False)
    solved = factorize_balls_in_bins(DYNAMICS, 2, 3, NOISE, progress=False)
    mechanism = calibrated(built)
    assert 1.99 < mechanism.guarantee.epsilon(1e-5) <= 2
    assert mechanism.noise_std == pytest.approx(solved.noise_std, rel=1e-6)
    assert 0.9 * solved.root_error < solved.root_error_bound <= solved.root_error
    errors = {}
    for algorithm in (built, *(registry.build(name, DYNAMICS, BINS) for name in ("dp-dsgd", "mafalda"))):
        errors[algorithm.name] = calibrated(algorithm).noise_std * noise_error(algorithm).value ** 0.5
    assert errors["mafalda-bins"] <= min(errors.values()) * (1 + 1e-4)


@each(
    "scheme, more, error, message",
    (Cyclic(2, 3), {"noise_std": NOISE}, UnsupportedMechanism, "is for balls-in-bins"),
    (BINS, {}, InvalidInput, "optimised for a target"),
)
def test_without_secret_batches_or_a_target_it_is_refused(scheme, more, error, message):
    refuses(message, registry.build, "mafalda-bins", DYNAMICS, scheme, **more, error=error)


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"delta": 1.0}, {"bins": 0}, {"adjacency": "no"}])
def test_a_target_that_is_none_is_refused(wrong):
    refuses(".", mfdl.privacy.noise_of_bins, **{"bins": 3, **TARGET, **wrong})


@pytest.mark.slow
def test_factorize_account_and_file_have_one_encoder(capsys, tmp_path):
    file = tmp_path / "encoder.npz"
    printed = answer(capsys, "factorize", *SECRET, "--out", str(file))
    solved = factorize_balls_in_bins(DYNAMICS, 2, 3, NOISE, progress=False)
    for name in ("noise_std", "root_error", "root_error_bound"):
        assert printed[name] == pytest.approx(getattr(solved, name), rel=1e-9)
    facts = [printed[name] for name in ("mechanism", "participation", "sensitivity")]
    assert facts == ["mafalda-bins", "balls-in-bins", None]
    assert printed["gap"] == pytest.approx((printed["root_error"] / printed["root_error_bound"]) ** 2 - 1)
    assert "correlated no more than" in printed["bound_over"]
    least = min(each["noise_std"] ** 2 * each["objective"] for each in printed["tried"])
    assert least == pytest.approx(printed["root_error"] ** 2)
    named = answer(capsys, "account", *SECRET, "--mechanism", "mafalda-bins")
    from_file = answer(capsys, "account", *SECRET, "--mechanism", f"file:{file}")
    assert named["noise_std"] == from_file["noise_std"] == pytest.approx(printed["noise_std"], rel=1e-6)
    public = answer(capsys, "account", *ASKED, "--epsilon", "2", "--mechanism", f"file:{file}")
    assert public["noise_std"] > from_file["noise_std"]
    assert mfdl.factorization.load(file).header["participation"] == BINS
    assert main(["factorize", *SECRET]) == 0
    assert "correlated no more than this one's" in " ".join(capsys.readouterr().out.split())


@each(
    "arguments, message",
    (["factorize", *ASKED[:6], "--epsilon", "2"], "--epsilon 2.0 is for --participation balls-in-bins"),
    (["factorize", *ASKED], "--delta 1e-05 is for --participation balls-in-bins"),
    (["factorize", *SECRET[:-2]], "give --epsilon"),
    (["factorize", *ASKED[:6], "--mechanism", "mafalda-bins"], "add --participation balls-in-bins"),
    (["factorize", *SECRET, "--mechanism", "bsr"], "got bsr"),
    (["factorize", *SECRET, "--tolerance", "1e-3"], "--tolerance does not apply to mafalda-bins"),
    (["factorize", *SECRET, "--solver", "buffered"], "--solver buffered does not apply to mafalda-bins"),
    (["factorize", *SECRET, "--bandwidth", "2"], "--bandwidth and --buffers are for --solver"),
    (["account", *SECRET[:-2], "--noise-std", "1", "--mechanism", "mafalda-bins"], "optimised for a target"),
    (["account", *ASKED, "--epsilon", "2", "--mechanism", "mafalda-bins"], "is for balls-in-bins"),
    (["compare", *ASKED, "--epsilon", "2", "--mechanisms", "mafalda-bins"], "--participation balls-in-bins"),
)
def test_what_has_no_meaning_is_refused_in_one_line(arguments, message, capsys):
    assert main(arguments) == 2
    output = capsys.readouterr().err
    assert message in output
    assert output.count("\n") == 1


SWEPT = {
    "graph": "ring:n=3", "mechanisms": ("dp-dsgd", "mafalda-bins"), "participation": ["cyclic", "balls-in-bins"],
    "mu": [0.8], "delta": 1e-5, "epochs": 2, "period": 2, "seeds": 1, "adjacency": "zero-out",
}  # fmt: skip


def test_a_sweep_of_both_participations_has_it_where_batches_are_secret():
    cells = [(cell.mechanism, cell.config.participation) for cell in SweepConfig(**SWEPT).cells()]
    assert cells == [("dp-dsgd", "cyclic"), ("dp-dsgd", "balls-in-bins"), ("mafalda-bins", "balls-in-bins")]
    refuses("is for balls-in-bins", SweepConfig, **SWEPT | {"participation": "cyclic"})


def test_what_runs_share_knows_the_budget_where_the_encoder_is_made_for_it():
    def shared(name, **target):
        plain = {"participation": "balls-in-bins", "mechanisms": (name,)}
        return shared_by(Experiment(**plain, **target))

    for changed in ({"epsilon": 3.0, "delta": 1e-5}, {"epsilon": 2.0, "delta": 1e-6}):
        assert shared("mafalda-bins", epsilon=2.0, delta=1e-5) != shared("mafalda-bins", **changed)
        assert shared("mafalda", epsilon=2.0, delta=1e-5) == shared("mafalda", **changed)


@pytest.mark.slow
def test_a_sweep_over_budgets_makes_an_encoder_for_each(tmp_path):
    options = {**SWEPT, "mechanisms": ("mafalda-bins",), "mu": [0.8, 1.6]}
    done = sweep(out=tmp_path, progress=False, **options)
    assert (done["finished"], done["failed"]) == (2, 0)
    records = Store.load(tmp_path).records()
    assert {record["mu"] for record in records} == {None}
    dynamics, arguments = (dynamics_on("ring:n=3"), {"delta": 1e-5, "adjacency": "zero-out"})
    budgets = [epsilon_from_mu(mu, 1e-5) for mu in options["mu"]]
    targets = [mfdl.privacy.noise_of_bins(epsilon=epsilon, bins=2, **arguments) for epsilon in budgets]
    solved = [factorize_balls_in_bins(dynamics, 2, 2, target, progress=False) for target in targets]
    expected = sorted(each.noise_std for each in solved)
    assert sorted(record["noise_std"] for record in records) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_made_for_the_released_average_it_is_the_same_in_factorize_compare_and_sweep(capsys, tmp_path):
    options = ["--error-weights", "released", "--release-model", "average:2"]
    weights = mfdl.ErrorWeights("released:average:2")
    solved = factorize_balls_in_bins(DYNAMICS, 2, 3, NOISE, weights=weights, progress=False)
    printed = answer(capsys, "factorize", *SECRET, *options, "--mechanism", "mafalda-bins")
    assert printed["error_weights"] == "released:average:2"
    assert printed["root_error"] == pytest.approx(solved.root_error, rel=1e-9)
    for other in ({}, {"weights": mfdl.ErrorWeights("last:2")}):
        algorithm = mafalda_bins(DYNAMICS, BINS, noise_std=NOISE, progress=False, **other)
        variance = calibrated(algorithm).noise_std ** 2 * noise_error(algorithm, weights=weights).value
        assert variance > solved.root_error**2
    training = ["--seeds", "1", "--lr", "0.1", "--out", str(tmp_path / "compared")]
    compared = answer(capsys, "compare", *SECRET, *options, *training, "--mechanisms", "mafalda-bins")
    (row,) = compared["mechanisms"]
    assert row["label"] == "mafalda-bins@released:average:2"
    cell = {"graph": "path:n=3", "epochs": 2, "period": 3, "seeds": 1, "learning_rate": 0.1, **TARGET}
    done = sweep(
        out=tmp_path / "swept", progress=False, mechanisms=("mafalda-bins",), participation="balls-in-bins",
        error_weights=("released",), release_model="average:2", **cell,
    )  # fmt: skip
    assert (done["finished"], done["failed"]) == (1, 0)
    (record,) = Store.load(tmp_path / "swept").records()
    assert record["error_weights"] == "released:average:2"
    assert record["noise_std"] == pytest.approx(solved.noise_std, rel=1e-4)
    assert record["final_test_loss"] == row["final_test_loss_mean"] != record["last_test_loss"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["toeplitz", "banded"])
def test_an_encoder_with_structure_is_found_kept_accounted_and_trained(capsys, tmp_path, form):
    file = tmp_path / "encoder.npz"
    printed = answer(capsys, "factorize", *SECRET, "--solver", form, "--bandwidth", "2", "--out", str(file))
    assert (printed["form"], printed["memory"], printed["mechanism"]) == (form, 1, "mafalda-bins")
    assert "however its bins are correlated" in printed["bound_over"]
    from_file = answer(capsys, "account", *SECRET, "--mechanism", f"file:{file}")
    # the search certifies by the cheap bound, accounting by the tightest
    assert 0.9 * printed["noise_std"] <= from_file["noise_std"] <= (1 + 1e-6) * printed["noise_std"]
    training = ["--seeds", "1", "--lr", "0.1", "--out", str(tmp_path / "compared")]
    (row,) = answer(capsys, "compare", *SECRET, *training, "--mechanisms", f"file:{file}")["mechanisms"]
    assert row["epsilon"] <= 2


OUTSIDER = mfdl.Privacy(mfdl.trust.Eavesdropper(), **ZERO_OUT)


@pytest.mark.slow
def test_with_seeds_shared_by_nodes_its_loss_is_that_of_the_noise_and_public_batches_are_refused():
    seen = []

    def noise_std(M):
        seen.append(M)
        return hull(M)

    counted = mfdl.ErrorWeights("released:average:2")
    algorithm = kronecker_bins(DYNAMICS, BINS, noise_std=noise_std, weights=counted, progress=False)
    space = mfdl.factorization.optimal_covariance(DYNAMICS, horizon=6, weights=counted).factor()[0]
    assert np.array_equal(algorithm.noise.causal.mixing.toarray(), space.toarray())
    solved = factorize_balls_in_bins(DYNAMICS, 2, 3, hull, weights=counted, factor=space, progress=False)
    assert np.array_equal(algorithm.noise.encoder.array, solved.encoder)
    assert len(seen) == len(solved.tried)
    root_error = solved.noise_std * noise_error(algorithm, weights=counted).value ** 0.5
    assert root_error == pytest.approx(solved.root_error, rel=1e-9)
    unsupported("kronecker-bins is for balls-in-bins", lambda: kronecker_bins(DYNAMICS, Cyclic(2, 3), noise_std=hull))
    unsupported("form 'banded'; use dense", factorize_balls_in_bins, DYNAMICS, 2, 3, hull, factor=space, form="banded")


@pytest.mark.slow
def test_an_outsider_is_held_off_by_less_noise_than_without_seeds(capsys, tmp_path):
    counted = mfdl.ErrorWeights("released:average:2")
    errors = {}
    for build in (kronecker_bins, mafalda_bins):
        algorithm = build(DYNAMICS, BINS, noise_std=NOISE, weights=counted, progress=False)
        mechanism = mfdl.calibrate(algorithm, OUTSIDER, epsilon=2.0, delta=1e-5)
        assert 1.99 < mechanism.guarantee.epsilon(1e-5) <= 2
        errors[build] = mechanism.noise_std * noise_error(algorithm, weights=counted).value ** 0.5
    assert errors[kronecker_bins] < errors[mafalda_bins]
    options = ["--seeds", "1", "--lr", "0.1", "--mechanisms", "kronecker-bins", "--out", str(tmp_path)]
    (row,) = answer(capsys, "compare", *SECRET, *options, "--trust", "eavesdropper")["mechanisms"]
    assert 1.99 < row["epsilon"] <= 2


RING = dynamics_on("ring:n=6")


@pytest.mark.parametrize("weights", [ErrorWeights(), ErrorWeights("released:average:6")])
def test_the_kept_encoder_is_the_least_error_of_those_tried_and_costs_what_it_says(weights):
    options = {"correlations": (0.3, 0.0, 0.1), "progress": False}
    factorization = factorize_balls_in_bins(RING, 3, 4, hull, weights=weights, **options)
    assert [correlation for correlation, _, _ in factorization.tried] == [0.0, 0.1, 0.3]
    errors = [std * solved.objective**0.5 for _, std, solved in factorization.tried]
    assert_allclose(factorization.root_error, min(errors), rtol=1e-12)
    assert len(set(errors)) == 3
    algorithm = algorithms.mf_dsgd(RING, Cyclic(3, 4), factorization.encoder)
    root_error = factorization.noise_std * noise_error(algorithm, weights=weights).value ** 0.5
    assert_allclose(root_error, factorization.root_error, rtol=1e-9)
    for _, _, solved in factorization.tried:
        assert 0 < solved.lower_bound <= solved.objective * (1 + 1e-9) < 1.3 * solved.lower_bound


def test_a_problem_is_solved_once_where_answers_are_kept(tmp_path):
    options = {"correlations": (0.2,), "progress": False}
    with keeping(Solutions(tmp_path)):
        first = factorize_balls_in_bins(RING, 2, 3, hull, **options)
    with keeping(Solutions(tmp_path)):
        again = factorize_balls_in_bins(RING, 2, 3, hull, **options)
    assert again.encoder.tolist() == first.encoder.tolist()
    assert again.best.seconds == 0.0


@pytest.mark.parametrize("form", ["toeplitz", pytest.param("banded", marks=pytest.mark.slow)])
def test_a_form_with_structure_costs_what_it_says_and_no_more_than_independent_noise(form):
    options = {"form": form, "bandwidth": 3, "correlations": (0.0, 0.1), "progress": False}
    factorization = factorize_balls_in_bins(RING, 3, 4, hull, **options)
    assert factorization.error_gram is None
    assert factorization.encoder is factorization.best.encoder
    algorithm = algorithms.mf_dsgd(RING, Cyclic(3, 4), factorization.encoder)
    assert_allclose(factorization.noise_std * noise_error(algorithm).value ** 0.5, factorization.root_error, rtol=1e-9)
    _, std, independent = factorization.tried[0]
    assert factorization.root_error_bound <= factorization.root_error <= std * independent.objective**0.5


def test_what_means_nothing_is_refused():
    search = factorize_balls_in_bins
    refuses(r"correlations must be numbers in \[0, 1\]", search, RING, 2, 3, hull, correlations=(1.5,))
    refuses("bins must be an integer >= 1", search, RING, 2, 0, hull)
    refuses("bandwidth 2 is of a form with diagonals", search, RING, 2, 3, hull, bandwidth=2)
    refuses("unknown form 'buffered'", search, RING, 2, 3, hull, form="buffered")
    released = {"form": "toeplitz", "weights": ErrorWeights("released:average:2")}
    unsupported("count models step by step", search, RING, 2, 3, hull, **released)
    refuses("no encoder", search, RING, 2, 3, lambda M: np.inf, correlations=(0.0,), progress=False)
