"""Algorithms by name, as the command line and configurations use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..dynamics import Dynamics
from ..errors import InvalidInput, unknown_name
from ..factorization import load
from ..participation import Participation
from .dsgd import anti_pgd, dp_dsgd, dsgd, mf_dsgd
from .factorized import bsr, d_mf, mafalda, mafalda_l
from .linear_algorithm import LinearAlgorithm

FILE_PREFIX = "file:"

BUILDERS: Mapping[str, Callable[[Dynamics, Participation], LinearAlgorithm]] = {
    "none": dsgd,
    "dp-dsgd": dp_dsgd,
    "anti-pgd": anti_pgd,
    "bsr": bsr,
    "d-mf": d_mf,
    "mafalda": mafalda,
    "mafalda-l": mafalda_l,
}


def check_name(name: str) -> str:
    """The name itself if it can be built; raises InvalidInput with the nearest name otherwise."""
    if not name.startswith(FILE_PREFIX) and name not in BUILDERS:
        raise unknown_name("mechanism", name, [*BUILDERS, "file:FILE.npz"])
    return name


def build(name: str, dynamics: Dynamics, participation: Participation) -> LinearAlgorithm:
    """The named algorithm; `file:FILE.npz` is MF-D-SGD with the encoder of that file.

    Raises: InvalidInput: unknown name, or a file made for other steps or another number of nodes.
    """
    check_name(name)
    if not name.startswith(FILE_PREFIX):
        return BUILDERS[name](dynamics, participation)
    path = name.removeprefix(FILE_PREFIX)
    saved = load(path)
    made_for = saved.header.get("participation")
    if made_for is not None and made_for != participation.to_dict():
        raise InvalidInput(
            f"{path} was made for {made_for}, not for {participation.to_dict()}; factorize again with this "
            "participation."
        )
    return mf_dsgd(dynamics, participation, saved.encoder, name=name)
