"""`mfdl audit`: tests claims of mechanisms under trust models by runs."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from ..errors import InvalidInput
from ..progress import Progress, Silent, reporter
from ..runs import options
from ..runs.options import OnGraph, Option, TakesPart
from . import terminal
from .terminal import Answer, command

if TYPE_CHECKING:
    from ..audit.audit_cells import AuditMatrix


MATRIX_TRUSTS = ("ldp", "pndp", "eavesdropper", "coalitions", "full-collusion", "central")


@dataclasses.dataclass(frozen=True)
class AuditConfig(TakesPart, OnGraph):
    """Mechanisms by trust models, all at one noise, or each at the noise of one mu or epsilon."""

    command: ClassVar[str] = "audit"

    mechanism: Annotated[tuple[str, ...], Option("One of `mfdl mechanisms`; may be repeated.", metavar="NAME")] = ()
    trust: Annotated[tuple[str, ...], Option("One of `mfdl trust list`; may be repeated.", metavar="NAME")] = ()
    matrix: Annotated[
        bool, Option("Audit every mechanism and every trust model; --mechanism and --trust restrict them.")
    ] = False
    graph: options.Graph = "ring:n=5"
    attackers: options.Attackers = None
    colluders: options.Colluders = None
    coalition_size: Annotated[int | None, Option("coalitions: how many nodes collude; default 1.", metavar="Q")] = None
    epochs: Annotated[int, Option("How often each record takes part.", ("--k", "--epochs"), least=1)] = 2
    period: Annotated[int, Option("Steps per epoch; the run has k b steps.", ("--b", "--period"), least=1)] = 2
    noise_std: Annotated[float | None, Option("nu, the standard deviation of the base noise in every cell.")] = None
    mu: Annotated[float | None, Option("The mu that every cell claims; it sets the noise. Default 1.")] = None
    epsilon: Annotated[
        float | None, Option("The epsilon at --delta that every cell claims; it sets the noise.", rule="positive")
    ] = None
    victim: Annotated[str | None, Option(
        "The node whose records are audited, by label or as #INDEX; default every node, with --one-run the one of "
        "the largest claim.",
        metavar="A",
    )] = None  # fmt: skip
    one_run: Annotated[
        bool, Option("Audit each cell by a single run, with many canaries of one node and one attacker.")
    ] = False
    canaries: Annotated[
        int | None, Option("--one-run: records of the victim, each included by a fair coin; default 1000.", metavar="M")
    ] = None
    patterns: Annotated[
        int | None, Option("--one-run: the canaries take this many patterns of steps in turn; default 1.", metavar="P")
    ] = None
    planted: Annotated[bool, Option(
        "Add for each mechanism a row with a planted bug, which the audit must refute: with balls-in-bins an "
        "attacker who knows the bins, with --one-run half of the noise."
    )] = False  # fmt: skip
    delta: options.Delta = 1e-6
    trials: Annotated[int, Option("Measured runs per canary and input.")] = 4000
    level: Annotated[float, Option("Confidence level of all bounds of all cells together.")] = 0.95
    seed: Annotated[int, Option("Seed of the noise; it determines the result.")] = 0

    def __post_init__(self, typed: Collection[str]) -> None:
        super().__post_init__(typed)
        from ..algorithms import registry

        for name in self.mechanisms:
            registry.check_name(name)
        if [self.noise_std, self.mu, self.epsilon].count(None) < 2:
            raise InvalidInput("give at most one of --noise-std, --mu and --epsilon.")
        if self.has_secret_batches and self.noise_std is None and self.epsilon is None:
            raise InvalidInput(f"--participation {self.participation} has no mu; give --epsilon or --noise-std.")
        if self.planted and not self.one_run and self.participation != options.BINS:
            raise InvalidInput(
                f"--planted needs a bug to plant; add --participation {options.BINS} (its bins are public) or "
                "--one-run (half the noise)."
            )
        self._require_one_run(typed)

    def _require_one_run(self, typed: Collection[str]) -> None:
        if not self.one_run:
            for name in ("canaries", "patterns"):
                if (value := getattr(self, name)) is not None:
                    raise InvalidInput(f"--{name} {value} is for --one-run; add it, or leave --{name} out.")
            return
        if self.has_secret_batches:
            raise InvalidInput(
                f"--one-run guesses records of public batches, got --participation {self.participation}; leave "
                "--one-run out, or take public batches."
            )
        if self.unit == "user":
            raise InvalidInput("--one-run needs many records of a node, and --unit user has one user; leave one out.")
        if "trials" in typed or self.trials != AuditConfig.trials:
            raise InvalidInput(f"--trials {self.trials} counts runs, and --one-run has one; give --canaries instead.")

    @property
    def mechanisms(self) -> tuple[str, ...]:
        from ..algorithms import registry

        return self.mechanism or (tuple(n for n in registry.MECHANISMS if n != "none") if self.matrix else ("dp-dsgd",))

    @property
    def trusts(self) -> tuple[str, ...]:
        return self.trust or (MATRIX_TRUSTS if self.matrix else ("ldp",))


def run_audit(
    config: AuditConfig, out: str | os.PathLike[str] | None = None, *, progress: Progress = "auto"
) -> tuple[AuditMatrix, dict[str, Any]]:
    from ..runs.output import require_folder, versions

    began = time.perf_counter()
    if out is not None:
        require_folder(out)
    matrix = _audited(config, reporter(progress))
    if all(cell.result is None for cell in matrix.cells):
        why = matrix.cells[0].why
        raise InvalidInput(f"no finite privacy loss is claimed: {why}; choose another --trust or --mechanism.")
    made_with: dict[str, Any] = {"graph": config.graph, "versions": versions(), "config": config.options()}
    made_with["seconds"] = time.perf_counter() - began
    if out is not None:
        matrix.write(Path(out), made_with)
    return matrix, {**matrix.to_dict(), **made_with}


def _audited(config: AuditConfig, progress: Silent) -> AuditMatrix:
    from ..algorithms import registry
    from ..audit import audit_matrix
    from ..runs.named_nodes import Named

    graph, gossip = config.sparse_network()
    named = Named(graph, **config.values("attackers", "colluders", "coalition_size"), anybody=True)
    named.require_used(config.trusts)
    models = {name: named.model(name) for name in config.trusts}
    dynamics, scheme = config.dynamics(gossip), config.scheme()
    with progress.status("building mechanisms"):
        built = {name: registry.build(name, dynamics, scheme) for name in config.mechanisms}
    entries = {name: registry.find_entry(name) for name in built}
    release = {name: e.release for name, e in entries.items() if e is not None and e.release is not None}
    settings = config.protected | config.values("noise_std", "epsilon", "planted", "level", "trials", "delta", "seed")
    if config.victim is not None:
        victims = named.indices("victim", config.victim)
        if len(victims) > 1:
            raise InvalidInput(
                f"--victim must name one node, got {config.victim}; audit the others by calls of their own."
            )
        settings["victim"] = victims[0]
    if config.one_run:
        of_one_run = {"trials": config.canaries, "patterns": config.patterns}
        del settings["trials"]
        settings |= {"one_run": True} | {name: value for name, value in of_one_run.items() if value is not None}
    settings["mu"] = 1.0 if config.noise_std is None and config.epsilon is None and config.mu is None else config.mu
    return audit_matrix(built, models, release=release, progress=progress, **settings)


@command(AuditConfig, "Folder for audit.json, audit.csv and audit.png.")
def audit(config: AuditConfig, out: Path | None) -> Answer:
    """Run neighbouring inputs many times and test the claimed mu, or the claimed epsilon of balls-in-bins.

    With --one-run, run once with many canaries.

    The exit code is 0 if no claim and every planted bug is refuted; 1 otherwise.
    """
    matrix, answer = run_audit(config, out)
    return answer, lambda: _show(matrix, config, out), int(bool(matrix.violations or matrix.unseen))


def _show(matrix: AuditMatrix, config: AuditConfig, out: Path | None) -> None:
    from rich.text import Text

    from ..audit.audit_cells import NUMBERS

    numbers = ("mu\nclaimed", "mu >=", "epsilon\nclaimed", "epsilon\n>=")  # as NUMBERS
    way = ", one run each" if config.one_run else ""
    title = f"claimed and audited privacy{way}, all at level {matrix.level:g}"
    table = terminal.table(("mechanism", "trust", *numbers, "verdict"), title=title, right=numbers)
    table.collapse_padding, table.columns[1].no_wrap = True, True
    without: dict[str, list[str]] = {}
    for cell in matrix.cells:
        row = cell.row()
        values = ["" if row[name] == "" else f"{row[name]:.4g}" for name in NUMBERS]
        if cell.result is None:
            without.setdefault(cell.why, []).append(f"{cell.mechanism} under {cell.trust}")
        violated = cell.result is not None and cell.result.violated
        verdict = "no claim" if cell.result is None else "REFUTED" if violated else "not refuted"
        table.add_row(cell.mechanism, cell.trust, *values, Text(verdict, style="red" if violated else ""))
    terminal.say([table, *(f"No claim of {', '.join(cells)}: {why}." for why, cells in without.items())])
    results = [(cell, cell.result) for cell in matrix.cells if cell.result is not None]
    in_full = [r for cell, r in results if (r.violated and not cell.planted) or len(matrix.cells) == 1]
    terminal.say(r.sentence() for r in in_full)
    terminal.say(f"{cell.mechanism} under {cell.trust}: {note}." for cell, r in results for note in r.notes)
    drawn = [(cell, r.draws) for cell, r in results if r.draws is not None and r not in in_full]
    terminal.say(f"{cell.mechanism} under {cell.trust}: {draws.sentence()}" for cell, draws in drawn)
    terminal.say(
        f"{cell.mechanism} under {cell.trust} is a planted bug that the audit did not detect." for cell in matrix.unseen
    )
    if refuted := sum(cell.planted != "" and result.violated for cell, result in results):
        terminal.say([f"{refuted} planted bug{'s are' if refuted > 1 else ' is'} refuted, as expected."])
    count = len(matrix.violations)
    verdict = f"{count} claim{'s are' if count > 1 else ' is'} refuted." if count else "No claim is refuted."
    terminal.say([verdict], out)
