"""Automatic clipping in runs: the formula against loops over records, refusals, hashes, statements and options."""

import numpy as np
import pytest
import torch
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from small_tasks import classes, regression, slow_means, slow_sums, squared

import mfdl
from mfdl import Cyclic, Dynamics, EveryStep, InvalidInput, algorithms, gossip, replay, trust
from mfdl.runs.cell_jobs import replay_config
from mfdl.runs.experiment import Experiment
from mfdl.runs.shared import Plan
from mfdl.training import seed_replay
from mfdl.training.clip_rules import Automatic
from mfdl.training.replay import replays

RING, CLIP = gossip.metropolis_hastings("ring:n=4"), 0.7


def mechanism(unit="record", noise_std=0.5, **privacy):
    part = Cyclic(2, 2) if unit == "record" else EveryStep(4)
    return mfdl.calibrate(
        algorithms.dp_dsgd(Dynamics(RING, 0.3), part),
        mfdl.Privacy(**({"trust": trust.LDP()} | privacy), adjacency="replace-one", clip_norm=CLIP, unit=unit),
        noise_std=noise_std,
    )


@examples(20)
@given(gamma=st.sampled_from([1e-6, 0.01, 3.0]), unit=st.sampled_from(["record", "user"]), seed=st.integers(0, 3))
def test_a_run_is_the_recursion_on_normalised_gradients(gamma, unit, seed):
    """theta <- W (theta - eta (sum_r C g_r / (||g_r|| + gamma) + e_t) / m), each gradient by autograd."""
    injected = np.random.default_rng(seed).standard_normal((4, 4, 12)) * 0.01
    task, rule = classes(12), Automatic(CLIP, gamma)

    class Stream:
        def step(self, t):
            return injected[t]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seed_replay, "noise_stream", lambda *_, slots: Stream())
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
def test_what_noise_is_added_to_is_never_longer_than_the_guarantee_says(dtype, monkeypatch):
    norms, executed = [], seed_replay.Executor.step

    def step(executor, t, state, gradients, noise, rule):
        norms.append(gradients.double().norm(dim=1))
        return executed(executor, t, state, gradients, noise, rule)

    monkeypatch.setattr(seed_replay.Executor, "step", step)
    for seed in range(3):
        replay(mechanism("user", 0.0), classes(), seeds=[seed], clipping="automatic:1e-6", dtype=dtype)
    assert CLIP * (1 - 1e-4) < max(map(max, norms)) <= CLIP


@pytest.mark.parametrize("unit", ["record", "user"])
def test_a_node_on_a_grid_adds_whole_steps_of_normalised_gradients(unit):
    task, step = regression(16, 4), 2.0**-20
    data, module = task.instance(0, 1, dtype=torch.float64), task.build_module().double()
    start = torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    node = mfdl.PrivateNode(
        torch.optim.SGD(module.parameters(), 1.0),
        module,
        mechanism(unit, 1e-9),
        node=1,
        keys=mfdl.NoiseKey.from_seed(0),
        loss=squared,
        batch_size=1,
        clipping="automatic",
        grid=step,
        publish=False,
    )
    node.step(data.features[1, 0], data.targets[1, 0])
    moved = start - torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    expected = (slow_sums if unit == "record" else slow_means)(data, start.repeat(4, 1), 0, Automatic(CLIP))[1]
    assert_allclose(moved, expected, atol=5 * step)
    assert_allclose(moved / step, (moved / step).round(), atol=1e-6)


def test_runs_of_other_rules_share_no_noise_no_checkpoint_and_no_state(tmp_path):
    options = {"mechanism": mechanism(), "task": classes(), "seeds": [0], "stop_after": 2}
    texts = ["flat", "automatic", "automatic:0.1"]
    assert len({replay(**options, clipping=text).seeds[0].key_id for text in texts}) == 3
    assert (
        replay(**options, clipping="automatic:0.01").seeds[0].key_id
        == replay(**options, clipping="automatic").seeds[0].key_id
    )
    replay(**options, clipping="automatic", checkpoint_folder=tmp_path)
    for other in ("flat", "automatic:0.1"):
        with pytest.raises(InvalidInput, match="the checkpoint's"):
            replay(**options, clipping=other, checkpoint_folder=tmp_path)
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
    with pytest.raises(InvalidInput, match=r"clipping must be flat .* which may be steeper"):
        replay(resting, classes(lipschitz=1.0), seeds=[0], clipping="automatic")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clipping": "automatik"}, "did you mean 'automatic'"),
        ({"clipping": "automatic:0"}, "gamma must be"),
        ({"clipping": "automatic:1e-7"}, "gamma must be between 1e-06"),
        ({"clipping": "flat:1"}, "clipping flat is written flat"),
        ({"clipping": 0.5}, "clipping must be"),
        ({"clipping": "automatic", "clip_schedule": [1.0] * 4}, "clip_schedule changes the norm"),
    ],
)
def test_what_means_nothing_is_refused(options, message):
    with pytest.raises(InvalidInput, match=message):
        replay(mechanism(), classes(), seeds=[0], **options)


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
        with pytest.raises(InvalidInput, match=message):
            Experiment(**{**options, "clipping": "automatic", **wrong})
