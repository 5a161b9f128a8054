"""`mfdl attack`: reconstructs gradients from an attacker's view, once without noise, once under a mechanism."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from ..errors import InvalidInput, require_known
from ..progress import Progress, reporter
from ..runs import options
from ..runs.options import OnGraph, Option, Protects
from ..runs.output import circumstances, json_number, require_folder, rounded_up
from . import terminal
from .terminal import Answer, command

if TYPE_CHECKING:
    from ..algorithms import LinearAlgorithm
    from ..audit.reconstruction import Reconstruction
    from ..mechanism import Mechanism
    from ..trust import TrustModel


RESULTS, FIGURE = "results.json", "attack"
TRUSTS = ("ldp", "pndp", "eavesdropper", "colluding", "central", "released")  # those with one view for all victims
GRADIENTS = {"constant": "constant", "per-step": "per step", "first-step": "first step"}  # as `audit.reconstruct` says
NO_NOISE = "none"
ALIASES = {"d-sgd": NO_NOISE}
MAX_COMBINATIONS = 100  # written to the JSON answer
GRADIENT_OF = {"record": "sum of clipped gradients", "user": "clipped mean gradient"}  # of a node, what is solved for
WORST_VICTIM = re.compile(r" \(node .*(, the worst victim|that lose most)\)")
"""A guarantee's words about one node, which are left out here: every message shows the same."""


@dataclasses.dataclass(frozen=True)
class AttackConfig(Protects, OnGraph):
    """One attacker on one graph: without noise, and under a mechanism with noise_std, or calibrated to mu."""

    command: ClassVar[str] = "attack"

    mechanism: Annotated[str, Option(
        "Mechanism beside D-SGD without noise: one of `mfdl mechanisms`; d-sgd: no mechanism.", metavar="NAME"
    )] = "dp-dsgd"  # fmt: skip
    settings: options.Settings = ()
    trust: Annotated[
        str, Option(f"One of {', '.join(TRUSTS)}: the trust models with one attacker.", metavar="NAME")
    ] = "pndp"
    attackers: options.Attackers = None
    colluders: options.Colluders = None
    steps: Annotated[int, Option("T, the number of gradient steps.", least=1)] = 10
    gradients: Annotated[str, Option(
        "constant (each node's gradient is the same at every step), per-step (all are unknown), or first-step "
        "(values given once, then averaged by gossip).",
        metavar="KIND",
    )] = "constant"  # fmt: skip
    noise_std: Annotated[
        float | None, Option("nu of the mechanism; default: calibrated to --mu.", rule="non_negative")
    ] = None
    mu: Annotated[float | None, Option("Gaussian DP level of the mechanism; default 1.", rule="positive")] = None
    release: options.Release = None

    def __post_init__(self) -> None:
        super().__post_init__()
        options.require_steps(self.steps)
        from .. import trust
        from ..algorithms import registry

        require_known("trust model", self.trust, trust.base.MODELS)
        if self.trust not in TRUSTS:
            raise InvalidInput(
                f"--trust {self.trust} has several possible attackers, but an attack needs one; use one of "
                f"{', '.join(TRUSTS)}."
            )
        registry.check_name(self.name)
        self.parameters()
        require_known("kind of gradients", self.gradients, tuple(GRADIENTS))
        if self.noise_std is not None and self.mu is not None:
            raise InvalidInput("give --noise-std or --mu, not both.")
        if not self.noisy and (self.noise_std is not None or self.mu is not None):
            raise InvalidInput("--noise-std and --mu need a mechanism with noise, such as --mechanism dp-dsgd.")

    @property
    def name(self) -> str:
        return ALIASES.get(self.mechanism, self.mechanism)

    @property
    def noisy(self) -> bool:
        return self.name != NO_NOISE

    def parameters(self) -> dict[str, Any]:
        from ..algorithms import registry

        return registry.parse_parameters(self.name, self.settings)


def run_attack(
    config: AttackConfig, out: str | os.PathLike[str] | None = None, *, progress: Progress = "auto"
) -> dict[str, Any]:
    from ..algorithms import registry
    from ..audit import reconstruct
    from ..dynamics import Dynamics
    from ..participation import EveryStep
    from ..runs.named_nodes import Named

    began, screen = time.perf_counter(), reporter(progress)
    if out is not None:
        require_folder(out)
    graph, gossip = config.sparse_network()
    named = Named(graph, config.attackers, config.colluders)
    if config.trust == "pndp" and config.attackers is None:
        raise InvalidInput(f"trust model pndp needs --attackers A,B; labels start {', '.join(named.labels[:5])}.")
    named.require_used([config.trust])
    model = named.model(config.trust)
    scheme = EveryStep(config.steps)  # what unit "user" needs, and the worst for a record
    with screen.status(f"building {config.name}"):
        algorithm = registry.build(config.name, Dynamics(gossip), scheme, **config.parameters())
    kind = GRADIENTS[config.gradients]
    guarantee, notes, solved, losses = None, [], {}, {}
    with screen.status("solving"):
        solved["without_noise"] = reconstruct(
            algorithm, model, noise_std=0.0, gradients=kind, release=config.release, clip_norm=config.clip_norm
        )
        if config.noisy:
            chosen = _mechanism(config, algorithm, model)
            guarantee = str(chosen.guarantee)
            delta = chosen.guarantee.stated_delta
            losses = {"mu": chosen.guarantee.mu, "epsilon": chosen.guarantee.epsilon(delta), "delta": delta}
            if math.isinf(chosen.guarantee.sensitivity):
                why = WORST_VICTIM.sub("", chosen.guarantee.why.removeprefix("No finite number: "))
                notes.append(f"Infinite loss: {_in_options(why, config.steps)}")
            solved["with_noise"] = reconstruct(chosen, model, gradients=kind, release=config.release)
    attackers = model.attackers(algorithm)
    hops = named.distances(attackers)
    answer: dict[str, Any] = {
        "mechanism": config.name, **circumstances(config, graph, gossip),
        **config.values("steps", "trust", "gradients", "unit", "clip_norm"),
        "attackers": [named.labels[v] for v in attackers], "release": solved["without_noise"].view.release,
        "guarantee": guarantee, **{name: json_number(losses.get(name)) for name in ("mu", "epsilon", "delta")},
        "notes": notes,
        **{name: _panel(reconstruction, named.labels, hops) for name, reconstruction in solved.items()},
    }  # fmt: skip
    answer["seconds"] = time.perf_counter() - began
    if out is not None:
        with screen.status("drawing"):
            _write(Path(out), answer, graph.networkx())
    return answer


def _mechanism(config: AttackConfig, algorithm: LinearAlgorithm, trust: TrustModel) -> Mechanism:
    from .. import noise_scale
    from ..privacy.questions import Privacy

    privacy = Privacy(trust, release=config.release, **config.protected)
    if config.noise_std is not None:
        return noise_scale.calibrate(algorithm, privacy, noise_std=config.noise_std)
    try:
        return noise_scale.calibrate(algorithm, privacy, mu=1.0 if config.mu is None else config.mu)
    except InvalidInput as error:
        raise InvalidInput(_in_options(str(error), config.steps)) from None


def _in_options(text: str, steps: int) -> str:
    """A remedy that the accountant names, in the options of this command."""
    text = text.replace(f"unit='user' with EveryStep({steps})", "--unit user")
    return text.replace("release='none'", "--release none")


def _panel(solved: Reconstruction, labels: list[str], hops: dict[int, int]) -> dict[str, Any]:
    """One reconstruction as JSON; of each node the best known gradient."""
    nodes = [
        {
            "node": labels[u], "distance": hops.get(u), "status": status,
            "exposed_steps": [int(t) for t in solved.exposed[:, u].nonzero()[0]],
            "undecided_steps": [int(t) for t in solved.undecided[:, u].nonzero()[0]],
            "error_std": json_number(float(solved.error_std[:, u].min())),
            "posterior_ratio": json_number(float(solved.posterior_ratio[:, u].min())),
        }
        for u, status in enumerate(solved.node_status())
    ]  # fmt: skip
    n, count = len(labels), int(solved.combinations.shape[0])
    rows = [solved.combinations[[k]].tocoo() for k in range(min(count, MAX_COMBINATIONS))]
    return {
        "noise_std": solved.noise_std,
        "nodes": nodes,
        "exposed": [node["node"] for node in nodes if node["status"] == "exposed"],
        "num_combinations": count,
        "combinations": [
            [
                {"node": labels[int(j) % n], "step": int(j) // n, "weight": float(w)}
                for j, w in zip(row.coords[1], row.data, strict=True)
            ]
            for row in rows
        ],
    }


def panels(answer: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    titled = [("Without noise", answer["without_noise"])]
    if noisy := answer.get("with_noise"):
        titled.append((f"{answer['mechanism']}, base noise std {noisy['noise_std']:.4g}", noisy))
    return titled


def _write(out: Path, answer: dict[str, Any], graph: Any) -> None:
    from .. import files
    from ..pictures.style import write_figure  # matplotlib only where pictures are wanted
    from .loss_pictures import draw

    who = f"{', '.join(answer['attackers'])} attacks" if answer["attackers"] else f"trust model {answer['trust']}"
    caption = (
        f"{answer['graph']} with {answer['nodes']} nodes, gossip {answer['gossip']}, {answer['steps']} steps, {who}, "
        f"gradients {answer['gradients']}, released models: {answer['release']}. The number after ± is the standard "
        f"deviation of the best unbiased estimate of one coordinate of a node's {GRADIENT_OF[answer['unit']]}, in "
        "clipping norms."
    )
    if answer["guarantee"] is not None:
        adjacency = dict(line.partition(": ")[::2] for line in answer["guarantee"].splitlines())["adjacency"]
        caption += f" The guarantee is for {adjacency} adjacency and clipping norm {answer['clip_norm']:g}."
    caption = " ".join([caption, *answer["notes"]])
    drawn = [{"title": title, "nodes": panel["nodes"]} for title, panel in panels(answer)]
    if answer["mu"] is not None:
        mu, epsilon = rounded_up(answer["mu"]), rounded_up(answer["epsilon"])
        drawn[-1]["title"] += f": mu = {mu}, epsilon = {epsilon} at delta = {answer['delta']:g}"
    write_figure(out, FIGURE, draw(graph, drawn, caption=caption))
    files.atomic_write_json(out / RESULTS, answer)


@command(AttackConfig, "Folder for results.json and the picture.")
def attack(config: AttackConfig, out: Path | None) -> Answer:
    """Reconstruct gradients from what an attacker sees: once without noise, once under a mechanism.

    Exposed gradients are reconstructed exactly; an error is the standard deviation of the best unbiased estimate, in
    clipping norms.
    """
    answer = run_attack(config, out)
    return answer, lambda: _show(answer, out), 0


def _show(answer: dict[str, Any], out: Path | None) -> None:
    titled = panels(answer)
    title = "{graph}, trust {trust}, {unit} level, {steps} steps, gradients {gradients}".format_map(answer)
    columns = ["node", "distance", *(column for name, _ in titled for column in (name, "error", "left"))]
    table = terminal.table(columns, title=title, right=("distance", "error", "left"))
    for rows in zip(*(panel["nodes"] for _, panel in titled), strict=True):
        if rows[0]["status"] == "attacker":
            continue
        distance = "" if rows[0]["distance"] is None else str(rows[0]["distance"])
        cells = ((row["status"], _error(row["error_std"]), _error(row["posterior_ratio"])) for row in rows)
        table.add_row(rows[0]["node"], distance, *(cell for three in cells for cell in three))
    explained = (
        f"error: std of the best unbiased estimate of a coordinate of a node's {GRADIENT_OF[answer['unit']]}, in "
        "clipping norms; left: the posterior std of a coordinate, as a share of the prior std."
    )
    guarantee = [answer["guarantee"]] if answer["guarantee"] else []
    notes = (f"Note: {note}" for note in answer["notes"])
    terminal.say([table, explained, *(_sentence(*panel) for panel in titled), *guarantee, *notes], out)


def _sentence(title: str, panel: dict[str, Any]) -> str:
    status = [node["status"] for node in panel["nodes"] if node["status"] != "attacker"]
    names = f": {', '.join(panel['exposed'])}" if panel["exposed"] else ""
    rest = "; ".join(f"{status.count(kind)} {kind}" for kind in dict.fromkeys(status) if kind != "exposed")
    return f"{title}: {len(panel['exposed'])} of {len(status)} nodes are exposed{names}{f'; {rest}' if rest else ''}."


def _error(value: float | str) -> str:
    return "none" if value == "inf" else f"{float(value):.3g}"
