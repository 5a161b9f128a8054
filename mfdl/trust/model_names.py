"""Trust models by name, as the command line and configurations use them: a registry, and what each sees and knows.

In: a model's class, or a function to it, registered where it is defined in `models`. Out: `named`, and the words of
`mfdl trust list`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ..errors import InvalidInput
from ..spec import Entry, Registry
from .base import TrustModel


@dataclasses.dataclass(frozen=True)
class TrustEntry(Entry):
    """A trust model in words.

    Attributes:
        attacker: who observes; default as the class of the model says.
        seen, gradients_known, noise_known: messages that the attacker sees, and columns that it knows.
    """

    attacker: str = ""
    seen: str = ""
    gradients_known: str = ""
    noise_known: str = ""

    @property
    def observer(self) -> str:
        """Who observes, in words."""
        return self.attacker or str(getattr(self.build, "attacker", self.name))

    @property
    def hides_messages(self) -> bool:
        """Whether there are messages that are sent and not seen."""
        return self.seen != "all"

    @property
    def release(self) -> str:
        """Whether released models are a part of the view, in words."""
        if self.hides_messages:
            return "all final models are part of the view, unless --release says none or average"
        return "released models add nothing, unless some messages are never sent: then they are part of the view"


MODELS: Registry[TrustEntry] = Registry("trust model", TrustEntry)


def named(name: str, **parameters: Any) -> TrustModel:
    """The trust model of a name in MODELS, with the nodes or the size that it needs.

    >>> named("colluding", colluders=[0, 2])
    SecLDP(colluders=(0, 2))

    Args: parameters: of that model, None for those not given. attackers: of pndp; None: any one node. colluders: of
        colluding. coalition_size: of coalitions.
    Raises: InvalidInput: unknown name, a missing argument, or one that belongs to another model.
    """
    entry = MODELS.entry(name)
    given = {argument: value for argument, value in parameters.items() if value is not None}
    for argument in given:
        owners = models_by_parameter().get(argument, (name,))
        if name not in owners:
            raise InvalidInput(f"{argument} belongs to trust model {' or '.join(owners)}, not to {name}; leave it out.")
    for argument, parameter in entry.signature.items():
        if parameter.required and argument not in given:
            raise InvalidInput(f"trust model {name} needs {argument}.")
    model: TrustModel = MODELS.make(name, given=given)
    return model


def models_by_parameter() -> dict[str, tuple[str, ...]]:
    """Every parameter of a trust model, with the names of the models that have it.

    >>> models_by_parameter()["coalition_size"]
    ('coalitions',)
    """
    parameters = dict.fromkeys(name for entry in MODELS.values() for name in entry.signature)
    return {key: tuple(name for name, entry in MODELS.items() if key in entry.signature) for key in parameters}


def table() -> str:
    """All of them as a table of Markdown."""
    rows = [("model", "messages seen", "gradients known", "noise known"), ("---",) * 4]
    for name, entry in MODELS.items():
        form = f"{name}({', '.join(entry.signature)})" if entry.signature else name
        rows.append((form, entry.seen, entry.gradients_known, entry.noise_known))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
