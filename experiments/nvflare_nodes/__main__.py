"""Four sites of NVFlare's simulator train on digits by its peer-to-peer controller; their messages are audited.

    python -m experiments.nvflare_nodes --mechanism decor --steps 32 --out DIR [--kill 2@13]

Killed at any moment and given the same command again, it goes on where it stood. Page: docs/real_nodes.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import safetensors.torch
import torch

from experiments.real_nodes import auditing
from experiments.real_nodes.folder import NodeFolder
from experiments.real_nodes.launching import node_and_step, node_folder, refusals_in_words
from experiments.real_nodes.setting import NODES, Setting, begun
from mfdl import errors


def main() -> int:
    arguments = _arguments()
    return refusals_in_words(lambda: _run(arguments))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.nvflare_nodes", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--mechanism", choices=["decor", "mafalda"], default="decor")
    parser.add_argument("--steps", type=int, default=32, help="a multiple of 8")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run: one folder a site")
    parser.add_argument(
        "--kill", type=node_and_step, metavar="NODE@STEP", help="SIGKILL to a site in a step; all go on by themselves"
    )
    parser.add_argument("--patience", type=float, default=60.0, help="seconds after which a silent site counts as gone")
    return parser.parse_args()


def _run(arguments: argparse.Namespace) -> int:
    errors.imported("nvflare", "experiments.nvflare_nodes")
    from .simulation import Simulation  # imports NVFlare

    setting = begun(arguments.out, {"mechanism_name": arguments.mechanism, "steps": arguments.steps})
    print(setting.mechanism.guarantee, flush=True)
    starts = Simulation(setting, arguments.out, arguments.kill, arguments.patience).run()
    for node in range(NODES):
        print(f"node {node}: accuracy {_accuracy(setting, arguments.out, node):.4f}")
    print((node_folder(arguments.out, 0) / "spent.txt").read_text())
    print(f"{NODES * setting.steps} messages recorded, simulation started {starts} time(s)")
    folders = [NodeFolder(node_folder(arguments.out, node), setting.run_id) for node in range(NODES)]
    findings = auditing.written(setting, folders, arguments.out / "audit.json", starts=starts)
    print(findings)
    return int(findings.violated)


def _accuracy(setting: Setting, out: Path, node: int) -> float:
    """Of the final model of a node, on test records."""
    from .site import FINAL

    model = safetensors.torch.load_file(node_folder(out, node) / FINAL)
    row = torch.cat([model[name].reshape(-1) for name in setting.data.model.shapes])
    return float(setting.data.evaluate(row[None].expand(NODES, -1)).accuracy[0])


if __name__ == "__main__":
    sys.exit(main())
