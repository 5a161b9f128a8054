"""One rank of a comparison: torchrun --nproc-per-node R -m mfdl.training.distributed CONFIG [OPTIONS of mfdl compare]

CONFIG is the TOML file that `mfdl compare --config` reads. Rank 0 runs the command, all others train their nodes.
"""

from __future__ import annotations

import os
import sys

import torch.distributed as dist

from ...errors import RankLost
from . import SERVE, Group, joined, leading


def main(arguments: list[str]) -> int:
    """The exit status of this rank."""
    try:
        if arguments[:1] == [SERVE]:
            store, size, rank = arguments[1], int(arguments[2]), int(arguments[3])
            return _served(joined(rank, size, dist.FileStore(store, size)))
        if "RANK" not in os.environ or not arguments:
            print(__doc__, file=sys.stderr)  # noqa: T201
            return 2
        group = joined(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        if not group.leads:
            return _served(group, f"rank {group.rank}: ")
        from ...commands import main as command

        config, *others = arguments
        with leading(group):
            return command(["compare", "--config", config, *others])
    finally:
        if dist.is_initialized():  # threads of the group that outlive the interpreter abort the process
            dist.destroy_process_group()


def _served(group: Group, prefix: str | None = None) -> int:
    """Trains what the leader sends; a lost rank is reported if a prefix is given, else by the leader."""
    try:
        group.serve()
    except RankLost as error:
        if prefix:
            print(f"{prefix}{error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
