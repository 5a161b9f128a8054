"""NVFlare sites: what they send, whom they hear, and how they go on. Without NVFlare all but the refusal is skipped."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from vocabulary import refuses

from experiments.real_nodes import auditing
from experiments.real_nodes.folder import NodeFolder
from experiments.real_nodes.frames import Refused
from experiments.real_nodes.launching import node_folder
from experiments.real_nodes.setting import NODES, begun
from mfdl.training.single_copy import steps_of_keys

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.peer
WANTED = {"mechanism_name": "decor", "steps": 8}


def process(*command, timeout=300, **more):
    paths = os.pathsep.join([str(ROOT), str(ROOT / "solvers"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}
    streams = {"capture_output": True, "text": True}
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, timeout=timeout, **streams, **more)


@pytest.mark.slow
def test_without_nvflare_the_refusal_names_the_extra(tmp_path):
    code = "import sys; sys.modules['nvflare'] = None\n"
    code += "from experiments.nvflare_nodes.__main__ import main; sys.exit(main())"
    done = process("-c", code, "--out", str(tmp_path / "run"))
    words = "refused: experiments.nvflare_nodes needs nvflare, which is not installed: pip install 'mfdl[nvflare]'."
    assert done.stdout.strip() == words
    assert not (tmp_path / "run").exists()
    assert done.returncode == 1


@pytest.fixture(scope="module")
def nvflare_nodes():
    pytest.importorskip("nvflare", reason="needs NVFlare: pip install 'mfdl[nvflare]'")
    from experiments.nvflare_nodes import simulation, site

    return SimpleNamespace(simulation=simulation, site=site)


class Killed(Exception):
    """Stands for SIGKILL: nothing after it is done."""


class Sites:
    """All sites of a run, each in a thread, and an engine that delivers their values at once."""

    def __init__(self, modules, out, patience=5.0):
        self.modules, self.setting = modules, begun(out, WANTED)
        self.sites, self.ended = {}, {}
        for node in modules.simulation.network(self.setting).nodes:
            site = modules.site.PrivateSite(str(out), patience)
            site.neighbors = node.neighbors
            site.system_panic = lambda reason, ctx: self.ended.update({ctx.get_identity_name(): reason})
            self.sites[node.id] = site

    def context(self, name):
        engine = SimpleNamespace(send_aux_request=lambda **sent: self._deliver(name, **sent))
        return SimpleNamespace(get_engine=lambda: engine, get_identity_name=lambda: name)

    def _deliver(self, name, targets, topic, request, timeout, fl_ctx):
        request.set_peer_props({"__identity_name__": name})
        return {target: self.sites[target]._handle_neighbor_value(topic, request, fl_ctx) for target in targets}

    def run(self):
        """How the sites that did not reach the end ended, by name."""
        steps_of_keys.clear()  # as new processes

        def one_site(name):
            try:
                self.sites[name].run_algorithm(self.context(name), None, SimpleNamespace(triggered=False))
            except Killed as error:
                self.ended[name] = error

        threads = [threading.Thread(target=one_site, args=[name]) for name in self.sites]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.ended


def folders(out):
    return [NodeFolder(node_folder(out, node), begun(out).run_id) for node in range(NODES)]


@pytest.fixture(scope="module")
def undisturbed(nvflare_nodes, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    assert Sites(nvflare_nodes, out).run() == {}
    return out


def test_sites_send_what_the_executor_sends_and_the_claim_stands(undisturbed, tmp_path):
    findings = auditing.written(begun(undisturbed), folders(undisturbed), tmp_path / "audit.json")
    assert findings.difference < 1e-6
    assert not findings.violated
    assert 0.7 * findings.mu_claimed < findings.mu_shown


def begun_again(undisturbed, out):
    shutil.copy2(undisturbed / "run.json", out)
    for node in range(NODES):
        node_folder(out, node).mkdir()
        shutil.copy2(node_folder(undisturbed, node) / "secrets.json", node_folder(out, node))


@pytest.mark.parametrize("moment", ["save", "record"])
def test_after_a_kill_sites_go_on_and_send_bit_for_bit_what_an_undisturbed_run_sends(
    nvflare_nodes, undisturbed, tmp_path, monkeypatch, moment
):
    begun_again(undisturbed, tmp_path)

    class KilledFolder(NodeFolder):
        def save(self, node):
            super().save(node)
            if (moment, node.node, node.steps_taken) == ("save", 2, 4):
                raise Killed

        def record(self, node, step, round):
            body = super().record(node, step, round)
            if (moment, self.path, step) == ("record", node_folder(tmp_path, 2), 3):
                raise Killed
            return body

    with monkeypatch.context() as patched:
        patched.setattr(nvflare_nodes.site, "NodeFolder", KilledFolder)
        ended = Sites(nvflare_nodes, tmp_path).run()
    assert isinstance(ended["site-3"], Killed)
    assert "'site-3'] sent nothing for step 3" in ended["site-2"] + ended["site-4"]
    assert Sites(nvflare_nodes, tmp_path).run() == {}
    for before, after in zip(folders(undisturbed), folders(tmp_path), strict=True):
        assert after.recorded(range(8), 1) == before.recorded(range(8), 1)


def test_only_neighbours_are_heard_and_only_once(nvflare_nodes, tmp_path):
    sites = Sites(nvflare_nodes, tmp_path)
    receiver = sites.sites["site-1"]  # its neighbours are 2 and 4
    receiver._send(sites.context("site-2"), b"value", 5, ["site-1"])
    receiver._send(sites.context("site-2"), b"value", 5, ["site-1"])  # resent after a crash
    assert dict(receiver.neighbors_values[5]) == {"site-2": b"value"}
    refuses("site-1 did", lambda: receiver._send(sites.context("site-2"), b"other", 5, ["site-1"]), error=Refused)
    refuses("site-1 did", lambda: receiver._send(sites.context("site-3"), b"value", 5, ["site-1"]), error=Refused)
    assert dict(receiver.neighbors_values[5]) == {"site-2": b"value"}


def test_a_network_other_than_the_accounted_one_is_refused(nvflare_nodes, tmp_path):
    sites = Sites(nvflare_nodes, tmp_path, patience=0.1)
    sites.sites["site-1"].neighbors[0].weight *= 2
    assert "the mechanism was accounted for" in sites.run()["site-1"]
    assert not list(node_folder(tmp_path, 0).glob("sent/*"))


def test_groups_beyond_pairs_are_refused(nvflare_nodes, tmp_path):
    setting = begun(tmp_path, {"mechanism_name": "corn", "steps": 8})
    with pytest.raises(Refused, match="corn shares secrets in groups of 4"):
        nvflare_nodes.site._keys(setting, 0, NodeFolder(tmp_path / "0", setting.run_id), {})


@pytest.mark.slow
def test_the_simulator_trains_is_killed_goes_on_and_is_audited(nvflare_nodes, tmp_path):
    command = ["-m", "experiments.nvflare_nodes", "--mechanism", "decor", "--steps", "8", "--out", str(tmp_path)]
    done = process(*command, "--kill", "2@5", "--patience", "5", timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "epsilon: 8 at delta = 1e-05" in done.stdout
    findings = json.loads((tmp_path / "audit.json").read_text())
    assert findings["starts"] == 2
    assert findings["difference"] < 1e-6
    assert not findings["violated"]
