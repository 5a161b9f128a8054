"""Decentralized learning algorithms, each a builder of one `LinearAlgorithm`."""

from .dsgd import anti_pgd, cdp, dp_dsgd, dsgd, mf_dsgd, muffliato
from .factorized import bsr, d_mf, mafalda, mafalda_l
from .linear_algorithm import LinearAlgorithm, Round
from .registry import build
from .spatial_noise import corn, corn_pairwise, decor, spatial_covariance, spatial_noise, tuned_decor
from .zip_dl import zip_dl

__all__ = [
    "LinearAlgorithm",
    "Round",
    "anti_pgd",
    "bsr",
    "build",
    "cdp",
    "corn",
    "corn_pairwise",
    "d_mf",
    "decor",
    "dp_dsgd",
    "dsgd",
    "mafalda",
    "mafalda_l",
    "mf_dsgd",
    "muffliato",
    "spatial_covariance",
    "spatial_noise",
    "tuned_decor",
    "zip_dl",
]
