"""Training shared by several processes: each holds a part of the nodes and is sent the messages that cross the cut.

    with mfdl.training.distributed.ranks(4):
        run = mfdl.replay(mechanism, task, seeds=[0])

The numbers are those of one process, up to the order in which a sum is taken. Noise is never sent: every rank makes
that of its nodes from the run's key, shared secrets included.
"""

from ...errors import RankLost
from .group import Group, apart, current, joined, leading, ranks, require_packages

__all__ = ["Group", "RankLost", "apart", "current", "joined", "leading", "ranks", "require_packages"]
