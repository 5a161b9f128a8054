"""What one node learns of others from its messages alone, by the modes of what is hidden, beside the two other forms.

The graph has the size and the density of ego-Facebook; all three forms must agree before any is timed, on ten victims,
as the others take half a minute for all. A second row has learning rates that fall: what each further step, whose round
is another one, costs to build and to calibrate.
"""

from __future__ import annotations

import numpy as np
from _measure import report, seconds, slope

import mfdl
from mfdl.privacy.attacking_sets import sensitivity_by_victim
from mfdl.privacy.forms.hidden_modes import HiddenModes
from mfdl.privacy.forms.range_and_null_space import NullSpace, Range


def one_attacker(num_steps: int) -> None:
    graph = mfdl.graphs.load("erdos-renyi:n=148,p=0.155,seed=1")
    gossip = mfdl.gossip.metropolis_hastings(graph)
    algorithm = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(gossip), mfdl.Cyclic(num_steps // 16, 16))
    trust, everybody = mfdl.trust.PNDP([0]), list(range(1, 148))
    ten = everybody[::15]
    view = trust.view(algorithm, 1, release="none")
    forms = {kind.__name__: kind.of(view) for kind in (HiddenModes, NullSpace, Range)}
    grams = {name: np.stack([gram.matrix for gram in form.grams(ten)]) for name, form in forms.items()}
    for name, other in grams.items():
        assert np.allclose(other, grams["HiddenModes"], rtol=0, atol=1e-11), f"{name} disagrees"
    took = {name: seconds(lambda form=form: form.grams(ten), repeats=3, warm_up=0) for name, form in forms.items()}
    certified = {"release": "none", "method": "certified", "progress": False}
    report(
        "one attacker, ten victims",
        degree=graph.degree[0],
        steps=num_steps,
        **took,
        ratio=min(took[name]["median"] for name in ("NullSpace", "Range")) / took["HiddenModes"]["median"],
        all_147_victims=seconds(lambda: sensitivity_by_victim(algorithm, trust, **certified), repeats=3, warm_up=0),
    )


def falling_rates(lengths: list[int]) -> None:
    gossip = mfdl.gossip.metropolis_hastings("ring:n=16")

    def calibrated(num_steps: int) -> mfdl.Mechanism:
        dynamics = mfdl.Dynamics(gossip, learning_rate=0.5 / (1 + 0.001 * np.arange(num_steps)))
        algorithm = mfdl.algorithms.dp_dsgd(dynamics, mfdl.Cyclic(10, num_steps // 10))
        return mfdl.calibrate(algorithm, mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=1.0), mu=1.0)

    assert abs(calibrated(100).noise_std - 10**0.5) < 1e-6
    took = [seconds(lambda T=T: calibrated(T), repeats=5)["median"] for T in lengths]
    per_step = [1e6 * t / T for t, T in zip(took, lengths, strict=True)]
    report("calibrate, falling rates", steps=lengths, microseconds_per_step=per_step, slope=slope(lengths, took))


if __name__ == "__main__":
    one_attacker(320)
    falling_rates([1000, 2000, 4000])
