"""Clip rules: automatic clipping, norms that fall, norms that follow a quantile; formulas, privacy, refusals."""

import math
from fractions import Fraction

import numpy as np
import pytest
import small_tasks
import torch
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from small_tasks import classes, node_of, regression, slow_gradients, slow_means, slow_sums
from vocabulary import each, given, refuses, st, unsupported

import mfdl
from mfdl import Cyclic, Dynamics, EveryStep, Privacy, algorithms, calibrate, gossip, replay, trust
from mfdl.dynamics import schedule
from mfdl.privacy import sensitivity_by_victim
from mfdl.runs.cells import Plan
from mfdl.runs.experiment import Experiment
from mfdl.runs.running import replay_config
from mfdl.testing import elliptope_reference, gossip_matrices, node_columns, pinv_gram
from mfdl.training import clipping
from mfdl.training.clipping import Automatic, Quantile
from mfdl.training.replay import replays
from mfdl.training.tasks import record_clipping

RING = gossip.metropolis_hastings("ring:n=4")
CLIP, SMALL = 0.7, 0.05  # small: almost every gradient is clipped


def mechanism(unit="record", noise_std=0.5, rates=0.3, clip_norm=CLIP):
    part = Cyclic(2, 2) if unit == "record" else EveryStep(4)
    privacy = mfdl.Privacy(trust.LDP(), adjacency="replace-one", clip_norm=clip_norm, unit=unit)
    return mfdl.calibrate(algorithms.dp_dsgd(Dynamics(RING, rates), part), privacy, noise_std=noise_std)


@given(20, gamma=st.sampled_from([1e-6, 0.01, 3.0]), unit=st.sampled_from(["record", "user"]), seed=st.integers(0, 3))
def test_a_run_is_the_recursion_on_normalised_gradients(gamma, unit, seed):
    """theta <- W (theta - eta (sum_r C g_r / (||g_r|| + gamma) + e_t) / m), each gradient by autograd."""
    injected = np.random.default_rng(seed).standard_normal((4, 4, 12)) * 0.01
    task, rule = classes(12), Automatic(CLIP, gamma)

    with pytest.MonkeyPatch.context() as patch:
        small_tasks.injecting(patch, injected)
        options = {"period": 2, "clipping": f"automatic:{gamma}", "dtype": torch.float64}
        run = replay(mechanism(unit), task, seeds=[seed], **options)
    instance = task.instance(seed, 2, dtype=torch.float64)
    theta, W = instance.initial_parameters, torch.tensor(RING.dense())
    for t in range(4):
        sums = (slow_sums if unit == "record" else slow_means)(instance, theta, t, rule)
        sizes = instance.public_batch_sizes[:, None] if unit == "record" else 1.0
        theta = W @ (theta - 0.3 * (sums + torch.tensor(injected[t])) / sizes)
    assert_allclose(run.seeds[0].models, theta, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@each(
    "clip_norm, options",
    (CLIP, {"clipping": "automatic:1e-6"}),
    (SMALL, {"clip_schedule": [3.0, 1 / 3, 0.1, 0.7]}),
    (SMALL, {"clip_schedule": [1.0, 1e-5, 0.9, 1e-3]}),
)
def test_what_noise_is_added_to_is_never_longer_than_the_guarantee_says(clip_norm, options, dtype, monkeypatch):
    norms = small_tasks.largest_gradients(monkeypatch)
    for seed in range(3):
        replay(mechanism("user", 0.0, 0.1, clip_norm), classes(), seeds=[seed], dtype=dtype, **options)
    assert clip_norm * (1 - 1e-4) < max(norms) <= clip_norm


@pytest.mark.parametrize("unit", ["record", "user"])
def test_a_node_on_a_grid_adds_whole_steps_of_normalised_gradients(unit):
    task, step = regression(16, 4), 2.0**-20
    data, module = task.instance(0, 1, dtype=torch.float64), task.build_module().double()
    start, node = (
        small_tasks.row_of(module),
        node_of(module, mechanism(unit, 1e-9), node=1, clipping="automatic", grid=step),
    )
    node.step(data.features[1, 0], data.targets[1, 0])
    moved = start - small_tasks.row_of(module)
    expected = (slow_sums if unit == "record" else slow_means)(data, start.repeat(4, 1), 0, Automatic(CLIP))[1]
    assert_allclose(moved, expected, atol=5 * step)
    assert_allclose(moved / step, (moved / step).round(), atol=1e-6)


def test_runs_of_other_rules_share_no_noise_no_checkpoint_and_no_state(tmp_path):
    options = {"mechanism": mechanism(), "task": classes(), "seeds": [0], "stop_after": 2}
    texts = ["flat", "automatic", "automatic:0.1", "automatic:0.01"]
    names = [replay(**options, clipping=text).seeds[0].key_id for text in texts]
    assert (len(set(names)), names[3]) == (3, names[1])
    replay(**options, clipping="automatic", checkpoint_folder=tmp_path)
    for other in ("flat", "automatic:0.1"):
        refuses("the checkpoint's", replay, **options, clipping=other, checkpoint_folder=tmp_path)
    whole = replay(**{**options, "stop_after": None}, clipping="automatic")
    resumed = replay(**{**options, "stop_after": None}, clipping="automatic", checkpoint_folder=tmp_path)
    assert_array_equal(whole.seeds[0].models, resumed.seeds[0].models)


def test_runs_train_together_only_under_one_rule():
    options = {"mechanism": mechanism(), "task": classes(), "seeds": [0, 1], "progress": False}
    configs = [mfdl.training.replay_config.ReplayConfig(**options, clipping=text) for text in ("flat", "automatic")]
    for config, run in zip(configs, replays(configs, lambda *_: None), strict=True):
        for seed, together in zip((0, 1), run.seeds, strict=True):
            alone = replay(**{**options, "seeds": [seed]}, clipping=config.clipping).seeds[0]
            assert_allclose(together.models, alone.models, rtol=1e-5, atol=1e-7)


def test_a_run_says_by_which_rule_it_was_clipped(tmp_path):
    run = replay(mechanism(), classes(), seeds=[0], clipping="automatic")
    line = "clip rule: automatic:0.01, each gradient g times 0.7 / (||g|| + 0.01)"
    assert line in run.statement()
    run.save(tmp_path / "run.mfdl")
    assert line in mfdl.Run.load(tmp_path / "run.mfdl").statement()
    assert "clip rule" not in replay(mechanism(), classes(), seeds=[0]).statement()


def test_a_guarantee_that_rests_on_a_lipschitz_constant_takes_the_flat_rule_alone():
    algorithm = algorithms.dp_dsgd(Dynamics(RING, 0.5), EveryStep(4)).with_divisors(np.full(4, 15.0))
    privacy = mfdl.Privacy(trust.ReleasedOnly(), adjacency="zero-out", clip_norm=CLIP, lipschitz=1.0)
    resting = mfdl.calibrate(algorithm, privacy, mu=1.0)
    assert resting.lipschitz == 1.0
    refuses("clipping must be flat", lambda: replay(resting, classes(lipschitz=1.0), seeds=[0], clipping="automatic"))


@each(
    "options, message",
    *(({"clip_schedule": clips}, "clip_schedule must") for clips in ([], [1.0] * 3, [1.0, 1, 0, 1], [1.0, 1, -1, 1])),
    *(({"clip_schedule": clips}, "clip_schedule must") for clips in ([1.0, 1, 1e-7, 1], [1, 1, np.nan, 1])),
    *(({"clipping": text}, "strictly between 0 and 1") for text in ("quantile:0", "quantile:1", "quantile:0.5:1")),
    ({"clipping": "automatic:0"}, "gamma must be"),
    ({"clipping": "automatic:1e-7"}, "gamma must be between 1e-06"),
    ({"clipping": "flat:1"}, "clipping flat is written flat"),
    ({"clipping": 0.5}, "clipping must be"),
    ({"clipping": "automatic", "clip_schedule": [1.0] * 4}, "clip_schedule changes the norm"),
)
def test_what_means_nothing_is_refused(options, message):
    refuses(message, lambda: replay(mechanism(), classes(), seeds=[0], **options))


def test_a_comparison_trains_by_the_rule_and_costs_what_the_flat_one_does():
    options = {"graph": "ring:n=4", "epochs": 2, "period": 3, "mechanisms": ("dp-dsgd",), "seeds": 1, "mu": 1.0}
    config = Experiment(**options, clipping="automatic")
    assert config.options()["clipping"] == "automatic:0.01"
    assert "clipping" not in Experiment(**options, clipping="flat").options()
    plan = Plan(config)
    calibrated = plan.mechanism("dp-dsgd")
    assert calibrated.noise_std == Plan(Experiment(**options)).mechanism("dp-dsgd").noise_std
    by_hand = replay(calibrated, plan.task, seeds=[0], clipping="automatic").seeds[0]
    (run,) = replays([replay_config(calibrated, plan.task, 0, config)], lambda *_: None)
    assert_array_equal(run.seeds[0].models, by_hand.models)
    for wrong, message in (
        ({"clip_schedule": "inverse-sqrt"}, "--clipping automatic:0.01 has none"),
        ({"curvature": "power:1:20", "mechanisms": ("mafalda",)}, "--clipping automatic:0.01 scales gradients"),
        ({"clipping": "quantil"}, "did you mean 'quantile'"),
    ):
        refuses(message, Experiment, **{**options, "clipping": "automatic", **wrong})


clip_schedules = st.lists(st.sampled_from([1.0, 0.3, 0.1, 1e-3, 7.0]), min_size=4, max_size=4)


def scheduled(rates, unit="record"):
    return mechanism(unit, rates=rates, clip_norm=SMALL)


@given(20, clips=clip_schedules, unit=st.sampled_from(["record", "user"]), seed=st.integers(0, 3))
def test_a_run_is_the_recursion_with_its_clipping_norms_and_noise_written_out(clips, unit, seed):
    """theta <- W (theta - eta_t (clip(g, C c_t) + c_t e_t) / m), every gradient by autograd, one record at a time."""
    eta, c = np.array([0.5, 0.4, 0.3, 0.2]), np.array(clips)
    injected = np.random.default_rng(seed).standard_normal((4, 4, 12)) * 0.01
    task = classes(12)

    with pytest.MonkeyPatch.context() as patch:
        small_tasks.injecting(patch, injected)
        run = replay(scheduled(eta * c, unit), task, seeds=[seed], period=2, clip_schedule=clips, dtype=torch.float64)
    instance = task.instance(seed, 2, dtype=torch.float64)
    theta, W = instance.initial_parameters, torch.tensor(RING.dense())
    for t in range(4):
        clipped = (slow_sums if unit == "record" else slow_means)(instance, theta, t, SMALL * c[t])
        sizes = instance.public_batch_sizes[:, None] if unit == "record" else 1.0
        theta = W @ (theta - eta[t] * (clipped + c[t] * torch.tensor(injected[t])) / sizes)
    assert_allclose(run.seeds[0].models, theta, rtol=1e-9, atol=1e-12)


@given(15, W=gossip_matrices(min_nodes=2, max_nodes=4, kinds=("symmetric",)), clips=clip_schedules)
def test_its_privacy_is_that_of_the_view_written_out(W, clips):
    """Gradients of norm c_t and noise of deviation c_t, at rates eta_t; where messages are hidden and where not.

    Gradients are vectors: signs alone may reach less.
    """
    n, T, eta, c = W.num_nodes, 4, np.array([0.5, 0.4, 0.3, 0.2]), np.array(clips)
    A = np.zeros((T, n, T * n))
    theta = np.zeros((n, T * n))
    for t in range(T):
        A[t] = theta - eta[t] * c[t] * np.eye(T * n)[t * n : (t + 1) * n]  # of gradients in units of C c_t
        theta = W.dense() @ A[t]
    algorithm = algorithms.dp_dsgd(Dynamics(W, eta * c), EveryStep(T))
    for model in (trust.LDP(), trust.PNDP([0])):
        for loss in sensitivity_by_victim(algorithm, model, release="none"):
            seen = np.flatnonzero(W.dense()[0]) if model.name == "pndp" else np.arange(n)
            if model.name == "pndp" and loss.victim == 0:
                continue
            rows, noise = A[:, seen].reshape(-1, T * n), A[:, seen].reshape(-1, T * n).copy()
            if model.name == "pndp":
                noise[:, 0::n] = 0  # its own noise is known
            X, outside = pinv_gram(node_columns(rows, loss.victim, n), noise)
            if not outside.any() and np.isfinite(loss.sensitivity_squared):
                truth = elliptope_reference(X)  # the program's accuracy below, the library's rounding above
                assert truth * (1 - 1e-6) <= loss.sensitivity_squared <= truth * (1 + 1e-4)


def test_runs_of_different_clips_share_no_noise_and_no_checkpoint(tmp_path):
    options = {"mechanism": scheduled(0.1), "task": classes(), "seeds": [0], "stop_after": 2}
    keys = {replay(**options, clip_schedule=clips).seeds[0].key_id for clips in (None, [1.0, 1, 1, 1], [1.0, 1, 1, 2])}
    assert len(keys) == 3
    replay(**options, clip_schedule=[1.0, 1, 1, 2], checkpoint_folder=tmp_path)
    for other in (None, [1.0, 1, 1, 3]):
        refuses("the checkpoint's", replay, **options, clip_schedule=other, checkpoint_folder=tmp_path)
    whole = replay(**{**options, "stop_after": None}, clip_schedule=[1.0, 1, 1, 2])
    resumed = replay(**{**options, "stop_after": None}, clip_schedule=[1.0, 1, 1, 2], checkpoint_folder=tmp_path)
    assert_array_equal(whole.seeds[0].models, resumed.seeds[0].models)


@pytest.mark.parametrize("clips", [[0.5] * 4, [2.0] * 4, [1.0, 1, 1, 0.9]])
def test_a_guarantee_that_rests_on_a_lipschitz_constant_takes_no_clips(clips):
    """The local map is x - (eta / c_t) g, of a gradient clipped elsewhere: a constant for eta says nothing of it."""
    algorithm = algorithms.dp_dsgd(Dynamics(RING, 0.5), EveryStep(4)).with_divisors(np.full(4, 15.0))
    options = {"trust": trust.ReleasedOnly(), "adjacency": "zero-out", "clip_norm": SMALL}
    plain, resting = (calibrate(algorithm, Privacy(lipschitz=L, **options), mu=1.0) for L in (None, 1.0))
    assert (plain.lipschitz, resting.lipschitz) == (None, 1.0)
    arguments = {"task": classes(lipschitz=1.0), "seeds": [0], "eval_every": 4}
    why = f"must be 1 in every step.*got {clips[-1]:g} in step.*leave clip_schedule out.*calibrate without lipschitz"
    refuses(why, replay, resting, **arguments, clip_schedule=clips)
    replay(resting, **arguments, clip_schedule=[1.0] * 4)
    replay(plain, **arguments, clip_schedule=clips)


def test_a_comparison_scales_rates_and_clips_alike():
    options = {"graph": "ring:n=4", "epochs": 2, "period": 3, "mechanisms": ("dp-dsgd",), "seeds": 1, "mu": 1.0}
    config = Experiment(**options, lr_schedule="inverse-time:9", clip_schedule="inverse-sqrt")
    plan, plain = Plan(config), Plan(Experiment(**options))
    assert_allclose(
        plan.dynamics.learning_rates(6), schedule("inverse-time:9", 0.5, 6) * schedule("inverse-sqrt", 1.0, 6)
    )
    assert_array_equal(config.clips, schedule("inverse-sqrt", 1.0, 6))
    calibrated = plan.mechanism("dp-dsgd")
    assert calibrated.noise_std == plain.mechanism("dp-dsgd").noise_std  # no privacy is lost or won
    by_hand = replay(calibrated, plan.task, seeds=[0], clip_schedule=config.clips).seeds[0]
    (run,) = replays([replay_config(calibrated, plan.task, 0, config)], lambda *_: None)
    assert_array_equal(run.seeds[0].models, by_hand.models)
    assert Experiment(clip_schedule="constant").clips is None
    for wrong in ({"momentum": 0.5}, {"weight_decay": 0.1}):
        refuses("--clip-schedule inverse-sqrt scales", Experiment, clip_schedule="inverse-sqrt", **wrong)


PRIVACY = {"trust": trust.LDP(), "adjacency": "replace-one", "clip_norm": CLIP}


def followed(steps=4, **privacy):
    algorithm = algorithms.dp_dsgd(Dynamics(RING, 0.3), EveryStep(steps) if privacy else Cyclic(steps, 1))
    return mfdl.calibrate(algorithm, mfdl.Privacy(**PRIVACY | privacy), noise_std=0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    300,
    data=st.data(),
    rule=st.builds(Quantile, st.floats(1e-20, 1e20), st.floats(0.01, 0.99), st.floats(1e-6, 0.999999)),
    log_norm=st.floats(-60, 60) | st.floats(allow_nan=True, width=32),
)
def test_what_a_record_adds_to_all_entries_together_is_within_the_clip_norm_exactly(dtype, data, rule, log_norm):
    bits = torch.finfo(dtype).bits
    values = data.draw(hnp.arrays(f"f{bits // 8}", 5, elements=st.floats(width=bits)))
    gradients = [torch.from_numpy(values).reshape(1, 1, 5), torch.zeros(1, 1, dtype=dtype)]
    log_norms = torch.tensor([log_norm], dtype=dtype)
    for present in (True, False):
        mask = torch.tensor([[present]])
        learned, votes = record_clipping.at_learned_norm(gradients, [], log_norms, mask, rule)
        sums = clipping.clipped_sums(gradients, mask, learned)
        entries = [Fraction(v) for part in (*sums, votes.to(dtype)) for v in part.double().flatten().tolist()]
        assert sum((v**2 for v in entries), Fraction(0)) <= (present and Fraction(rule.norm)) ** 2
        if not np.isfinite(values).all():
            assert not any(entries)


@pytest.mark.parametrize("factored", [False, True])
@given(10, quantile=st.sampled_from([0.3, 0.5, 0.8]), share=st.sampled_from([0.1, 0.6]), seed=st.integers(0, 3))
def test_a_run_is_the_recursion_written_out(quantile, share, seed, factored):
    """(theta, log c) <- W ((theta, log c) - eta (sums + e_t) / m), each record's gradient by autograd."""
    injected = np.random.default_rng(seed).standard_normal((4, 4, 13)) * 0.3
    task = classes(12)

    with pytest.MonkeyPatch.context() as patch:
        if factored:
            small_tasks.factoring(patch)
        small_tasks.injecting(patch, injected)
        options = {"clipping": f"quantile:{quantile}:{share}", "dtype": torch.float64}
        run = replay(followed(), task, seeds=[seed], **options).seeds[0]
    instance = task.instance(seed, 1, dtype=torch.float64)
    state, W = torch.cat([torch.zeros(4, 1).double(), instance.initial_parameters], 1), torch.tensor(RING.dense())
    for t in range(4):
        sums = torch.zeros_like(state)
        for u in range(4):
            c = state[u, 0].exp()
            for g in slow_gradients(instance, state[:, 1:], t, u):
                vote = (1 - quantile if g.norm() <= c else -quantile) / max(quantile, 1 - quantile)
                sums[u, 0] += CLIP * share * vote
                sums[u, 1:] += CLIP * math.sqrt(1 - share**2) * g * min(1, c / g.norm()) / c
        state = W @ (state - 0.3 * (sums + torch.tensor(injected[t])) / instance.public_batch_sizes[:, None])
    assert_allclose(run.models, state, rtol=1e-5, atol=1e-5)


def test_the_norm_moves_to_where_a_share_of_the_norms_is_below():
    norms, log_norm = torch.arange(1.0, 101.0), torch.zeros(1)
    gradients, present = [torch.zeros(1, 100), norms.reshape(1, 100, 1)], torch.ones(1, 100, dtype=torch.bool)
    for _ in range(400):
        _, votes = record_clipping.at_learned_norm(gradients, [], log_norm, present, Quantile(1.0, 0.7))
        log_norm = log_norm - votes / 100
    assert 68 <= log_norm.exp().item() <= 72


def test_the_module_of_a_run_computes_as_before_and_guarantees_are_the_same():
    calibrated, task = followed(), classes()
    run = replay(calibrated, task, seeds=[0], clipping="quantile")
    assert "clip rule: quantile:0.7:0.2, at a norm that each model learns" in run.statement()
    assert run.mechanism.guarantee == calibrated.guarantee
    module, features = run.module(1), torch.tensor(task.test_features, dtype=torch.float32)
    torch.testing.assert_close(module(features), module.module(features))
    assert run.seeds[0].models.shape[1] == replay(calibrated, task, seeds=[0]).seeds[0].models.shape[1] + 1


def test_what_no_quantile_can_be_of_is_refused():
    unsupported("at user level", lambda: replay(followed(unit="user"), classes(), seeds=[0], clipping="quantile"))
    why = r"set module\.log_norm = torch\.nn\.Parameter"
    refuses(why, node_of, torch.nn.Linear(2, 1), followed(), clipping="quantile")


@given(
    40, record=hnp.arrays("f8", 4, elements=st.floats(-1e9, 1e9)),
    log_norms=st.lists(st.floats(-30, 30), min_size=2, max_size=2), share=st.sampled_from([0.1, 0.5, 0.9]),
    grid=st.sampled_from([None, 2.0**-20]), split=st.integers(0, 2), seed=st.integers(0, 9),
)  # fmt: skip
def test_a_record_moves_what_a_node_releases_by_the_clip_norm_at_most(record, log_norms, share, grid, split, seed):
    rng, nodes = np.random.default_rng(seed), []
    others = torch.tensor(rng.normal(size=(2, 4)) * 10.0 ** rng.integers(-3, 4))
    for _ in range(2):
        module = torch.nn.Linear(3, 1).double()
        module.log_norm = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        options = {"clipping": f"quantile:0.7:{share}", "grid": grid, "keys": mfdl.NoiseKey.from_seed(seed)}
        nodes.append(node_of(module, followed(2), node=1, **options))
        nodes[-1].step(torch.zeros(0, 3), torch.zeros(0))
    for log_norm in log_norms[1:]:
        heard = {"weight": torch.tensor(rng.normal(size=(1, 3))), "bias": torch.zeros(1)}
        heard["log_norm"] = torch.tensor(log_norm)
        moved, batches = [], (others, torch.cat([others, torch.tensor(record)[None]]))
        for node, batch in zip(nodes, batches, strict=True):
            node.receive({name: value.double() for name, value in heard.items()})
            start = node.model.initial_row()
            node.accumulate(batch[:split, :3], batch[:split, 3])
            node.step(batch[split:, :3], batch[split:, 3])
            moved.append(start - node.model.initial_row())
        assert torch.linalg.vector_norm(moved[1] - moved[0]) <= CLIP * (1 + 1e-9)
