"""A guarantee in words: as fields, which leave no condition out, and as one short sentence; numbers are rounded up."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..display import rounded_up

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .guarantee import Guarantee

EVERY_NODE = "every node"
LONGEST_SENTENCE = 40
"""Words in `sentence`."""
_CLIPPED = {"record": "the sum of clipped gradients", "user": "clipped mean gradients"}
_RELEASED = {"none": "no model", "average": "the average of the final models", "all": "all final models"}


def epsilon_at(guarantee: Guarantee) -> str:
    """epsilon at `stated_delta`."""
    delta = guarantee.stated_delta
    return f"epsilon = {rounded_up(guarantee.epsilon(delta), 4)} at delta = {delta:g}"


def fields(guarantee: Guarantee) -> list[tuple[str, str]]:
    """Everything that a guarantee says, by name."""
    g = guarantee
    epsilon = f"{rounded_up(g.epsilon(g.stated_delta), 4)} at delta = {g.stated_delta:g}"
    pairs = [
        ("trust model", g.trust),
        ("attacker", g.attacker),
        ("protects", _protected(g)),
        ("adjacency", g.adjacency),
        ("clipping", f"norm {g.clip_norm:g}" + (f" ({g.unit} shift {g.record_shift:g})" if g.mu is not None else "")),
        ("noise", _noise(g)),
        ("participation", g.participation if g.mu is not None else f"{g.participation}, by draws that stay secret"),
        ("released models", _RELEASED.get(g.release, "")),
        ("mu", "" if g.mu is None else rounded_up(g.mu, 6) if g.finite else "inf: no finite guarantee"),
        ("epsilon", epsilon if g.finite or g.mu is not None else "inf: no finite guarantee"),
        ("bound", _bound(g)),
        ("gradients", "adaptive or not" if g.adaptive else "non-adaptive only (fixed before training)"),
        ("mu by node", _by_node(g)),
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


def sentence(guarantee: Guarantee) -> str:
    """Who is protected from whom and by how much, in at most `LONGEST_SENTENCE` words; `fields` has all conditions.

    Names of attackers and schemes that would make it longer are left out.
    """
    g = guarantee
    bound = "exact" if g.bound == "exact" else "upper bound" if g.bound == "upper" else g.bound
    strength = epsilon_at(g) if g.mu is None else f"mu = {rounded_up(g.mu, 6)} ({epsilon_at(g)})"
    start = f"{strength}, {bound}, for {_protected(g)}" if g.finite else f"no finite guarantee for {_protected(g)}"
    assumed = f"under {len(g.notes)} further condition{'s' * (len(g.notes) > 1)}" if g.notes else ""
    end = [
        f"{g.adjacency} adjacency, clipping norm {g.clip_norm:g}, noise std {g.noise_std:.4g}",
        "" if g.adaptive else "non-adaptive gradients",
        ", ".join(filter(None, (assumed, g.source))),
    ]
    short = [start, f"trust model {g.trust}", *end]
    for longer in ([start, f"against {g.attacker} ({g.trust})", *end], short):
        for parts in ([*longer, g.participation], longer):
            words = ", ".join(filter(None, parts))
            if len(words.split()) <= LONGEST_SENTENCE:
                return words
    return ", ".join(filter(None, short[:3]))


def figure(guarantee: Guarantee) -> Figure | None:
    """epsilon against delta; None where nothing is guaranteed, or nothing is lost."""
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


NAMED = 5
"""Nodes of one budget that a field names; `Guarantee.victims` has them all."""


def _by_node(g: Guarantee) -> str:
    """The mu of each victim, those of one budget together."""
    labels_of: dict[str, list[str]] = {}
    for label, curve in g.victims:
        labels_of.setdefault(rounded_up(curve.mu, 6) if curve.mu is not None else "?", []).append(label)
    budgets = []
    for budget, labels in sorted(labels_of.items(), key=lambda pair: float(pair[0])):
        more = f" and {len(labels) - NAMED} more" if len(labels) > NAMED else ""
        budgets.append(f"{budget} for {'node' if len(labels) == 1 else 'nodes'} {', '.join(labels[:NAMED])}{more}")
    more = f"; and {len(budgets) - NAMED} further budgets" if len(budgets) > NAMED else ""
    return "; ".join(budgets[:NAMED]) + more


def _protected(g: Guarantee) -> str:
    if g.unit == "record":
        return f"a record of {g.victim}"
    # "all data of every node" alone could be read as those of all nodes together
    single = ", each node by itself" if g.victim == EVERY_NODE else ""
    return f"all data of {g.victim} (user level{single})"


def _noise(g: Guarantee) -> str:
    if g.mu is None:
        return f"std {g.noise_std:.6g}: multiplier {g.noise_multiplier:.6g} on {g.curve.noise_on}"
    return f"std {g.noise_std:.6g} on {_CLIPPED[g.unit]}, sensitivity {rounded_up(g.sensitivity, 6)}"


def _bound(g: Guarantee) -> str:
    if not g.finite:
        return ""
    if g.mu is None:
        return g.curve.bound_in_words
    return f"{g.curve.bound_in_words} (numerical slack {g.tolerance:.1e} included)"
