"""A run on NVFlare's simulator: one process a site, killed on request, and started again where the sites stood.

In: a setting and a folder. Out: exit of all sites at the last step, or what they refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from nvflare.app_opt.p2p.controllers import DistOptController
from nvflare.app_opt.p2p.types import Config, Neighbor, Network, Node
from nvflare.job_config.api import FedJob

from experiments.real_nodes.frames import Refused
from experiments.real_nodes.launching import ROOT, node_folder
from experiments.real_nodes.setting import NODES, Setting
from mfdl import files

from .site import FINAL, REFUSED, PrivateSite, site_name

STARTS = 3  # of the simulation, the first one included
POLL_SECONDS, GRACE_SECONDS = 0.1, 10.0
NAME = "private-gossip"
ALLOWED = ["nvflare.app_opt.p2p.controllers.dist_opt_controller.DistOptController"]


def network(setting: Setting) -> Network:
    """The accounted gossip matrix as NVFlare's controller sends it to the sites."""
    weights = setting.gossip.weights.toarray()
    return Network(
        [
            Node(site_name(u), [Neighbor(site_name(v), float(weights[u, v])) for v in setting.heard(u)])
            for u in range(NODES)
        ]
    )


def exported_job(setting: Setting, out: Path, patience: float, kill: tuple[int, int] | None = None) -> Path:
    """The folder of a job that `nvflare simulator` and a server of NVFlare can run."""
    job = FedJob(name=NAME, min_clients=NODES)
    job.to_server(DistOptController(config=Config(network(setting), extra={})))
    for node in range(NODES):
        kill_at = kill[1] if kill is not None and kill[0] == node else -1
        job.to(PrivateSite(str(out.resolve()), patience, kill_at), site_name(node))
    job.export_job(str(out / "job"))
    return out / "job" / NAME


@dataclasses.dataclass
class Simulation:
    """All sites of a run.

    Args:
        kill: (node, step): the process of that site gets SIGKILL when it has recorded the step's message, before it
            sends it.
        patience: seconds after which the others count it as gone.
    """

    setting: Setting
    out: Path
    kill: tuple[int, int] | None
    patience: float = 60.0

    def run(self) -> int:
        """How often the simulation was started until every site had reached the end.

        Raises: Refused: a site refused a neighbour, or starts were too many, with what the sites said.
        """
        words: list[str] = []
        for start in range(1, STARTS + 1):
            for name in (FINAL, REFUSED, "pid"):
                for node in range(NODES):
                    (self._folder(node) / name).unlink(missing_ok=True)
            killed = self._simulated()
            if all((self._folder(node) / FINAL).exists() for node in range(NODES)):
                return start
            refusals = [self._folder(node) / REFUSED for node in range(NODES)]
            words = [f"{place.parent.name}: {place.read_text()}" for place in refusals if place.exists()]
            if not killed:
                break
        raise Refused("\n".join(words) or f"the simulation ended early; see {self.out / 'nvflare.log'}.")

    def _folder(self, node: int) -> Path:
        return node_folder(self.out, node)

    def _simulated(self) -> bool:
        """One run of the simulator, to its end; whether a site was killed in it."""
        job, workspace = exported_job(self.setting, self.out, self.patience, self.kill), self.out / "workspace"
        site = f"{PrivateSite.__module__}.{PrivateSite.__qualname__}"
        policy = {"format_version": 2, "class_allow_list": [*ALLOWED, site]}
        files.atomic_write_json(workspace / "local" / "resources.json.default", policy)
        sites = ",".join(map(site_name, range(NODES)))
        command = [sys.executable, "-m", "nvflare.private.fed.app.simulator.simulator", str(job)]
        paths = [str(ROOT), str(ROOT / "solvers"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        with (self.out / "nvflare.log").open("ab") as log:
            arguments = ["-w", str(workspace.resolve()), "-c", sites, "-t", str(NODES)]
            streams = {"stdout": log, "stderr": log}
            with _started([*command, *arguments], env=environment, **streams) as process:
                while process.poll() is None and not all(map(self._over, range(NODES))):
                    time.sleep(POLL_SECONDS)
                with contextlib.suppress(subprocess.TimeoutExpired):  # its server waits for a killed site forever
                    process.wait(GRACE_SECONDS)
        return not all(map(self._ended, range(NODES)))

    def _ended(self, node: int) -> bool:
        """Whether the site trained to the end or refused to."""
        return any((self._folder(node) / name).exists() for name in (FINAL, REFUSED))

    def _over(self, node: int) -> bool:
        """Whether the site ended, or its process is gone."""
        pid = self._folder(node) / "pid"
        return self._ended(node) or (pid.exists() and not _alive(int(pid.read_text())))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def _started(command: list[str], **settings: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with this block, with all that it started; a site of NVFlare ends with its parent."""
    process = subprocess.Popen(command, start_new_session=True, **settings)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
