"""Shared parts of written answers: paths that can be written, plain JSON numbers, versions."""

from __future__ import annotations

import functools
import itertools
import math
import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__, display
from ..errors import InvalidInput
from ..spec import text_label

if TYPE_CHECKING:
    import networkx as nx

    from ..gossip import Gossip
    from ..graphs import SparseGraph
    from ..mechanism import Mechanism
    from .options import OnGraph


def require_writable(path: str | os.PathLike[str]) -> None:
    """Refuses a file name that could not be written later; leaves nothing behind, not even a folder."""
    target = Path(path)
    _require_name(target)
    if target.is_dir():
        raise InvalidInput(f"cannot write {target}: it is a folder; give the name of a file in it.")
    folder = target.absolute().parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):  # asking for permission answers wrongly for root and odd systems
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidInput(f"cannot write {target}: {folder}: {reason}; choose a folder that can be written.") from None


def require_folder(out: str | os.PathLike[str]) -> None:
    if os.path.exists(out) and not os.path.isdir(out):  # not of Path, which raise on names no file can have
        raise InvalidInput(f"cannot write to {out}: it is a file; give a folder.")
    require_writable(Path(out) / "results.json")


def _require_name(target: Path) -> None:
    try:
        str(target).encode()
        target.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except UnicodeEncodeError:  # bytes of the command line that are no UTF-8
        raise InvalidInput(f"cannot write {str(target)!a}: the name is not valid UTF-8; use another.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        written = str(target) if len(str(target)) <= 80 else f"{str(target)[:77]}..."
        raise InvalidInput(f"cannot write {written!r}: {reason}; use another name.") from None


def json_number(number: float | None) -> float | str | None:
    """The number in JSON: infinity is the text "inf", nan is null."""
    if number is None or math.isnan(number):
        return None
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    return float(number)


def rounded_up(value: float | str) -> str:
    """Four digits, rounded up: a table or title never shows less than the loss.

    >>> rounded_up(10.99721), rounded_up(2.0), rounded_up("inf")
    ('11', '2', 'inf')
    """
    return display.rounded_up(float(value), 4)


def mu_rounded_up(value: float | str) -> str:
    """Six digits, rounded up, as guarantees print mu."""
    return display.rounded_up(float(value), 6)


def ahead_in_every_seed(losses: Mapping[str, Mapping[int, float | None]]) -> str:
    """The mechanism whose loss is below all others' in every seed; empty if there is none, or only one.

    Args: losses: by mechanism, then by seed; None where a run diverged, which leaves its mechanism out. Losses
        within a relative 1e-9 are equal, and mechanisms of different seeds are not compared.

    >>> ahead_in_every_seed({"a": {0: 1.0, 1: 2.0}, "b": {0: 1.5, 1: 2.5}, "c": {0: 1.0, 1: None}})
    'a'
    """
    usable = {name: by_seed for name, by_seed in losses.items() if by_seed and all(map(_finite, by_seed.values()))}
    if len(usable) < 2 or len({tuple(sorted(by_seed)) for by_seed in usable.values()}) > 1:
        return ""
    import numpy as np

    from mfdl_solvers.ties import equal_to_largest

    table = np.array([[by_seed[seed] for seed in sorted(by_seed)] for by_seed in usable.values()], dtype=np.float64)
    lowest = equal_to_largest(-table, axis=0)
    ahead = (lowest & (lowest.sum(axis=0) == 1)).all(axis=1)
    return next(itertools.compress(usable, ahead), "")


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def objective_fields(mechanism: Mechanism) -> dict[str, float | str | None]:
    """`Mechanism.objective`, for estimates with half the width of the 95 % interval."""
    error = mechanism.objective_error
    return {"objective": json_number(mechanism.objective), **({"objective_error": error} if error else {})}


def result_sensitivity(mechanism: Mechanism) -> float | str | None:
    """Ratio of the base noise to its mu; None without noise, and for secret batches, which have no mu."""
    guarantee = mechanism.guarantee
    return json_number(guarantee.sensitivity) if guarantee.finite and guarantee.mu is not None else None


RELEASED = {"average": "; the average of the final models is published", "all": "; all final models are published"}


def shared_conditions(result: Mapping[str, Any]) -> str:
    """Conditions that all mechanisms with noise of a comparison share, in a sentence."""
    names = [row["mechanism"] for row in result["mechanisms"] if row["mechanism"] != "none"]
    if not names:
        return "none trains without noise: it has no guarantee."
    who = "Every mechanism" if len(names) > 1 else names[0]
    but = " but none" * (len(names) > 1 and len(names) < len(result["mechanisms"]))
    trust = "its own trust model" if result["across_trust_models"] else f"trust model {result['trust']}"
    attacker, release = result.get("attacker"), result.get("release")
    seen = f" ({attacker}{RELEASED.get(str(release), '')})" if attacker is not None else ""
    protected = "a record of every node" if result["unit"] == "record" else "all data of each node"
    return (
        f"{who}{but} has {target_in_words(result) or 'its budget'} for {protected} under {trust}{seen}, "
        f"{result['adjacency']} adjacency, clipping norm {result['clip_norm']:g}, "
        f"{result['participation']['scheme']} participation."
    )


def target_in_words(result: Mapping[str, Any]) -> str:
    """mu, if there is one, and the largest epsilon at delta; empty if each mechanism has a budget of its own."""
    epsilons = [row["epsilon"] for row in result["mechanisms"] if isinstance(row.get("epsilon"), float)]
    mu, epsilon = result["mu"], max(epsilons, default=result["epsilon"])
    if isinstance(mu, list) or epsilon is None:
        return ""
    words = [] if mu is None else [f"mu = {mu_rounded_up(mu)}"]
    return ", ".join([*words, f"epsilon = {rounded_up(epsilon)} at delta = {result['delta']:g}"])


@functools.cache
def versions() -> dict[str, str]:
    from importlib.metadata import version

    packages = {name: version(name) for name in ("numpy", "scipy", "torch")}
    return {"mfdl": __version__, "python": platform.python_version(), **packages}


def circumstances(config: OnGraph, graph: nx.Graph | SparseGraph, gossip: Gossip) -> dict[str, Any]:
    from .. import graphs

    network = {"graph": text_label(config.graph), "graph_hash": graphs.content_hash(graph), "gossip": gossip.name}
    return {**network, "nodes": gossip.num_nodes, "versions": versions(), "config": config.options()}
