"""`mfdl account`: what an attacker learns of every node, for one mechanism on one graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, ClassVar

from ..errors import InvalidInput
from ..runs import options
from ..runs.options import OnGraph, Option, TakesPart, require_one_of
from .command import Answer, command


@dataclasses.dataclass(frozen=True)
class AccountConfig(TakesPart, OnGraph):
    """One mechanism, one graph, one trust model; at most one of noise_std, noise_multiplier, mu, epsilon and budgets.

    Raises: InvalidInput: a value out of range, an unknown name, or options that exclude each other.
    """

    command: ClassVar[str] = "account"

    mechanism: Annotated[str, Option("One of `mfdl mechanisms`, or file:FILE.", metavar="NAME")] = "dp-dsgd"
    settings: options.Settings = ()
    trust: Annotated[str, Option("One of `mfdl trust list`.", metavar="NAME")] = "ldp"
    attackers: options.Attackers = None
    colluders: options.Colluders = None
    coalition_size: options.CoalitionSize = None
    all_attackers: Annotated[bool, Option("pndp: each node attacks alone, in turn.")] = False
    victims: Annotated[
        str | None,
        Option("Nodes whose privacy loss is computed; default: all nodes that do not attack.", metavar="A,B"),
    ] = None
    owners: Annotated[
        str | None,
        Option(
            "Nodes that may hold the same record: any Q nodes, or groups A+B,C+D of labels; each group is a victim "
            "besides the nodes.",
            metavar="Q|A+B",
        ),
    ] = None
    same_steps: Annotated[bool, Option("The owners of a record use it in the same steps (shared batches).")] = False
    noise_std: Annotated[
        float | None, Option("nu, the standard deviation of the base noise Z; default 1.", rule="non_negative")
    ] = None
    noise_multiplier: Annotated[
        float | None, Option("nu in units of worst sensitivity times record shift.", rule="non_negative")
    ] = None
    mu: Annotated[float | None, Option("Find the least nu for which mu is met.", rule="positive")] = None
    epsilon: Annotated[
        float | None, Option("Find the least nu for which this epsilon at --delta is met.", rule="positive")
    ] = None
    budgets: Annotated[
        Path | None,
        Option(
            'Instead of --mu: a JSON file {"LABEL": mu, ...} with the budget of each node, which scales '
            "the noise of that node."
        ),
    ] = None
    calibrate_under: Annotated[
        str | None, Option("Trust model under which the target is met; default --trust.", metavar="TRUST")
    ] = None
    delta: options.Delta = 1e-6
    lipschitz: Annotated[
        float | None,
        Option(
            "Lipschitz constant of the maps x -> x - learning rate * gradient(x); it gives smaller adaptive losses.",
            rule="non_negative",
        ),
    ] = None
    release: options.Release = None
    bound: Annotated[
        str,
        Option("exact (upper and lower bound meet), or certified (fast upper bound).", among=("exact", "certified")),
    ] = "exact"
    jobs: options.Jobs = None

    def __post_init__(self, typed: Collection[str]) -> None:
        super().__post_init__(typed)
        from .. import trust
        from ..algorithms import registry

        require_one_of("trust model", self.trust, trust.base.MODELS)
        registry.check_name(self.mechanism)
        self.parameters()
        names = ("noise_std", "noise_multiplier", "mu", "epsilon", "budgets")
        given = [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidInput(
                "give one of --noise-std, --noise-multiplier, --mu, --epsilon and --budgets, got "
                f"{' and '.join(given)}."
            )
        if self.calibrate_under is not None and self.target is None and self.budgets is None:
            raise InvalidInput(
                "--calibrate-under is the trust model under which a target is met; give --mu, --epsilon or "
                "--budgets, or leave it out."
            )
        if self.budgets is not None and (self.all_attackers or self.has_secret_batches):
            which, way_out = ("--all-attackers", "name the attackers with --attackers")
            if self.has_secret_batches:
                which, way_out = (self.participation, "give --epsilon, or a public participation")
            raise InvalidInput(
                f"--budgets needs one set of attackers and a mu for each node, which {which} does not have; {way_out}."
            )
        self._check_owners()
        if self.unit == "user" and self.lipschitz is not None:
            raise InvalidInput("--lipschitz belongs to per-record clipping, i.e. to --unit record; leave it out.")

    def _check_owners(self) -> None:
        """Raises: InvalidInput: options that records of several owners do not have."""
        if self.owners is None:
            if self.same_steps:
                raise InvalidInput("--same-steps says how several owners use a record; give --owners, or leave it out.")
            return
        excluded = {"--victims": self.victims, "--all-attackers": self.all_attackers, "--budgets": self.budgets}
        given = [name for name, value in excluded.items() if value]
        if given:
            raise InvalidInput(
                f"--owners computes every node and every group of owners for one set of attackers; leave out "
                f"{' and '.join(given)}."
            )

    def parameters(self) -> dict[str, Any]:
        """The settings, as the builder takes them; covariances are made against the coalitions that attack."""
        from ..algorithms import registry

        given = registry.parse_parameters(self.mechanism, self.settings)
        if "coalition_size" in registry.settable_parameters(self.mechanism) and self.coalition_size is not None:
            given.setdefault("coalition_size", self.coalition_size)
        return given

    @property
    def target(self) -> dict[str, Any] | None:
        """Keyword arguments of `calibrate`; None where the noise is given."""
        if self.epsilon is not None:
            return self.values("epsilon", "delta")
        return None if self.mu is None else self.values("mu")

    @property
    def accounting(self) -> dict[str, Any]:
        """What `sensitivity_by_victim` is told besides algorithm, trust model and victims."""
        return {"release": self.release, "method": self.bound, "lipschitz": self.lipschitz, "unit": self.unit}


@command(AccountConfig, "Folder for results.json and pictures.")
def account(config: AccountConfig, out: Path | None) -> Answer:
    """Compute the privacy loss of every node for one mechanism, graph and trust model.

    Two numbers per victim: mu for non-adaptive gradients, and mu_adaptive for adaptive gradients, as in training. With
    secret batches there is no mu, and epsilon holds for adaptive gradients.
    """
    from .account_losses import run_account
    from .account_tables import show

    losses = run_account(config, out)
    return losses.answer, lambda: show(losses.answer, losses.worst_in_words(), out), 0
