"""One rank of a comparison: torchrun --nproc-per-node R -m mfdl.training.distributed CONFIG [OPTIONS of mfdl compare]

CONFIG is the TOML file that `mfdl compare --config` reads. Rank 0 runs the command, all others train their nodes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch.distributed as dist

from ...errors import RankLost
from .group import SERVE, joined, leading


def main(arguments: list[str]) -> int:
    """The exit status of this rank."""
    if arguments[:1] == [SERVE]:
        store, size, rank = Path(arguments[1]), int(arguments[2]), int(arguments[3])
        group = joined(rank, size, dist.FileStore(str(store), size))
        try:
            group.serve()
        except RankLost:  # the leader says so, or is gone
            return 1
        return 0
    if "RANK" not in os.environ or not arguments:
        print(__doc__, file=sys.stderr)  # noqa: T201
        return 2
    group = joined(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    if not group.leads:
        try:
            group.serve()
        except RankLost as error:
            print(f"rank {group.rank}: {error}", file=sys.stderr)  # noqa: T201
            return 1
        return 0
    from ...commands import main as command

    config, *others = arguments
    with leading(group):
        return command(["compare", "--config", config, *others])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
