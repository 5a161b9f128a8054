"""One figure, or all of them, run and written."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Iterator

from mfdl import files
from mfdl.errors import InvalidInput
from mfdl.reporting.output import require_folder

from .catalogue import FIGURES, named
from .figure import PublishedFigure, RunScale
from .reproduction import Reproduction
from .verdicts import Verdict


def reproduce(name: str, scale: RunScale | None = None) -> Reproduction:
    """Runs one figure and writes its files.

    Raises: InvalidInput: an unknown name, data that are missing, or a folder that cannot be written.
    """
    figure, scale = named(name), scale or RunScale()
    require_folder(scale.out)
    began = time.perf_counter()
    done = figure.run(scale)
    done = dataclasses.replace(done, seconds=time.perf_counter() - began)
    done.write()
    return done


def reproduce_all(scale: RunScale | None = None) -> Iterator[Reproduction]:
    """Runs every figure, one after the other; one that cannot be run says why, and stops nobody.

    Where that was an error of ours, NAME.error.txt in the folder holds its traceback.
    """
    scale = scale or RunScale()
    for name, figure in FIGURES.items():
        path = scale.out / f"{name}.error.txt"
        path.unlink(missing_ok=True)
        try:
            yield reproduce(name, scale)
        except InvalidInput as error:
            yield _not_run(figure, scale, str(error))
        except Exception as error:
            files.atomic_write_text(path, traceback.format_exc())
            yield _not_run(figure, scale, f"{type(error).__name__}: {error} (see {path})")


def _not_run(figure: PublishedFigure, scale: RunScale, reason: str) -> Reproduction:
    return Reproduction(figure, scale, (Verdict.not_run(figure.claim, reason),), missing=(reason,))
