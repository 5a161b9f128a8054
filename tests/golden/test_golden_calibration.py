"""Calibrated noise, sensitivities and mu: every mechanism, by scheme, trust model and adjacency."""

from _cases import SCHEMES, TRUST, fixed, mechanism_names
from _stored import compare

import mfdl
from mfdl import InvalidInput, UnsupportedMechanism

CLOSE = {"relative": 1e-9}
PUBLIC = ("single", "every-step", "explicit", "once-per-epoch", "min-separation", "by-node")
SOME = ("dp-dsgd", "anti-pgd", "toeplitz", "decor", "muffliato")


def table(cases, answer):
    """{mechanism: {"scheme, trust, adjacency": what is answered, or which refusal}}."""
    rows = {}
    for name, scheme, trust, adjacency in cases:
        try:
            row = answer(fixed(name, scheme), trust=TRUST[trust], adjacency=adjacency, clip_norm=1.5)
        except (InvalidInput, UnsupportedMechanism) as refusal:
            row = f"refused: {type(refusal).__name__}"
        rows.setdefault(name, {})[f"{scheme}, {trust}, {adjacency}"] = row
    return rows


def noise_at_mu_1(algorithm, **question):
    guarantee = mfdl.calibrate(algorithm, mfdl.Privacy(**question), mu=1.0).guarantee
    return {name: getattr(guarantee, name) for name in ("noise_std", "sensitivity", "mu", "bound")}


def test_every_mechanism_under_every_trust_model():
    models = [trust for trust in TRUST if trust != "pndp of anyone"]
    names = [name for name in mechanism_names() if not name.endswith("-bins")]
    cases = [(name, "cyclic", trust, "zero-out") for name in names for trust in models]
    compare("noise_by_trust", table(cases, noise_at_mu_1), **CLOSE)


def test_every_public_scheme_and_adjacency():
    cases = [(name, scheme, trust, "zero-out") for name in SOME for scheme in PUBLIC for trust in ("ldp", "pndp")]
    cases += [(name, "cyclic", "pndp of anyone", "zero-out") for name in SOME]
    cases += [("decor", scheme, trust, "zero-out") for scheme in PUBLIC for trust in ("eavesdropper", "coalitions")]
    adjacencies = ("add-remove", "replace-one")
    cases += [(name, "cyclic", "ldp", adjacency) for name in ("dp-dsgd", "anti-pgd") for adjacency in adjacencies]
    compare("noise_by_scheme", table(cases, noise_at_mu_1), **CLOSE)


def test_mu_of_every_node():
    """Both numbers of every victim, and where they come from."""
    cases = [(name, "cyclic", trust, "zero-out") for name in SOME for trust in ("pndp", "eavesdropper")]

    def losses(algorithm, **question):
        rows = mfdl.privacy.sensitivity_by_victim(algorithm, trust=question["trust"])
        wanted = ("sensitivity_squared", "bound", "adaptive_sensitivity_squared", "adaptive_bound")
        return {str(row.victim): {name: getattr(row, name) for name in wanted} for row in rows}

    compare("losses_of_nodes", table(cases, losses), **CLOSE)


def test_balls_in_bins():
    """What noise of 2 guarantees, for every mechanism; epsilon at delta = 1e-5."""

    def guaranteed(algorithm, **question):
        guarantee = mfdl.calibrate(algorithm, mfdl.Privacy(**question), noise_std=2.0).guarantee
        scale = {"sensitivity": guarantee.sensitivity, "noise_multiplier": guarantee.noise_multiplier}
        return scale | {"epsilon": guarantee.epsilon(1e-5)}

    names = [name for name in mechanism_names() if name != "zip-dl"]
    cases = [(name, "balls-in-bins", "eavesdropper", "zero-out") for name in names]
    cases += [("dp-dsgd", "balls-in-bins", trust, "zero-out") for trust in ("ldp", "pndp", "colluding", "coalitions")]
    cases += [("decor", "balls-in-bins", "eavesdropper", adjacency) for adjacency in ("add-remove", "replace-one")]
    compare("balls_in_bins", table(cases, guaranteed), **CLOSE)


def test_noise_of_secret_batches():
    """The least noise for epsilon = 2 at delta = 1e-5."""
    question = {"trust": TRUST["eavesdropper"], "adjacency": "zero-out", "clip_norm": 1.0}
    values = {
        "decor, Poisson": mfdl.calibrate(
            fixed("decor", "poisson"), mfdl.Privacy(**question), epsilon=2.0, delta=1e-05
        ).noise_std,
        "decor, balls-in-bins": mfdl.calibrate(
            fixed("decor", "balls-in-bins"), mfdl.Privacy(**question), epsilon=2.0, delta=1e-05
        ).noise_std,
        "bsr, balls-in-bins": mfdl.calibrate(
            fixed("bsr", "balls-in-bins"), mfdl.Privacy(**question), epsilon=2.0, delta=1e-05
        ).noise_std,
    }
    compare("noise_of_secret_batches", values, **CLOSE)


def test_the_cases_are_of_every_scheme():
    assert {*PUBLIC, "cyclic", "poisson", "balls-in-bins"} == {*SCHEMES}
