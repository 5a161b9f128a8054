"""The data folder: fetching with checksum from a local server, and what happens when that fails."""

import hashlib
import http.server
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner
from vocabulary import each, refuses

from mfdl import InvalidInput, data, progress
from mfdl.commands.listing import app
from mfdl.data import DataFile

CONTENT = b"1 2\n2 3\n" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
NOWHERE = "http://127.0.0.1:9/file"  # port 9, discard: nobody listens


def tar_gz(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(f"folder/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        directory = tarfile.TarInfo("folder/sub")
        directory.type = tarfile.DIRTYPE
        tar.addfile(directory)
    return buffer.getvalue()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves the pages of the server; a page starting with HALF promises twice what it sends."""

    def do_GET(self):
        self.server.requested.append(self.path)
        body = self.server.pages.get(self.path)
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) * (2 if body.startswith(b"HALF") else 1)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.pages, running.requested = {"/file": CONTENT}, []
        running.url = f"http://127.0.0.1:{running.server_port}"
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def register(monkeypatch, tmp_path):
    def replace(*urls: str, member: str | None = None, content: bytes | None = None) -> Path:
        file = DataFile("toy/file", urls or (NOWHERE,), SHA256, "a toy", len(CONTENT), archive_member=member)
        monkeypatch.setattr(data, "REGISTRY", {"toy/file": file})
        path = tmp_path / "toy" / "file"
        if content is not None:
            path.parent.mkdir()
            path.write_bytes(content)
        return path

    return replace


def everything_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_folder_is_the_argument_then_the_environment_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MFDL_DATA", str(tmp_path / "environment"))
    assert (data.home(tmp_path / "argument"), data.home()) == (tmp_path / "argument", tmp_path / "environment")
    monkeypatch.setenv("MFDL_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert (data.home().name, data.home("~/x")) == ("mfdl", Path.home() / "x")


def test_a_missing_file_is_downloaded_once_and_then_used_without_network(server, register, tmp_path):
    register(f"{server.url}/file")
    path = data.fetch("toy/file", tmp_path / "new" / "home")
    assert (path, path.read_bytes()) == (tmp_path / "new" / "home" / "toy" / "file", CONTENT)
    assert data.fetch("toy/file", tmp_path / "new" / "home") == path
    assert (server.requested, everything_below(tmp_path)) == (["/file"], ["new/home/toy/file"])
    (tmp_path / "usual").touch()
    assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_the_next_mirror_is_tried(server, register, tmp_path):
    server.pages["/other"] = b"another file"
    register(f"{server.url}/absent", f"{server.url}/other", f"{server.url}/file")
    assert data.fetch("toy/file", tmp_path).read_bytes() == CONTENT
    assert server.requested == ["/absent", "/other", "/file"]


def test_the_member_of_an_archive_is_checked_and_kept_alone(server, register, tmp_path):
    server.pages["/all.tar.gz"] = tar_gz(file=CONTENT, other=b"unused")
    register(f"{server.url}/all.tar.gz", member="folder/file")
    assert (data.fetch("toy/file", tmp_path).read_bytes(), everything_below(tmp_path)) == (CONTENT, ["toy/file"])


@each(
    "page, member, reason",
    (b"another file", None, r"wrong content, expected sha256 [0-9a-f]{64}, got "),
    (b"HALF of the file", None, r"(ChunkedEncodingError|ConnectionError|ProtocolError)"),
    (None, None, r"HTTPError: 404"),
    (tar_gz(file=b"another"), "folder/file", r"wrong content, expected sha256"),
    (tar_gz(other=CONTENT), "folder/file", r"the archive has no member folder/file"),
    (tar_gz(file=CONTENT), "folder/sub", r"archive member folder/sub is not a file"),
    (tar_gz(file=os.urandom(9000))[:-4000], "folder/file", r"damaged archive"),
    (CONTENT, "folder/file", r"damaged archive"),
    ids=range(8),  # same in workers
)
def test_a_failed_download_leaves_nothing_and_says_what_to_do(server, register, tmp_path, page, member, reason):
    server.pages["/file"] = page
    path = register(f"{server.url}/file", member=member)
    with pytest.raises(InvalidInput, match=reason) as caught:
        data.fetch("toy/file", tmp_path)
    message = str(caught.value)
    assert all(part in message for part in (f"{server.url}/file", "MFDL_DATA", "--data-home", str(path)))
    assert everything_below(tmp_path) == []


def test_a_server_that_is_down_is_one_clear_error(register, tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    register()
    refuses("could not fetch toy/file", data.fetch, "toy/file", tmp_path)
    assert everything_below(tmp_path) == []


def test_a_file_with_another_content_is_refused_and_kept(register, tmp_path):
    path = register(content=b"mine")
    got = hashlib.sha256(b"mine").hexdigest()
    refuses(rf"toy/file is not the published.*{SHA256}, got {got}; delete it", data.fetch, "toy/file", tmp_path)
    assert path.read_bytes() == b"mine"


def test_a_read_only_folder_serves_what_it_holds(register, tmp_path, monkeypatch):
    path = register(content=CONTENT)

    def refuse(*args, **kwargs):
        raise PermissionError("read-only")

    for name in ("mkdir", "touch", "unlink"):  # root may write anywhere: refuse by hand
        monkeypatch.setattr(Path, name, refuse)
    assert data.fetch("toy/file", tmp_path) == path


def test_a_folder_that_cannot_be_made_is_a_clear_error(register, tmp_path):
    register()
    (tmp_path / "toy").write_text("a file where the folder should be")
    refuses("data folder .*toy cannot be written", data.fetch, "toy/file", tmp_path)


def test_folders_stand_for_their_files_and_unknown_names_are_refused():
    refuses("unknown data file 'libsvm/a9'; did you mean", data.fetch, "libsvm/a9")
    refuses("unknown data file 'mnst'; did you mean", data.expand, ["mnst"])
    assert data.expand(["mnist/"]) == tuple(name for name in data.names() if name.startswith("mnist/"))
    assert len(data.expand(["mnist", "mnist/t10k-labels-idx1-ubyte.gz"])) == 4


def test_progress_is_drawn_on_a_terminal_only(server, register, tmp_path, monkeypatch, capsys):
    register(f"{server.url}/file")
    rows = []
    monkeypatch.setattr(progress.SCREEN, "add", rows.append)
    monkeypatch.setattr(progress.SCREEN, "remove", lambda row: None)
    for name in ("PYTEST_CURRENT_TEST", "CI", progress.ENVIRONMENT_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    data.fetch("toy/file", tmp_path / "quiet")
    assert not rows
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    data.fetch("toy/file", tmp_path / "terminal")
    assert [(row.doing, row.done, row.total) for row in rows] == [("file", len(CONTENT), len(CONTENT))]
    assert (rows[0].amount(), capsys.readouterr()) == ("0.0/0.0 MB", ("", ""))


def test_the_registry_is_well_formed():
    assert set(data.names()) == {*data.REGISTRY, data.HOUSING, data.FEMNIST}
    for name, file in data.REGISTRY.items():
        assert name == file.relative_path
        assert not Path(name).is_absolute()
        assert len(bytes.fromhex(file.sha256)) == 32
        assert file.size > 0
        assert all(url.startswith("https://") for url in file.urls)
    assert data.REGISTRY["facebook/414.edges"].archive_member == "facebook/414.edges"


def test_the_module_loads_nothing_heavy():
    heavy = {"pooch", "requests", "sklearn", "torch", "rich", "networkx"}
    code = f"import sys, mfdl.data; sys.exit(','.join({heavy} & set(sys.modules)) or None)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)


def real_data() -> Path:
    home = os.environ.get("MFDL_DATA")
    if home is None:
        pytest.skip("MFDL_DATA is not set: no real data to check")
    return Path(home)


@pytest.mark.parametrize("name", data.REGISTRY)
def test_the_real_file_has_the_registered_checksum_and_size(name):
    if not (real_data() / name).is_file():
        pytest.skip(f"MFDL_DATA holds no {name}")
    path = data.fetch(name)
    assert path.stat().st_size == data.REGISTRY[name].size


def test_california_housing_has_its_published_shape():
    if not (real_data() / data.HOUSING).is_file():
        pytest.skip(f"MFDL_DATA holds no {data.HOUSING}")
    features, targets, names = data.california_housing()
    assert (features.shape, targets.shape) == ((20640, 8), (20640,))
    assert features.dtype == targets.dtype == np.float64
    assert (len(names), names[0], targets.min(), targets.max()) == (8, "MedInc", 0.14999, 5.00001)
    assert data.fetch(data.HOUSING) == real_data() / data.HOUSING


def test_california_housing_without_network_is_one_clear_error(tmp_path, monkeypatch):
    from urllib.error import URLError

    import sklearn.datasets

    def unreachable(**kwargs):
        assert kwargs["download_if_missing"]
        raise URLError("no route")

    monkeypatch.setattr(sklearn.datasets, "fetch_california_housing", unreachable)
    refuses("figshare.*no route.*put scikit-learn's", data.california_housing, tmp_path)


def test_a_damaged_housing_file_is_refused_without_download(tmp_path):
    (tmp_path / "sklearn").mkdir()
    (tmp_path / data.HOUSING).write_bytes(b"damaged")
    refuses(r"cal_housing_py3\.pkz cannot be read", data.california_housing, tmp_path)


@each("content, present, verified", (None, False, None), (CONTENT, True, True), (b"mine", True, False))
def test_status_tells_absent_verified_and_wrong(register, tmp_path, content, present, verified):
    register(content=content)
    first, *_, housing, femnist = data.status(tmp_path)
    assert first == ("toy/file", present, verified, len(CONTENT), "a toy")
    assert [row[:3] for row in (housing, femnist)] == [(name, False, None) for name in (data.HOUSING, data.FEMNIST)]


def test_the_command_lists_and_fetches(server, register, tmp_path):
    register(f"{server.url}/file")
    home = ["--data-home", str(tmp_path)]
    listed = CliRunner().invoke(app, ["list", *home, "--json"])
    assert json.loads(listed.stdout)["files"][0] == {
        "name": "toy/file", "present": False, "verified": None, "size": len(CONTENT), "description": "a toy",
    }  # fmt: skip
    fetched = CliRunner().invoke(app, ["fetch", "toy", *home, "--json"])
    assert json.loads(fetched.stdout) == {
        "data_home": str(tmp_path),
        "files": [{"name": "toy/file", "path": str(tmp_path / "toy" / "file"), "error": None}],
    }
    assert "verified" in CliRunner().invoke(app, ["list", *home]).stdout
    assert "toy/file" in CliRunner().invoke(app, ["fetch", "toy/file", *home]).stdout
    (tmp_path / "toy" / "file").write_bytes(b"mine")
    assert "WRONG CONTENT" in CliRunner().invoke(app, ["list", *home]).stdout


def test_the_command_reports_failures_after_trying_every_file(server, monkeypatch, tmp_path):
    names = ("toy/bad", "toy/file")
    files = {name: DataFile(name, (server.url + name[3:],), SHA256, "a toy", len(CONTENT)) for name in names}
    monkeypatch.setattr(data, "REGISTRY", files)
    result = CliRunner().invoke(app, ["fetch", "toy", "--data-home", str(tmp_path), "--json"])
    assert isinstance(result.exception, InvalidInput)
    assert "could not fetch toy/bad" in str(result.exception)
    rows = json.loads(result.stdout)["files"]
    assert [row["name"] for row in rows if row["error"] is None] == ["toy/file"]


@pytest.mark.parametrize("arguments", [["fetch"], ["fetch", "mnist", "--all"]])
def test_the_command_wants_names_or_all(arguments):
    assert "needs either names or --all" in str(CliRunner().invoke(app, arguments).exception)
