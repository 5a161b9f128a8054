"""
The gain of correlation
=======================

One graph, one participation, one sensitivity: the error of each family of noise, from independent noise to arbitrary
correlation over time and nodes. The line is a lower bound for every noise.
"""

from matplotlib.figure import Figure

import mfdl

dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("florentine"))
participation = mfdl.Cyclic(epochs=2, period=4)
error = {}
for name in ("dp_dsgd", "corn", "mafalda", "kronecker", "per_mode", "joint"):
    algorithm = getattr(mfdl.algorithms, name)(dynamics, participation)
    mechanism = mfdl.calibrate(
        algorithm,
        mfdl.Privacy(
            mfdl.trust.Eavesdropper(), adjacency="zero-out", clip_norm=1.0
        ),
        mu=1.0,
    )
    error[algorithm.name] = mechanism.objective
bound = algorithm.factorization.lower_bound
print({name: round(value, 1) for name, value in error.items()})

figure = Figure(figsize=(7.4, 3.2), layout="constrained")
axes = figure.subplots()
colours = ["#999999", "#0072b2", "#0072b2", "#009e73", "#009e73", "#009e73"]
axes.barh(list(error), list(error.values()), color=colours, alpha=0.75)
axes.axvline(bound, color="#d55e00", linestyle="--")
axes.text(
    bound * 1.01,
    5.55,
    "no noise of any form is below",
    color="#d55e00",
    fontsize=9,
    va="bottom",
)
axes.invert_yaxis()
axes.set_xlabel("variance in all models at mu = 1 against an eavesdropper")
axes.spines[["top", "right"]].set_visible(False)
