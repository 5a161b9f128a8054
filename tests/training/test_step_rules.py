"""Step rules and preconditioners: everything sent is a function of the privatised gradients; refusals."""

import dataclasses

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from small_tasks import classes, injecting, largest_gradients, module_at, regression
from vocabulary import ZERO_OUT, dynamics_on, each, given, refuses, st, unsupported

import mfdl
from mfdl import Cyclic, Dynamics, EveryStep, algorithms, gossip, replay, trust
from mfdl.runs.cells import Plan
from mfdl.runs.comparing import run_comparison
from mfdl.runs.experiment import Experiment
from mfdl.training import step_rules
from mfdl.training.distributed import Group, Share
from mfdl.training.executor import Executor
from mfdl.training.step_rules import Messages, PublicFacts, StepRule
from mfdl.training.tasks import Preconditioner
from mfdl.training.tasks import preconditioner as preconditioners
from mfdl.training.tasks.instance import TaskInstance

RING, CPU = gossip.metropolis_hastings("ring:n=4"), torch.device("cpu")
TEXTS = ("normalised", "nesterov:0.9", "rms:0.5:0.5", "messages:0.25:0.5")


def mechanism(name="mafalda", part=None, unit="record", noise_std=0.3, clip_norm=0.5, **more):
    part = part or (EveryStep(4) if unit == "user" else Cyclic(2, 2))
    algorithm = algorithms.build(name, Dynamics(RING, 0.3, **more), part)
    target = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": clip_norm, "unit": unit}
    if mfdl.BallsInBins in type(part).__mro__:
        return mfdl.calibrate(algorithm, mfdl.Privacy(**target), epsilon=4.0, delta=1e-5)
    return mfdl.calibrate(algorithm, mfdl.Privacy(**target), noise_std=noise_std)


class Transcript:
    """The privatised sums of every step, which the accountant's attacker has, and the scales that were used."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.privatised: list[torch.Tensor] = []
        self.scales: list[torch.Tensor | None] = []
        executed, clipped = Executor.step, TaskInstance.clipped_gradients

        def step(executor, t, state, gradients, noise, rule=None):
            self.privatised.append(gradients.double() + torch.tensor(noise))
            return executed(executor, t, state, gradients, noise, rule)

        def gradients(instance, models, step, clip_norm, unit, scales=None):
            self.scales.append(scales)
            return clipped(instance, models, step, clip_norm, unit, scales)

        patch.setattr(Executor, "step", step)
        patch.setattr(TaskInstance, "clipped_gradients", gradients)


def recomputed(mechanism, rule, start, divisors, privatised):
    """(messages, scales) of a run, from privatised sums and public numbers alone."""
    algorithm = mechanism.algorithm.with_divisors(divisors)
    executor = Executor(algorithm, dtype=torch.float64)
    facts, state = PublicFacts(algorithm, mechanism.noise_std, executor.share, CPU), executor.initial_state(start)
    memory, messages, scales, none = rule.first_state(torch.zeros_like(start)), [], [], torch.zeros_like(start)
    for t, sums in enumerate(privatised):
        scales.append(rule.scales(t, memory))
        directions, memory = rule.step(t, sums, memory, facts)
        sent, state = executor.step(t, state, directions, none)
        messages.append(sent.numpy())
    return np.stack(messages), scales


@given(
    30, text=st.sampled_from(TEXTS), unit=st.sampled_from(["record", "user"]),
    name=st.sampled_from(["dp-dsgd", "mafalda"]), momentum=st.sampled_from([0.0, 0.9]), rounds=st.integers(1, 2),
    seed=st.integers(0, 100),
)  # fmt: skip
def test_messages_and_scales_are_functions_of_the_privatised_gradients(text, unit, name, momentum, rounds, seed):
    calibrated = mechanism(name, unit=unit, momentum=momentum, gossip_rounds=rounds)
    rule, task = step_rules.parse(text), classes(20)
    with pytest.MonkeyPatch.context() as patch:
        transcript = Transcript(patch)
        run = replay(calibrated, task, seeds=[seed], step_rule=text, keep_messages=True, dtype=torch.float64).seeds[0]
    instance = task.instance(seed, 1 if unit == "user" else 2, dtype=torch.float64)
    divisors = np.ones(4) if unit == "user" else instance.public_batch_sizes.numpy()
    messages, scales = recomputed(calibrated, rule, instance.initial_parameters, divisors, transcript.privatised)
    assert_array_equal(run.messages, messages)
    for used, public in zip(transcript.scales, scales, strict=True):
        assert (used is None) == (public is None)
        if used is not None:
            assert_array_equal(used, public)


@dataclasses.dataclass(frozen=True)
class Unchanged(StepRule):
    def step(self, t, sums, state, facts):
        return sums, state


@dataclasses.dataclass(frozen=True)
class Chosen(Messages):
    values: tuple[float, ...] = ()

    def factors(self, state):
        return torch.tensor(self.values, dtype=torch.float64).expand_as(state["moments"])


def test_a_rule_that_changes_nothing_is_the_plain_run_bit_for_bit(monkeypatch):
    injecting(monkeypatch, np.random.default_rng(0).standard_normal((4, 4, 12)))
    for unit in ("record", "user"):
        calibrated = mechanism(unit=unit)
        plain, ruled = (
            replay(calibrated, classes(19), seeds=[2], step_rule=rule).seeds[0] for rule in (None, Unchanged())
        )
        assert_array_equal(plain.models, ruled.models)
        assert plain.key_id != ruled.key_id


@pytest.mark.parametrize("clip_norm", [0.05, 1e6])
def test_scales_chosen_once_are_a_preconditioner_of_the_features(clip_norm):
    task, M = classes(24, num_classes=2), np.array([1.0, 2.0, 0.5])
    scales = np.append(np.tile(M, 2), [1.0, 1.0])  # weights, then the bias of each class
    calibrated = mechanism("dp-dsgd", noise_std=0.0, clip_norm=clip_norm)
    ruled = replay(calibrated, task, seeds=[0], step_rule=Chosen(values=tuple(scales)), dtype=torch.float64).seeds[0]
    start = task.instance(0, 2, dtype=torch.float64).initial_parameters[0]

    def divided() -> torch.nn.Module:
        return module_at(task, start / torch.tensor(scales)).float()  # the same first function of the features

    mapped = dataclasses.replace(task.preconditioned(Preconditioner(M)), build_module=divided)
    trained = replay(calibrated, mapped, seeds=[0], dtype=torch.float64).seeds[0].models
    assert_allclose(ruled.models, trained * scales, atol=1e-5)  # features are stored in float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("unit", ["record", "user"])
def test_what_noise_is_added_to_is_never_longer_than_clip_norm(unit, dtype, monkeypatch):
    norms = largest_gradients(monkeypatch)
    task, calibrated = classes(8), mechanism(unit=unit, clip_norm=0.05)  # one record a node and step
    for seed in range(3):
        replay(calibrated, task, seeds=[seed], step_rule=Chosen(values=(7.0, 1.0, 90.0) * 4), dtype=dtype)
    assert 0.05 * (1 - 1e-5) < max(norms) <= 0.05


def test_a_scaled_record_counts_as_one_in_large_layers_too():
    def build():
        return torch.nn.Sequential(torch.nn.Linear(3, 900), torch.nn.ReLU(), torch.nn.Linear(900, 1))

    instance = regression(12, build=build).instance(0, 1, dtype=torch.float64)
    models = instance.initial_parameters
    scales = torch.linspace(0.5, 3, models.shape[1], dtype=torch.float64).expand_as(models)
    got = instance.clipped_gradients(models, 0, 0.7, "record", scales)
    for u in range(4):
        total = torch.zeros(models.shape[1], dtype=torch.float64)
        for slot in range(instance.mask.shape[2]):
            if instance.mask[u, 0, slot]:
                alone = dataclasses.replace(instance, mask=torch.zeros_like(instance.mask))
                alone.mask[u, 0, slot] = True
                gradient = scales[u] * alone.clipped_gradients(models, 0, 1e9, "record")[u]
                total += gradient * min(1.0, 0.7 / float(gradient.norm()))
        assert_allclose(got[u], total, rtol=1e-5, atol=1e-9)


def facts_of(noise_std=0.0, name="dp-dsgd", divisors=(1.0, 2.0, 3.0, 4.0)):
    algorithm = algorithms.build(name, Dynamics(RING, 0.3), Cyclic(2, 2)).with_divisors(divisors)
    return PublicFacts(algorithm, noise_std, Share(algorithm, Group(), CPU), CPU), algorithm


def test_normalised_steps_have_length_one_and_nesterov_is_that_of_torch():
    facts, _ = facts_of()
    sums = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sums[3] = 0
    directions, _ = step_rules.parse("normalised").step(0, sums, {}, facts)
    assert_allclose((directions / facts.divisors).norm(dim=1), [1, 1, 1, 0], rtol=1e-12)
    rule, parameter = step_rules.parse("nesterov:0.7"), torch.nn.Parameter(torch.zeros(4, 5, dtype=torch.float64))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.7, nesterov=True)
    ours, state = torch.zeros(4, 5, dtype=torch.float64), rule.first_state(torch.zeros(4, 5, dtype=torch.float64))
    for t in range(3):
        parameter.grad = sums * (t + 1)
        optimizer.step()
        directions, state = rule.step(t, sums * (t + 1), state, facts)
        ours -= 0.1 * directions
    assert_allclose(ours, parameter.detach(), rtol=1e-12)


@each("name, text", ("dp-dsgd", "rms:0.5:0"), ("dp-dsgd", "messages:0.5:0"), ("mafalda", "rms:0.5:0"))
def test_what_noise_adds_to_second_moments_is_taken_off(name, text):
    """Unbiased: by the mean over many coordinates, alike, within six standard errors."""
    facts, algorithm = facts_of(2.0, name)
    dimension, gradient = 40_000, 0.5
    stream = mfdl.training.streams.noise_stream(algorithm.noise, 2.0, mfdl.NoiseKey.from_seed(1), dimension)
    rule = step_rules.parse(text)
    state = {"moments": torch.zeros(4, dimension, dtype=torch.float64)}
    for t in range(4):
        scales = rule.factors(state) if isinstance(rule, Messages) else 1.0
        noise = torch.tensor(stream.step(t), dtype=torch.float64)
        _, state = rule.step(t, gradient * scales * facts.divisors + noise, state, facts)
        error = state["moments"].std(dim=1) / dimension**0.5
        assert (abs(state["moments"].mean(dim=1) - gradient**2) < 6 * error).all()


def test_factors_are_within_their_bounds_and_one_where_nothing_was_learned():
    rule = step_rules.parse("rms:0.5:0.9:0.04")
    assert_array_equal(rule.factors(rule.first_state(torch.zeros(2, 3))), np.ones((2, 3)))
    factors = rule.factors({"moments": torch.tensor([[4.0, 1.0, -5.0]], dtype=torch.float64)})
    assert_allclose(factors, [[1.0, (0.29 / 1.04) ** -0.5, (0.04 / 1.04) ** -0.5]])


@pytest.mark.parametrize("text", TEXTS)
def test_a_run_goes_on_from_its_checkpoint_under_the_same_rule_alone(text, tmp_path):
    options = {"mechanism": mechanism(), "task": classes(), "seeds": [0]}
    replay(**options, step_rule=text, stop_after=3, checkpoint_folder=tmp_path)
    for other in (None, "nesterov:0.8"):
        refuses("the checkpoint", replay, **options, step_rule=other, checkpoint_folder=tmp_path)
    whole = replay(**options, step_rule=text)
    resumed = replay(**options, step_rule=text, checkpoint_folder=tmp_path)
    assert_array_equal(whole.seeds[0].models, resumed.seeds[0].models)


def test_the_guarantee_is_that_of_the_mechanism_and_names_the_rule(tmp_path):
    calibrated = mechanism()
    run = replay(calibrated, classes(), seeds=[0], step_rule="rms")
    assert run.mechanism.guarantee == calibrated.guarantee
    line = "step rule: rms:0.5:0.9:0.05, a function of privatised gradients"
    assert run.statement() == f"{calibrated.guarantee}\n{line}"
    assert mfdl.Run.load(run.save(tmp_path / "run.mfdl")).statement() == run.statement()
    assert ("step rule", "rms:0.5:0.9:0.05") in run._rows()


@pytest.mark.parametrize("hidden", [{}, {"lipschitz": 1.0}])
@pytest.mark.parametrize("model", [trust.PNDP([0]), trust.ReleasedOnly()])
def test_it_is_refused_where_messages_are_hidden(model, hidden):
    algorithm = algorithms.dp_dsgd(Dynamics(RING, 0.3), EveryStep(4)).with_divisors(np.full(4, 15.0))
    calibrated = mfdl.calibrate(algorithm, mfdl.Privacy(model, **hidden, **ZERO_OUT), mu=1.0)
    on_messages = algorithms.build("zip-dl", Dynamics(RING, 0.3), Cyclic(2, 2))
    elsewhere = mfdl.calibrate(on_messages, mfdl.Privacy(trust.LDP(), **ZERO_OUT), noise_std=1.0)
    for refused in (calibrated, elsewhere):
        why = "alone and not for step rule normalised; calibrate under one who .* with noise"
        unsupported(why, replay, refused, classes(lipschitz=1.0), seeds=[0], step_rule="normalised")


def test_secret_batches_take_a_rule():
    calibrated = mechanism("dp-dsgd", mfdl.BallsInBins(epochs=2, bins=2))
    run = replay(calibrated, classes(public_constants="none"), seeds=[0], step_rule="messages")
    assert not run.seeds[0].diverged


@each(
    "text, words",
    ("adam", "step rule"), ("nesterov:1", "beta must lie in"), ("rms:0", "exponent must be"),
    ("rms:0.5:1", "decay must lie in"), ("messages:0.5:0.5:0", "floor must be"), (3, "step_rule must be"),
)  # fmt: skip
def test_what_is_no_rule_is_refused(text, words):
    refuses(words, lambda: replay(mechanism(), classes(), seeds=[0], step_rule=text))


def test_a_comparison_takes_a_rule(tmp_path):
    options = {"graph": "ring:n=4", "epochs": 2, "period": 2, "mechanisms": ("none", "mafalda"), "seeds": 1, "mu": 5.0}
    config = Experiment(**options, step_rule="rms:0.5:0.5")
    assert config.options()["step_rule"] == "rms:0.5:0.5:0.05"
    assert "step_rule" not in Experiment(**options).options()
    ruled, plain = (run_comparison(c, tmp_path / str(i)) for i, c in enumerate((config, Experiment(**options))))
    for with_rule, without in zip(ruled["mechanisms"], plain["mechanisms"], strict=True):
        assert with_rule["final_test_loss_mean"] != without["final_test_loss_mean"]
        assert with_rule["noise_std"] == without["noise_std"]
        assert "step rule: rms:0.5:0.5:0.05" in with_rule["guarantee"]
    hidden = Experiment(**options, step_rule="normalised", trust="pndp")
    unsupported("step rule normalised costs no privacy where", Plan, hidden)
    refuses("step rule", Experiment, step_rule="adam")


D = 4
TASK = mfdl.tasks.logistic("ring:n=3", dimension=D, train_records=60, test_records=20)
SEEDS = st.integers(0, 2**32 - 1)


def drawn(seed: int, full: bool) -> Preconditioner:
    """A regular M, diagonal or full, and a center."""
    draws = np.random.default_rng(seed)
    scales = draws.uniform(0.5, 2, D)
    if full:
        scales = np.diag(scales) + 0.1 * draws.normal(size=(D, D))
    return Preconditioner(scales, draws.normal(size=D))


@given(SEEDS, st.booleans())
def test_it_is_preconditioned_gradient_descent(seed, full):
    """In weights on the features as they were, a step without noise or clipping moves by -eta g M^T M."""
    P = drawn(seed, full)
    M = np.diag(P.scales) if np.ndim(P.scales) == 1 else P.scales
    algorithm = algorithms.dp_dsgd(dynamics_on("ring:n=3", 0.5), Cyclic(2, 1))
    plain = mfdl.calibrate(algorithm, mfdl.Privacy(trust.LDP(), adjacency="zero-out", clip_norm=1e6), noise_std=0.0)
    centered = dataclasses.replace(TASK, features=TASK.features - np.float32(P.center))
    options = {"seeds": [0], "dtype": torch.float64, "device": "cpu", "progress": False}
    (ours,) = mfdl.replay(plain, TASK.preconditioned(P), **options).seeds
    trained = ours.models[:, : 2 * D].reshape(3, 2, D)
    theta, bias = np.zeros((3, 2, D)), np.zeros((3, 2))
    instance = centered.instance(0, 1, dtype=torch.float64)
    W = algorithm.dynamics.gossip.dense()
    for _ in range(2):
        x, y = instance.features[:, 0].numpy(), instance.targets[:, 0].numpy()
        scores = np.einsum("ucd,urd->urc", theta, x) + bias[:, None]
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        p[np.arange(3)[:, None], np.arange(x.shape[1])[None], y] -= 1
        p *= instance.mask[:, 0].numpy()[..., None]
        sizes = instance.public_batch_sizes.numpy()[:, None]
        gradient = np.einsum("urc,urd->ucd", p, x) / sizes[..., None]
        theta = np.tensordot(W, theta - 0.5 * gradient @ M.T @ M, 1)
        bias = W @ (bias - 0.5 * p.sum(1) / sizes)
    assert_allclose(P.weights(trained), theta, atol=1e-5)  # features are stored in float32


@given(SEEDS, st.booleans())
def test_arrays_and_tensors_are_mapped_alike(seed, full):
    P, x = drawn(seed, full), np.random.default_rng(seed).normal(size=(3, 2, D))
    M = np.diag(P.scales) if np.ndim(P.scales) == 1 else P.scales
    assert_allclose(P(x), (x - P.center) @ M.T, atol=1e-12)
    assert_array_equal(P(torch.tensor(x)).numpy(), P(x))
    assert P(torch.tensor(x, dtype=torch.float32)).dtype == torch.float32
    assert_allclose(P.weights(np.eye(D)), M)


@given(SEEDS, st.sampled_from([0.0, 0.25, 0.5]), st.booleans())
def test_public_features_are_made_alike_in_all_directions(seed, exponent, center):
    x = np.random.default_rng(seed).normal(size=(50, D)) * [1, 0.1, 3, 1] + 0.3
    P = Preconditioner.from_public_features(x, exponent, public="simulated", center=center)
    centered = x - (x.mean(0) if center else 0)
    S, mapped = centered.T @ centered / 50, P(x).T @ P(x) / 50
    values, vectors = np.linalg.eigh(S)
    wanted = (vectors * values * (values + preconditioners.RIDGE * values.mean()) ** (-2 * exponent)) @ vectors.T
    assert_allclose(mapped, wanted, atol=1e-9)
    diagonal = Preconditioner.from_public_features(x, exponent, public="simulated", center=center, diagonal=True)
    assert_allclose(diagonal.scales, (np.diag(S) + preconditioners.RIDGE * values.mean()) ** -exponent)


def test_no_sensitivity_changes_and_the_task_says_what_was_done():
    algorithm = algorithms.dp_dsgd(dynamics_on("ring:n=3", 0.5), Cyclic(2, 2))
    calibrated = mfdl.calibrate(algorithm, mfdl.Privacy(trust.LDP(), **ZERO_OUT), mu=1.0)
    mapped = dataclasses.replace(TASK, lipschitz=1.0).preconditioned("power:0.25:2")
    assert (mapped.name, mapped.lipschitz) == ("logistic, preconditioned by a declared spectrum, exponent 0.25", None)
    assert mapped.content_hash != TASK.content_hash
    run = mfdl.replay(calibrated, mapped, seeds=[0], device="cpu", progress=False)
    assert run.mechanism.guarantee == calibrated.guarantee


def test_a_preconditioner_of_train_records_is_refused_or_stated():
    preconditioner = Preconditioner.from_public_features(TASK.features[:5], public="a mistake")
    other = Preconditioner.from_public_features(TASK.test_features, public="test records")
    for task in (TASK, TASK.preconditioned("power:0.25")):  # however records were mapped
        refuses("5 of the 5 records behind this", task.preconditioned, preconditioner)
    assert TASK.preconditioned(other).from_records == ""
    preconditioned = TASK.preconditioned(preconditioner, from_records="five consenting participants")
    algorithm = algorithms.dp_dsgd(dynamics_on("ring:n=3", 0.5), Cyclic(2, 2))
    calibrated = mfdl.calibrate(algorithm, mfdl.Privacy(trust.LDP(), **ZERO_OUT), mu=1.0)
    run = mfdl.replay(calibrated, preconditioned, seeds=[0], device="cpu", progress=False)
    assert run.public_constants == "preconditioner of train records (five consenting participants)"


def test_texts_and_files(tmp_path):
    scales, public = tmp_path / "scales.csv", tmp_path / "public.npy"
    scales.write_text("1,2,3,4\n")
    np.save(public, np.eye(D))
    parsed = preconditioners.parse(f"file:{scales}", D)
    assert (parsed.scales.tolist(), parsed.source) == ([1, 2, 3, 4], "scales of scales.csv")
    assert_allclose(preconditioners.parse("power:0.5:2", D).scales, [1, 2, 3, 4])
    assert "public.npy" in preconditioners.parse(f"public-features:0.5:{public}", D).source
    assert preconditioners.parse(parsed, D) is parsed


@each(
    "call, message",
    (lambda: Preconditioner([1.0, 0.0]), "singular values within a factor"),
    (lambda: Preconditioner([1.0, np.inf]), "scales must be finite"),
    (lambda: Preconditioner(np.ones((2, 3))), r"shape \(d,\) or \(d, d\)"),
    (lambda: Preconditioner([1.0], [1.0, 2.0]), r"center must have shape \(1,\)"),
    (lambda: Preconditioner([1.0], source=" "), "source must say"),
    (lambda: Preconditioner.from_spectrum([1.0, 0.0]), "eigenvalues must be > 0"),
    (lambda: Preconditioner.from_public_features(np.eye(2), public=""), "public must say"),
    (lambda: Preconditioner.from_public_features(np.zeros((2, 2)), public="zeros"), "must have variance"),
    (lambda: Preconditioner([1.0, 2.0])(np.ones((1, 3))), "vectors of 2 entries"),
    (lambda: Preconditioner([1.0])(np.ones((1, 1), dtype=int)), "floating-point type"),
    (lambda: TASK.preconditioned("powers:0.5"), "did you mean 'power'"),
    (lambda: TASK.preconditioned("power"), "is written power:EXPONENT"),
    (lambda: TASK.preconditioned(3), "must be a text such as 'power:0.5'"),
    (lambda: TASK.preconditioned(Preconditioner([1.0, 2.0])), "for 2 features, and there are 4"),
    (lambda: TASK.preconditioned("file:no-such-file"), "preconditioner file .* cannot be read"),
    (lambda: mfdl.tasks.least_squares(3).preconditioned("power:0.5"), "maps real feature vectors"),
)
def test_refusals(call, message):
    refuses(message, call)


def test_a_comparison_of_preconditioned_features(tmp_path):
    options = {"graph": "ring:n=3", "task": "logistic:dimension=4,train_records=60,test_records=20", "epochs": 1}
    options |= {"period": 2, "seeds": 1, "mechanisms": ("none",)}
    plain = run_comparison(Experiment(**options), tmp_path / "plain")
    mapped = run_comparison(Experiment(**options, precondition="power:0.5"), tmp_path / "mapped")
    assert "precondition" not in plain["config"]
    assert mapped["config"]["precondition"] == "power:0.5"
    assert mapped["runs"][0]["final_test_loss"] != plain["runs"][0]["final_test_loss"]
    task = mfdl.tasks.load(options["task"], "ring:n=3").preconditioned("power:0.5")
    algorithm = algorithms.dsgd(dynamics_on("ring:n=3", 0.5), Cyclic(1, 2))
    none = mfdl.calibrate(algorithm, mfdl.Privacy(trust.LDP(), adjacency="replace-one", clip_norm=1.0), noise_std=0.0)
    run = mfdl.replay(none, task, seeds=[0], device="cpu", progress=False)
    assert run.final_test_losses[0] == pytest.approx(mapped["runs"][0]["final_test_loss"], rel=1e-6)
    refuses("did you mean", lambda: run_comparison(Experiment(**options, precondition="powr:0.5"), tmp_path / "wrong"))


def test_records_are_private_however_they_were_mapped_and_what_is_declared_is_stated():
    preconditioner = Preconditioner.from_public_features(TASK.features[:5], public="a mistake")
    mapped = TASK.preconditioned("power:0.25")
    refuses("5 of the 5 records", mapped.preconditioned, preconditioner)
    by_hand = Preconditioner(1 / TASK.features.std(axis=0), source="standard deviations")
    preconditioned = TASK.preconditioned(by_hand, from_records="standard deviations of train records")
    assert preconditioned.from_records == "preconditioner of train records (standard deviations of train records)"
