"""Encoders with structure for long runs, from dynamics and participation: the same loss and bounds as dense ones."""

import json

import numpy as np
import pytest
from archives import edited
from vocabulary import ZERO_OUT, dynamics_on, each, given, refuses, st

import mfdl
from mfdl import Cyclic, Dynamics, ErrorWeights, InvalidInput, MinSeparation, UnsupportedMechanism
from mfdl.algorithms import noise_error
from mfdl.algorithms.registry import parse_parameters
from mfdl.commands import configs as command
from mfdl.commands import main
from mfdl.commands.factorize_jobs import run_factorize
from mfdl.factorization import factorize, factorize_long
from mfdl.factorization.encoders import Banded, Buffered, Inverse, Toeplitz
from mfdl.factorization.long_runs import FORMS, evaluate_long, mode_cost, spaced_patterns
from mfdl.factorization.setting import Setting
from mfdl.noise import CausalNoise
from mfdl.objective import NoiseObjective
from mfdl.participation import Single

RING = mfdl.gossip.metropolis_hastings("ring:n=6")
PLAIN = Dynamics(RING)


def dense_loss(dynamics, T, encoder, **counted):
    N = np.linalg.inv(encoder.dense())
    return float(np.trace(NoiseObjective(dynamics, T, **counted).over_steps() @ N @ N.T))


@given(
    30, graph=st.sampled_from(["ring:n=5", "path:n=4", "star:n=5", "complete:n=3"]), rounds=st.integers(1, 2),
    momentum=st.sampled_from([0.0, 0.5]), decay=st.sampled_from([0.0, 0.1]), falls=st.booleans(),
    weights=st.sampled_from(["all", "last:3:0.1", "exponential:2", "all/average"]),
    counted_models=st.sampled_from(["post-average", "message"]), banded=st.booleans(),
)  # fmt: skip
def test_the_cost_by_modes_is_that_of_the_error_gram(
    graph, rounds, momentum, decay, falls, weights, counted_models, banded
):
    T = 8
    rate = 1 / np.sqrt(np.arange(1, T + 1)) if falls else 1.0
    dynamics = dynamics_on(graph, rate, gossip_rounds=rounds, momentum=momentum, weight_decay=decay)
    counted = {"weights": ErrorWeights.parse(weights), "counted_models": counted_models}
    setting = Setting(dynamics, Cyclic(2, 4), **counted)
    rows = np.where(np.arange(3) <= np.arange(T)[:, None], [1.5, -0.4, 0.2], 0.0)
    encoder = Banded(rows) if banded else Inverse(Toeplitz([1.0, -0.6], T))
    factorization = evaluate_long(setting, encoder)
    assert factorization.objective == pytest.approx(dense_loss(dynamics, T, factorization.encoder, **counted), rel=1e-8)
    assert (factorization.sensitivity, factorization.status) == (pytest.approx(1.0, rel=1e-9), "fixed")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("participation", [Cyclic(4, 8), Single(32), MinSeparation(32, 3, 8)])
def test_forms_cost_what_the_dense_gram_says_and_are_bounded_by_the_dense_optimum(form, participation):
    if form == "banded-inverse" and isinstance(participation, MinSeparation):
        refuses("use form 'inverse'", factorize_long, PLAIN, participation, form=form, progress=False)
        return
    factorization = factorize_long(PLAIN, participation, form=form, max_iterations=60, progress=False)
    assert factorization.status == "stationary"
    assert factorization.objective == pytest.approx(dense_loss(PLAIN, 32, factorization.encoder), rel=1e-8)
    assert factorization.lower_bound <= factorization.objective
    patterns = list(participation.patterns())
    X = factorization.encoder.dense()
    X = X.T @ X
    assert max(np.abs(X[np.ix_(p, p)]).sum() for p in patterns) <= 1 + 1e-9
    if not isinstance(participation, MinSeparation):
        best = factorize(PLAIN, participation, progress=False)
        assert factorization.objective >= best.lower_bound * (1 - 1e-9)
        assert factorization.lower_bound <= best.objective * (1 + 1e-9)
        assert factorization.gap <= 0.5


def test_an_encoder_that_float64_cannot_undo_is_refused():
    refuses("float64", lambda: evaluate_long(Setting(PLAIN, Cyclic(300, 4)), Inverse(Toeplitz([1.0, 9.0], 1200))))


def test_banded_ones_are_the_better_the_more_they_are_free():
    losses = [
        factorize_long(PLAIN, Cyclic(4, 8), form=form, bandwidth=width, progress=False).objective
        for form, width in [("banded", 8), ("toeplitz", 8), ("banded", 3), ("toeplitz", 3)]
    ]
    assert losses[0] < losses[1] < losses[3]
    assert losses[0] < losses[2] < losses[3]


def test_a_banded_inverse_is_the_better_the_more_it_is_free_and_accounted_exactly():
    part = Cyclic(4, 8)
    alike, free = (
        factorize_long(PLAIN, part, form=form, bandwidth=3, progress=False) for form in ("inverse", "banded-inverse")
    )
    assert free.objective < 0.97 * alike.objective
    algorithm = mfdl.algorithms.mf_dsgd(PLAIN, part, free.encoder)
    mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(mfdl.trust.LDP(), **ZERO_OUT), mu=1.0)
    assert (mechanism.guarantee.bound, mechanism.objective) == ("exact", pytest.approx(free.objective, rel=1e-9))
    with pytest.raises(InvalidInput, match="steps x bandwidth x period"):
        factorize_long(PLAIN, Cyclic(1, 50_000), form="banded-inverse", progress=False)


def test_schedules_are_for_banded_ones():
    falling = Dynamics(RING, 1 / np.arange(1, 33))
    factorization = factorize_long(falling, Cyclic(4, 8), form="banded", progress=False)
    assert factorization.objective == pytest.approx(dense_loss(falling, 32, factorization.encoder), rel=1e-8)
    assert factorization.gap < 0.1
    inverse = factorize_long(falling, Cyclic(4, 8), form="banded-inverse", max_iterations=50, progress=False)
    assert inverse.objective == pytest.approx(dense_loss(falling, 32, inverse.encoder), rel=1e-8)
    refuses("use form 'banded'", lambda: factorize_long(falling, Cyclic(4, 8)))
    many = CausalNoise(Buffered([0.5], [0.5], 4100), num_steps=4100, num_nodes=6)
    refuses("rates that do", lambda: NoiseObjective(Dynamics(RING, 1 / np.arange(1, 4101)), 4100).noise_error(many))


@each(
    "name, form, setting",
    ("banded", "banded", {"bandwidth": 3}),
    ("toeplitz", "toeplitz", {"bandwidth": 3}),
    ("blt", "buffered", {"buffers": 2}),
    ("band-inv", "inverse", {"bandwidth": 3}),
)
def test_by_name_it_is_the_best_of_its_form_for_the_weights_that_are_named(name, form, setting):
    part, weights = Cyclic(4, 8), ErrorWeights.parse("last:3:0.01")
    factorization = factorize_long(PLAIN, part, form=form, weights=weights, progress=False, **setting)
    algorithm = mfdl.algorithms.build(f"{name}@last:3:0.01", PLAIN, part, **setting)
    assert (algorithm.name, algorithm.noise.causal.encoder.memory) == (
        f"{name}@last:3:0.01",
        factorization.encoder.memory,
    )
    plain = mfdl.algorithms.build(name, PLAIN, part, **setting)
    mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(mfdl.trust.LDP(), **ZERO_OUT), mu=1.0)
    per_unit = mechanism.guarantee.sensitivity**2 * noise_error(algorithm, weights=weights).value
    assert per_unit == pytest.approx(factorization.objective, rel=1e-9)
    assert (
        factorization.objective
        < evaluate_long(Setting(PLAIN, part, weights=weights), plain.noise.causal.encoder).objective
    )


def test_a_form_by_name_knows_its_own_parameters_alone():
    refuses("buffers", parse_parameters, "blt", ["bandwidth=3"])


@each(
    "ask, kind, says",
    (lambda: factorize_long(PLAIN, Cyclic(4, 8), form="circulant"), InvalidInput, "toeplitz"),
    (lambda: factorize_long(PLAIN, Cyclic(4, 8), form="banded", bandwidth=9), InvalidInput, "at most 8"),
    (lambda: factorize_long(PLAIN, Cyclic(4, 8), bandwidth=0), InvalidInput, "bandwidth"),
    (lambda: spaced_patterns(mfdl.participation.OncePerEpoch(2, 4)), UnsupportedMechanism, "use factorize"),
    (
        lambda: mode_cost(Setting(Dynamics(mfdl.gossip.uniform("star:n=5")), Cyclic(2, 4))),
        UnsupportedMechanism,
        "constant symmetric",
    ),
    (
        lambda: mode_cost(Setting(PLAIN, Cyclic(2, 4), weights=ErrorWeights("released:average:4"))),
        UnsupportedMechanism,
        "released",
    ),
)
def test_what_has_no_form_is_refused(ask, kind, says):
    refuses(says, ask, error=kind)


def test_command(capsys):
    assert command.FORMS == FORMS
    small = ["factorize", "--graph", "ring:n=6", "--epochs", "4", "--period", "8", "--solver"]
    assert main([*small, "banded", "--bandwidth", "4", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["form"], answer["memory"], answer["sensitivity_exact"]) == ("banded", 3, True)
    assert answer["gap"] == pytest.approx(answer["objective"] / answer["lower_bound"] - 1)
    for wrong, says in {
        ("toeplitz", "--tolerance", "1e-3"): "--tolerance",
        ("dense", "--buffers", "3"): "--buffers",
        ("toeplitz", "--mechanism", "d-mf"): "mafalda",
    }.items():
        assert main([*small, *wrong]) == 2
        assert says in capsys.readouterr().err


@pytest.mark.parametrize("form", FORMS)
def test_a_file_holds_the_structure_and_is_a_mechanism_for_its_participation(form, tmp_path):
    path = tmp_path / "long.npz"
    config = command.FactorizeConfig(graph="ring:n=6", epochs=4, period=8, solver=form, max_iterations=9)
    answer = run_factorize(config, path, progress=False)
    saved = mfdl.factorization.load(path)
    factorization = saved.factorization
    assert (factorization.objective, factorization.lower_bound, saved.error_gram) == (
        answer["objective"],
        answer["lower_bound"],
        None,
    )
    algorithm = mfdl.algorithms.build(f"file:{path}", PLAIN, Cyclic(4, 8))
    assert not algorithm.noise.causal.in_blocks
    mechanism = mfdl.calibrate(algorithm, mfdl.Privacy(mfdl.trust.LDP(), **ZERO_OUT), mu=1.0)
    assert mechanism.objective == pytest.approx(factorization.objective, rel=1e-9)
    refuses("was made for", lambda: mfdl.algorithms.build(f"file:{path}", PLAIN, Cyclic(8, 4)))


@each(
    "encoder, says",
    ({"is": "Toeplitz", "fields": {"coefficients": [0.0, 1.0], "size": 2}}, "begin with a number > 0"),
    ({"is": "Path", "fields": {}}, "KeyError"),
    ([1.0, 2.0], "got list"),
)
def test_a_file_whose_encoder_is_none_is_refused(encoder, says, tmp_path):
    factorization = factorize_long(PLAIN, Cyclic(2, 4), progress=False)
    path = tmp_path / "long.npz"
    mfdl.factorization.save(path, factorization, header={})
    edited(path, lambda header, _: header["content"]["factorization"]["fields"].update(encoder=encoder))
    refuses(says, mfdl.factorization.load, path)
