"""`to_dict` of guarantees of every kind: keys and texts exactly, numbers to 1e-9.

A seal covers the last bits of the numbers, and a tolerance bounds their rounding: both differ from machine to machine,
so that only their form is stored.
"""

import re

from _cases import TRUST, fixed
from _privacy import applied
from _stored import compare

import mfdl
from mfdl.privacy import MonteCarlo

QUESTION = {"adjacency": "zero-out", "clip_norm": 1.0}


def at_mu_1(name, scheme, trust, **changes):
    return applied(
        mfdl.calibrate, fixed(name, scheme), {"trust": TRUST[trust], **QUESTION, "mu": 1.0, **changes}
    ).guarantee


def with_noise(name, scheme, trust, **changes):
    privacy = mfdl.Privacy(TRUST[trust], **QUESTION, **changes)
    return mfdl.calibrate(fixed(name, scheme), privacy, noise_std=2.0).guarantee


def of_victim(victim, **changes):
    question = mfdl.Privacy(TRUST["pndp"], adjacency="zero-out", clip_norm=1.0, **changes)
    return mfdl.losses(fixed("dp-dsgd", "cyclic"), question).by_victim(2.0)[victim]


def guarantees():
    public = at_mu_1("dp-dsgd", "cyclic", "ldp")
    bins = with_noise("dp-dsgd", "balls-in-bins", "ldp")
    lipschitz = of_victim(2, lipschitz=1.0)
    budgets = dict(enumerate((1.0, 0.5, 2.0, 1.0)))
    return {
        "public, exact": public,
        "public, epsilon": at_mu_1("bsr", "cyclic", "ldp", mu=None, epsilon=4.0, delta=1e-6),
        "public, infinite": with_noise("none", "cyclic", "ldp"),
        "public, replace-one": at_mu_1("anti-pgd", "once-per-epoch", "ldp", adjacency="replace-one"),
        "public, by node": at_mu_1("dp-dsgd", "by-node", "ldp"),
        "PNDP": at_mu_1("muffliato", "cyclic", "pndp"),
        "PNDP of one victim, which rests on a Lipschitz constant": lipschitz,
        "Eavesdropper": at_mu_1("decor", "cyclic", "eavesdropper"),
        "Colluding": at_mu_1("decor", "cyclic", "colluding"),
        "FullCollusion, shared noise counts as known": at_mu_1("decor", "cyclic", "full-collusion"),
        "central": at_mu_1("cdp", "cyclic", "central"),
        "released": at_mu_1("dp-dsgd", "cyclic", "released"),
        "of a user": at_mu_1("bsr", "every-step", "ldp", unit="user"),
        "budgets of nodes": at_mu_1("dp-dsgd", "cyclic", "ldp", mu=budgets),
        "Poisson": with_noise("dp-dsgd", "poisson", "ldp"),
        "balls-in-bins, certified": bins,
        "balls-in-bins, correlated over time": with_noise("mafalda-bins", "balls-in-bins", "ldp"),
        "balls-in-bins, Monte Carlo": with_noise(
            "bsr", "balls-in-bins", "ldp", method=MonteCarlo(samples=16384, seed=3)
        ),
        "composed, public": public.compose_with(at_mu_1("bsr", "single", "ldp", mu=0.5)),
        "composed, PNDP of one victim, which rests on a Lipschitz constant": lipschitz.compose_with(lipschitz),
        "composed, balls-in-bins": bins.compose_with(bins),
        "composed, mixed": bins.compose_with(public),
    }


def test_guarantees_as_dictionaries():
    values = {name: _fields(guarantee) for name, guarantee in guarantees().items()}
    compare("guarantees", values, relative=1e-9)


def _fields(guarantee):
    fields = guarantee.to_dict()
    if re.fullmatch("[0-9a-f]{16}", fields["seal"]):
        fields["seal"] = "16 hex digits"
    if fields.get("tolerance", 1.0) < 1e-9:
        fields["tolerance"] = "below 1e-9"
    return fields
