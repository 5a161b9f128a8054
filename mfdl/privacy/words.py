"""A guarantee in words: one sentence that leaves no condition out, one paragraph, one table; numbers are rounded up."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..shown import rounded_up

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .guarantee import Guarantee

EVERY_NODE = "every node"
_CLIPPED = {"record": "the sum of clipped gradients", "user": "clipped mean gradients"}
_RELEASED = {
    "none": "no model is released",
    "average": "the average of the final models is released",
    "all": "all final models are released",
    "not applicable": "",
}


def epsilon_at(guarantee: Guarantee) -> str:
    """epsilon at `stated_delta`."""
    delta = guarantee.stated_delta
    return f"epsilon = {rounded_up(guarantee.epsilon(delta), 4)} at delta = {delta:g}"


def sentence(guarantee: Guarantee) -> str:
    """Everything that a guarantee says, in one sentence."""
    g = guarantee
    nothing = "has no finite guarantee (mu = inf)" if g.mu is not None else "has no finite guarantee"
    strength = _covered(g) if g.finite else nothing
    runs = "" if g.composed == 1 or g.mu is None else f" over {g.composed} runs with independent noise"
    gradients = (
        "for gradients that may be chosen adaptively"
        if g.adaptive
        else "for gradients fixed in advance only (not adaptive)"
    )
    parts = [
        f"Trust model {g.trust}: against {g.attacker}, {_protected(g)} {strength}{runs}",
        *_noise_and_batches(g),
        gradients,
        *([f"node by node: {_each(g)}"] if g.victims else []),
        g.curve.remark(g.stated_delta) if g.finite else "",
        *g.notes,
        g.source,
    ]
    return "; ".join(part for part in parts if part) + "." + (f" {g.why}" if g.why else "")


def _noise_and_batches(g: Guarantee) -> list[str]:
    """Adjacency, noise, participation and release, as they are public or secret."""
    under = f"under {g.adjacency} adjacency with clipping norm {g.clip_norm:g}"
    if g.mu is None:
        noise = f"noise of multiplier {g.noise_multiplier:.6g} on {g.curve.noise_on}"
        return [under, noise, f"with {g.participation}, by draws that stay secret"]
    shift = f" ({g.unit} shift {g.record_shift:g})"
    return [under + shift, f"noise scaled to {_CLIPPED[g.unit]}", f"with {g.participation}", _RELEASED[g.release]]


def paragraph(guarantee: Guarantee) -> str:
    """The same in few words."""
    g = guarantee
    strength = epsilon_at(g) if g.mu is None else f"mu = {rounded_up(g.mu, 6)} ({epsilon_at(g)})"
    if not g.finite:
        strength = "no finite epsilon" if g.mu is None else "no finite mu"
    data = f"a record of {g.victim}" if g.unit == "record" else f"all data of {g.victim}"
    gradients = "" if g.adaptive else ", gradients fixed in advance"
    number = (
        f"{strength} for {data} against {g.attacker} ({g.trust}), {g.adjacency}, clip {g.clip_norm:g}, "
        f"noise {g.noise_std:.4g}, {g.participation}{gradients}"
    )
    runs = "" if g.composed == 1 else f"{g.composed} runs"
    return "; ".join(filter(None, (number, runs, _RELEASED[g.release], *g.notes, g.source)))


def rows(guarantee: Guarantee) -> list[tuple[str, str]]:
    """The same as a table."""
    g = guarantee
    bound = "exact value" if g.bound == "exact" else g.curve.bound_in_words
    mu = [] if g.mu is None else [("mu", f"{rounded_up(g.mu, 6)} ({bound})")]
    return [
        *mu,
        *([("mu by node", _each(g))] if g.victims else []),
        ("epsilon", epsilon_at(g) if mu else f"{epsilon_at(g)} ({bound})"),
        ("whose data", f"{g.unit} of {g.victim}, {g.adjacency} adjacency"),
        ("against", f"{g.attacker} (trust model {g.trust})"),
        ("gradients", "may be adaptive" if g.adaptive else "fixed in advance"),
        ("participation", g.participation if mu else f"{g.participation}, by secret draws"),
        ("noise", f"std {g.noise_std:.6g} for clip norm {g.clip_norm:g}, sensitivity {rounded_up(g.sensitivity, 6)}"),
        *([("released", _RELEASED[g.release])] if _RELEASED[g.release] else []),
        *condition_rows(g),
    ]


def condition_rows(guarantee: Guarantee) -> list[tuple[str, str]]:
    """What the number rests on and where it is from, as rows of a table."""
    g = guarantee
    rows = [
        ("runs", f"{g.composed} runs with independent noise" if g.composed > 1 else ""),
        ("conditions", "; ".join(g.notes)),
        ("why", g.why),
        ("source", g.source),
    ]
    return [(name, text) for name, text in rows if text]


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
"""Nodes of one budget that a sentence names; `Guarantee.victims` has them all."""


def _each(g: Guarantee) -> str:
    """The mu of each victim, those of one budget together."""
    alike: dict[str, list[str]] = {}
    for label, curve in g.victims:
        alike.setdefault(rounded_up(curve.mu, 6) if curve.mu is not None else "?", []).append(label)
    said = []
    for most, labels in sorted(alike.items(), key=lambda pair: float(pair[0])):
        more = f" and {len(labels) - NAMED} more" if len(labels) > NAMED else ""
        said.append(f"mu <= {most} for {'node' if len(labels) == 1 else 'nodes'} {', '.join(labels[:NAMED])}{more}")
    return "; ".join(said[:NAMED]) + (f"; and {len(said) - NAMED} further budgets" if len(said) > NAMED else "")


def _protected(g: Guarantee) -> str:
    if g.unit == "record":
        return f"a record of {g.victim}"
    # "all data of every node" alone could be read as those of all nodes together
    single = ", each node by itself" if g.victim == EVERY_NODE else ""
    return f"all data of {g.victim} (user level{single})"


def _covered(g: Guarantee) -> str:
    if g.mu is None:
        return f"is covered by {epsilon_at(g)} ({g.curve.bound_in_words})"
    bound = "exact value" if g.bound == "exact" else "upper bound"
    slack = f"numerical slack {g.tolerance:.1e} included"
    return f"is covered by mu-GDP with mu = {rounded_up(g.mu, 6)} ({bound}, {slack}), that is {epsilon_at(g)}"
