"""Downloads one file to a temporary place, so that an incomplete file is never taken for the whole one.

In: an address and a path. Out: the bytes on disk, or `NotDelivered` with the reason in one line. Which files there are
and what they must hold is in `data`. requests is imported inside a function: `graphs` needs `data`, and must stay cheap
to import.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from .errors import InvalidInput
from .progress import shown

TIMEOUT_SECONDS = 30
CHUNK_BYTES = 1 << 16


class NotDelivered(Exception):
    """An address could not deliver the file; the message is the reason."""


def reason(error: BaseException) -> str:
    """First line of an error, short enough for one message."""
    text = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {text[:160]}" if text else type(error).__name__


def sha256(path: Path) -> str:
    """Checksum of a file in hex; InvalidInput when it cannot be read."""
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
    """Writes what the address holds, with a progress bar (`progress`); NotDelivered when it fails."""
    import requests  # loaded only when something is missing

    try:
        with requests.get(url, stream=True, timeout=TIMEOUT_SECONDS) as response, target.open("wb") as out:
            response.raise_for_status()
            total = int(response.headers.get("content-length", 0)) or None
            with shown().bar(url.rpartition("/")[2], total, unit="bytes") as advance:
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
