"""Four processes on one machine: started, watched, killed on request, and started again where they stood.

In: a setting and a folder. Out: exit of all processes at the last step, or the words of the first refusal.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from mfdl import files

from .folder import NodeFolder
from .frames import Refused
from .node import Node
from .planted import PLANTED
from .setting import NODES, Setting

ROOT = Path(__file__).parents[2]
STARTS = 3  # of all processes, the first one included


def node_folder(out: Path, node: int) -> Path:
    """Where a node keeps what it has."""
    return out / f"node-{node}"


def _port_file(out: Path, node: int) -> Path:
    return out / "ports" / str(node)


async def run_node(setting: Setting, node: int, out: Path, plant: str) -> float:
    """One node, in this process: says `step N` after each step; the accuracy of its final model on test records."""
    folder = NodeFolder(node_folder(out, node), setting.run_id)
    on_step = lambda done: print(f"step {done}", flush=True)  # noqa: E731
    made = Node(setting, node, folder, on_step=on_step, planted=PLANTED.get(plant, lambda *_: None))
    files.atomic_write_text(_port_file(out, node), str(await made.listen()))

    async def address(peer: int) -> int:
        while not _port_file(out, peer).exists():
            await asyncio.sleep(0.02)
        return int(_port_file(out, peer).read_text())

    trained = await made.run(address)
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
            if not any(code < 0 for code in codes):  # nobody was killed, so another start would end alike
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
