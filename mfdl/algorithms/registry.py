"""Algorithms by name, as the command line and configurations use them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..dynamics import Dynamics
from ..errors import InvalidInput, unknown_name
from ..factorization import load
from ..participation import Participation
from .dsgd import anti_pgd, dp_dsgd, dsgd, mf_dsgd, muffliato
from .factorized import bsr, d_mf, mafalda, mafalda_l
from .linear_algorithm import LinearAlgorithm
from .spatial_noise import decor
from .zip_dl import zip_dl

FILE_PREFIX = "file:"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One mechanism: its builder, its parameters, and where it comes from."""

    build: Callable[..., LinearAlgorithm]
    summary: str
    trust: str
    paper: str
    parameters: Mapping[str, type] = dataclasses.field(default_factory=dict)


MECHANISMS: Mapping[str, Entry] = {
    "none": Entry(dsgd, "D-SGD without noise", "none", "-"),
    "dp-dsgd": Entry(dp_dsgd, "fresh independent noise at every node and step", "ldp", "-"),
    "anti-pgd": Entry(anti_pgd, "differences of consecutive noise", "ldp", "arXiv:2510.17480, Appendix"),
    "bsr": Entry(bsr, "banded square root of the prefix sum", "ldp", "arXiv:2405.13763", {"bandwidth": int}),
    "d-mf": Entry(d_mf, "optimal encoder for one server (prefix sums)", "ldp", "arXiv:2306.08153"),
    "mafalda": Entry(mafalda, "optimal shared encoder for the graph", "ldp", "arXiv:2510.17480, Algorithm 2"),
    "mafalda-l": Entry(mafalda_l, "optimal encoder for each node", "ldp", "arXiv:2510.17480, reference code"),
    "muffliato": Entry(
        muffliato,
        "independent noise, several gossip rounds per gradient",
        "pndp",
        "arXiv:2206.05091",
        {"gossip_rounds": int},
    ),
    "decor": Entry(
        decor,
        "private noise plus pairwise noise that cancels over edges",
        "eavesdropper, colluding, coalitions",
        "arXiv:2405.01031, Algorithm 1",
        {"sigma_local": float, "sigma_pair": float},
    ),
    "zip-dl": Entry(
        zip_dl,
        "noise per message that cancels in the average: nothing is private once final models are released",
        "pndp",
        "arXiv:2403.11795, Algorithm 1",
        {"sigma": float, "self_messages": bool},
    ),
}


def parse_parameters(name: str, settings: Iterable[str]) -> dict[str, Any]:
    """`key=value` texts as arguments of a mechanism's builder.

    Raises: InvalidInput: not key=value, a key the mechanism does not have, a value of another type.
    """
    known = MECHANISMS[name].parameters if name in MECHANISMS else {}
    found: dict[str, Any] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise InvalidInput(f"a setting must read key=value, got {text!r}.")
        if key not in known:
            if not known:
                raise InvalidInput(f"mechanism {name!r} has no parameters, got {text!r}.")
            raise unknown_name(f"parameter of {name}", key, known)
        kind = known[key]
        try:
            if kind is bool:
                found[key] = {"true": True, "false": False, "1": True, "0": False}[value.strip().lower()]
            else:
                found[key] = kind(value)
        except (KeyError, ValueError):
            raise InvalidInput(f"parameter {key} of {name} must be {kind.__name__}, got {value!r}.") from None
    return found


def check_name(name: str) -> str:
    """The name itself if it can be built; raises InvalidInput with the nearest name otherwise."""
    if not name.startswith(FILE_PREFIX) and name not in MECHANISMS:
        raise unknown_name("mechanism", name, [*MECHANISMS, "file:FILE.npz"])
    return name


def build(name: str, dynamics: Dynamics, participation: Participation, **parameters: Any) -> LinearAlgorithm:
    """The named algorithm with its parameters (see MECHANISMS); `file:FILE.npz` is MF-D-SGD with that file's encoder.

    Raises: InvalidInput: unknown name, or a file made for other steps or another number of nodes.
    """
    check_name(name)
    if not name.startswith(FILE_PREFIX):
        return MECHANISMS[name].build(dynamics, participation, **parameters)
    path = name.removeprefix(FILE_PREFIX)
    saved = load(path)
    made_for = saved.header.get("participation")
    if made_for is not None and made_for != participation.to_dict():
        raise InvalidInput(
            f"{path} was made for {made_for}, not for {participation.to_dict()}; factorize again with this "
            "participation."
        )
    return mf_dsgd(dynamics, participation, saved.encoder, name=name)
