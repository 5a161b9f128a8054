"""Decentralized learning algorithms, each a builder of one `LinearAlgorithm`."""

from .dsgd import anti_pgd, dp_dsgd, dsgd, mf_dsgd
from .factorized import bsr, d_mf, mafalda, mafalda_l
from .linear_algorithm import LinearAlgorithm, Round
from .registry import build

__all__ = [
    "LinearAlgorithm",
    "Round",
    "anti_pgd",
    "bsr",
    "build",
    "d_mf",
    "dp_dsgd",
    "dsgd",
    "mafalda",
    "mafalda_l",
    "mf_dsgd",
]
