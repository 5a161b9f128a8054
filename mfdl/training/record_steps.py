"""Which steps each numbered record of a node has joined: a record takes part only when its participation allows it.

In: the participation of one record, then step after step the numbers of a batch. Out: nothing, or a refusal before the
batch counts. A guarantee rests on the participation; the numbers are the node's own and leave it with no message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .. import check
from ..errors import InvalidInput
from ..participation import Participation


class RecordSteps:
    """Steps that the records of one node have joined.

    Args: participation: of one record; None where it may take part in every step, as all data of a user may.
    """

    def __init__(self, participation: Participation | None) -> None:
        self._participation = participation
        self._steps: dict[int, list[int]] = {}

    def with_batch(self, t: int, records: Sequence[int] | None) -> dict[int, list[int]]:
        """The steps of each record of a batch, step t included; `add` makes them count.

        Raises: InvalidInput: the first record that stands twice or may not take part.
        """
        if records is None or self._participation is None:
            return {}
        joined: dict[int, list[int]] = {}
        for record in (check.integer_at_least(0, record=record) for record in records):
            if record in joined:
                raise InvalidInput(
                    f"record {record} stands twice in the batch of step {t}; a guarantee counts it once."
                )
            joined[record] = [*self._steps.get(record, []), t]
            if not self._participation.allows(joined[record]):
                raise InvalidInput(
                    f"record {record} would take part in steps {joined[record]}, and {self._participation.describe()} "
                    "does not allow that; feed each record when its participation says, or calibrate for another one."
                )
        return joined

    def add(self, joined: Mapping[int, list[int]]) -> None:
        """Counts a batch of `with_batch`."""
        self._steps.update(joined)

    def to_dict(self) -> dict[int, list[int]]:
        """Steps by record, for a saved node."""
        return {record: list(steps) for record, steps in self._steps.items()}

    def load(self, steps: Mapping[int, Sequence[int]]) -> None:
        """Takes the place of what was counted."""
        self._steps = {int(record): list(joined) for record, joined in steps.items()}
