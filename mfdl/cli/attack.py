"""`mfdl attack`: whose gradients an attacker solves for, without noise and beside it under a mechanism."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInput
from . import options
from ._account_question import RELEASES, Named, config_of, one_of, require_folder
from .names import require_trust

if TYPE_CHECKING:
    from ..algorithms import LinearAlgorithm
    from ..audit import Reconstruction
    from ..mechanism import Mechanism

RESULTS = "results.json"
FIGURE = "attack"
TRUSTS = ("ldp", "pndp", "eavesdropper", "colluding", "central", "released")  # those with one view for all victims
GRADIENTS = {"constant": "constant", "per-step": "per step", "first-step": "first step"}
NO_NOISE = "none"
ALIASES = {"d-sgd": NO_NOISE}
MAX_COMBINATIONS = 100  # written to the JSON answer
GRADIENT_OF = {"record": "sum of clipped gradients", "user": "clipped mean gradient"}  # of a node, what is solved for


def attack(
    context: typer.Context,
    config: options.Config = None,
    mechanism: Annotated[
        str,
        typer.Option(
            "--mechanism", metavar="NAME", help="Shown beside no noise: one of `mfdl mechanisms`; d-sgd: none of them."
        ),
    ] = "dp-dsgd",
    settings: options.Settings = None,
    graph: options.Graph = "florentine",
    largest_component: options.LargestComponent = False,
    gossip: options.Gossip = "metropolis-hastings",
    trust: Annotated[
        str, typer.Option("--trust", metavar="NAME", help=f"One of {', '.join(TRUSTS)}: those with one attacker.")
    ] = "pndp",
    attackers: Annotated[
        str | None,
        typer.Option(
            "--attackers", "--attacker", metavar="A,B", help="pndp: who attacks together, by label or as #INDEX."
        ),
    ] = None,
    colluders: options.Colluders = None,
    steps: Annotated[int, typer.Option("--steps", help="T, gradient steps.")] = 10,
    gradients: Annotated[
        str,
        typer.Option(
            "--gradients",
            metavar="KIND",
            help="constant (each node's gradient is the same at every step), per-step (all are unknown), or first-step "
            "(values given once, then averaged by gossip).",
        ),
    ] = "constant",
    noise_std: Annotated[
        float | None, typer.Option("--noise-std", help="nu of the mechanism; default: calibrated to --mu.")
    ] = None,
    mu: Annotated[float | None, typer.Option("--mu", help="Gaussian DP level of the mechanism; default 1.")] = None,
    unit: Annotated[
        str,
        typer.Option(
            "--unit",
            metavar="UNIT",
            help="Whose data the mechanism protects: record, where each record's gradient is clipped, or user, all "
            "data of a node, where its mean gradient is clipped (what zip-dl needs, with --release none).",
        ),
    ] = "record",
    clip_norm: Annotated[
        float,
        typer.Option(
            "--clip-norm",
            help="Clipping norm of one record's gradient, or of a node's mean gradient; the unit of errors.",
        ),
    ] = 1.0,
    adjacency: options.Adjacency = "replace-one",
    release: options.Release = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder for results.json and the picture.")
    ] = None,
    data_home: options.DataHome = None,
    as_json: options.Json = False,
) -> None:
    """Whose gradients an attacker solves for: once without noise, once under a mechanism.

    Exposed gradients are read off; an error is the standard deviation of the best unbiased estimate, in clipping norms.
    """
    from .. import check
    from ..algorithms import registry
    from ..privacy import gaussian
    from ..privacy.guarantee import UNITS

    began = time.perf_counter()
    require_trust(trust)
    if trust not in TRUSTS:
        raise InvalidInput(
            f"--trust {trust} ranges over many attackers, and an attack has one; use one of {', '.join(TRUSTS)}."
        )
    mechanism = ALIASES.get(mechanism, mechanism)
    registry.check_name(mechanism)
    parameters = registry.parse_parameters(mechanism, settings or [])
    one_of("release", release, RELEASES)
    one_of("kind of gradients", gradients, tuple(GRADIENTS))
    one_of("unit", unit, UNITS)
    gaussian.record_shift(adjacency, clip_norm)
    check.integer_at_least(1, steps=steps)
    if noise_std is not None and mu is not None:
        raise InvalidInput("give --noise-std or --mu, not both.")
    if mechanism == NO_NOISE and (noise_std is not None or mu is not None):
        raise InvalidInput("--noise-std and --mu need a mechanism with noise, such as --mechanism dp-dsgd.")
    if noise_std is not None:
        check.non_negative(noise_std=noise_std)
    target = check.positive(mu=1.0 if mu is None else mu)
    if out is not None:
        require_folder(out)

    loaded, matrix = options.load_gossip(graph, largest_component, gossip, data_home)
    named = Named(loaded, attackers, colluders, None, False)
    if trust == "pndp" and attackers is None:
        raise InvalidInput(f"trust model pndp needs --attackers A,B; labels start {', '.join(named.labels[:5])}.")
    named.require_used([trust])
    model = named.model(trust)
    from .. import audit, graphs
    from ..dynamics import Dynamics
    from ..participation import EveryStep
    from ..reporting.output import versions

    scheme = EveryStep(steps)  # what unit "user" needs, and the worst for a record
    with options.messages().status(f"building {mechanism}"):
        algorithm = registry.build(mechanism, Dynamics(matrix), scheme, **parameters)
    kind = GRADIENTS[gradients]
    how: dict[str, Any] = {"gradients": kind, "release": release, "clip_norm": clip_norm}
    with options.messages().status("solving"):
        found = {"without_noise": audit.reconstruct(algorithm, model, noise_std=0.0, **how)}
        guarantee, notes = None, []
        if mechanism != NO_NOISE:
            chosen = _mechanism(
                algorithm, noise_std, target, trust=model, adjacency=adjacency, clip_norm=clip_norm, release=release,
                unit=unit,
            )  # fmt: skip
            guarantee = chosen.guarantee.sentence()
            if math.isinf(chosen.sensitivity.squared):
                notes.append(f"Infinite loss: {_in_options(chosen.sensitivity.why, steps)}.")
            found["with_noise"] = audit.reconstruct(chosen, model, gradients=kind, release=release)
    hops = named.distances(model.attackers(algorithm))
    answer: dict[str, Any] = {
        "mechanism": mechanism,
        "graph": graph,
        "graph_hash": graphs.content_hash(loaded),
        "gossip": matrix.name,
        "nodes": algorithm.num_nodes,
        "steps": steps,
        "trust": trust,
        "attackers": [named.labels[v] for v in model.attackers(algorithm)],
        "release": found["without_noise"].view.release,
        "gradients": gradients,
        "unit": unit,
        "clip_norm": clip_norm,
        "guarantee": guarantee,
        "notes": notes,
        "versions": versions(),
        "config": config_of(context),
    }
    answer |= {name: _panel(one, named.labels, hops) for name, one in found.items()}
    answer["seconds"] = time.perf_counter() - began
    if out is not None:
        with options.messages().status("drawing"):
            _write(out, answer, loaded)
    if as_json:
        typer.echo(json.dumps(answer, allow_nan=False))
    else:
        _show(answer, out)


def _mechanism(algorithm: LinearAlgorithm, noise_std: float | None, mu: float, **circumstances: Any) -> Mechanism:
    """The mechanism of a given noise, or the one calibrated to mu."""
    from .. import mechanism

    if noise_std is not None:
        return mechanism.with_noise(algorithm, noise_std=noise_std, **circumstances)
    try:
        return mechanism.calibrate(algorithm, mu=mu, **circumstances)
    except InvalidInput as error:
        raise InvalidInput(_in_options(str(error), algorithm.num_steps)) from None


def _in_options(text: str, steps: int) -> str:
    """A way out that the accountant names, in the options of this command, where every step is taken part in."""
    return text.replace(f"unit='user' with EveryStep({steps})", "--unit user").replace(
        "release='none'", "--release none"
    )


def _panel(found: Reconstruction, labels: list[str], hops: dict[int, int]) -> dict[str, Any]:
    """One reconstruction as JSON; of each node the gradient that is known best."""
    from ..reporting.output import json_number

    nodes = []
    for u, status in enumerate(found.node_status()):
        nodes.append(
            {
                "node": labels[u],
                "distance": hops.get(u),
                "status": status,
                "exposed_steps": [int(t) for t in found.exposed[:, u].nonzero()[0]],
                "undecided_steps": [int(t) for t in found.undecided[:, u].nonzero()[0]],
                "error_std": json_number(float(found.error_std[:, u].min())),
                "posterior_ratio": json_number(float(found.posterior_ratio[:, u].min())),
            }
        )
    n = len(labels)
    rows = [found.combinations[[k]].tocoo() for k in range(min(found.combinations.shape[0], MAX_COMBINATIONS))]
    combinations = [
        [
            {"node": labels[int(j) % n], "step": int(j) // n, "weight": float(w)}
            for j, w in zip(row.coords[1], row.data, strict=True)
        ]
        for row in rows
    ]
    return {
        "noise_std": found.noise_std,
        "nodes": nodes,
        "exposed": [one["node"] for one in nodes if one["status"] == "exposed"],
        "num_combinations": int(found.combinations.shape[0]),
        "combinations": combinations,
    }


def _panels(answer: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Title and answer of each panel."""
    shown = [("Without noise", answer["without_noise"])]
    if "with_noise" in answer:
        shown.append(
            (f"{answer['mechanism']}, noise std {answer['with_noise']['noise_std']:.4g}", answer["with_noise"])
        )
    return shown


def _sentence(title: str, panel: dict[str, Any]) -> str:
    """What a panel says, in words."""
    victims = [one for one in panel["nodes"] if one["status"] != "attacker"]
    count = f"{len(panel['exposed'])} of {len(victims)} nodes are exposed"
    names = f": {', '.join(panel['exposed'])}" if panel["exposed"] else ""
    others = {s: sum(one["status"] == s for one in victims) for s in dict.fromkeys(one["status"] for one in victims)}
    rest = "; ".join(f"{number} {status}" for status, number in others.items() if status != "exposed")
    return f"{title}: {count}{names}{f'; {rest}' if rest else ''}."


def _write(out: Path, answer: dict[str, Any], graph: Any) -> None:
    from .. import files
    from ..reporting.account import write_figure
    from ._attack_picture import draw

    who = f"{', '.join(answer['attackers'])} attacks" if answer["attackers"] else f"trust model {answer['trust']}"
    caption = (
        f"{answer['graph']} ({answer['nodes']} nodes), gossip {answer['gossip']}, {answer['steps']} steps; {who}; "
        f"gradients {answer['gradients']}, released models: {answer['release']}. ±: standard deviation of the best "
        f"unbiased estimate of one coordinate of a node's {GRADIENT_OF[answer['unit']]}, in clipping norms. "
    )
    caption += " ".join([*([answer["guarantee"]] if answer["guarantee"] else []), *answer["notes"]])
    panels = [{"title": title, "nodes": panel["nodes"]} for title, panel in _panels(answer)]
    write_figure(out, FIGURE, draw(graph, panels, caption=caption))
    files.atomic_write_json(out / RESULTS, answer)


def _show(answer: dict[str, Any], out: Path | None) -> None:
    from rich.table import Table

    panels = _panels(answer)
    title = (
        f"{answer['graph']}, trust {answer['trust']}, {answer['unit']} level, {answer['steps']} steps, "
        f"gradients {answer['gradients']}"
    )
    table = Table(title=title)
    table.add_column("node", overflow="fold")
    table.add_column("distance", justify="right")
    for name, _ in panels:
        table.add_column(name)
        table.add_column("error", justify="right")
        table.add_column("left", justify="right")
    for rows in zip(*(panel["nodes"] for _, panel in panels), strict=True):
        if rows[0]["status"] == "attacker":
            continue
        distance = "" if rows[0]["distance"] is None else str(rows[0]["distance"])
        cells = [
            cell
            for row in rows
            for cell in (row["status"], *(_error(row[key]) for key in ("error_std", "posterior_ratio")))
        ]
        table.add_row(rows[0]["node"], distance, *cells)
    console = options.answers()
    console.print(table, markup=False)
    console.print(
        f"error: std of the best unbiased estimate of a coordinate of a node's {GRADIENT_OF[answer['unit']]}, in "
        "clipping norms; left: what remains of the std of somebody who guesses, as a share.",
        highlight=False,
    )
    for name, panel in panels:
        console.print(_sentence(name, panel), highlight=False, markup=False)
    if answer["guarantee"]:
        console.print(answer["guarantee"], highlight=False, markup=False)
    for note in answer["notes"]:
        console.print(f"Note: {note}", highlight=False, markup=False)
    if out is not None:
        console.print(f"Kept in {out}.", highlight=False, markup=False, soft_wrap=True)


def _error(value: float | str) -> str:
    return "none" if value == "inf" else f"{float(value):.3g}"
