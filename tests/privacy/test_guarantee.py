"""A Guarantee says everything it depends on, refuses contradictions, composes only what composes, and
survives a file unchanged."""

import decimal
import itertools
import json
import math

import pytest
from vocabulary import each, given, refuses, st

from mfdl import Guarantee, InvalidInput
from mfdl.display import rounded_up
from mfdl.privacy import Gaussian, gaussian
from mfdl.privacy.guarantee import RELEASES
from mfdl.privacy.guarantee_texts import EVERY_NODE, LONGEST_SENTENCE
from mfdl.privacy.questions import UNITS
from mfdl.testing import exact_delta

INF = math.inf
BOUNDS = ("exact", "upper")
OF_CURVE = {"mu": 0.719, "adjacency": "replace-one", "bound": "exact", "runs": 1}


def make(**changes):
    fields = {
        "trust": "secldp", "clip_norm": 1.0, "participation": "every step", "victim": "node 5", "attacker": "node 3",
        "adaptive": True, "noise_std": 4.0, "sensitivity": 1.4, "tolerance": 1e-9, "release": "none",
    }  # fmt: skip
    curve = Gaussian(**{name: changes.pop(name, usual) for name, usual in OF_CURVE.items()})
    return Guarantee(curve, **{**fields, **changes})


def edited(data, **changes):
    """A file with other fields, those of the curve in both places."""
    curve = {name: changes.pop(name) for name in OF_CURVE if name in changes}
    beside = {"composed" if name == "runs" else name: value for name, value in curve.items()}
    return {**data, **changes, **beside, "curve": {**data["curve"], **curve}}


texts = st.text(min_size=1).map(lambda text: text + "!")  # "!": not only blanks
sizes = st.floats(1e-3, 1e3)


@st.composite
def guarantees(draw):
    adjacency, clip_norm = draw(st.sampled_from(gaussian.ADJACENCIES)), draw(sizes)
    shift = gaussian.record_shift(adjacency, clip_norm)
    sensitivity = draw(st.one_of(sizes, st.just(0.0), st.just(INF)))
    std = draw(st.one_of(sizes, st.just(0.0)))
    return make(
        mu=gaussian.mu_from_noise_std(sensitivity, shift, std) * draw(st.floats(1.0, 2.0)), trust=draw(texts),
        adjacency=adjacency, clip_norm=clip_norm, participation=draw(texts), victim=draw(texts), attacker=draw(texts),
        adaptive=draw(st.booleans()), bound=draw(st.sampled_from(BOUNDS)), noise_std=std, sensitivity=sensitivity,
        tolerance=draw(st.floats(0.0, 1e-3)), release=draw(st.sampled_from(RELEASES)),
        notes=tuple(draw(st.lists(texts, max_size=3))), runs=draw(st.integers(1, 5)),
        unit=draw(st.sampled_from(UNITS)),
    )  # fmt: skip


@given(st.floats(1e-3, 50.0), st.floats(1e-12, 0.5))
def test_epsilon_and_delta_are_those_of_mu_and_safe(mu, delta):
    guarantee = make(mu=mu, sensitivity=0.0)
    epsilon = guarantee.epsilon(delta)
    assert epsilon == gaussian.epsilon_from_mu(mu, delta)
    assert exact_delta(mu, epsilon) <= delta
    assert guarantee.delta(epsilon) == gaussian.delta_from_mu(mu, epsilon)
    assert guarantee.renyi_epsilon(3.0) == gaussian.renyi_epsilon(mu, 3.0)


def test_no_noise_is_no_guarantee_and_no_shift_is_no_loss():
    nothing = make(mu=INF, noise_std=0.0)
    assert (nothing.epsilon(1e-5), nothing.delta(3.0), nothing.renyi_epsilon(2.0)) == (INF, 1.0, INF)
    perfect = make(mu=0.0, sensitivity=0.0, noise_std=0.0)
    assert (perfect.epsilon(0.0), perfect.delta(0.0), perfect.renyi_epsilon(2.0)) == (0.0, 0.0, 0.0)


def test_a_single_run_never_states_a_mu_below_its_sensitivity_and_noise():
    least = gaussian.mu_from_noise_std(1.4, 2.0, 4.0)
    assert make(mu=least * (1 - 1e-13)).mu == least  # another order of multiplication is rounded up
    with pytest.raises(InvalidInput, match=r"^mu must be at least .* = 0\.7.*, got 0\.35\.$"):
        make(mu=0.35)  # the factor 2 of replace-one, lost
    assert make(mu=0.35, runs=2).mu == 0.35  # noise_std is one of several then


def test_whose_data_are_protected():
    user = make(unit="user")
    assert dict(user.fields())["protects"] == "all data of node 5 (user level)"
    assert dict(user.fields())["noise"].startswith("base noise std 4 on clipped mean gradients")
    assert dict(user.fields())["clipping"] == "norm 1 (user shift 2)"
    everyone = make(unit="user", victim=EVERY_NODE)  # not the data of all nodes together
    for words in (everyone.sentence(), str(everyone)):
        assert "all data of every node (user level, each node by itself)" in words
    assert "for a record of every node" in make(victim=EVERY_NODE).sentence()


@given(guarantees())
def test_the_fields_name_every_condition(guarantee):
    fields = dict(guarantee.fields())
    assert str(guarantee) == "\n".join(f"{name}: {value}" for name, value in guarantee.fields())
    for name in ("adjacency", "participation", "attacker"):
        assert fields[name] == getattr(guarantee, name)
    assert fields["trust model"] == guarantee.trust
    assert all(note in fields["assumptions"] for note in guarantee.notes)
    assert fields["gradients"].startswith("adaptive" if guarantee.adaptive else "non-adaptive only")
    if guarantee.mu == INF:
        assert fields["mu"] == "inf: no finite guarantee"
        assert "bound" not in fields
    else:
        assert fields["bound"].startswith("exact" if guarantee.bound == "exact" else "upper bound")
    assert ("runs" in fields) == (guarantee.composed > 1)
    assert ("released models" in fields) == (guarantee.release != "not applicable")
    user = "all data of" if guarantee.unit == "user" else "a record of"
    assert fields["protects"].startswith(f"{user} {guarantee.victim}")


@given(guarantees())
def test_the_sentence_is_short_and_says_who_is_protected_and_how_well(guarantee):
    sentence = guarantee.sentence()
    for part in (guarantee.trust, guarantee.victim, guarantee.adjacency):
        assert part in sentence
    long_names = len(f"{guarantee.trust} {guarantee.victim}".split()) > 8
    assert len(sentence.split()) <= LONGEST_SENTENCE or long_names
    assert ("no finite guarantee" in sentence) == (guarantee.mu == INF)
    assert ("non-adaptive gradients" in sentence) == (not guarantee.adaptive)
    assert ("further condition" in sentence) == bool(guarantee.notes)
    if guarantee.mu != INF:
        assert (", exact," in sentence) == (guarantee.bound == "exact")
        assert (", upper bound," in sentence) == (guarantee.bound == "upper")


def test_long_names_push_no_condition_out_of_the_sentence():
    long = make(adaptive=False, victim="node " * 50 + "5", trust="mine " * 50 + "alone", notes=("the graph is public",))
    assert "non-adaptive gradients, under 1 further condition" in long.sentence()


@given(st.floats(1e-6, 1e6))
def test_no_smaller_mu_is_printed(mu):
    printed = float(dict(make(mu=mu, sensitivity=0.0).fields())["mu"])
    # six digits, rounded up: at most one unit of the sixth, and none for what rounding adds
    assert mu * (1 - 1.001e-12) <= printed <= mu * (1 + 1.1e-5)


@given(st.decimals(1, 10, places=5), st.integers(-6, 6), st.floats(0, 9e-13), st.sampled_from([3, 4, 6]))
def test_rounding_in_float64_costs_no_digit(digits, power, more, few):
    """1 + 1e-15 is 1 and not 1.00001, wherever mu is written; what is more than rounding is rounded up."""
    value = float(digits.scaleb(power))
    for number in (value, value * (1 + more)):
        assert float(rounded_up(number, 6)) == value
        assert value * (1 - 1.001e-12) <= float(rounded_up(number, few)) <= value * (1 + 1.01 * 10.0 ** (1 - few))
    assert float(rounded_up(value * (1 + 1e-10), 6)) > value * (1 + 1e-10)
    with decimal.localcontext(prec=3):  # digits that the caller computes with decide nothing
        assert float(rounded_up(value * (1 + 1e-10), 6)) > value * (1 + 1e-10)
    guarantee = make(mu=value * (1 + more), sensitivity=0.0)
    assert dict(guarantee.fields())["mu"] == rounded_up(value, 6)
    for words in (guarantee.sentence(), repr(guarantee)):
        assert float(words.split("mu = ")[1].split(" ")[0]) == value


@given(st.floats(1e-3, 10.0), st.floats(1e-3, 10.0), st.floats(0.5, 8.0), st.floats(0.5, 8.0))
def test_mu_squared_adds_and_the_unit_of_noise_is_kept_straight(first, second, std_1, std_2):
    pairs = ((first, std_1), (second, std_2))
    runs = [make(mu=mu, sensitivity=mu * std / 2.0 * (1 - 1e-14), noise_std=std) for mu, std in pairs]
    both = runs[0].compose_with(runs[1])
    assert both.mu == gaussian.compose([first, second])
    assert both.mu == pytest.approx(math.hypot(first, second), rel=1e-15)  # at most one float apart
    assert both.noise_std == min(std_1, std_2)
    # A dozen roundings and the 1e-14 above.
    assert both.sensitivity * both.record_shift / both.noise_std == pytest.approx(both.mu, rel=1e-13)
    assert (both.composed, both.bound, both.adaptive) == (2, "exact", True)
    assert both.mu == runs[1].compose_with(runs[0]).mu


def test_composition_keeps_conditions_and_counts_runs():
    first = make(notes=("a", "b"), tolerance=1e-6)
    second = make(notes=("b", "c"), participation="once per epoch", bound="upper")
    both = first.compose_with(second)
    assert (both.notes, both.participation) == (("a", "b", "c"), "every step, then once per epoch")
    assert both.bound == "upper"
    assert both.tolerance == second.compose_with(first).tolerance == 1e-6
    three = both.compose_with(make())
    assert three.composed == 3
    assert "runs: 3 runs with independent noise" in str(three)


def test_the_worst_nodes_of_two_runs_may_differ_so_their_composition_is_an_upper_bound():
    assert make().compose_with(make()).bound == "exact"
    everyone = make(victim=EVERY_NODE)
    assert everyone.compose_with(everyone).bound == "upper"


def test_composing_with_no_privacy_is_no_privacy():
    nothing = make(mu=INF, noise_std=0.0, sensitivity=1.0)
    for pair in itertools.permutations([nothing, make()]):
        both = pair[0].compose_with(pair[1])
        assert (both.mu, both.noise_std, both.sensitivity) == (INF, 0.0, 1.0)


def test_numbers_for_gradients_fixed_in_advance_are_never_composed():
    fixed = make(adaptive=False)
    refuses("only adaptive guarantees compose, and this", lambda: fixed.compose_with(make()))
    refuses("only adaptive guarantees compose", lambda: make().compose_with(fixed))


@each(
    "name, changes",
    ("trust", {"trust": "ldp"}), ("adjacency", {"adjacency": "zero-out", "sensitivity": 0.0}),
    ("clip_norm", {"clip_norm": 0.5}), ("victim", {"victim": EVERY_NODE}), ("attacker", {"attacker": "node 4"}),
    ("release", {"release": "all"}), ("unit", {"unit": "user"}),
)  # fmt: skip
def test_only_the_same_statement_composes(name, changes):
    refuses(f"^guarantees compose only for the same {name}, got ", lambda: make().compose_with(make(**changes)))


def test_composing_with_something_else_is_refused():
    refuses(r"^other must be a Guarantee, got float", lambda: make().compose_with(0.5))


@given(guarantees())
def test_a_dictionary_of_json_values_and_back(guarantee):
    data = guarantee.to_dict()
    assert data["format"] == 1
    text = json.dumps(data, allow_nan=False)  # allow_nan: infinity must have become a text
    assert Guarantee.from_dict(json.loads(text)) == guarantee


def test_numbers_beside_the_curve_are_those_of_the_curve():
    data = make().to_dict()
    wrong = {"mu": 0.1, "adjacency": "zero-out", "bound": "upper", "record_shift": 1.0, "composed": 2}
    for name, value in wrong.items():
        refuses(f"^{name} must be .*, as the curve says, got", Guarantee.from_dict, {**data, name: value})


def test_infinity_is_the_text_inf():
    data = make(mu=INF, sensitivity=INF).to_dict()
    assert (data["mu"], data["sensitivity"]) == ("inf", "inf")
    assert Guarantee.from_dict(data).mu == INF


def test_save_and_load_replace_the_whole_file(tmp_path):
    path = tmp_path / "guarantee.json"
    first, second = make(), make(mu=INF, noise_std=0.0, notes=("µ is infinite \ud800",))
    first.save(path)
    assert Guarantee.load(path) == first
    second.save(str(path))
    assert Guarantee.load(str(path)) == second
    assert [entry.name for entry in tmp_path.iterdir()] == ["guarantee.json"]


@each(
    "text, message",
    ("", "is not a JSON file"), ('{"format": 1, "mu"', "is not a JSON file"), ("[" * 100_000, "is not a JSON file"),
    ("\ufffe\x00", "is not a JSON file"), ("[1, 2]", "a guarantee must be a JSON object, got list"),
    ("{}", "format of a guarantee must be 1, got None"), ('{"format": 2}', "format of a guarantee must be 1, got 2"),
    ('{"format": true}', "format of a guarantee must be 1, got True"),
    ('{"format": 1}', "missing: curve, trust, .*unknown: none"),
)  # fmt: skip
def test_malformed_files_are_refused_with_the_path(tmp_path, text, message):
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="utf-8")
    refuses(f"bad.json'.*{message}", Guarantee.load, path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    refuses(r"cannot read .*missing.json': No such file", Guarantee.load, tmp_path / "missing.json")
    refuses(r"cannot read .*: Is a directory", Guarantee.load, tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x80")
    refuses("binary' is not a JSON file", Guarantee.load, tmp_path / "binary")


@each(
    "changes, message",
    ({"mu": math.nan}, "^mu must be .* got nan"), ({"mu": -INF}, "^mu must be .* got -inf"),
    ({"mu": "0.7"}, r"^mu must be .* got '0\.7'"),
    ({"mu": 10**400}, "^a guarantee has a number that is too large|^mu must be"),
    ({"sensitivity": -1.0}, "^sensitivity must be"), ({"noise_std": "inf"}, "^noise_std must be .* got inf"),
    ({"tolerance": None}, "^tolerance must be .* got None"), ({"trust": " "}, "^trust must be a non-empty text"),
    ({"victim": 5}, "^victim must be a non-empty text, got 5"),
    ({"adjacency": "replace"}, "^unknown adjacency 'replace'; did you mean 'replace-one'"),
    ({"adjacency": ["replace-one"]}, "^unknown adjacency"),
    ({"clip_norm": 0.0}, "^clip_norm must be a finite number > 0"),
    ({"adaptive": "false"}, "^adaptive must be True or False, got 'false'"),
    ({"adaptive": 1}, "^adaptive must be True or False, got 1"), ({"bound": "lower"}, "^unknown bound 'lower'"),
    ({"release": "some"}, "^release must be one of none, average, all, not applicable, got 'some'"),
    ({"unit": "node"}, "^unit must be one of record, user, got 'node'"),
    ({"unit": None}, "^unit must be one of record, user, got None"),
    ({"notes": "text"}, "^notes must be a list, got 'text'"), ({"notes": [1]}, "^notes must be a list of texts"),
    ({"runs": 0}, "^runs must be an integer >= 1, got 0"), ({"runs": 1.5}, "^runs must be an integer >= 1, got 1.5"),
    ({"colour": "red"}, "missing: none, unknown: colour"),
)  # fmt: skip
def test_fields_of_a_file_are_checked_as_in_the_constructor(changes, message):
    refuses(message, lambda: Guarantee.from_dict(edited(make().to_dict(), **changes)))


def test_notes_as_one_text_are_refused():
    refuses(r"^notes must be a list of texts, got 'text'", make, notes="text")


def test_unnamed_trust_models_do_not_compose():
    refuses("unnamed trust models cannot be composed", lambda: make(trust="custom").compose_with(make(trust="custom")))
