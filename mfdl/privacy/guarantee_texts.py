"""A guarantee as numbers and text: fields, which leave no condition out, one short sentence, and JSON.

In words numbers are rounded up. The JSON holds the fields and the numbers that follow from them, with infinity as the
text "inf".
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import check
from ..display import Shown, rounded_up
from ..errors import InvalidInput
from ..participation.by_node import in_steps
from . import gaussian
from .curves import PrivacyCurve, curve_from_dict, curve_to_dict
from .owners import Owners, nodes_in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Victims = tuple[tuple[str, PrivacyCurve], ...]
DELTA = 1e-6  # at which words give epsilon, where no target named another
EVERY_NODE = "every node"
LONGEST_SENTENCE = 40  # words in `Statement.sentence`
_CLIPPED = {"record": "the sum of clipped gradients", "user": "clipped mean gradients"}
_RELEASED = {"none": "no model", "average": "the average of the final models", "all": "all final models"}
FORMAT = 1
_FLOATS = ("clip_norm", "noise_std", "sensitivity", "tolerance")
_DERIVED = ("mu", "adjacency", "bound", "composed", "record_shift", "noise_multiplier")
"""What JSON gives beside the curve that it follows from, with the curve's method."""
NAMED = 5  # nodes of one budget that a field names; `Guarantee.victims` has them all
ROUNDING = 1e-12  # relative: a caller may have multiplied in another order


@dataclasses.dataclass(frozen=True, repr=False)
class Statement(Shown):
    """The fields of a `Guarantee`, and the numbers and words that follow from them."""

    curve: PrivacyCurve
    trust: str
    clip_norm: float
    participation: str
    victim: str
    attacker: str
    adaptive: bool
    noise_std: float
    sensitivity: float
    release: str
    tolerance: float = 0.0
    notes: tuple[str, ...] = ()
    lipschitz: float | None = None
    unit: str = "record"
    why: str = ""
    fingerprint: str = ""
    seal: str = ""
    victims: Victims = ()
    owners: Owners = dataclasses.field(default_factory=Owners)
    source: str = dataclasses.field(default="", compare=False)
    stated_delta: float = dataclasses.field(default=DELTA, compare=False)

    @property
    def mu(self) -> float | None:
        """Gaussian DP parameter, >= 0; inf when there is no guarantee; None where the curve is not Gaussian."""
        return self.curve.mu

    @property
    def adjacency(self) -> str:
        return self.curve.adjacency

    @property
    def record_shift(self) -> float:
        return gaussian.record_shift(self.adjacency, self.clip_norm)

    @property
    def bound(self) -> str:
        """ "exact", "upper", or "monte-carlo", upper but for a stated probability over samples."""
        return self.curve.bound

    @property
    def composed(self) -> int:
        return self.curve.runs

    @property
    def noise_multiplier(self) -> float:
        return self.curve.noise_multiplier

    @property
    def finite(self) -> bool:
        """Whether anything is guaranteed: every run has noise that the attacker does not know."""
        return math.isfinite(self.curve.public_mu)

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon at this delta, rounded up."""
        return self.curve.epsilon(delta)

    def delta(self, epsilon: float) -> float:
        """Smallest delta at this epsilon, rounded up."""
        return self.curve.delta(epsilon)

    def renyi_epsilon(self, order: float) -> float:
        """Rényi divergence of this order >= 1, an upper bound in both directions; with Poisson sampling exact at
        integer orders (zero-out and add-remove), with other secret sampling that of public batches.
        """
        orders = np.array([check.positive(order=order)])
        if order < 1:
            raise InvalidInput(f"order must be a finite number >= 1, got {order!r}.")
        return float(self.curve.renyi_divergences(orders)[0])

    def advantage(self) -> float:
        """The largest difference of the true and the false positive rate of an attacker: delta at epsilon = 0.

        The attacker decides which of two adjacent data sets was used. For mu it is 2 Phi(mu / 2) - 1, rounded up.
        """
        return self.delta(0.0)

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """The largest true positive rate of that attacker at a false positive rate in (0, 1), rounded up.

        For mu it is Phi(Phi^-1(false positive rate) + mu). Cost: some thirty times that of `delta`.
        """
        return self.curve.true_positive_rate(false_positive_rate)

    @property
    def epsilon_in_words(self) -> str:
        return f"epsilon = {rounded_up(self.epsilon(self.stated_delta), 4)} at delta = {self.stated_delta:g}"

    def fields(self) -> list[tuple[str, str]]:
        g = self
        epsilon = g.epsilon_in_words.removeprefix("epsilon = ")
        shift = f" ({g.unit} shift {g.record_shift:g})" if g.mu is not None else ""
        pairs = [
            ("trust model", g.trust),
            ("attacker", g.attacker),
            ("protects", g._protected()),
            ("owners", g._owners_in_words()),
            ("adjacency", g.adjacency),
            ("clipping", f"norm {g.clip_norm:g}{shift}"),
            ("noise", g._noise()),
            ("participation", g.participation if g.mu is not None else f"{g.participation}, sampled in secret"),
            ("released models", _RELEASED.get(g.release, "")),
            ("mu", "" if g.mu is None else rounded_up(g.mu, 6) if g.finite else "inf: no finite guarantee"),
            ("epsilon", epsilon if g.finite or g.mu is not None else "inf: no finite guarantee"),
            ("bound", g._bound_in_words()),
            ("gradients", "adaptive or non-adaptive" if g.adaptive else "non-adaptive only"),
            ("mu by node", mu_in_words(g.victims)),
            ("runs", f"{g.composed} runs with independent noise" if g.composed > 1 and g.mu is not None else ""),
            ("assumptions", "; ".join(g.notes)),
            ("remark", g.curve.remark(g.stated_delta) if g.finite else ""),
            ("why", g.why),
            ("source", g.source),
        ]
        return [(name, text) for name, text in pairs if text]

    def sentence(self) -> str:
        """Loss, victim and attacker in at most `LONGEST_SENTENCE` words; `fields`, and `print`, have all conditions."""
        g, protected = self, self._protected()
        bound = {"upper": "upper bound"}.get(g.bound, g.bound)
        strength = g.epsilon_in_words if g.mu is None else f"mu = {rounded_up(g.mu, 6)} ({g.epsilon_in_words})"
        start = f"{strength}, {bound}, for {protected}" if g.finite else f"no finite guarantee for {protected}"
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

    def __str__(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in self.fields())

    def _sentence(self) -> str:
        return self.sentence()

    def _rows(self) -> list[tuple[str, str]]:
        return self.fields()

    def _figure(self) -> Figure | None:
        from matplotlib.figure import Figure  # only where a picture is wanted

        mu = self.mu
        if mu is None or not 0 < mu < math.inf:
            return None
        deltas = [10.0 ** (-k / 2) for k in range(2, 21)]
        drawn = Figure(figsize=(5, 2.8), layout="constrained")
        ax = drawn.subplots()
        ax.semilogx(deltas, [self.epsilon(delta) for delta in deltas])
        ax.axvline(self.stated_delta, linestyle=":", color="grey")
        ax.set(xlabel="δ", ylabel="ε", title=f"μ = {rounded_up(mu, 6)}: {self.epsilon_in_words}")
        return drawn

    def _protected(self) -> str:
        victim = f"node {self.victim}" if self.victim.isdecimal() else self.victim
        if self.owners.shared and self.victim == EVERY_NODE:
            return f"a record of {victim}, also held by {self.owners.describe()}"
        if self.owners.shared:
            return f"a record held by nodes {self.victim}"
        if self.unit == "record":
            return f"a record of {victim}"
        # "all data of every node" alone could be read as those of all nodes together
        single = ", each node by itself" if self.victim == EVERY_NODE else ""
        return f"all data of {victim} (user level{single})"

    def _owners_in_words(self) -> str:
        if not self.owners.shared:
            return ""
        groups = "; ".join(map(nodes_in_words, self.owners.groups)) or self.owners.describe()
        indices = " (indices)" if self.owners.groups else ""
        return f"{groups}{indices} may hold the same record, {in_steps(self.owners.same_steps)}; attackers hold none"

    def _noise(self) -> str:
        if self.mu is None:
            multiplier = f"multiplier {self.noise_multiplier:.6g} on {self.curve.noise_on}"
            return f"base noise std {self.noise_std:.6g}: {multiplier}"
        sensitivity = f"sensitivity {rounded_up(self.sensitivity, 6)}"
        return f"base noise std {self.noise_std:.6g} on {_CLIPPED[self.unit]}, {sensitivity}"

    def _bound_in_words(self) -> str:
        if not self.finite:
            return ""
        slack = f" (numerical slack {self.tolerance:.1e} included)" if self.mu is not None else ""
        return f"{self.curve.bound_in_words}{slack}"

    def to_dict(self) -> dict[str, Any]:
        """JSON values of one shape for every participation; infinity is the text "inf".

        `curve` is what everything follows from; `epsilon` is the curve at `stated_delta`; mu is null where none exists.
        """
        delta = self.stated_delta
        numbers = {"stated_delta": delta, "epsilon": _number(self.epsilon(delta))}
        return {**self._field_values(), **self._derived_numbers(), **numbers, **self.curve.facts(delta)}

    def _field_values(self) -> dict[str, Any]:
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.compare}
        each = [[label, curve_to_dict(curve)] for label, curve in given.pop("victims")]
        curve = curve_to_dict(given.pop("curve"))
        floats = {name: _number(given[name]) for name in _FLOATS}
        lists = {"notes": list(self.notes), "victims": each, "owners": self.owners.to_dict()}
        return {"format": FORMAT, "curve": curve, **given, **floats, **lists}

    def _derived_numbers(self) -> dict[str, Any]:
        return {**{name: _number(getattr(self, name)) for name in _DERIVED}, "method": self.curve.method}

    def _require_derived(self, data: Mapping[str, Any]) -> None:
        for name, value in self._derived_numbers().items():
            if data[name] != value:
                raise InvalidInput(
                    f"{name} must be {value!r}, as the curve says, got {data[name]!r}; edit the curve, or account anew."
                )


def in_common(weakest: str, texts: Mapping[str, str]) -> str:
    r"""The common fields of guarantees, one a line: a field that differs is there once for each of its values.

    Args: weakest: the text whose mu and epsilon hold for every name; texts: by name. The fields `noise` are left out.

    >>> print(in_common("mu: 2\nbound: exact", {"a": "mu: 2\nbound: exact", "b": "mu: 1\nbound: upper bound"}))
    mu: 2
    bound of a: exact
    bound of b: upper bound
    """
    by_name = {name: _fields_in(text) for name, text in texts.items()}
    losses = {name: value for name, value in _fields_in(weakest).items() if name in ("mu", "epsilon")}
    by_name = {name: {**parts, **losses} for name, parts in by_name.items()}
    lines = []
    for field in dict.fromkeys(field for parts in by_name.values() for field in parts if field != "noise"):
        names: dict[str, list[str]] = {}
        for name, parts in by_name.items():
            if field in parts:
                names.setdefault(parts[field], []).append(name)
        shared = len(names) == 1 and len(next(iter(names.values()))) == len(texts)
        lines += [f"{field if shared else f'{field} of ' + ', '.join(have)}: {value}" for value, have in names.items()]
    return "\n".join(lines)


def _fields_in(text: str) -> dict[str, str]:
    return dict(line.partition(": ")[::2] for line in text.split("\n"))


def constructor_arguments(kind: type[Statement], data: Any) -> dict[str, Any]:
    """The arguments of the constructor, without `source`, from a JSON object.

    Raises: InvalidInput: another format, a missing or unknown field, lists that are none.
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
        "victims": _pairs(given["victims"], curve_from_dict),
        "notes": tuple(given["notes"]),
        "owners": Owners.from_dict(given["owners"]),
        **{name: math.inf if given[name] == "inf" else given[name] for name in _FLOATS},
    }
    return {**given, **read}


def read_json(path: Path) -> Any:
    """The JSON value of a file. Raises: InvalidInput: it cannot be read, or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InvalidInput(f"cannot read {str(path)!r}: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise InvalidInput(f"{str(path)!r} is not a JSON file; it should be one written by Guarantee.save.") from None


def _number(value: Any) -> Any:
    return "inf" if value == math.inf else value


def checked_victims(given: Any, worst: PrivacyCurve) -> Victims:
    """Pairs (label, curve). Raises: InvalidInput: others, a label twice, one above that of all nodes."""
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
    labels_by_mu: dict[str, list[str]] = {}
    for label, curve in victims:
        labels_by_mu.setdefault(rounded_up(curve.mu, 6) if curve.mu is not None else "?", []).append(label)
    budgets = []
    for budget, labels in sorted(labels_by_mu.items(), key=lambda pair: float(pair[0])):  # exact: as printed
        more = f" and {len(labels) - NAMED} more" if len(labels) > NAMED else ""
        budgets.append(f"{budget} for {'node' if len(labels) == 1 else 'nodes'} {', '.join(labels[:NAMED])}{more}")
    more = f"; and {len(budgets) - NAMED} further budgets" if len(budgets) > NAMED else ""
    return "; ".join(budgets[:NAMED]) + more


def _pairs(given: Any, as_curve: Callable[[Any], PrivacyCurve]) -> Victims:
    try:
        return tuple((label, as_curve(curve)) for label, curve in given)
    except (TypeError, ValueError):
        raise InvalidInput(f"victims must be pairs of a label and its curve, got {check.brief(given)}.") from None
