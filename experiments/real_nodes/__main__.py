"""Four processes exchange public keys, agree on secrets, train on digits over TCP, and are audited from their messages.

    python -m experiments.real_nodes --mechanism decor --steps 32 --out DIR [--kill 2@13] [--plant silent]

Killed at any moment and given the same command again, it goes on where it stood. What is refused: docs/real_nodes.md.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import re
import secrets
import sys
from pathlib import Path
from typing import Any

import torch

import mfdl
from mfdl import files
from mfdl.progress import reporter

from . import auditing
from .folder import NodeFolder
from .frames import Refused
from .launching import PLANTED, Launch, node_folder, run_node
from .setting import NODES, TRUST, Setting


def main() -> int:
    arguments = _arguments()
    torch.set_num_threads(1)
    try:
        return _node(arguments) if arguments.node is not None else _all(arguments)
    except (Refused, mfdl.InvalidInput) as error:
        print(f"refused: {error}", flush=True)
        return 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.real_nodes", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--mechanism", choices=sorted(TRUST), default="decor")
    parser.add_argument("--steps", type=int, default=32, help="a multiple of 8")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run: one folder a node")
    parser.add_argument("--kill", metavar="NODE@STEP", help="SIGKILL to a node after a step; all go on by themselves")
    parser.add_argument("--plant", choices=["nothing", *PLANTED], default="nothing", help="a bug for the audit to find")
    parser.add_argument("--node", type=int, choices=range(NODES), help="be this node of a run that was begun")
    arguments = parser.parse_args()
    if arguments.kill is not None and not re.fullmatch(rf"[0-{NODES - 1}]@[0-9]+", arguments.kill):
        parser.error(f"--kill must be a node and a step, e.g. 2@13, got {arguments.kill!r}")
    return arguments


def _setting(out: Path, wanted: dict[str, Any] | None) -> Setting:
    """The setting of a run that was begun, or of a new one with a nonce of its own."""
    place = out / "run.json"
    if not place.exists():
        if wanted is None:
            raise mfdl.InvalidInput(f"{place} is missing: no run was begun here; leave out --node.")
        setting = Setting(**wanted, nonce=secrets.token_hex(16))
        files.atomic_write_json(place, dataclasses.asdict(setting))
    setting = Setting(**json.loads(place.read_text()))
    for name, value in (wanted or {}).items():
        if getattr(setting, name) != value:
            raise mfdl.InvalidInput(
                f"{out} holds a run with {name} {getattr(setting, name)!r}, asked for {value!r}; take another folder."
            )
    return setting


def _node(arguments: argparse.Namespace) -> int:
    setting = _setting(arguments.out, None)
    accuracy = asyncio.run(run_node(setting, arguments.node, arguments.out, arguments.plant))
    print(f"accuracy {accuracy:.4f}", flush=True)
    return 0


def _all(arguments: argparse.Namespace) -> int:
    setting = _setting(arguments.out, {"mechanism_name": arguments.mechanism, "steps": arguments.steps})
    kill = None
    if arguments.kill is not None:
        node, step = map(int, arguments.kill.split("@"))
        kill = node, step
    print(setting.mechanism)
    with reporter("auto").bar(f"{arguments.mechanism} on {NODES} processes", NODES * setting.steps) as advance:
        launch = Launch(arguments.out, arguments.plant, kill, advance)
        starts = asyncio.run(launch.run())
    folders = [NodeFolder(node_folder(arguments.out, node), setting.run_id) for node in range(NODES)]
    messages = auditing.recorded(setting, folders)
    findings = auditing.audited(setting, messages)
    difference = auditing.difference_from_executor(setting, messages, auditing.all_keys(setting, folders))
    findings = dataclasses.replace(findings, difference=difference)
    report = {
        **dataclasses.asdict(findings),
        "violated": findings.violated,
        "starts": starts,
        "run_id": setting.run_id.hex(),
    }
    files.atomic_write_json(arguments.out / "audit.json", report)
    for word in sorted(launch.words):
        print(word)
    print(f"{NODES * setting.steps * setting.gossip_rounds} messages recorded, processes started {starts} time(s)")
    print(f"largest difference from the executor with the same keys and data: {difference:.1e} of the largest number")
    print(findings.sentence())
    return int(findings.violated)


if __name__ == "__main__":
    sys.exit(main())
