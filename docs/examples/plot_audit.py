"""
A claim and its audit
=====================

An audit trains many times on data that differ in one record, computes the attacker's view, and bounds the privacy
loss from below. A true claim stays above. An implementation that halves the noise and claims the same is refuted.
"""

from matplotlib.figure import Figure

import mfdl
from mfdl.audit import Training, audit

ring = mfdl.Dynamics(
    mfdl.gossip.metropolis_hastings("ring:n=4"), learning_rate=0.5
)
algorithm = mfdl.algorithms.mafalda(ring, mfdl.Cyclic(epochs=2, period=2))


class HalfTheNoise(Training):
    def stream(self, key, dim, first_step):
        stream = super().stream(key, dim, first_step)
        stream.noise_std /= 2
        return stream


question = {
    "trust": mfdl.trust.LDP(),
    "adjacency": "replace-one",
    "clip_norm": 1.0,
    "trials": 2000,
    "seed": 1,
}
claimed, honest, cheating = [], [], []
levels = (1.5, 2.5, 4.0)
for noise_std in levels:
    result = audit(algorithm, noise_std=noise_std, **question)
    claimed.append(result.mu_claimed)
    honest.append(result.mu_audited)
    system = HalfTheNoise(algorithm, noise_std=noise_std, clip_norm=1.0)
    cheating.append(
        audit(
            algorithm, noise_std=noise_std, system=system, **question
        ).mu_audited
    )

figure = Figure(figsize=(7.4, 3.4), layout="constrained")
axes = figure.subplots()
axes.plot(levels, claimed, "o-", color="#222222", label="claimed")
axes.plot(
    levels,
    honest,
    "o",
    color="#009e73",
    label="shown by honest runs, at least",
)
axes.plot(
    levels,
    cheating,
    "s",
    color="#d55e00",
    label="shown with half the noise, at least",
)
axes.set_xlabel("noise that is claimed")
axes.set_ylabel("mu")
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
