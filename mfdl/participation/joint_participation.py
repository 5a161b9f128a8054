"""JointParticipation: when a record takes part that several nodes hold.

Each owner uses the record in the steps of a pattern of its own node. A joint pattern is a set of pairs (owner, step),
in the order of `mfdl_solvers.joint_patterns`, so all that is known of patterns of one node holds for these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mfdl_solvers.joint_patterns import CommonPatterns, ProductPatterns
from mfdl_solvers.pattern_sets import PatternSet

from ..display import short_repr
from ..errors import InvalidInput
from .schemes import Participation


def in_steps(same_steps: bool) -> str:
    """How the owners of a record take part, in words."""
    return "all owners of a record in the same steps" if same_steps else "each owner of a record by itself"


@dataclasses.dataclass(frozen=True)
class JointParticipation(Participation):
    """The participation of the owners of one record; its steps are pairs (owner, step).

    Attributes:
        participations: of each owner, all over the same steps.
        same_steps: all owners use the record in the same steps, as where batches are shared; else in any combination
            of their patterns.
    """

    __repr__ = short_repr

    participations: tuple[Participation, ...]
    same_steps: bool = False
    scheme = "joint"

    @classmethod
    def of(cls, scheme: Participation, owners: Sequence[int], *, same_steps: bool) -> JointParticipation:
        """Of some nodes under the participation of all. Raises: InvalidInput: same steps of differing schemes."""
        parts = tuple(scheme.of_node(u) for u in owners)
        if same_steps and any(part != parts[0] for part in parts):
            kinds = "; ".join(dict.fromkeys(part.describe() for part in parts))
            raise InvalidInput(
                f"same_steps needs one participation of all owners of a record, but those of nodes "
                f"{', '.join(map(str, owners))} differ ({kinds}); leave same_steps out."
            )
        return cls(parts, same_steps)

    @property
    def num_steps(self) -> int:
        """Pairs (owner, step)."""
        return sum(part.num_steps for part in self.participations)

    def patterns_of_record(self) -> PatternSet:
        sets = tuple(part.patterns_of_record() for part in self.participations)
        return CommonPatterns.of(sets[0], len(sets)) if self.same_steps else ProductPatterns.of(sets)

    def describe(self) -> str:
        kinds = dict.fromkeys(part.describe() for part in self.participations)
        return f"{'; '.join(kinds)}, {in_steps(self.same_steps)}"

    def to_dict(self) -> dict[str, object]:
        schemes = [part.to_dict() for part in self.participations]
        return {"scheme": self.scheme, "participations": schemes, "same_steps": self.same_steps}
