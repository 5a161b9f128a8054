"""`mfdl account`: what an attacker learns of every node, for one mechanism on one graph."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable, Iterator
from decimal import ROUND_CEILING, Context, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInput
from . import options
from ._account_question import (
    BOUNDS,
    RELEASES,
    Named,
    Noise,
    config_of,
    listed,
    one_of,
    read_participation,
    require_folder,
    require_unit,
)
from .names import require_trust

if TYPE_CHECKING:
    from ..algorithms import LinearAlgorithm
    from ..privacy.accounting import VictimLoss
    from ..trust import TrustModel

RESULTS = "results.json"
WORST_SHOWN = 10
FIXED_ONLY = (
    "Plain numbers (mu, epsilon) hold for gradients fixed in advance only: gradients of training react to messages "
    "that this attacker does not see. For training use the adaptive numbers."
)


def account(
    context: typer.Context,
    config: options.Config = None,
    mechanism: Annotated[
        str, typer.Option("--mechanism", metavar="NAME", help="One of `mfdl mechanisms`, or file:FILE.npz.")
    ] = "dp-dsgd",
    settings: options.Settings = None,
    graph: options.Graph = "florentine",
    largest_component: options.LargestComponent = False,
    gossip: options.Gossip = "metropolis-hastings",
    trust: Annotated[str, typer.Option("--trust", metavar="NAME", help="One of `mfdl trust list`.")] = "ldp",
    attackers: Annotated[
        str | None,
        typer.Option("--attackers", metavar="A,B", help="pndp: nodes that attack together, by label or as #INDEX."),
    ] = None,
    colluders: options.Colluders = None,
    coalition_size: options.CoalitionSize = None,
    all_attackers: Annotated[
        bool, typer.Option("--all-attackers", help="pndp: every node attacks in turn, alone.")
    ] = False,
    victims: Annotated[
        str | None, typer.Option("--victims", metavar="A,B", help="Whose loss; default: all that do not attack.")
    ] = None,
    epochs: options.Epochs = 20,
    period: options.Period = 16,
    participation: Annotated[
        str,
        typer.Option(
            "--participation",
            metavar="NAME",
            help="cyclic, once-per-epoch, every-step (what --unit user needs), single, or min-separation (at most k "
            "uses, at least b steps apart).",
        ),
    ] = "cyclic",
    steps: Annotated[int | None, typer.Option("--steps", help="T; default k b.")] = None,
    noise_std: Annotated[
        float | None, typer.Option("--noise-std", help="nu, the standard deviation of the base noise Z; default 1.")
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option("--noise-multiplier", help="nu in units of worst sensitivity times record shift.")
    ] = None,
    mu: Annotated[float | None, typer.Option("--mu", help="Find the least nu for which mu is met.")] = None,
    calibrate_under: Annotated[
        str | None,
        typer.Option("--calibrate-under", metavar="TRUST", help="Trust model in which --mu is met; default --trust."),
    ] = None,
    unit: Annotated[
        str,
        typer.Option(
            "--unit",
            metavar="UNIT",
            help="Whose data are protected: record, where each record's gradient is clipped, or user, all data of a "
            "node, where its mean gradient is clipped.",
        ),
    ] = "record",
    clip_norm: Annotated[
        float, typer.Option("--clip-norm", help="Clipping norm of one record's gradient, or of a node's mean gradient.")
    ] = 1.0,
    adjacency: options.Adjacency = "replace-one",
    delta: options.Delta = 1e-6,
    lipschitz: Annotated[
        float | None,
        typer.Option(
            "--lipschitz", help="L of the maps x -> x - learning rate * gradient(x): smaller adaptive losses."
        ),
    ] = None,
    release: options.Release = None,
    bound: Annotated[
        str, typer.Option("--bound", help="exact (upper and lower bound meet), or certified (fast upper bound).")
    ] = "exact",
    jobs: options.Jobs = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder for results.json and pictures.")
    ] = None,
    data_home: options.DataHome = None,
    as_json: options.Json = False,
) -> None:
    """What an attacker learns of every node: one mechanism, one graph, one trust model.

    Two numbers per victim: mu for gradients fixed in advance, and mu_adaptive, which holds for training.
    """
    from .. import check
    from ..algorithms import registry
    from ..privacy import gaussian
    from ..privacy.guarantee import UNITS

    began = time.perf_counter()
    require_trust(trust)
    registry.check_name(mechanism)
    parameters = registry.parse_parameters(mechanism, settings or [])
    one_of("release", release, RELEASES)
    one_of("bound", bound, BOUNDS)
    one_of("unit", unit, UNITS)
    shift = gaussian.record_shift(adjacency, clip_norm)
    check.open_unit(delta=delta)
    if lipschitz is not None:
        check.non_negative(lipschitz=lipschitz)
    if jobs is not None:
        check.integer_at_least(1, jobs=jobs)
    noise = Noise.of(noise_std, noise_multiplier, mu, calibrate_under, trust)
    scheme = read_participation(context, participation, epochs, period, steps)
    require_unit(unit, scheme, lipschitz)
    if out is not None:
        require_folder(out)

    loaded, matrix = options.load_gossip(graph, largest_component, gossip, data_home)
    named = Named(loaded, attackers, colluders, coalition_size, all_attackers)
    named.require_used([trust, *([calibrate_under] if calibrate_under else [])])
    from .. import graphs
    from ..dynamics import Dynamics

    asked = None if victims is None else [graphs.index_of(loaded, label) for label in listed("victims", victims)]
    with options.messages().status(f"building {mechanism}"):
        if "coalition_size" in registry.parameters_of(mechanism) and coalition_size is not None:
            parameters.setdefault("coalition_size", coalition_size)  # made against those who attack
        algorithm = registry.build(mechanism, Dynamics(matrix), scheme, **parameters)
    how: dict[str, Any] = {"release": release, "method": bound, "lipschitz": lipschitz, "unit": unit}
    each = _Losses.of(algorithm, named, trust, asked, how, jobs)
    answer: dict[str, Any] = {
        "trust": trust,
        "adjacency": adjacency,
        "unit": unit,
        "participation": scheme.to_dict(),
        "release": each.release,
        "adaptive": all(loss.adaptive for loss in each.everything),
    }
    std = noise.std(algorithm, named, each.everything, each.trust_of_worst, adjacency, clip_norm, how)
    scores = _Scores(each, shift, std, delta)
    from ..reporting.output import json_number, versions

    if all_attackers:
        answer["attackers"] = [
            {"attacker": named.labels[v], "victims": scores.rows((v,))} for (v,) in each.by_attackers
        ]
    else:
        answer["attackers"] = [named.labels[v] for v in each.attackers]
        answer["victims"] = scores.rows(each.attackers)
    answer |= {
        "noise_std": std,
        "clip_norm": clip_norm,
        "delta": delta,
        "mechanism": mechanism,
        "graph": graph,
        "graph_hash": graphs.content_hash(loaded),
        "gossip": matrix.name,
        "nodes": algorithm.num_nodes,
        "steps": algorithm.num_steps,
        "guarantee": scores.sentence(algorithm, adjacency, clip_norm, unit),
        "notes": each.notes(std, answer["adaptive"]),
        "versions": versions(),
        "config": config_of(context),
        "seconds": time.perf_counter() - began,
    }
    answer["worst_mu"], answer["worst_mu_adaptive"] = (json_number(scores.worst(a)) for a in (False, True))
    if out is not None:
        with options.messages().status("drawing"):
            _write(out, answer, algorithm, loaded, each, scores, how)
    if as_json:
        typer.echo(json.dumps(answer, allow_nan=False))
    else:
        _show(answer, scores, out)


# ---- what came out ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Losses:
    """Losses of all victims, by attacking nodes."""

    named: Named
    asked: list[int] | None
    by_attackers: dict[tuple[int, ...], list[VictimLoss]]
    models: dict[tuple[int, ...], TrustModel]

    @classmethod
    def of(
        cls,
        algorithm: LinearAlgorithm,
        named: Named,
        trust: str,
        asked: list[int] | None,
        how: dict[str, Any],
        jobs: int | None,
    ) -> _Losses:
        from threadpoolctl import threadpool_limits

        from ..privacy.accounting import victim_losses
        from ..reporting.pairwise import pairwise_losses

        if named.all_attackers:
            models: dict[tuple[int, ...], TrustModel] = {
                (v,): named.model(trust, v) for v in range(algorithm.num_nodes)
            }
            with options.progress_bar() as bar:
                row = bar.add_task("attackers", total=algorithm.num_nodes)
                found = pairwise_losses(
                    algorithm,
                    lambda v: models[(v,)],
                    victims=asked,
                    jobs=jobs,
                    progress=lambda: bar.advance(row),
                    **how,
                )
            if not any(found.values()):
                raise InvalidInput("no victim is left: every node that was asked for attacks.")
            return cls(named, None, {(v,): losses for v, losses in found.items()}, models)
        model = named.model(trust)
        sets = sum(1 for _ in model.members(algorithm))
        with threadpool_limits(jobs), _progress(sets) as progress:
            losses = victim_losses(algorithm, model, victims=asked, progress=progress, **how)
        nodes = model.attackers(algorithm)
        return cls(named, asked, {nodes: losses}, {nodes: model})

    @property
    def attackers(self) -> tuple[int, ...]:
        """The attacking nodes where there is one set of them."""
        return next(iter(self.by_attackers))

    @property
    def everything(self) -> list[VictimLoss]:
        return [loss for losses in self.by_attackers.values() for loss in losses]

    @property
    def release(self) -> str:
        attacking = set(self.attackers) if len(self.by_attackers) == 1 else set()
        return max(self.everything, key=lambda one: one.victim not in attacking).release

    def worst(self, *, adaptive: bool) -> tuple[tuple[int, ...], VictimLoss]:
        """Who attacks and who loses most."""

        def squared(pair: tuple[tuple[int, ...], VictimLoss]) -> tuple[float, float]:
            held = pair[1].adaptive_sensitivity_squared if adaptive else 0.0
            return held, pair[1].sensitivity_squared

        return max(((nodes, one) for nodes, losses in self.by_attackers.items() for one in losses), key=squared)

    @property
    def trust_of_worst(self) -> TrustModel:
        return self.models[self.worst(adaptive=True)[0]]

    def notes(self, noise_std: float, adaptive: bool) -> list[str]:
        notes = []
        inside = set(self.attackers) if len(self.by_attackers) == 1 else set()
        for u in sorted(set(self.asked or []) & inside):
            notes.append(f"{self.named.labels[u]} is one of the attackers: its loss is infinite.")
        leaks = dict.fromkeys(
            one.fixed.why for one in self.everything if math.isinf(one.sensitivity_squared) and one.victim not in inside
        )
        notes += [f"Infinite loss: {why}." for why in list(leaks)[:3] if why]
        if noise_std == 0:
            notes.append("noise_std is 0: no number is finite where the view depends on the record at all.")
        if not adaptive:
            by = sorted({one.adaptive_by for one in self.everything} - {"the view"})
            notes.append(f"{FIXED_ONLY} They come from: {', '.join(by)}.")
        return notes


def _progress(sets: int) -> Any:
    """A bar over attacking sets, none for a single one."""
    import contextlib

    @contextlib.contextmanager
    def shown() -> Iterator[Callable[[], None] | None]:
        if sets < 2:
            yield None
            return
        with options.progress_bar() as bar:
            row = bar.add_task("attacking sets", total=sets)
            yield lambda: bar.advance(row)

    return shown()


class _Scores:
    """The losses as mu and epsilon at one noise."""

    def __init__(self, each: _Losses, record_shift: float, noise_std: float, delta: float) -> None:
        from ..privacy import gaussian

        self.each, self.shift, self.noise_std = each, record_shift, noise_std
        self._rows: dict[tuple[int, ...], list[dict[str, Any]]] = {}
        self.epsilon = functools.cache(lambda mu: gaussian.epsilon_from_mu(mu, delta))

    def mu(self, loss: VictimLoss, adaptive: bool) -> float:
        from ..reporting.pairwise import mu_of

        return mu_of(loss, record_shift=self.shift, noise_std=self.noise_std, adaptive=adaptive)

    def worst(self, adaptive: bool) -> float:
        return self.mu(self.each.worst(adaptive=adaptive)[1], adaptive)

    def rows(self, attackers: tuple[int, ...]) -> list[dict[str, Any]]:
        """One JSON object per victim of one attacking set."""
        from ..reporting.output import json_number

        if attackers in self._rows:
            return self._rows[attackers]
        hops = self.each.named.distances(attackers)
        rows: list[dict[str, Any]] = []
        for loss in self.each.by_attackers[attackers]:
            mu, adaptive = self.mu(loss, False), self.mu(loss, True)
            rows.append(
                {
                    "victim": self.each.named.labels[loss.victim],
                    "distance": hops.get(loss.victim),
                    "sensitivity_squared": json_number(loss.sensitivity_squared),
                    "adaptive_sensitivity_squared": json_number(loss.adaptive_sensitivity_squared),
                    "mu": json_number(mu),
                    "mu_adaptive": json_number(adaptive),
                    "epsilon": json_number(self.epsilon(mu)),
                    "epsilon_adaptive": json_number(self.epsilon(adaptive)),
                    "bound": loss.bound,
                    "adaptive_bound": loss.adaptive_bound,
                    "adaptive_by": loss.adaptive_by,
                }
            )
        self._rows[attackers] = rows
        return rows

    def sentence(self, algorithm: LinearAlgorithm, adjacency: str, clip_norm: float, unit: str) -> str:
        """The guarantee of the worst victim, for adaptive gradients."""
        from .. import mechanism

        nodes, loss = self.each.worst(adaptive=True)
        (guarantee,) = mechanism.guarantees(
            algorithm,
            [loss],
            trust=self.each.models[nodes],
            adjacency=adjacency,
            clip_norm=clip_norm,
            noise_std=self.noise_std,
            unit=unit,
        )
        return guarantee.sentence()


def _write(
    out: Path,
    answer: dict[str, Any],
    algorithm: LinearAlgorithm,
    graph: Any,
    each: _Losses,
    scores: _Scores,
    how: dict[str, Any],
) -> None:
    from .. import files
    from ._account_pictures import Pictures

    Pictures(answer, algorithm, graph, each.by_attackers, each.named.distances, scores.mu, how).write(out)
    files.atomic_write_json(out / RESULTS, answer)


def _show(answer: dict[str, Any], scores: _Scores, out: Path | None) -> None:
    from rich.table import Table

    from ..reporting.account import by_distance

    each = scores.each
    many = len(each.by_attackers) > 1
    pairs = [(nodes, row) for nodes in each.by_attackers for row in scores.rows(nodes)]
    pairs.sort(key=lambda pair: (-_float(pair[1]["mu_adaptive"]), -_float(pair[1]["mu"])))
    placed = any(row["distance"] is not None for _, row in pairs)
    title = (
        f"{answer['mechanism']} on {answer['graph']}, trust {answer['trust']}, {answer['unit']} level, "
        f"noise std {answer['noise_std']:.4g}"
    )
    table = Table(title=f"{title}: the {min(WORST_SHOWN, len(pairs))} largest of {len(pairs):,} losses")
    for column in (*(["attacker"] if many else []), "victim"):
        table.add_column(column, overflow="fold")
    kinds = ("",) if answer["adaptive"] else (", fixed", ", adaptive")
    for column in (
        *(["distance"] if placed else []),
        *(f"{what}{kind}" for kind in kinds for what in ("mu", "epsilon")),
    ):
        table.add_column(column, justify="right")
    for nodes, row in pairs[:WORST_SHOWN]:
        values = [_bounded(row["bound"], row["mu"]), _number(row["epsilon"])]
        if not answer["adaptive"]:
            values += [_bounded(row["adaptive_bound"], row["mu_adaptive"]), _number(row["epsilon_adaptive"])]
        attacker = [each.named.labels[nodes[0]]] if many else []
        distance = ["" if row["distance"] is None else str(row["distance"])] if placed else []
        table.add_row(*attacker, row["victim"], *distance, *values)
    console = options.answers()
    console.print(table, markup=False)
    console.print(f"epsilon is at delta = {answer['delta']:g}.", highlight=False)
    if placed:
        summary = Table(title="mu by distance")
        for column in ("distance", "pairs" if many else "victims", "lowest", "mean", "highest", "highest, adaptive"):
            summary.add_column(column, justify="right")
        hops = [row["distance"] for _, row in pairs]  # known for all or for none
        adaptive = by_distance(hops, [_float(row["mu_adaptive"]) for _, row in pairs])
        for one, two in zip(by_distance(hops, [_float(row["mu"]) for _, row in pairs]), adaptive, strict=True):
            summary.add_row(
                str(one.distance),
                f"{one.victims:,}",
                *(_number(value) for value in (one.lowest, one.mean, one.highest, two.highest)),
            )
        console.print(summary, markup=False)
    console.print(answer["guarantee"], highlight=False, markup=False)
    for note in answer["notes"]:
        console.print(f"Note: {note}", highlight=False, markup=False)
    if out is not None:
        console.print(f"Kept in {out}.", highlight=False, markup=False, soft_wrap=True)


def _float(value: float | str) -> float:
    return float(value)


def _bounded(bound: str, value: float | str) -> str:
    return f"{'' if bound == 'exact' else '<= '}{_number(value)}"


def _number(value: float | str) -> str:
    """Four digits, rounded up: a table never shows less than what is lost."""
    number = float(value)
    if not math.isfinite(number):
        return str(number)
    return f"{float(Context(prec=4, rounding=ROUND_CEILING).create_decimal(Decimal(number))):g}"
