"""The first message between two peers: a public key, the first step whose messages the sender lacks, and its plan.

In: the body that a peer sent. Out: a `Hello`, checked. The transport is not part of it.
"""

from __future__ import annotations

import dataclasses
import json

from mfdl.training.keys import SECRET_BYTES

from .frames import Refused, require_fields


@dataclasses.dataclass(frozen=True)
class Hello:
    """What peers tell each other before they train.

    Attributes: public: X25519 key, 32 bytes; lacks: first step whose messages the sender has not averaged; plan:
        `Setting.plan` of the sender.
    """

    public: bytes
    lacks: int
    plan: dict[str, str]

    def encoded(self) -> bytes:
        """The body of the message."""
        return json.dumps({"public": self.public.hex(), "lacks": self.lacks, "plan": self.plan}).encode()

    @staticmethod
    def of(body: bytes, peer: int) -> Hello:
        """Raises: Refused: anything else than `encoded` gives."""
        try:
            fields = require_fields(json.loads(body), {"public": str, "lacks": int, "plan": dict}, f"node {peer}")
            public = bytes.fromhex(fields["public"])
        except ValueError:
            raise Refused(
                f"node {peer} sent a malformed hello: it is no JSON, or its key is not hexadecimal."
            ) from None
        if len(public) != SECRET_BYTES:
            raise Refused(f"node {peer} sent a malformed hello: its key has {len(public)} bytes, not {SECRET_BYTES}.")
        return Hello(public, fields["lacks"], fields["plan"])

    def require_near(self, peer: int, lacks: int) -> None:
        """Refuses a neighbour that no run can have left so far from a node that lacks the step `lacks`."""
        if abs(self.lacks - lacks) > 1:
            raise Refused(
                f"node {peer} lacks step {self.lacks} and this node step {lacks}: neighbours are never "
                "further apart than one step, so one of them has an older checkpoint than it has sent from; give it "
                "the newest."
            )
