"""Four processes exchange public keys, agree on secrets, train on digits over TCP, and are audited from their messages.

    python -m experiments.real_nodes --mechanism decor --steps 32 --out DIR [--kill 2@13] [--plant silent]

Killed at any moment and given the same command again, it goes on where it stood. What is refused: docs/real_nodes.md.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from mfdl.progress import reporter

from . import auditing
from .folder import NodeFolder
from .launching import PLANTED, Launch, node_and_step, node_folder, refusals_in_words, run_node
from .setting import NODES, TRUST, begun


def main() -> int:
    arguments = _arguments()
    return refusals_in_words(lambda: _node(arguments) if arguments.node is not None else _all(arguments))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.real_nodes", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--mechanism", choices=sorted(TRUST), default="decor")
    parser.add_argument("--steps", type=int, default=32, help="a multiple of 8")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run: one folder a node")
    parser.add_argument(
        "--kill",
        type=node_and_step,
        metavar="NODE@STEP",
        help="SIGKILL to a node after a step; all go on",
    )
    parser.add_argument("--plant", choices=["nothing", *PLANTED], default="nothing", help="a bug for the audit to find")
    parser.add_argument("--node", type=int, choices=range(NODES), help="be this node of a run that was begun")
    return parser.parse_args()


def _node(arguments: argparse.Namespace) -> int:
    setting = begun(arguments.out)
    accuracy = asyncio.run(run_node(setting, arguments.node, arguments.out, arguments.plant))
    print(f"accuracy {accuracy:.4f}", flush=True)
    return 0


def _all(arguments: argparse.Namespace) -> int:
    setting = begun(arguments.out, {"mechanism_name": arguments.mechanism, "steps": arguments.steps})
    print(setting.mechanism)
    with reporter("auto").bar(f"{arguments.mechanism} on {NODES} processes", NODES * setting.steps) as advance:
        launch = Launch(arguments.out, arguments.plant, arguments.kill, advance)
        starts = asyncio.run(launch.run())
    folders = [NodeFolder(node_folder(arguments.out, node), setting.run_id) for node in range(NODES)]
    findings = auditing.written(setting, folders, arguments.out / "audit.json", starts=starts)
    for word in sorted(launch.words):
        print(word)
    print(f"{NODES * setting.steps * setting.gossip_rounds} messages recorded, processes started {starts} time(s)")
    print(findings)
    return int(findings.violated)


if __name__ == "__main__":
    sys.exit(main())
