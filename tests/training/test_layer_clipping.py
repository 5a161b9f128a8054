"""Norms of layers: sums are of gradients by autograd, clipped layer by layer, and none is longer than the norm."""

from fractions import Fraction

import pytest
import torch
from small_tasks import factoring, mlp, regression, slow_gradients, some_models
from torch import nn
from torch.nn import functional
from vocabulary import ZERO_OUT, dynamics_on, given, refuses, st

import mfdl
from mfdl.training.clipping import parse_rule


class Swapped(nn.Module):
    """The bias of each layer is added in the other one."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(2, 2)

    def forward(self, x):
        x = functional.linear(x, self.first.weight, self.second.bias).tanh()
        return functional.linear(x, self.second.weight, self.first.bias).sum(1, keepdim=True)


def normed():
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1, bias=False))


MODULES = {mlp: (16, 5), normed: (16, 8, 4), Swapped: (8, 6)}  # entries of each layer


@pytest.mark.parametrize("factored", [False, True])
@pytest.mark.parametrize("build", MODULES)
@given(
    12, ratios=st.lists(st.floats(0.01, 100), min_size=3, max_size=3) | st.none(),
    norm=st.sampled_from([0.01, 0.3, 100.0]), unit=st.sampled_from(["record", "user"]),
    num_records=st.sampled_from([4, 16]), seed=st.integers(0, 9),
)  # fmt: skip
def test_sums_are_of_gradients_clipped_layer_by_layer(build, factored, ratios, norm, unit, num_records, seed):
    sizes = MODULES[build]
    given_ratios = [1.0] * len(sizes) if ratios is None else ratios[: len(sizes)]
    rule = parse_rule("layers" if ratios is None else f"layers:{':'.join(map(str, given_ratios))}", norm)
    norms = norm * torch.tensor(given_ratios) / torch.tensor(given_ratios).norm()

    def expected(gradient):
        pairs = zip(gradient.split(sizes), norms, strict=True)
        return torch.cat([piece * min(1.0, C / max(piece.norm().item(), 1e-300)) for piece, C in pairs])

    with pytest.MonkeyPatch.context() as patch:
        if factored:
            factoring(patch)
        instance = regression(num_records, build=build).instance(seed, 1, dtype=torch.float64)
        models = some_models(instance, seed)
        sums = instance.clipped_gradients(models, 0, rule, unit)
    for u, total in enumerate(sums):
        gradients = list(slow_gradients(instance, models, 0, u))
        parts = map(expected, gradients if unit == "record" else [torch.stack(gradients).mean(0)])
        slack = 1e-7 * norm * num_records  # every piece is scaled down by the slack of rounding, and sums may cancel
        torch.testing.assert_close(total, sum(parts), rtol=1e-6, atol=slack)
        if num_records == 4 or unit == "user":  # one gradient
            assert sum((Fraction(v) ** 2 for v in total.tolist()), Fraction(0)) <= Fraction(norm) ** 2


def test_ratios_that_do_not_fit_are_refused_and_texts_are_canonical():
    assert str(parse_rule("layers:1:2", 1.0)) == str(parse_rule("layers:1.0:2.0", 1.0)) == "layers:1.0:2.0"
    assert str(parse_rule("layers", 1.0)) == "layers"
    for text, why in (("layers:1:x", "numbers > 0"), ("layers:0:1", "ratio must be"), ("layers:1:-1", "ratio must")):
        refuses(why, parse_rule, text, 1.0)
    algorithm = mfdl.algorithms.dp_dsgd(dynamics_on("ring:n=4", 0.3), mfdl.Cyclic(2, 1))
    calibrated = mfdl.calibrate(algorithm, mfdl.Privacy(mfdl.trust.LDP(), **ZERO_OUT), mu=1.0)
    run = mfdl.replay(calibrated, regression(), seeds=[0], clipping="layers:1:2")
    assert "clip rule: layers:1.0:2.0, each layer" in run.statement()
    assert run.mechanism.guarantee == calibrated.guarantee
    why = "has 3 ratios, and the module has 2 layers with parameters: 0, 2;"
    refuses(why, mfdl.replay, calibrated, regression(), seeds=[0], clipping="layers:1:2:3")
