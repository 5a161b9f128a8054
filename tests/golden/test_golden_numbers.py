"""Calibrated noise, hashes, seeded noise, runs and solutions never change."""

import functools
import hashlib
import json
import sys

import numpy as np
import pytest
import torch
from _cases import SCHEMES, TRUST, built, fixed, mechanism_names, mfdl_prints
from _stored import compare
from small_tasks import classes
from vocabulary import ZERO_OUT

import mfdl
from mfdl import InvalidInput, NoiseKey, Privacy, UnsupportedMechanism, calibrate, replay
from mfdl.factorization.encoders import Banded, Buffered, Inverse, Toeplitz
from mfdl.noise import CausalNoise, IndependentNoise, JointNoise, ScheduledNoise
from mfdl.training.shared_randomness import HolderKeys

NODES, STEPS = 3, 6
TAIL = 3.654  # where the tail of the ziggurat begins
KEY = NoiseKey.from_seed(7)
CLOSE = {"relative": 1e-12, "absolute": 1e-12}


def sha256(array):
    return hashlib.sha256(np.ascontiguousarray(array, dtype="<f8").tobytes()).hexdigest()


def rows(noise, steps=None, *, dim=2, key=KEY, **options):
    """nu N Z of some steps, shape (steps, slots, dim)."""
    stream = mfdl.training.streams.noise_stream(noise, 1.5, key, dim, **options)
    return np.stack([stream.step(t) for t in (range(noise.num_steps) if steps is None else steps)])


def listed(noise, steps=None, **options):
    return [row.ravel().tolist() for row in rows(noise, steps, **options)]


# ---- keys and base normals -------------------------------------------------------------------------------------------
def test_keys():
    contexts = [("holders", 0), ("holders", 0, 1), ("pair", 3, -7), ("replay", "a", 2**70), ("b", b"\0\xff"), ("", b"")]
    ids = {str(seed): NoiseKey.from_seed(seed).key_id for seed in (0, 1, 7, 2**64)}
    derived = {repr(context): KEY.derive(*context).key_id for context in contexts}
    secret = NoiseKey(bytes(range(32)))
    compare("keys", {"from_seed": ids, "derived": derived, "of a secret": secret.key_id})


def test_base_normals():
    few, many = IndependentNoise(STEPS, NODES), IndependentNoise(3, 300)
    cases = {
        "few rows": rows(few), "long rows": rows(few, dim=40), "many short rows": rows(many),
        "a late step": rows(IndependentNoise(10**6, 2), [999_999, 3]), "tensor 3": rows(few, tensor=3),
        "shard 2": rows(few, shard=2), "some slots": rows(few, slots=[2, 0]),
    }  # fmt: skip
    assert all(np.abs(case).max() < 1.5 * TAIL for case in cases.values())
    digests = {name: sha256(case) for name, case in cases.items()}
    first = {name: case.ravel()[:6].tolist() for name, case in cases.items()}  # to see what has changed
    compare("base_normals", {"sha256": digests, "first": first})


# ---- noise of mechanisms and encoders --------------------------------------------------------------------------------
def test_noise_of_every_mechanism():
    schemes = {name: "balls-in-bins" if name.endswith("-bins") else "cyclic" for name in mechanism_names()}
    compare("noise_of_mechanisms", {name: listed(fixed(name, schemes[name]).noise) for name in schemes}, **CLOSE)


def encoders():
    steps = np.arange(STEPS)
    lags = np.subtract.outer(steps, steps)
    dense = np.tril(0.5 ** np.clip(lags, 0, None) * (1 + (steps[:, None] % 3) / 4))
    bands = np.array([[1.0, 0.0], *[[1.0 + (t % 4) / 4, -0.5 + (t % 3) / 4] for t in range(1, STEPS)]])
    return {
        "none": None,
        "dense": dense,
        "dense, one a node": np.stack([dense, dense + 0.5 * np.eye(STEPS), np.tril(np.ones((STEPS, STEPS)))]),
        "toeplitz": Toeplitz([1.0, 0.5, -0.25], STEPS),
        "banded": Banded(bands),
        "buffered": Buffered([0.5, 0.25], [0.5, -0.75], STEPS, 1.25),
        "inverse of toeplitz": Inverse(Toeplitz([1.0, -0.5, 0.125], STEPS)),
        "inverse of banded": Inverse(Banded(bands)),
    }


FACTOR = np.array([[1.0, 0.0, 0.0, 1.0, -2.0], [0.0, 0.5, 0.0, -1.0, 0.0], [0.0, 0.0, 2.0, 0.0, 1.0]])
OVER_NODES = {"num_steps": STEPS, "num_nodes": NODES}


def noises():
    """Every noise: local and spread over nodes by a factor, on messages, over both at once, by a plan, none at all."""
    holders = FACTOR.T != 0
    cases = {f"local, {name}": CausalNoise(encoder, **OVER_NODES) for name, encoder in encoders().items()}
    for name, encoder in encoders().items():
        columns = np.concatenate([encoder, encoder[:2]]) if name == "dense, one a node" else encoder
        cases[f"spread, {name}"] = CausalNoise(columns, FACTOR, holders, **OVER_NODES)
    on_messages = np.vstack([FACTOR, [[0.0, 0.0, 0.0, 0.5, 0.5]]])
    cases["on messages"] = CausalNoise(None, on_messages, holders, **OVER_NODES)
    size = STEPS * NODES
    lags = np.subtract.outer(np.arange(size), np.arange(size))
    cases["over time and nodes"] = JointNoise(np.tril(0.5 ** np.clip(lags, 0, None)), STEPS, NODES)
    plan = np.kron(np.eye(STEPS), FACTOR)
    plan[2 * NODES + 1] += plan[NODES + 1] / 2  # node 1 adds half of step 1 in step 2
    plan[NODES + 1] /= 2
    for name in ("none", "dense"):
        cases[f"by a plan, {name}"] = ScheduledNoise(encoders()[name], plan, holders, **OVER_NODES)
    return cases


ONE_BY_ONE = [f"local, {name}" for name in ("none", "toeplitz", "banded", "buffered", "inverse of toeplitz")]


def test_noise_of_every_encoder():
    values = {name: listed(noise) for name, noise in noises().items()}
    compare("noise_of_encoders", values, **CLOSE)


def test_noise_that_is_the_same_bit_for_bit_on_every_machine():
    """Encoders that step on base noise add and multiply one number at a time."""
    compare("noise_bits", {name: sha256(rows(noises()[name])) for name in ONE_BY_ONE})


def test_noise_of_other_tensors_and_late_blocks():
    cases, long = noises(), 70  # more than two blocks of 32 steps
    dense = CausalNoise(np.tril(np.full((long, long), 1 / 8)) + np.eye(long), num_steps=long, num_nodes=2)
    values = {f"tensor 2 of {name}": listed(cases[name], tensor=2) for name in ("spread, dense", "spread, banded")}
    values["steps 31, 32, 69 and 0 of a long run"] = listed(dense, [31, 32, 69, 0])
    compare("noise_of_slots", values, **CLOSE)


def test_noise_by_the_keys_of_holders():
    sets = [(0,), (1,), (2,), (0, 1), (0, 2)]
    keys = HolderKeys.given({nodes: NoiseKey(bytes([i + 1]) * 32) for i, nodes in enumerate(sets)})
    values = {name: listed(noise, key=keys) for name, noise in noises().items() if name.startswith("spread")}
    compare("noise_of_holders", values, **CLOSE)


def test_noise_does_not_depend_on_the_participation():
    """Only on the operator, the keys and the counters: a check of the cases above, which take one scheme."""
    for scheme in SCHEMES:
        assert listed(fixed("dp-dsgd", scheme).noise) == listed(fixed("dp-dsgd", "cyclic").noise)


CALIBRATED = {"relative": 1e-9}
PUBLIC = ("single", "every-step", "explicit", "once-per-epoch", "min-separation", "by-node")
SOME = ("dp-dsgd", "anti-pgd", "toeplitz", "decor", "muffliato")


def or_refusal(answer):
    try:
        return answer()
    except (InvalidInput, UnsupportedMechanism) as refusal:
        return f"refused: {type(refusal).__name__}"


def table(cases, answer):
    """{mechanism: {"scheme, trust, adjacency": what is answered, or which refusal}}."""
    rows = {}
    for name, scheme, trust, adjacency in cases:
        question = {"trust": TRUST[trust], "adjacency": adjacency, "clip_norm": 1.5}
        row = or_refusal(lambda: answer(fixed(name, scheme), **question))  # noqa: B023  called at once
        rows.setdefault(name, {})[f"{scheme}, {trust}, {adjacency}"] = row
    return rows


def noise_at_mu_1(algorithm, **question):
    guarantee = calibrate(algorithm, Privacy(**question), mu=1.0).guarantee
    return {name: getattr(guarantee, name) for name in ("noise_std", "sensitivity", "mu", "bound")}


def test_every_mechanism_under_every_trust_model():
    models = [trust for trust in TRUST if trust != "pndp of anyone"]
    names = [name for name in mechanism_names() if not name.endswith("-bins")]
    cases = [(name, "cyclic", trust, "zero-out") for name in names for trust in models]
    compare("noise_by_trust", table(cases, noise_at_mu_1), **CALIBRATED)


def test_every_public_scheme_and_adjacency():
    cases = [(name, scheme, trust, "zero-out") for name in SOME for scheme in PUBLIC for trust in ("ldp", "pndp")]
    cases += [(name, "cyclic", "pndp of anyone", "zero-out") for name in SOME]
    cases += [("decor", scheme, trust, "zero-out") for scheme in PUBLIC for trust in ("eavesdropper", "coalitions")]
    adjacencies = ("add-remove", "replace-one")
    cases += [(name, "cyclic", "ldp", adjacency) for name in ("dp-dsgd", "anti-pgd") for adjacency in adjacencies]
    compare("noise_by_scheme", table(cases, noise_at_mu_1), **CALIBRATED)


def test_mu_of_every_node():
    cases = [(name, "cyclic", trust, "zero-out") for name in SOME for trust in ("pndp", "eavesdropper")]

    def losses(algorithm, **question):
        rows = mfdl.privacy.sensitivity_by_victim(algorithm, trust=question["trust"])
        wanted = ("sensitivity_squared", "bound", "adaptive_sensitivity_squared", "adaptive_bound")
        return {str(row.victim): {name: getattr(row, name) for name in wanted} for row in rows}

    compare("losses_of_nodes", table(cases, losses), **CALIBRATED)


def test_balls_in_bins():
    """What noise of 2 guarantees, for every mechanism; epsilon at delta = 1e-5."""

    def guaranteed(algorithm, **question):
        guarantee = calibrate(algorithm, Privacy(**question), noise_std=2.0).guarantee
        scale = {"sensitivity": guarantee.sensitivity, "noise_multiplier": guarantee.noise_multiplier}
        return scale | {"epsilon": guarantee.epsilon(1e-5)}

    names = [name for name in mechanism_names() if name != "zip-dl"]
    cases = [(name, "balls-in-bins", "eavesdropper", "zero-out") for name in names]
    cases += [("dp-dsgd", "balls-in-bins", trust, "zero-out") for trust in ("ldp", "pndp", "colluding", "coalitions")]
    cases += [("decor", "balls-in-bins", "eavesdropper", adjacency) for adjacency in ("add-remove", "replace-one")]
    compare("balls_in_bins", table(cases, guaranteed), **CALIBRATED)


def test_noise_of_secret_batches():
    privacy, values = Privacy(TRUST["eavesdropper"], **ZERO_OUT), {}
    for name, scheme in (("decor", "Poisson"), ("decor", "balls-in-bins"), ("bsr", "balls-in-bins")):
        mechanism = calibrate(fixed(name, scheme.lower()), privacy, epsilon=2.0, delta=1e-5)
        values[f"{name}, {scheme}"] = mechanism.noise_std
    compare("noise_of_secret_batches", values, **CALIBRATED)


def test_the_cases_are_of_every_scheme():
    assert {*PUBLIC, "cyclic", "poisson", "balls-in-bins"} == {*SCHEMES}


def test_content_hashes_of_algorithms():
    def content_hash(name, scheme):
        return or_refusal(lambda: fixed(name, scheme).content_hash)

    compare("hashes", {name: {scheme: content_hash(name, scheme) for scheme in SCHEMES} for name in mechanism_names()})


def test_content_hashes_and_fingerprints_of_mechanisms():
    cases = [("dp-dsgd", trust, "cyclic") for trust in TRUST] + [("dp-dsgd", "ldp", scheme) for scheme in SCHEMES]
    names = ("bsr", "decor", "corn", "per-mode", "muffliato", "toeplitz")
    cases += [(name, "eavesdropper", "cyclic") for name in names]

    def hashes(name, trust, scheme, **unit):
        mechanism = calibrate(fixed(name, scheme), Privacy(TRUST[trust], **unit, **ZERO_OUT), noise_std=2.0)
        return {"mechanism": mechanism.content_hash, "fingerprint": mechanism.guarantee.fingerprint}

    values = {", ".join(case): hashes(*case) for case in cases}
    values["bsr, ldp, every-step, of a user"] = hashes("bsr", "ldp", "every-step", unit="user")
    compare("fingerprints", values)


RUNS = {
    "bsr": ("bsr", "cyclic"), "decor": ("decor", "cyclic"), "muffliato": ("muffliato", "cyclic"),
    "Poisson": ("dp-dsgd", "poisson"), "balls-in-bins": ("dp-dsgd", "balls-in-bins"),
}  # fmt: skip
task = functools.cache(functools.partial(classes, public_constants="none"))


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the keys that are stored are those of Python 3.11")
@pytest.mark.parametrize(("dtype", "accuracy"), [("float64", 1e-6), ("float32", 1e-4)])
def test_seeded_runs(dtype, accuracy):
    values = {}
    for run, (name, scheme) in RUNS.items():
        privacy = Privacy(TRUST["eavesdropper"], adjacency="replace-one", clip_norm=1.0)
        mechanism = calibrate(fixed(name, scheme), privacy, noise_std=0.5)
        (seed,) = replay(mechanism, task(), seeds=[3], dtype=getattr(torch, dtype), device="cpu").seeds
        values[run] = {"key_id": seed.key_id, "models": seed.models.tolist(), "loss": seed.loss.tolist()}
    compare(f"runs_{dtype}", values, relative=accuracy, absolute=accuracy)


GRAPH = ("--graph", "path:n=4")
SOLVED_STEPS = ("--epochs", "2", "--period", "2")
SOLVED_OVER_NODES = ("corn", "corn-pairwise", "decor")
FACTORIZED = ("per-mode", "d-mf", "mafalda", "mafalda-classes", "mafalda-l", "joint", "kronecker", *SOLVED_OVER_NODES)


def test_objectives_and_their_bounds():
    def solved(name):
        steps = () if name in SOLVED_OVER_NODES else SOLVED_STEPS
        code, out = mfdl_prints("factorize", *GRAPH, *steps, "--mechanism", name, "--json")
        return {key: json.loads(out)[key] for key in ("objective", "lower_bound")} | {"code": code}

    compare("objectives", {name: solved(name) for name in FACTORIZED}, relative=1e-5)


def test_variance_of_the_noise_of_every_mechanism():
    """diag(N N^T): of each slot in each step, per unit of base noise."""
    schemes = {name: "balls-in-bins" if name.endswith("-bins") else "cyclic" for name in mechanism_names()}
    variances = {name: np.asarray(built(name, scheme).noise.variances()).tolist() for name, scheme in schemes.items()}
    compare("variances", variances, relative=1e-5, absolute=1e-9)
