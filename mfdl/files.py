"""Atomic writes, folders used by one process at a time, and downloads.

A file is written whole or not at all, also after a crash. requests is imported inside a function: `graphs` needs
`data`, which downloads, and must stay cheap to import.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import InvalidInput
from .progress import reporter

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def atomic_write_bytes(path: str | os.PathLike[str], data: bytes, *, private: bool = False) -> Path:
    """Writes a file so that a reader finds the old content or the new one, never a part; returns its path.

    The data go to a temporary file in the same folder, are flushed to the disk and take the name by one `os.replace`.
    Missing parent folders are created. private: readable by the owner alone (mode 0600), else the usual mode.

    Raises: InvalidInput: the folder cannot be made or written, the disk is full, or the path is a folder or a device.
    """
    target = Path(path)
    temporary: str | None = None
    try:
        if target.exists() and not target.is_file() and not target.is_dir():  # os.replace would put a file in its place
            raise InvalidInput(f"cannot write {target}: it is a device, a pipe or a socket; give the name of a file.")
        _make_folder(target.parent)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name[:100]}.", suffix=".tmp", dir=target.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if not private:
                os.chmod(temporary, _usual_mode(target))
            os.fsync(file.fileno())
        os.replace(temporary, target)
        temporary = None
        _sync_folder(target.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidInput(f"cannot write {target}: {reason}; choose a folder that can be written.") from error
    except ValueError as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"cannot write {str(target)!a}: {error}; give another name.") from None  # NUL in the name
    finally:
        if temporary is not None:  # every way out but success, KeyboardInterrupt included
            with contextlib.suppress(OSError):
                os.unlink(temporary)
    return target


def atomic_write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Writes UTF-8 as `atomic_write_bytes` does; line ends stay. Raises: InvalidInput: half a surrogate pair."""
    return atomic_write_bytes(path, _encoded(path, text))


def atomic_write_json(path: str | os.PathLike[str], value: Any, *, private: bool = False) -> Path:
    """Writes a value as indented JSON with sorted keys, as `atomic_write_bytes` does.

    Raises: InvalidInput: the value is not plain JSON (an array, bytes, NaN or infinity, mixed keys).
    """
    try:
        text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"cannot write {Path(path)} as JSON: {error}; give plain strings, finite numbers, lists and dicts."
        ) from None
    return atomic_write_bytes(path, _encoded(path, text + "\n"), private=private)


def _encoded(path: str | os.PathLike[str], text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:  # bytes of the command line that are no UTF-8 arrive as such code points
        raise InvalidInput(
            f"cannot write {Path(path)}: it would hold {text[error.start]!a}, which UTF-8 cannot hold; use other names."
        ) from None


def _usual_mode(target: Path) -> int:
    """The mode of the file that is replaced, else what the folder's own mode suggests for new files."""
    # The umask can only be read by setting it, which is not safe with threads; mkstemp gives 0600.
    with contextlib.suppress(OSError):
        return target.stat().st_mode & 0o777
    return target.parent.stat().st_mode & 0o664  # all may write to /tmp, but not to each other's files


def _make_folder(folder: Path) -> list[Path]:
    """Creates a folder and its missing parents durably, and returns those it created, the deepest first."""
    new = [level for level in (folder, *folder.parents) if not level.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for level in reversed(new):
        _sync_folder(level.parent)
    return new


@contextlib.contextmanager
def held_alone(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Locks a folder against a second process or thread; the lock of a killed process is released.

    The folder is created if missing, and removed at the end if it is still empty. Without support for such locks by the
    system or the file system there is no lock. Raises: InvalidInput: another process holds the folder.
    """
    root = Path(folder)
    try:
        new_folders = _make_folder(root)
        descriptor = os.open(root, os.O_RDONLY) if fcntl is not None else None
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidInput(f"cannot write {root}: {reason}; choose a folder that can be written.") from error
    try:
        if descriptor is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InvalidInput(
                    f"{root} is in use by another run; wait for its end, or choose another folder."
                ) from None
            except OSError:  # no locks on this file system
                pass
        yield
    finally:
        with contextlib.suppress(OSError):  # the first that is not empty stays, and so do those above
            for level in new_folders:
                level.rmdir()
        if descriptor is not None:
            os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Makes the new name itself durable, where the system can open a folder at all."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


TIMEOUT_SECONDS = 30
CHUNK_BYTES = 1 << 16


class NotDelivered(Exception):
    """An address could not deliver the file; the message is the reason."""


def reason(error: BaseException) -> str:
    text = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {text[:160]}" if text else type(error).__name__


def sha256(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({reason(error)}); check its permissions.") from error


@contextlib.contextmanager
def temporary_beside(path: Path) -> Iterator[Path]:
    """A path in the same folder (so that a move is atomic), gone at the end unless it was moved.

    Raises: OSError: the folder cannot be made or written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.touch()
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def download(url: str, target: Path) -> None:
    """Writes the content of the address to a file, with a progress bar. Raises: NotDelivered: it fails."""
    import requests  # loaded only when something is missing

    try:
        with requests.get(url, stream=True, timeout=TIMEOUT_SECONDS) as response, target.open("wb") as out:
            response.raise_for_status()
            total = int(response.headers.get("content-length", 0)) or None
            with reporter().bar(url.rpartition("/")[2], total, unit="bytes") as advance:
                for chunk in response.iter_content(CHUNK_BYTES):
                    out.write(chunk)
                    advance(len(chunk))
    except requests.ConnectionError as error:  # its text is a page of library names
        raise NotDelivered(f"{type(error).__name__}, the server was not reached or hung up") from error
    except (requests.RequestException, OSError) as error:
        raise NotDelivered(reason(error)) from error


def extract(archive: Path, member: str, target: Path) -> None:
    """Copies one regular file out of a tar archive; no name of the archive becomes a path here."""
    try:
        with tarfile.open(archive) as tar:
            stream = tar.extractfile(member)
            if stream is None:
                raise NotDelivered(f"archive member {member} is not a file")
            with target.open("wb") as out:
                shutil.copyfileobj(stream, out)
    except KeyError:
        raise NotDelivered(f"the archive has no member {member}") from None
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise NotDelivered(f"damaged archive ({reason(error)})") from error
