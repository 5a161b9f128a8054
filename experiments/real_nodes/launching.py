"""Four processes on one machine: started, watched, killed on request, and started again where they stood.

In: a setting and a folder. Out: exit of all processes at the last step, or the words of the first refusal. `PLANTED`
are bugs for the audit to find, which a node of a launch may have.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import re
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mfdl import PrivateNode, files
from mfdl.check import FloatArray
from mfdl.errors import InvalidInput
from mfdl.noise import NoiseOperator
from mfdl.noise.stream import NoiseStream
from mfdl.training.keys import ColumnNormals
from mfdl.training.shared_randomness import HolderKeys, base_columns, columns_by_holders

from .folder import NodeFolder
from .frames import Refused
from .node import Node
from .setting import NODES, Setting

ROOT = Path(__file__).parents[2]
STARTS = 3  # of all processes, the first one included
CULPRIT = 1  # the node with the bug, where it is one node's


def refusals_in_words(run: Callable[[], int]) -> int:
    """The exit status of a command on one thread; a refusal is printed, and 1."""
    torch.set_num_threads(1)
    try:
        return run()
    except (Refused, InvalidInput) as error:
        print(f"refused: {error}", flush=True)
        return 1


def spent(node: PrivateNode) -> str:
    """The privacy loss of what a node has sent, in a line."""
    so_far = node.guarantee_so_far()
    loss = "nothing sent" if so_far is None else so_far.sentence()
    return f"after {node.steps_taken} of {node.num_steps} steps: {loss}"


def silent(node: PrivateNode, keys: HolderKeys) -> None:
    """One node adds no noise."""
    if node.node == CULPRIT:
        node._stream.step = lambda t: np.zeros((1, node._stream.dim))  # type: ignore[method-assign]


def shared_once(node: PrivateNode, keys: HolderKeys) -> None:
    """All nodes draw what they share once, and add it in every step."""
    stream = node._stream
    base = partial(_Once.of, stream.noise, keys.node_keys(node.node))
    node._stream = NoiseStream(stream.noise, stream.noise_std, base, stream.dim, slots=[node.node])


@dataclasses.dataclass(frozen=True)
class _Once:
    """Base noise whose shared columns are always those of step 0."""

    drawn: ColumnNormals
    shared: NDArray[np.bool_]

    @staticmethod
    def of(noise: NoiseOperator, keys: HolderKeys, columns: NDArray[np.intp]) -> _Once:
        shared = np.zeros(noise.columns_per_step, dtype=bool)
        for holders, columns_of_set in columns_by_holders(noise).items():
            shared[columns_of_set] = len(holders) > 1
        return _Once(base_columns(noise, keys, columns), shared[columns])

    def block(self, steps: NDArray[np.int64], dim: int, *, tensor: int = 0) -> FloatArray:
        """See `mfdl.noise.stream.BaseNoise`."""
        fresh = self.drawn.block(steps, dim, tensor=tensor)
        return np.where(self.shared[:, None], self.drawn.block([0], dim, tensor=tensor), fresh)


PLANTED = {"silent": silent, "shared-once": shared_once}


def node_and_step(text: str) -> tuple[int, int]:
    """The value of --kill. Raises: argparse.ArgumentTypeError: anything else than a node and a step."""
    if not re.fullmatch(rf"[0-{NODES - 1}]@[0-9]+", text):
        raise argparse.ArgumentTypeError(f"must be a node and a step, e.g. 2@13, got {text!r}")
    node, step = map(int, text.split("@"))
    return node, step


def node_folder(out: Path, node: int) -> Path:
    """Where a node keeps what it has."""
    return out / f"node-{node}"


def _port_file(out: Path, node: int) -> Path:
    return out / "ports" / str(node)


async def run_node(setting: Setting, node: int, out: Path, plant: str) -> float:
    """One node, in this process: says `step N` after each step; the accuracy of its final model on test records."""
    with files.held_alone(node_folder(out, node)):  # a second process of this node would repeat its noise
        return await _run_node(setting, node, out, plant)


async def _run_node(setting: Setting, node: int, out: Path, plant: str) -> float:
    folder = NodeFolder(node_folder(out, node), setting.run_id)
    on_step = lambda done: print(f"step {done}", flush=True)  # noqa: E731
    local_node = Node(setting, node, folder, on_step=on_step, planted=PLANTED.get(plant, lambda *_: None))
    files.atomic_write_text(_port_file(out, node), str(await local_node.listen()))

    async def address(peer: int) -> int:
        while not _port_file(out, peer).exists():
            await asyncio.sleep(0.02)
        return int(_port_file(out, peer).read_text())

    trained = await local_node.run(address)
    print(spent(trained), flush=True)
    return float(setting.data.evaluate(trained.model.initial_row()[None].expand(NODES, -1)).accuracy[0])


@dataclasses.dataclass
class Launch:
    """All processes of a run.

    Args:
        kill: (node, step): that node is killed by SIGKILL once it has said that it finished the step.
        advance: called at every step of every node that was not reached before.
    """

    out: Path
    plant: str
    kill: tuple[int, int] | None
    advance: Callable[[], None]
    words: list[str] = dataclasses.field(default_factory=list)
    reached: list[int] = dataclasses.field(default_factory=lambda: [0] * NODES)

    async def run(self) -> int:
        """How often all processes were started until every one had reached the end.

        Raises: Refused: a node refused a peer, or too many were killed; with all that the nodes said.
        """
        for start in range(1, STARTS + 1):
            self.words = []
            for node in range(NODES):
                _port_file(self.out, node).unlink(missing_ok=True)
            codes = await asyncio.gather(*map(self._one, range(NODES)))
            if not any(codes):
                return start
            if not any(code < 0 for code in codes):  # no process was killed, so another start would end alike
                break
        raise Refused("\n".join(self.words) or f"nodes ended with {codes}.")

    async def _one(self, node: int) -> int:
        paths = [str(ROOT), str(ROOT / "solvers"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "experiments.real_nodes", "--node", str(node), "--out", str(self.out)]
        process = await asyncio.create_subprocess_exec(
            *command, "--plant", self.plant, env=environment, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                self._heard(node, line.decode().strip(), process)
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()

    def _heard(self, node: int, line: str, process: asyncio.subprocess.Process) -> None:
        word, _, number = line.partition(" ")
        if word != "step":
            self.words.append(f"node {node}: {line}")
            return
        if int(number) > self.reached[node]:
            self.reached[node] = int(number)
            self.advance()
        if self.kill == (node, int(number)):
            self.kill = None
            process.send_signal(signal.SIGKILL)
