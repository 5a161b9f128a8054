"""A guarantee in words: one sentence that leaves no condition out, one paragraph, one table; numbers are rounded up."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..shown import rounded_up

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .guarantee import Guarantee
    from .sampled_guarantee import SampledGuarantee

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
    what = "has no finite guarantee (mu = inf)" if g.mu == math.inf else _covered(g)
    runs = "" if g.composed == 1 else f" over {g.composed} runs with independent noise"
    gradients = (
        "for gradients that may be chosen adaptively"
        if g.adaptive
        else "for gradients fixed in advance only (not adaptive)"
    )
    parts = [
        f"Trust model {g.trust}: against {g.attacker}, {_protected(g)} {what}{runs}",
        f"under {g.adjacency} adjacency with clipping norm {g.clip_norm:g} ({g.unit} shift {g.record_shift:g})",
        f"noise scaled to {_CLIPPED[g.unit]}",
        f"with {g.participation}",
        _RELEASED[g.release],
        gradients,
        *([f"node by node: {_each(g)}"] if g.by_victim else []),
        *g.notes,
        g.source,
    ]
    return "; ".join(part for part in parts if part) + "." + (f" {g.why}" if g.why else "")


def paragraph(guarantee: Guarantee) -> str:
    """The same in few words."""
    g = guarantee
    strength = "no finite mu" if g.mu == math.inf else f"mu = {rounded_up(g.mu, 6)} ({epsilon_at(g)})"
    whose = f"a record of {g.victim}" if g.unit == "record" else f"all data of {g.victim}"
    how = "" if g.adaptive else ", gradients fixed in advance"
    number = (
        f"{strength} for {whose} against {g.attacker} ({g.trust}), {g.adjacency}, clip {g.clip_norm:g}, "
        f"noise {g.noise_std:.4g}, {g.participation}{how}"
    )
    runs = "" if g.composed == 1 else f"{g.composed} runs"
    return "; ".join(filter(None, (number, runs, _RELEASED[g.release], *g.notes, g.source)))


def rows(guarantee: Guarantee) -> list[tuple[str, str]]:
    """The same as a table."""
    g = guarantee
    return [
        ("mu", f"{rounded_up(g.mu, 6)} ({'exact value' if g.bound == 'exact' else 'upper bound'})"),
        *([("mu by node", _each(g))] if g.by_victim else []),
        ("epsilon", epsilon_at(g)),
        ("whose data", f"{g.unit} of {g.victim}, {g.adjacency} adjacency"),
        ("against", f"{g.attacker} (trust model {g.trust})"),
        ("gradients", "may be adaptive" if g.adaptive else "fixed in advance"),
        ("participation", g.participation),
        ("noise", f"std {g.noise_std:.6g} for clip norm {g.clip_norm:g}, sensitivity {rounded_up(g.sensitivity, 6)}"),
        *([("released", _RELEASED[g.release])] if _RELEASED[g.release] else []),
        *condition_rows(g),
    ]


def condition_rows(guarantee: Guarantee | SampledGuarantee) -> list[tuple[str, str]]:
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

    if not 0 < guarantee.mu < math.inf:
        return None
    deltas = [10.0 ** (-k / 2) for k in range(2, 21)]
    drawn = Figure(figsize=(5, 2.8), layout="constrained")
    ax = drawn.subplots()
    ax.semilogx(deltas, [guarantee.epsilon(delta) for delta in deltas])
    ax.axvline(guarantee.stated_delta, linestyle=":", color="grey")
    ax.set(xlabel="δ", ylabel="ε", title=f"μ = {rounded_up(guarantee.mu, 6)}: {epsilon_at(guarantee)}")
    return drawn


NAMED = 5
"""Nodes of one budget that a sentence names; `Guarantee.by_victim` has them all."""


def _each(g: Guarantee) -> str:
    """The mu of each victim, those of one budget together."""
    alike: dict[str, list[str]] = {}
    for label, mu in g.by_victim:
        alike.setdefault(rounded_up(mu, 6), []).append(label)
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
    kind = "exact value" if g.bound == "exact" else "upper bound"
    slack = f"numerical slack {g.tolerance:.1e} included"
    return f"is covered by mu-GDP with mu = {rounded_up(g.mu, 6)} ({kind}, {slack}), that is {epsilon_at(g)}"
