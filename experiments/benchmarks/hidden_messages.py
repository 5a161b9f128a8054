"""What attackers learn from the messages that they receive, beside dense decompositions of their views; ratios.

- Small views, every attacker: plain NumPy stacks the messages and models that each attacker sees, with its own noise
  taken out, and makes one singular value decomposition; PNDP_calculator projects on the same rows and asks cvxpy. It is
  on no registry: MFDL_BENCH_PNDP names a folder that has its package, else it is left out.
- Small views of every mechanism, one attacker: one decomposition of a matrix of the size of all messages.
- Symmetric graphs: all attackers over one.
- 148 nodes: all victims of one attacker beside the pseudo-inverse of the stacked view, and of the small B B^T.
- Graphs of the size and density of ego-Facebook: three forms, which must agree before any is timed, on ten victims.
- Learning rates that fall: what each further step, whose round is another one, costs to build and to calibrate.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import networkx as nx
import numpy as np
import scipy.sparse as sp
from _measure import leave_out, peak_megabytes, report, seconds, slope

import mfdl
from mfdl.algorithms.building import MECHANISMS
from mfdl.privacy.attacking_sets import sensitivity_by_victim
from mfdl.privacy.forms.hidden_modes import HiddenModes
from mfdl.privacy.forms.range_and_null_space import NullSpace, Range

GRAPHS = {"erdos-renyi:n=30,p=0.15,seed=0": 10, "florentine": 20}
"""Steps of each, of two rounds."""
CALCULATOR_STEPS = 3
ANY = mfdl.trust.AnyReceiver()


def stacked(W: np.ndarray, attacker: int, num_steps: int, rounds: int = 1, *, released: bool = False) -> np.ndarray:
    """What an attacker sees <- what nodes inject, without its own columns; models released besides, if any are."""
    n, heard = len(W), np.flatnonzero((W[attacker] > 0) & (np.arange(len(W)) != attacker))
    powers = [np.eye(n)]
    for _ in range(num_steps * rounds):
        powers.append(powers[-1] @ W)
    rows = [(heard, t * rounds + k, t) for t in range(num_steps) for k in range(rounds)]
    rows += [(np.arange(n), num_steps * rounds, num_steps - 1)] * released
    view = np.zeros((sum(len(seen) for seen, _, _ in rows), num_steps * n))
    first = 0
    for seen, age, last in rows:
        past = [powers[age - s * rounds][seen] for s in range(last + 1)]
        view[first : first + len(seen), : (last + 1) * n] = np.hstack(past)
        first += len(seen)
    view[:, attacker::n] = 0.0
    return view


def by_decomposition(W: np.ndarray, num_steps: int, rounds: int) -> np.ndarray:
    """sum |X_u|, the largest over attackers: at least the squared sensitivity of each node."""
    n, worst = len(W), np.zeros(len(W))
    for attacker in range(n):
        view = stacked(W, attacker, num_steps, rounds, released=True)
        U, sigma, _ = np.linalg.svd(view, full_matrices=False)
        whitened = (U.T @ view)[sigma > 1e-12 * sigma[0]] / sigma[sigma > 1e-12 * sigma[0], None]
        of_nodes = np.array([np.abs(whitened[:, u::n].T @ whitened[:, u::n]).sum() for u in range(n)])
        worst = np.where(np.arange(n) == attacker, worst, np.maximum(worst, of_nodes))
    return worst


def every_attacker(spec: str, num_steps: int) -> None:
    gossip = mfdl.gossip.metropolis_hastings(spec)
    W, dynamics = gossip.dense(), mfdl.Dynamics(gossip, 0.1, gossip_rounds=2)

    def ours() -> np.ndarray:
        algorithm = mfdl.algorithms.muffliato(dynamics, mfdl.EveryStep(num_steps))
        return np.array([loss.sensitivity_squared for loss in sensitivity_by_victim(algorithm, ANY, progress=False)])

    assert (ours() <= np.minimum(by_decomposition(W, num_steps, 2), num_steps) * (1 + 1e-9)).all(), "above plain sums"
    took = {"mfdl": seconds(ours, repeats=5), "numpy": seconds(lambda: by_decomposition(W, num_steps, 2), repeats=5)}
    report("small views", graph=spec, steps=num_steps, **took, ratio=took["mfdl"]["cpu"] / took["numpy"]["cpu"])


def beside_calculator(spec: str) -> None:
    """The worst attacker of each node by PNDP_calculator, with its own gossip weights, no model released."""
    if (folder := os.environ.get("MFDL_BENCH_PNDP")) is None:
        leave_out("PNDP_calculator", "MFDL_BENCH_PNDP names no folder with its package pndp_calculator.")
        return
    sys.path.insert(0, folder)
    peer: Any = importlib.import_module("pndp_calculator.topology_analyzer")
    graph, T = nx.convert_node_labels_to_integers(mfdl.graphs.load(spec)), CALCULATOR_STEPS
    W = peer.build_random_walk_matrix(graph)
    gossip = mfdl.gossip.GossipMatrix(sp.csr_array(W), tuple(range(len(W))), "random walk")

    def ours() -> np.ndarray:
        algorithm = mfdl.algorithms.muffliato(mfdl.Dynamics(gossip, 0.1, gossip_rounds=2), mfdl.EveryStep(T))
        losses = sensitivity_by_victim(algorithm, ANY, release="none", progress=False)
        return np.array([loss.sensitivity_squared for loss in losses])

    def theirs() -> np.ndarray:
        return np.asarray(peer.compute_victim_centric_effective_variances(W, T, 1, 2, graph, T, 1)[0])

    np.testing.assert_allclose(ours(), theirs(), rtol=1e-6)
    took = {"mfdl": seconds(ours, repeats=5), "calculator": seconds(theirs, repeats=3)}
    report("PNDP_calculator", graph=spec, steps=T, **took, ratio=took["calculator"]["cpu"] / took["mfdl"]["cpu"])


def every_mechanism(num_steps: int = 12) -> None:
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings("erdos-renyi:n=20,p=0.3,seed=1"), 0.1)
    square = np.random.default_rng(0).normal(size=(240, 240))
    anchor = seconds(lambda: np.linalg.svd(square))["cpu"]
    took = {}
    for name in MECHANISMS:
        if name == "trust-optimal":  # lists patterns with their signs, too many here
            continue
        algorithm = mfdl.algorithms.build(name, dynamics, mfdl.EveryStep(num_steps))
        sensitivity_by_victim(mfdl.algorithms.build(name, dynamics, mfdl.EveryStep(2)), mfdl.trust.PNDP([0]))
        took[name] = seconds(lambda a=algorithm: sensitivity_by_victim(a, mfdl.trust.PNDP([0])), repeats=1, warm_up=0)
    report("small views of mechanisms", numpy=anchor, **{name: row["cpu"] / anchor for name, row in took.items()})


def symmetric(spec: str, num_steps: int) -> None:
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(spec), 0.1)
    algorithm = mfdl.algorithms.dp_dsgd(dynamics, mfdl.Cyclic(num_steps // 25, 25))
    trusts = {"one_attacker": mfdl.trust.PNDP([0]), "every_attacker": ANY}
    took = {name: seconds(lambda t=t: sensitivity_by_victim(algorithm, t), repeats=3) for name, t in trusts.items()}
    ratio = took["every_attacker"]["cpu"] / took["one_attacker"]["cpu"]
    report("symmetric graph", graph=spec, steps=num_steps, **took, ratio=ratio)


def all_victims(num_steps: int = 20) -> None:
    graph = mfdl.graphs.load("erdos-renyi:n=148,p=0.15,seed=1")
    gossip = mfdl.gossip.uniform(graph)
    W, n = gossip.dense(), 148
    algorithm = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(gossip), mfdl.EveryStep(num_steps))
    options = {"release": "none", "progress": False}

    def ours(method: str) -> np.ndarray:
        losses = sensitivity_by_victim(algorithm, mfdl.trust.PNDP([0]), method=method, **options)
        return np.array([loss.sensitivity_squared for loss in losses])

    def plain(*, small: bool) -> np.ndarray:
        """Pseudo-inverse of the view, or of the small B B^T."""
        view = stacked(W, 0, num_steps)
        whole = np.linalg.pinv(view @ view.T, hermitian=True) if small else None
        projector = np.linalg.pinv(view) @ view if whole is None else view.T @ whole @ view
        return np.array([np.abs(projector[u::n, u::n]).sum() for u in range(1, n)])

    reference = np.minimum(plain(small=True), num_steps)
    assert np.allclose(plain(small=False), plain(small=True)), "the two peers disagree"
    assert (ours("certified") <= reference * (1 + 1e-6)).all(), "a certified bound is above the plain sum"
    mine, exact = seconds(lambda: ours("certified")), seconds(lambda: ours("exact"), repeats=3)
    direct, careful = (seconds(lambda small=small: plain(small=small), repeats=3) for small in (False, True))
    report(
        "accountant",
        nodes=n,
        degree=graph.degree[0],
        steps=num_steps,
        certified=mine,
        exact=exact,
        plain_numpy=direct,
        careful_numpy=careful,
        ratio=direct["median"] / mine["median"],
        ratio_careful=careful["median"] / mine["median"],
        peak_megabytes=peak_megabytes(),
    )


def one_attacker(num_steps: int) -> None:
    graph = mfdl.graphs.load("erdos-renyi:n=148,p=0.155,seed=1")
    gossip = mfdl.gossip.metropolis_hastings(graph)
    algorithm = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(gossip), mfdl.Cyclic(num_steps // 16, 16))
    trust, everybody = mfdl.trust.PNDP([0]), list(range(1, 148))
    ten = everybody[::15]
    view = trust.view(algorithm, 1, release="none")
    forms = {kind.__name__: kind.from_view(view) for kind in (HiddenModes, NullSpace, Range)}
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
    for spec, steps in GRAPHS.items():
        every_attacker(spec, steps)
        beside_calculator(spec)
    every_mechanism()
    symmetric("torus:rows=10,cols=10", 500)
    all_victims()
    one_attacker(320)
    falling_rates([1000, 2000, 4000])
