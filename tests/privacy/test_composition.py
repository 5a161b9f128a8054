"""What two runs guarantee together rests on all that either rests on: no assumption gets lost between them."""

import dataclasses
import functools
import itertools
import json
import math

import pytest
from refusals import refuses

import mfdl
from mfdl import BallsInBins, Cyclic, Dynamics, PoissonSampling, algorithms, check, gossip, trust
from mfdl.errors import InvalidInput, UnsupportedMechanism
from mfdl.noise_scale import account
from mfdl.privacy.guarantee import EDITED, STATED, Guarantee
from mfdl.privacy.losses import Losses
from mfdl.privacy.questions import LIPSCHITZ_NOTE, Privacy

STAR = Dynamics(gossip.metropolis_hastings("star:n=4"), 0.5)
ASKED = {"trust": trust.ReleasedOnly(), "adjacency": "zero-out", "clip_norm": 1.0}
DELTA = 1e-5
LIPSCHITZ = f"{LIPSCHITZ_NOTE} 1.0"
AVERAGE = "in the place of its final model each node releases"


def public(noise_std=6.0, **options):
    return account(algorithms.dp_dsgd(STAR, Cyclic(2, 2)), Privacy(**ASKED, **options), noise_std=noise_std)


def in_bins(noise_std=6.0, method="certified", model=ASKED["trust"]):
    algorithm = algorithms.dp_dsgd(STAR, BallsInBins(2, 2))
    return mfdl.account(algorithm, mfdl.Privacy(method=method, **{**ASKED, "trust": model}), noise_std=noise_std)


def poisson():
    algorithm = algorithms.dp_dsgd(STAR, PoissonSampling(0.3, 4))
    model = trust.ReleasedOnly().all_messages()
    return mfdl.account(algorithm, mfdl.Privacy(**{**ASKED, "trust": model}), noise_std=6.0)


def fixed():
    """For non-adaptive gradients; of every node, as if somebody had written it."""
    algorithm = algorithms.dp_dsgd(STAR, Cyclic(2, 2))
    losses = Losses.of(algorithm, Privacy(**ASKED))
    guarantee = losses.by_victim(6.0, adaptive=False)[1]
    return dataclasses.replace(guarantee, victim="every node")


def average():
    algorithm = algorithms.dp_dsgd(STAR, Cyclic(2, 2)).releasing("average:2")
    return account(algorithm, Privacy(lipschitz=1.0, **ASKED), noise_std=6.0)


GUARANTEES = {
    "public": public,
    "public, Lipschitz": lambda: public(lipschitz=1.0),
    "public, of a file": lambda: Guarantee.from_dict(public(lipschitz=1.0).to_dict()),
    "public, edited": lambda: dataclasses.replace(public(), participation="cyclic, or so"),
    "public, average released": average,
    "public, twice": lambda: public().compose_with(public(8.0, lipschitz=1.0)),
    "public, without noise": lambda: public(0.0),
    "fixed in advance": fixed,
    "poisson": poisson,
    "bins": in_bins,
    "bins, by samples": lambda: in_bins(method=mfdl.privacy.MonteCarlo(samples=4096, failure=1e-3)),
    "bins, twice": lambda: in_bins().compose_with(in_bins(8.0)),
    "bins and public": lambda: in_bins().compose_with(public(lipschitz=1.0)),
}


@functools.cache
def guarantee_of(name):
    return GUARANTEES[name]()


@functools.cache
def certified_numbers(name):
    """(epsilon at DELTA, delta at 0.5) of what is certified."""
    curve = guarantee_of(name).curve
    certified = getattr(curve, "certified", curve)
    return certified.epsilon(DELTA), certified.delta(0.5)


def refused(first_kind, second_kind):
    """Why two do not compose; None where they do."""
    if (first_kind == "poisson") != (second_kind == "poisson"):
        return "same trust|only adaptive|other must be a Guarantee"
    if "fixed in advance" in (first_kind, second_kind):
        return "only adaptive guarantees compose|other must be a Guarantee"
    return None


def words_of(guarantee):
    """Whatever it says of itself."""
    return [str(guarantee), guarantee._repr_html_()]


def conditions_of(guarantee):
    """Conditions and origins, one by one."""
    return {*guarantee.notes, *filter(None, guarantee.source.split("; "))}


def some_quickly():
    """Pairs of all kinds in both orders, of which each kind with the next in the table is tried at every change."""
    for (i, first), (j, second) in itertools.product(enumerate(GUARANTEES), repeat=2):
        yield pytest.param(first, second, marks=[] if (j - i) % len(GUARANTEES) == 1 else [pytest.mark.slow])


@pytest.mark.parametrize(("first_kind", "second_kind"), list(some_quickly()))
def test_a_composed_guarantee_rests_on_all_that_its_parts_rest_on(first_kind, second_kind):
    first, second = guarantee_of(first_kind), guarantee_of(second_kind)
    if why := refused(first_kind, second_kind):
        refuses(why, first.compose_with, second, error=(InvalidInput, UnsupportedMechanism))
        return
    both = first.compose_with(second)
    assert conditions_of(both) == conditions_of(first) | conditions_of(second)
    texts = words_of(both)
    for condition in conditions_of(both):
        for words in texts:
            assert condition in words
    assert both.adaptive
    assert both.composed == first.composed + second.composed
    assert (both.clip_norm, both.adjacency, both.unit, both.victim) == (1.0, "zero-out", "record", "every node")
    assert {both.bound} <= {"upper", "exact"}  # what is composed is certified: no probability is left to add
    epsilon, delta = both.epsilon(DELTA), both.delta(0.5)
    for kind, part in ((first_kind, first), (second_kind, second)):
        least_epsilon, least_delta = certified_numbers(kind)
        assert epsilon >= least_epsilon * (1 - 1e-3)
        assert delta >= least_delta * (1 - 1e-3)
        assert part.participation in both.participation
        assert part.why in both.why
    assert bool(both.fingerprint) == bool(first.fingerprint and second.fingerprint)


@pytest.mark.parametrize("name", GUARANTEES)
def test_what_is_written_says_every_condition(name):
    guarantee = guarantee_of(name)
    written = json.loads(json.dumps(guarantee.to_dict(), allow_nan=False))
    assert tuple(written["notes"]) == guarantee.notes
    assert written["adaptive"] == guarantee.adaptive
    again = Guarantee.from_dict(written)
    assert again == guarantee
    assert again.source in (STATED, EDITED)
    assert written["composed"] == guarantee.composed


def test_the_constant_is_there_to_be_lost():
    """Without it the public run loses more, and notes name it, the average and who wrote the statement."""
    assert guarantee_of("public, Lipschitz").mu < 0.9 * guarantee_of("public").mu
    assert LIPSCHITZ in guarantee_of("public, Lipschitz").notes
    assert LIPSCHITZ in guarantee_of("bins and public").notes
    assert any(note.startswith(AVERAGE) for note in guarantee_of("public, average released").notes)
    assert guarantee_of("public, of a file").source == STATED
    assert guarantee_of("public, edited").source == EDITED
    nothing = guarantee_of("bins").compose_with(guarantee_of("public, without noise"))
    assert nothing.epsilon(DELTA) == math.inf
    assert "no finite guarantee" in nothing.sentence()
    assert "no finite guarantee" in repr(nothing)


def test_a_note_is_part_of_what_is_sealed():
    both = guarantee_of("bins and public")
    assert both.fingerprint
    without = dataclasses.replace(both, notes=(), lipschitz=None)
    assert not without.fingerprint
    assert without.source == EDITED
    for wrong in ("a text", (1,)):
        refuses("notes must be a list of texts", dataclasses.replace, both, notes=wrong)


def test_a_statement_shows_release_runs_and_conditions_wherever_it_shows_itself():
    """Also in few words and in a notebook's table: a number without its conditions is another statement."""
    for name in ("public, Lipschitz", "public, average released"):
        guarantee = guarantee_of(name)
        for words in words_of(guarantee):
            assert LIPSCHITZ in words
            assert "the average of the final models" in words or "all final models" in words
    twice = guarantee_of("public, twice")
    for words in words_of(twice):
        assert "2 runs" in words


def test_notes_given_by_a_generator_are_kept_and_others_refused():
    assert check.texts(notes=(note for note in ["assumes L = 1"])) == ("assumes L = 1",)
    for wrong in (None, "one text", [1]):
        refuses("notes must be", check.texts, notes=wrong)
