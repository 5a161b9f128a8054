"""`mfdl audit`: what runs show of a record, against what is claimed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInput
from . import options
from ._account_question import Named, config_of, one_of, read_participation, require_folder, require_unit

if TYPE_CHECKING:
    from ..audit import AuditMatrix
    from ..trust import TrustModel

MATRIX_TRUSTS = ("ldp", "pndp", "eavesdropper", "coalitions", "full-collusion", "central")


def audit(
    context: typer.Context,
    config: options.Config = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option("--mechanism", metavar="NAME", help="One of `mfdl mechanisms`; may be repeated."),
    ] = None,
    trust: Annotated[
        list[str] | None, typer.Option("--trust", metavar="NAME", help="One of `mfdl trust list`; may be repeated.")
    ] = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Every mechanism and trust model that is not narrowed down.")
    ] = False,
    graph: options.Graph = "ring:n=5",
    gossip: options.Gossip = "metropolis-hastings",
    attackers: Annotated[
        str | None, typer.Option("--attackers", metavar="A,B", help="pndp: nodes that attack together.")
    ] = None,
    colluders: options.Colluders = None,
    coalition_size: Annotated[
        int | None, typer.Option("--coalition-size", metavar="Q", help="coalitions: how many nodes collude; default 1.")
    ] = None,
    k: Annotated[int, typer.Option("--k", "--epochs", help="How often each record takes part.")] = 2,
    b: Annotated[int, typer.Option("--b", "--period", help="Steps per epoch; the run has k b steps.")] = 2,
    steps: Annotated[int | None, typer.Option("--steps", help="T; default k b.")] = None,
    participation: Annotated[
        str, typer.Option("--participation", metavar="NAME", help="As for `mfdl account`.")
    ] = "cyclic",
    unit: Annotated[
        str, typer.Option("--unit", metavar="UNIT", help="record, or user: all data of a node.")
    ] = "record",
    noise_std: Annotated[float | None, typer.Option("--noise-std", help="nu, the noise of every cell.")] = None,
    mu: Annotated[
        float | None, typer.Option("--mu", help="The claim of every cell, from which its noise follows; default 1.")
    ] = None,
    clip_norm: Annotated[float, typer.Option("--clip-norm", help="Clipping norm.")] = 1.0,
    adjacency: options.Adjacency = "replace-one",
    delta: options.Delta = 1e-6,
    trials: Annotated[int, typer.Option("--trials", help="Runs that measure, per canary and input.")] = 4000,
    level: Annotated[float, typer.Option("--level", help="Of all bounds of all cells together.")] = 0.95,
    seed: Annotated[int, typer.Option("--seed", help="Of the noise; one seed gives one result.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder for audit.json, audit.csv and audit.png.")
    ] = None,
    data_home: options.DataHome = None,
    as_json: options.Json = False,
) -> None:
    """Run neighbouring inputs many times and compare what they show with the claimed mu.

    The exit code is 0 when no claim is refuted and 1 otherwise.
    """
    from ..algorithms import registry
    from ..privacy.guarantee import UNITS

    began = time.perf_counter()
    chosen = mechanism or ([n for n in registry.MECHANISMS if n != "none"] if matrix else ["dp-dsgd"])
    models = trust or (list(MATRIX_TRUSTS) if matrix else ["ldp"])
    for name in chosen:
        registry.check_name(name)
    one_of("unit", unit, UNITS)
    if noise_std is not None and mu is not None:
        raise InvalidInput("give at most one of --noise-std and --mu.")
    scheme = read_participation(context, participation, k, b, steps)
    require_unit(unit, scheme, None)
    if out is not None:
        require_folder(out)
    loaded, weights = options.load_gossip(graph, False, gossip, data_home)
    named = Named(loaded, attackers, colluders, coalition_size, False, any_receiver=True, default_coalition_size=1)
    named.require_used(models)
    found = _audited(
        chosen,
        {name: named.model(name) for name in models},
        weights,
        scheme,
        adjacency=adjacency,
        clip_norm=clip_norm,
        noise_std=noise_std,
        mu=1.0 if noise_std is None and mu is None else mu,
        unit=unit,
        level=level,
        trials=trials,
        delta=delta,
        seed=seed,
    )
    from ..reporting.output import versions

    if all(cell.result is None for cell in found.cells):
        raise InvalidInput(f"nothing finite is claimed: {found.cells[0].why}; choose another --trust or --mechanism.")
    how = {
        "graph": graph,
        "versions": versions(),
        "config": config_of(context),
        "seconds": time.perf_counter() - began,
    }
    if out is not None:
        found.write(out, how)
    if as_json:
        typer.echo(json.dumps({**found.to_dict(), **how}, allow_nan=False))
    else:
        _show(found, out)
    if found.violations:
        raise typer.Exit(1)


def _audited(names: list[str], models: dict[str, TrustModel], gossip: Any, scheme: Any, **how: Any) -> AuditMatrix:
    from ..algorithms import registry
    from ..audit import audit_matrix
    from ..dynamics import Dynamics

    dynamics, built, release = Dynamics(gossip), {}, {}
    with options.messages().status("building mechanisms"):
        for name in names:
            built[name] = registry.build(name, dynamics, scheme)
            entry = registry.entry_of(name)
            if entry is not None and entry.release is not None:
                release[name] = entry.release
    with options.progress_bar() as bar:
        task = bar.add_task("audits", total=len(built) * len(models))
        return audit_matrix(built, models, release=release, progress=lambda: bar.advance(task), **how)


def _show(found: AuditMatrix, out: Path | None) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"claimed and audited privacy, all at level {found.level:g}")
    for column in ("mechanism", "trust"):
        table.add_column(column, overflow="fold")
    for column in ("mu claimed", "mu >=", "epsilon claimed", "epsilon >="):
        table.add_column(column, justify="right")
    table.add_column("verdict", overflow="fold")
    for cell in found.cells:
        one = cell.result
        if one is None:
            table.add_row(cell.mechanism, cell.trust, "", "", "", "", f"no claim: {escape(cell.why)}")
            continue
        row = cell.row()
        numbers = (row[key] for key in ("mu_claimed", "mu_audited", "epsilon_claimed", "epsilon_audited"))
        verdict = "[red]REFUTED[/]" if one.violated else "not refuted"
        table.add_row(cell.mechanism, cell.trust, *(f"{number:.4g}" for number in numbers), verdict)
    console = options.answers()
    console.print(table)
    for cell in found.cells:
        if cell.result is not None and (cell.result.violated or len(found.cells) == 1):
            console.print(cell.result.sentence(), highlight=False, markup=False)
    for cell in found.cells:
        for note in cell.result.notes if cell.result is not None else ():
            console.print(f"{cell.mechanism} under {cell.trust}: {note}.", highlight=False, markup=False)
    count = len(found.violations)
    refuted = f"{count} claim{'s are' if count > 1 else ' is'} refuted."
    console.print(refuted if count else "No claim is refuted.", highlight=False)
    if out is not None:
        console.print(f"Kept in {out}.", highlight=False, markup=False, soft_wrap=True)
