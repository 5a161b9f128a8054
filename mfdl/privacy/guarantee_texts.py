"""A guarantee as text: fields, which leave no condition out, one short sentence, and JSON.

In words numbers are rounded up. The JSON holds the fields and the numbers that follow from them, with infinity as the
text "inf"; on reading, the fields are checked for completeness. The values are checked by the constructor, the curve by
`curves.curve_from_dict`.

Curves by victim, for nodes with different budgets, are pairs of a node label and a curve, none above that of everybody.
`composed` is the guarantee of two runs seen together, with every assumption of both: `Guarantee.compose_with`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from .. import check
from ..display import rounded_up
from ..errors import InvalidInput, UnsupportedMechanism, require_known
from ..participation.by_node import in_steps
from . import gaussian
from .curves import PrivacyCurve, curve_from_dict, curve_to_dict
from .owners import Owners, nodes_in_words
from .questions import fingerprint_of_both

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .guarantee import Guarantee


EVERY_NODE = "every node"
LONGEST_SENTENCE = 40
"""Words in `sentence`."""
_CLIPPED = {"record": "the sum of clipped gradients", "user": "clipped mean gradients"}
_RELEASED = {"none": "no model", "average": "the average of the final models", "all": "all final models"}
FORMAT = 1
_FLOATS = ("clip_norm", "noise_std", "sensitivity", "tolerance")
_DERIVED = ("mu", "adjacency", "bound", "composed", "record_shift", "noise_multiplier")
"""What JSON gives beside the curve that it follows from, with the curve's method."""


def epsilon_at(guarantee: Guarantee) -> str:
    """epsilon at `stated_delta`."""
    delta = guarantee.stated_delta
    return f"epsilon = {rounded_up(guarantee.epsilon(delta), 4)} at delta = {delta:g}"


def fields(guarantee: Guarantee) -> list[tuple[str, str]]:
    """All conditions and numbers of a guarantee, by name."""
    g = guarantee
    epsilon = f"{rounded_up(g.epsilon(g.stated_delta), 4)} at delta = {g.stated_delta:g}"
    pairs = [
        ("trust model", g.trust),
        ("attacker", g.attacker),
        ("protects", _protected(g)),
        ("owners", _owners(g)),
        ("adjacency", g.adjacency),
        ("clipping", f"norm {g.clip_norm:g}" + (f" ({g.unit} shift {g.record_shift:g})" if g.mu is not None else "")),
        ("noise", _noise(g)),
        ("participation", g.participation if g.mu is not None else f"{g.participation}, sampled in secret"),
        ("released models", _RELEASED.get(g.release, "")),
        ("mu", "" if g.mu is None else rounded_up(g.mu, 6) if g.finite else "inf: no finite guarantee"),
        ("epsilon", epsilon if g.finite or g.mu is not None else "inf: no finite guarantee"),
        ("bound", _bound(g)),
        ("gradients", "adaptive or non-adaptive" if g.adaptive else "non-adaptive only"),
        ("mu by node", mu_in_words(g.victims)),
        ("runs", f"{g.composed} runs with independent noise" if g.composed > 1 and g.mu is not None else ""),
        ("assumptions", "; ".join(g.notes)),
        ("remark", g.curve.remark(g.stated_delta) if g.finite else ""),
        ("why", g.why),
        ("source", g.source),
    ]
    return [(name, text) for name, text in pairs if text]


def text(guarantee: Guarantee) -> str:
    """The fields, one a line."""
    return "\n".join(f"{name}: {value}" for name, value in fields(guarantee))


def in_common(weakest: str, texts: Mapping[str, str]) -> str:
    """What guarantees have in common, as `text` writes it: a field that differs is there once for each of its values.

    Args: weakest: the text whose mu and epsilon hold for every name; texts: of all guarantees, by name. The fields
        `noise`, which differ, are left out.

    >>> print(in_common("mu: 2\\nbound: exact", {"a": "mu: 2\\nbound: exact", "b": "mu: 1\\nbound: upper bound"}))
    mu: 2
    bound of a: exact
    bound of b: upper bound
    """
    by_name = {name: dict(line.partition(": ")[::2] for line in text.split("\n")) for name, text in texts.items()}
    by_name = {name: {**parts, **_losses(weakest)} for name, parts in by_name.items()}
    lines = []
    for field in dict.fromkeys(field for parts in by_name.values() for field in parts if field != "noise"):
        names: dict[str, list[str]] = {}
        for name, parts in by_name.items():
            if field in parts:
                names.setdefault(parts[field], []).append(name)
        shared = len(names) == 1 and len(next(iter(names.values()))) == len(texts)
        lines += [f"{field if shared else f'{field} of ' + ', '.join(have)}: {value}" for value, have in names.items()]
    return "\n".join(lines)


def _losses(weakest: str) -> dict[str, str]:
    lines = dict(line.partition(": ")[::2] for line in weakest.split("\n"))
    return {name: lines[name] for name in ("mu", "epsilon") if name in lines}


def sentence(guarantee: Guarantee) -> str:
    """The privacy loss, victim and attacker in at most `LONGEST_SENTENCE` words; `fields` has all conditions.

    Names of attackers and schemes that would make it longer are left out.
    """
    g = guarantee
    bound = "exact" if g.bound == "exact" else "upper bound" if g.bound == "upper" else g.bound
    strength = epsilon_at(g) if g.mu is None else f"mu = {rounded_up(g.mu, 6)} ({epsilon_at(g)})"
    start = f"{strength}, {bound}, for {_protected(g)}" if g.finite else f"no finite guarantee for {_protected(g)}"
    assumed = f"under {len(g.notes)} further condition{'s' * (len(g.notes) > 1)}" if g.notes else ""
    end = [
        f"{g.adjacency} adjacency, clipping norm {g.clip_norm:g}, base-noise std {g.noise_std:.4g}",
        "" if g.adaptive else "non-adaptive gradients",
        ", ".join(filter(None, (assumed, g.source))),
    ]
    short = [start, f"trust model {g.trust}", *end]
    for longer in ([start, f"against {g.attacker} ({g.trust})", *end], short):
        for parts in ([*longer, g.participation], longer):
            words = ", ".join(filter(None, parts))
            if len(words.split()) <= LONGEST_SENTENCE:
                return words
    return ", ".join(filter(None, short))  # names alone are longer: no condition is dropped for them


def figure(guarantee: Guarantee) -> Figure | None:
    """epsilon against delta; None if mu is 0, infinite or undefined."""
    from matplotlib.figure import Figure  # only where a picture is wanted

    mu = guarantee.mu
    if mu is None or not 0 < mu < math.inf:
        return None
    deltas = [10.0 ** (-k / 2) for k in range(2, 21)]
    drawn = Figure(figsize=(5, 2.8), layout="constrained")
    ax = drawn.subplots()
    ax.semilogx(deltas, [guarantee.epsilon(delta) for delta in deltas])
    ax.axvline(guarantee.stated_delta, linestyle=":", color="grey")
    ax.set(xlabel="δ", ylabel="ε", title=f"μ = {rounded_up(mu, 6)}: {epsilon_at(guarantee)}")
    return drawn


def _protected(g: Guarantee) -> str:
    victim = f"node {g.victim}" if g.victim.isdecimal() else g.victim
    if g.owners.shared and g.victim == EVERY_NODE:
        return f"a record of {victim}, also held by {g.owners.describe()}"
    if g.owners.shared:
        return f"a record held by nodes {g.victim}"
    if g.unit == "record":
        return f"a record of {victim}"
    # "all data of every node" alone could be read as those of all nodes together
    single = ", each node by itself" if g.victim == EVERY_NODE else ""
    return f"all data of {victim} (user level{single})"


def _owners(g: Guarantee) -> str:
    """Which nodes may hold one record; empty where it is one."""
    if not g.owners.shared:
        return ""
    groups = "; ".join(map(nodes_in_words, g.owners.groups)) or g.owners.describe()
    indices = " (indices)" if g.owners.groups else ""
    return f"{groups}{indices} may hold the same record, {in_steps(g.owners.same_steps)}; attackers hold none"


def _noise(g: Guarantee) -> str:
    if g.mu is None:
        return f"base noise std {g.noise_std:.6g}: multiplier {g.noise_multiplier:.6g} on {g.curve.noise_on}"
    return f"base noise std {g.noise_std:.6g} on {_CLIPPED[g.unit]}, sensitivity {rounded_up(g.sensitivity, 6)}"


def _bound(g: Guarantee) -> str:
    if not g.finite:
        return ""
    if g.mu is None:
        return g.curve.bound_in_words
    return f"{g.curve.bound_in_words} (numerical slack {g.tolerance:.1e} included)"


class Statement(Protocol):
    """The part of `Guarantee` that this file uses."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def curve(self) -> PrivacyCurve: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def owners(self) -> Owners: ...
    @property
    def stated_delta(self) -> float: ...
    def epsilon(self, delta: float) -> float: ...


def field_values(guarantee: Statement) -> dict[str, Any]:
    """The fields that are compared, as JSON values, without what follows from them."""
    given = {field.name: getattr(guarantee, field.name) for field in dataclasses.fields(guarantee) if field.compare}
    each = victims_to_json(given.pop("victims"))
    curve = curve_to_dict(given.pop("curve"))
    floats = {name: _number(given[name]) for name in _FLOATS}
    lists = {"notes": list(guarantee.notes), "victims": each, "owners": guarantee.owners.to_dict()}
    return {"format": FORMAT, "curve": curve, **given, **floats, **lists}


def derived_numbers(guarantee: Statement) -> dict[str, Any]:
    """What follows from curve and clipping."""
    numbers = {name: _number(getattr(guarantee, name)) for name in _DERIVED}
    return {**numbers, "method": guarantee.curve.method}


def to_json(guarantee: Statement) -> dict[str, Any]:
    """All that a file holds; `Guarantee.to_dict`."""
    delta = guarantee.stated_delta
    numbers = {"stated_delta": delta, "epsilon": _number(guarantee.epsilon(delta))}
    return {**field_values(guarantee), **derived_numbers(guarantee), **numbers, **guarantee.curve.facts(delta)}


def constructor_arguments(kind: type[Statement], data: Any) -> dict[str, Any]:
    """The arguments of the constructor, without `source`.

    Raises:
        InvalidInput: another format, a missing or unknown field, lists that are none.
    """
    if not isinstance(data, dict):
        raise InvalidInput(f"a guarantee must be a JSON object, got {type(data).__name__}.")
    version = data.get("format")
    if isinstance(version, bool) or version != FORMAT:
        raise InvalidInput(f"format of a guarantee must be {FORMAT}, got {version!r}.")
    names = [field.name for field in dataclasses.fields(kind) if field.name != "source"]
    beside = (*_DERIVED, "method")
    missing = [name for name in (*names, *beside) if name not in data]
    known = {"format", "epsilon", "tight_for_equal_bins", *names, *beside}
    unknown = [str(name) for name in data if name not in known]
    if missing or unknown:
        raise InvalidInput(
            "a guarantee file must have exactly the fields of Guarantee; "
            f"missing: {', '.join(missing) or 'none'}, unknown: {', '.join(unknown) or 'none'}."
        )
    given = {name: data[name] for name in names}
    for name in ("notes", "victims"):
        if not isinstance(given[name], list | tuple):
            raise InvalidInput(f"{name} must be a list, got {given[name]!r}.")
    read = {
        "curve": curve_from_dict(given["curve"]),
        "victims": victims_from_json(given["victims"]),
        "notes": tuple(given["notes"]),
        "owners": Owners.from_dict(given["owners"]),
        **{name: math.inf if given[name] == "inf" else given[name] for name in _FLOATS},
    }
    return {**given, **read}


def require_derived(guarantee: Statement, data: Mapping[str, Any]) -> None:
    """Refuses numbers that do not follow from the curve, as in a file that was edited by hand."""
    for name, value in derived_numbers(guarantee).items():
        if data[name] != value:
            raise InvalidInput(
                f"{name} must be {value!r}, as the curve says, got {data[name]!r}; edit the curve, or account anew."
            )


def of_file(path: Path) -> Any:
    """The JSON value of a file. Raises: InvalidInput: it cannot be read, or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InvalidInput(f"cannot read {str(path)!r}: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise InvalidInput(f"{str(path)!r} is not a JSON file; it should be one written by Guarantee.save.") from None


def _number(value: Any) -> Any:
    return "inf" if value == math.inf else value


SAME = ("trust", "adjacency", "clip_norm", "unit", "victim", "attacker", "owners")
"""Fields in which both runs must agree."""


def composed(this: Guarantee, other: Guarantee, *, bins: str) -> Guarantee:
    """Both runs; arguments and refusals as for `Guarantee.compose_with`."""
    _require_composable(this, other, bins)
    fingerprint = fingerprint_of_both(this, other)
    curve = this.curve.composed_with(other.curve)
    noise_std, sensitivity = _weakest_noise(this, other)
    if curve.bound == "exact" and this.victim == EVERY_NODE:
        curve = dataclasses.replace(curve, bound="upper")  # type: ignore[call-arg]
    both_runs = type(this)(
        curve=curve,
        trust=this.trust,
        clip_norm=this.clip_norm,
        participation=_participation_of_both(this, other),
        victim=this.victim,
        attacker=this.attacker,
        adaptive=True,
        noise_std=noise_std,
        sensitivity=sensitivity,
        release=this.release if this.mu is None or other.mu is not None else other.release,
        tolerance=max(this.tolerance, other.tolerance),
        lipschitz=min((x for x in (this.lipschitz, other.lipschitz) if x is not None), default=None),
        unit=this.unit,
        victims=_composed_victims(this, other),
        owners=this.owners,
        stated_delta=this.stated_delta,
        **_conditions_of_both(this, other),
    )
    return both_runs.sealed(fingerprint) if fingerprint else both_runs


def _require_composable(this: Guarantee, other: Guarantee, bins: str) -> None:
    if not isinstance(other, type(this)):
        raise InvalidInput(f"other must be a Guarantee, got {type(other).__name__}.")
    require_known("bins", bins, ("fresh", "shared"))
    if bins == "shared":
        raise UnsupportedMechanism(
            "runs that share their bins do not compose, because each run reveals bins of the other; "
            "sample new bins (one key per run), or account for one run of all steps, whose M is the sum "
            "of both."
        )
    for which, guarantee in (("this", this), ("the other", other)):
        if not guarantee.adaptive:
            raise InvalidInput(
                f"only adaptive guarantees compose, and {which} one is for non-adaptive gradients; "
                "use the adaptive number of that mechanism."
            )
    released = () if this.mu is None or other.mu is None else ("release",)  # secret sampling: all messages seen
    for name in (*SAME, *released):
        mine, theirs = getattr(this, name), getattr(other, name)
        if mine != theirs:
            raise InvalidInput(f"guarantees compose only for the same {name}, got {mine!r} and {theirs!r}.")


def _weakest_noise(this: Guarantee, other: Guarantee) -> tuple[float, float]:
    """noise_std and sensitivity of both together."""
    if this.mu is not None and other.mu is not None:
        noise_std = min(this.noise_std, other.noise_std)
        parts = [_sensitivity_at(this, noise_std), _sensitivity_at(other, noise_std)]
        return noise_std, gaussian.compose(parts)
    sampled = [each for each in (this, other) if each.mu is None]
    weakest = min(sampled, key=lambda each: each.noise_multiplier)  # bound
    return weakest.noise_std, weakest.sensitivity


def _sensitivity_at(this: Guarantee, noise_std: float) -> float:
    """The sensitivity in units of noise of another, not larger, standard deviation."""
    if noise_std == this.noise_std:
        return this.sensitivity
    return 0.0 if noise_std == 0 else this.sensitivity * (noise_std / this.noise_std)


def _conditions_of_both(this: Guarantee, other: Guarantee) -> dict[str, Any]:
    """The conditions, reasons and origins of two runs seen together: all that either rests on."""
    sources = [text for each in (this, other) for text in each.source.split("; ") if text]
    return {
        "notes": tuple(dict.fromkeys(this.notes + other.notes)),
        "why": " ".join(dict.fromkeys(filter(None, (this.why, other.why)))),
        "source": "; ".join(dict.fromkeys(sources)),
    }


def _composed_victims(this: Guarantee, other: Guarantee) -> Victims:
    """The curve of each victim over both runs; where one says nothing of a victim, what it says of everybody."""
    if this.mu is None or other.mu is None:
        return ()
    mine, theirs = dict(this.victims), dict(other.victims)
    labels = list(dict.fromkeys([*mine, *theirs]))
    return tuple((u, mine.get(u, this.curve).composed_with(theirs.get(u, other.curve))) for u in labels)


def _participation_of_both(this: Guarantee, other: Guarantee) -> str:
    """Both in words, in their order; with secret sampling beside it, what public ones released."""
    if this.participation == other.participation and this.mu is not None and other.mu is not None:
        return this.participation
    mixed = (this.mu is None) != (other.mu is None)
    parts = [
        f"{each.participation} (public batches; released models: {each.release})"
        if mixed and each.mu is not None
        else each.participation
        for each in (this, other)
    ]
    return ", then ".join(parts)


Victims = tuple[tuple[str, PrivacyCurve], ...]

NAMED = 5
"""Nodes of one budget that a field names; `Guarantee.victims` has them all."""
ROUNDING = 1e-12  # relative: a caller may have multiplied in another order


def checked_victims(given: Any, worst: PrivacyCurve) -> Victims:
    """Pairs (label, curve). Raises: InvalidInput: others, a label twice, one above that of everybody."""
    pairs = _pairs(given, lambda curve: curve)
    labels = {label for label, _ in pairs if isinstance(label, str)}
    if len(labels) != len(pairs):
        raise InvalidInput("victims must name each victim once, by a text.")
    for _, curve in pairs:
        check.instance(PrivacyCurve, victims=curve)
        if worst.mu is None or curve.mu is None or not curve.mu <= worst.mu * (1 + ROUNDING):
            raise InvalidInput(f"victims must have Gaussian curves with mu from 0 to {worst.mu!r}, the largest.")
    return pairs


def mu_in_words(victims: Victims) -> str:
    """The mu of each victim, those of one budget together."""
    labels_of: dict[str, list[str]] = {}
    for label, curve in victims:
        labels_of.setdefault(rounded_up(curve.mu, 6) if curve.mu is not None else "?", []).append(label)
    budgets = []
    for budget, labels in sorted(labels_of.items(), key=lambda pair: float(pair[0])):  # exact: as printed
        more = f" and {len(labels) - NAMED} more" if len(labels) > NAMED else ""
        budgets.append(f"{budget} for {'node' if len(labels) == 1 else 'nodes'} {', '.join(labels[:NAMED])}{more}")
    more = f"; and {len(budgets) - NAMED} further budgets" if len(budgets) > NAMED else ""
    return "; ".join(budgets[:NAMED]) + more


def victims_to_json(victims: Victims) -> list[list[Any]]:
    """A list of label and curve for each victim."""
    return [[label, curve_to_dict(curve)] for label, curve in victims]


def victims_from_json(given: Any) -> Victims:
    """The inverse of `victims_to_json`. Raises: InvalidInput: other JSON."""
    return _pairs(given, curve_from_dict)


def _pairs(given: Any, curve_of: Callable[[Any], PrivacyCurve]) -> Victims:
    try:
        return tuple((label, curve_of(curve)) for label, curve in given)
    except (TypeError, ValueError):
        raise InvalidInput(f"victims must be pairs of a label and its curve, got {check.brief(given)}.") from None
