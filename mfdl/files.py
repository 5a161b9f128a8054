"""Files that are either the old ones or the new ones, whole, after a crash at any moment.

In: a path and its content. Out: the file on disk. What is written where is for the callers to say; how a
training run is laid out is in `training/checkpoint`.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import InvalidInput

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def atomic_write_bytes(path: str | os.PathLike[str], data: bytes, *, private: bool = False) -> Path:
    """Writes a file so that a reader finds the old content or the new one, never a part.

    The data go to a temporary file in the same folder, are flushed to the disk and take the name by one
    `os.replace`. Missing parent folders are made.

    Args:
        path: the file; its folder must be writable.
        data: its whole content.
        private: True keeps the file readable by its owner alone (mode 0600); False gives the usual mode.

    Returns:
        The path.

    Raises:
        InvalidInput: the folder cannot be made or written, the disk is full, or the path is a folder or a device.
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
    """Writes a UTF-8 text file as `atomic_write_bytes` does; line ends are kept as given.

    Raises:
        InvalidInput: the text holds half a surrogate pair, or the target cannot be written.
    """
    return atomic_write_bytes(path, _encoded(path, text))


def atomic_write_json(path: str | os.PathLike[str], value: Any, *, private: bool = False) -> Path:
    """Writes a value as indented JSON with sorted keys, as `atomic_write_bytes` does.

    Raises:
        InvalidInput: the value is not plain JSON (an array, bytes, NaN or infinity, mixed keys), or the
            target cannot be written.
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
    """Makes a folder and its parents, each durable as the files in it will be; those it made, the deepest first."""
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in reversed(new):
        _sync_folder(one.parent)
    return new


@contextlib.contextmanager
def held_alone(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Keeps a second process (or thread) that asks for the folder out of it; a killed process lets go.

    The folder is made when missing, and removed if nothing came into it. Where the system or the file system knows no
    such locks, nobody is kept out.

    Raises:
        InvalidInput: somebody else holds the folder, or it cannot be made.
    """
    root = Path(folder)
    try:
        made = _make_folder(root)
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
            for one in made:
                one.rmdir()
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
