"""`mfdl plan`: designs of a run for a graph, records a node and a budget, without data and without training."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from ..errors import InvalidInput
from ..runs import options
from ..runs.options import OnGraph, Option
from ..runs.output import circumstances, require_folder
from . import terminal
from .terminal import Answer, command

if TYPE_CHECKING:
    from ..planning import RunPlan

SHOWN = 12  # largest number of designs in the table besides the Pareto-optimal ones


@dataclasses.dataclass(frozen=True)
class PlanConfig(OnGraph):
    """A budget, records a node, and the values that designs combine."""

    command: ClassVar[str] = "plan"

    records: Annotated[int | None, Option("N: how many records each node holds.", least=1)] = None
    epsilon: Annotated[
        float | None, Option("Budget of every design, at --delta.", instead_of=("mu",), rule="positive")
    ] = None
    delta: options.Delta = 1e-6
    mu: Annotated[float | None, Option(
        "Budget instead of --epsilon; public batches only.", instead_of=("epsilon",), rule="positive"
    )] = None  # fmt: skip
    trust: Annotated[str, Option("Trust model: a name of `mfdl trust list`.", metavar="NAME")] = "ldp"
    attackers: options.AttackerList = None
    colluders: options.ColluderList = None
    coalition_size: options.CoalitionSize = None
    release: options.Release = None
    adjacency: options.Adjacency = "replace-one"
    clip_norm: Annotated[float, Option("Clipping norm of one record's gradient.", rule="positive")] = 1.0
    gradients_per_record: Annotated[
        int | None, Option("Largest number of gradient evaluations a record.", metavar="K", least=1)
    ] = None
    messages: Annotated[
        int | None, Option("Largest number of messages that a node sends, on average.", metavar="M", least=1)
    ] = None
    mechanisms: Annotated[tuple[str, ...], Option(
        "Names of `mfdl mechanisms`, and file:FILE; default dp-dsgd and mafalda, with corn against outsiders, "
        "decor against coalitions, and cdp alone under central.",
        ("--mechanism",), metavar="A,B,...", listed=True,
    )] = ()  # fmt: skip
    batches: Annotated[
        tuple[str, ...], Option("b: batches an epoch; 1 are full batches.", metavar="A,B,...", listed=True)
    ] = ("1", "4", "16")
    epochs: Annotated[
        tuple[str, ...], Option("k: how often each record takes part.", metavar="A,B,...", listed=True)
    ] = ("10", "20", "40", "160")
    gossip_rounds: Annotated[
        tuple[str, ...], Option("Gossip rounds after each step.", metavar="A,B,...", listed=True)
    ] = ("1", "5", "20")
    polynomials: Annotated[tuple[str, ...], Option(
        "Of W in the rounds of a step: powers, chebyshev, least-noise; default powers, with least-noise too for "
        "several rounds of symmetric gossip if every message is seen.",
        metavar="A,B,...", listed=True,
    )] = ()  # fmt: skip
    participations: Annotated[tuple[str, ...], Option(
        "cyclic (public batches), balls-in-bins (secret batches), or both; default: both with --epsilon, without "
        "secret batches for encoders that are optimised for public ones.",
        metavar="A,B", listed=True,
    )] = ()  # fmt: skip
    release_models: Annotated[tuple[str, ...], Option(
        "What is published: last, average:M, exponential:M, or average:P% (mean of the last P % of the models).",
        metavar="A,B,...", listed=True,
    )] = ("last", "average:50%")  # fmt: skip
    max_steps: Annotated[int, Option("Designs with more steps are left out.", metavar="T", least=1)] = 160
    curvature: Annotated[str | None, Option(
        "Public curvature of the loss, with which the excess loss is predicted: "
        "power:EXPONENT[:DIMENSION[:LARGEST]], features:FILE[:FACTOR] (public records in rows), or a FILE of "
        "eigenvalues (.npy, .csv).",
        metavar="SPECTRUM",
    )] = None  # fmt: skip
    start_distance: Annotated[
        float, Option("Distance from the first models to the optimum along each direction.", rule="positive")
    ] = 1.0
    learning_time: Annotated[
        float, Option("Sum of the learning rates at which noise is compared without a curvature.", rule="positive")
    ] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.records is None:
            raise InvalidInput("give --records N, how many records each node holds: noise falls as 1 / N.")
        if (self.epsilon is None) == (self.mu is None):
            raise InvalidInput("give one budget: --epsilon with --delta, or --mu.")
        for name in ("batches", "epochs", "gossip_rounds"):
            self.numbers(name)

    def numbers(self, name: str) -> tuple[int, ...]:
        texts = getattr(self, name)
        if not texts or not all(text.isdecimal() and 0 < int(text) <= options.MAX_STEPS for text in texts):
            raise InvalidInput(
                f"--{name.replace('_', '-')} must be whole numbers from 1 to {options.MAX_STEPS:,} as 1,4,16, got "
                f"{','.join(texts)!r}."
            )
        return tuple(map(int, texts))


@command(PlanConfig, "Folder for plan.json and the picture.")
def plan(config: PlanConfig, out: Path | None) -> Answer:
    """Designs of a run at one budget: batches, epochs, gossip rounds, mechanism. No data, no training.

    Each design is calibrated; noise, cost and, with --curvature, the excess loss are predicted.
    """
    from .. import planning
    from ..privacy.questions import Privacy

    if out is not None:
        require_folder(out)
    graph, gossip = config.sparse_network()
    same = config.values(
        "epsilon", "mu", "release_models", "max_steps",
        "gradients_per_record", "messages", "curvature", "start_distance", "learning_time",
    )  # fmt: skip
    same |= {name: config.numbers(name) for name in ("batches", "epochs", "gossip_rounds")}
    assert config.records is not None
    privacy = Privacy(options.named_trust(config), **config.values("adjacency", "clip_norm", "release"))
    same |= {name: getattr(config, name) or None for name in ("mechanisms", "polynomials", "participations")}
    same["delta"] = None if config.epsilon is None else config.delta
    result = planning.plan(gossip, config.records, privacy, **same)
    around = circumstances(config, graph, gossip)
    if out is not None:
        result.save(out, **around)
    return {**around, **result.to_dict()}, lambda: _show(result, config, out), 0


def _show(result: RunPlan, config: PlanConfig, out: Path | None) -> None:
    from ..planning.run_plan import NOT_COUNTED

    front = set(map(id, result.pareto))
    chosen = [each for i, each in enumerate(result.designs) if i < SHOWN or id(each) in front]
    numbers = [*["loss"] * result.has_curvature, "noise", "on way", "evals", "sent"]
    table = terminal.table(("design", *numbers), right=numbers)
    table.box, table.pad_edge, table.collapse_padding = None, False, True
    for each in chosen:
        loss = [] if each.excess is None else [f"{each.excess.total:.3g}"]
        stds = [f"{each.published_noise_std:.2g}", f"{each.noise_on_the_way_std:.2g}"]
        cost = [f"{each.gradient_evaluations}", f"{each.messages:,.0f}"]
        table.add_row(f"{'*' if id(each) in front else ' '} {each.design.name}", *loss, *stds, *cost)
    at = "the best rate of a grid" if result.has_curvature else f"a sum of learning rates of {config.learning_time:g}"
    noise = (
        "noise: in the published model of a node, standard deviation per coordinate; on way: in the models at which "
        f"gradients are taken; both at {at}. evals: gradient evaluations a record. sent: messages a node."
    )
    legend = [
        f"{len(chosen)} of {len(result.designs)} designs, {config.records} records a node on {config.graph}.",
        *["loss: predicted excess loss."] * result.has_curvature,
        noise,
        f"*: no cheaper design has a {'loss' if result.has_curvature else 'noise'} at most 1 % above.",
    ]
    if result.left_out:
        legend.append(
            f"Left out: {len(result.left_out)} designs whose factorization stopped before its tolerance, such as "
            f"{result.left_out[0]}."
        )
    terminal.say([table, *legend, str(result.limit), result.guarantee, NOT_COUNTED], out)
