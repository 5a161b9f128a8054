"""Five newer works beside this library, at the same budget or the same noise, in one run.

    python experiments/newer_work.py [--out results/newer_work]

Encoders: florentine and a ring of 16, 4 epochs of 16, zero-out, epsilon = 1, delta = 1e-5, every message seen. Printed
is noise over that of `mafalda` (std, all models counted), and predicted excess loss over that of `mafalda` made for it
(last 8 models, a tenth of those before, curvature power:1:20). Of several attempts each number is the least.

- gamma-BIFR (arXiv:2605.18379): the first p coefficients of (1 - x)^gamma as C^-1, DP-lambda-CGD for p = 2 and BISR
  for gamma = 1/2. The abstract says that both are special cases; no formula or code of it was at hand.
- ADP-VRSGP (arXiv:2510.20157): independent noise whose std falls by stages; four of them, the best factor of a grid.
  The abstract names the schedule; neither its constants nor its gradient fusion were at hand.
- NoiseCurve (arXiv:2510.05416): a banded encoder made for a quadratic loss, of which only public eigenvalues count. Its
  formulas and code were not at hand: this is the library's curvature with a banded encoder.

Accountants: balls-in-bins of 4 epochs of 16 bins, independent noise and two bands, at the noise of epsilon = 1 here.

- The Renyi accountant of arXiv:2601.21636 (Lemma 3.2, Theorem 3.1 and the dynamic program over cyclic bands, as public
  implementations have them; its conditional composition was not at hand).

Random walks: PN-f-DP (arXiv:2510.19934) as in its public code (`mfdl_papers.pn_f_dp`) at noise multiplier 1.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from scipy.special import gammaln, logsumexp

import mfdl
import mfdl_papers as papers
from mfdl.factorization.encoders import Inverse, Toeplitz
from mfdl.files import atomic_write_json
from mfdl.privacy.curves import BallsInBinsGaussian, chain_above, correlations

EPSILON, DELTA, EPOCHS, PERIOD = 1.0, 1e-5, 4, 16
PRIVACY = mfdl.Privacy(mfdl.trust.LDP(), adjacency="zero-out", clip_norm=1.0)
WEIGHTS = mfdl.ErrorWeights("last:8:0.1", curvature="power:1:20")
GAMMAS, FALLS, MOST_ORDER = np.linspace(0.1, 0.95, 18), (1.0, 0.9, 0.8, 0.7, 0.6, 0.5), 28


# ---- encoders ----------------------------------------------------------------------------------------------------


def power_series(gamma: float, count: int) -> np.ndarray:
    """The first coefficients of (1 - x)^gamma."""
    return np.cumprod([1.0, *((k - 1 - gamma) / k for k in range(1, count))])


def encoders(graph: str) -> Iterator[dict[str, Any]]:
    """Noise and predicted excess loss of each encoder, relative to `mafalda`."""
    dynamics = mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph), 0.5)
    records = mfdl.Cyclic(epochs=EPOCHS, period=PERIOD)
    T, make = records.num_steps, mfdl.algorithms

    def measured(algorithm: mfdl.LinearAlgorithm) -> tuple[float, float]:
        mechanism = mfdl.calibrate(algorithm, PRIVACY, epsilon=EPSILON, delta=DELTA)
        return math.sqrt(mechanism.objective), mechanism.objective_for(WEIGHTS).value

    def with_encoder(encoder: Any) -> tuple[float, float]:
        return measured(make.mf_dsgd(dynamics, records, encoder))

    best_noise = measured(make.mafalda(dynamics, records))[0]
    best_loss = measured(make.mafalda(dynamics, records, weights=WEIGHTS))[1]

    def row(name: str, *attempts: tuple[float, float]) -> dict[str, Any]:
        noise, loss = (min(values) for values in zip(*attempts, strict=True))
        return {"graph": graph, "encoder": name, "noise": noise / best_noise, "excess": loss / best_loss}

    yield row("independent noise", measured(make.dp_dsgd(dynamics, records)))
    for p in (2, 4):
        family = [with_encoder(Inverse(Toeplitz(power_series(gamma, p), T))) for gamma in GAMMAS]
        yield row(f"gamma-BIFR, p = {p}, best gamma", *family)
        yield row(f"BISR, p = {p}", measured(make.bisr(dynamics, records, bandwidth=p)))
        free = (make.band_inv(dynamics, records, bandwidth=p, weights=weights) for weights in (None, WEIGHTS))
        yield row(f"band-inv, p = {p}", *map(measured, free))
    stages = np.repeat(np.arange(4), T // 4)
    yield row("noise that falls by stages, best factor", *(with_encoder(np.diag(f**-stages)) for f in FALLS))
    yield row("banded, 16 bands", measured(make.banded(dynamics, records, bandwidth=PERIOD)))
    aware = make.banded(dynamics, records, bandwidth=PERIOD, weights=WEIGHTS)
    yield row("banded, 16 bands, made for the curvature", measured(aware))


# ---- accountants -------------------------------------------------------------------------------------------------


def renyi_epsilon(M: np.ndarray, noise: float) -> float:
    """epsilon at DELTA of both directions by Renyi divergences; M is bounded by a cyclic band of 1 or 2 and a constant.

    Removed: E_Q (P / Q)^a = b^-a sum over counts c of a of multinomial(c) exp((c' M c - c' diag M) / (2 s^2)), with the
    least of both bands. Added: sum_j M_jj / (2 b s^2) + (a - 1) sum M / (2 b^2 s^2).
    """
    b, orders, G = len(M), np.arange(2, MOST_ORDER + 1), M / noise**2
    lag = np.abs(np.subtract.outer(np.arange(b), np.arange(b)))
    cyclic, removed = np.minimum(lag, b - lag), np.full(orders.size, math.inf)
    for band in (1, 2):
        common = float(G[cyclic >= band].max(initial=0.0))
        moments = log_moments(np.where(cyclic < band, G - common, 0.0), MOST_ORDER)[orders]
        removed = np.minimum(removed, (moments - orders * math.log(b)) / (orders - 1) + common * orders / 2)
    added = np.trace(G) / (2 * b) + (orders - 1) * G.sum() / (2 * b * b)
    rho = np.maximum(removed, added)
    epsilons = rho + np.log1p(-1 / orders) - (math.log(DELTA) + np.log(orders)) / (orders - 1)
    assert epsilons.argmin() < orders.size - 1
    return float(epsilons.min())


def log_moments(G: np.ndarray, most: int) -> np.ndarray:
    """log of the sums over counts of total a, for a up to `most`; G is zero beyond cyclic neighbours."""
    b, counts = len(G), np.arange(most + 1)

    def single(r: int) -> np.ndarray:
        return G[r, r] * counts * (counts - 1) / 2 - gammaln(counts + 1)

    law = np.full((most + 1,) * 3, -math.inf)  # count of bin 0, total, count of the last bin
    law[counts, counts, counts] = single(0)
    for r in range(1, b):
        moved = np.full_like(law, -math.inf)
        for t in counts:
            moved[:, t:, t] = logsumexp(law[:, : most + 1 - t] + G[r, r - 1] * t * counts, axis=2) + single(r)[t]
        law = moved
    closed = law + (G[0, b - 1] * np.outer(counts, counts)[:, None, :] if b > 2 else 0.0)
    return np.asarray(logsumexp(closed, axis=(0, 2)) + gammaln(counts + 1))


def accountants(bands: tuple[float, ...]) -> dict[str, Any]:
    """epsilon at the noise where this library has 1, and the noise that the Renyi accountant needs for it."""
    T = EPOCHS * PERIOD
    C = sum(value * np.eye(T, k=-k) for k, value in enumerate(bands))
    V = np.asarray(C) @ np.tile(np.eye(PERIOD), (EPOCHS, 1))
    M = V.T @ V
    M /= M.diagonal().max()
    curve = BallsInBinsGaussian(1.0, PERIOD, correlations(M), "zero-out", chain_above(M))
    least = curve.least_multiplier(EPSILON, DELTA)
    high = low = least
    while renyi_epsilon(M, high) > EPSILON:
        low, high = high, high * 1.05
    while high > low * 1.005:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if renyi_epsilon(M, middle) > EPSILON else (low, middle)
    public = mfdl.privacy.gaussian.epsilon_from_mu(1 / least, DELTA)
    epsilons = {"here": curve.at(least).epsilon(DELTA), "renyi": renyi_epsilon(M, least), "public bins": public}
    return {"bands": list(bands), "noise": least, "noise by renyi": high, **epsilons}


# ---- random walks ------------------------------------------------------------------------------------------------


def walks(graph: Any, num_steps: int, victims: list[int]) -> Iterator[dict[str, Any]]:
    """epsilon of victims against node 0."""
    W = mfdl.gossip.metropolis_hastings(graph)
    options: dict[str, Any] = {"num_steps": num_steps, "noise_multiplier": 1.0, "delta": DELTA}
    coded = papers.pn_f_dp(W, W.labels[0], **options, late=True)
    visit = papers.pn_f_dp(W, W.labels[0], **options, visits=1)
    known = papers.walk_known(W, W.labels[0], **options, victims=victims)
    for u in victims:
        values = {"as coded": coded.value[u], "one visit": visit.value[u], "walk known": known.value[u]}
        yield {"nodes": W.num_nodes, "steps": num_steps, "victim": str(W.labels[u]), **values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/newer_work"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    cube = nx.convert_node_labels_to_integers(nx.hypercube_graph(5))
    rows = itertools.chain(
        (accountants(bands) for bands in ((1.0,), (1.0, 0.5))),
        *(encoders(graph) for graph in ("florentine", "ring:n=16")),
        *(walks(*scene) for scene in (("ring:n=16", 128, [1, 8]), (cube, 275, [1, 31]))),
    )
    results = []
    for row in rows:
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
        results.append(row)
        atomic_write_json(out / "newer_work.json", {"rows": results})


if __name__ == "__main__":
    main()
