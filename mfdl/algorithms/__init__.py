"""Decentralized learning algorithms, each a builder of one `LinearAlgorithm`."""

from .dsgd import anti_pgd, cdp, dp_dsgd, dsgd, mf_dsgd, muffliato
from .factorized import (
    band_inv,
    banded,
    bisr,
    blt,
    bsr,
    d_mf,
    lambda_cgd,
    mafalda,
    mafalda_bins,
    mafalda_classes,
    mafalda_l,
    toeplitz,
)
from .linear_algorithm import LinearAlgorithm
from .maps import from_maps
from .memory import delayed_dsgd, exact_diffusion, gradient_tracking, local_steps, two_hop_dsgd
from .noise_error import noise_error
from .other_exchanges import push_sum, random_walk, with_dropout, zip_dl
from .over_nodes import (
    corn,
    corn_pairwise,
    decor,
    joint,
    kronecker,
    kronecker_bins,
    per_mode,
    spatial_covariance,
    spatial_noise,
    spatio_temporal_noise,
    tuned_decor,
)
from .registry import build
from .trust_optimal import message_noise, trust_optimal

__all__ = [
    "LinearAlgorithm",
    "anti_pgd",
    "band_inv",
    "banded",
    "bisr",
    "blt",
    "bsr",
    "build",
    "cdp",
    "corn",
    "corn_pairwise",
    "d_mf",
    "decor",
    "delayed_dsgd",
    "dp_dsgd",
    "dsgd",
    "exact_diffusion",
    "from_maps",
    "gradient_tracking",
    "joint",
    "kronecker",
    "kronecker_bins",
    "lambda_cgd",
    "local_steps",
    "mafalda",
    "mafalda_bins",
    "mafalda_classes",
    "mafalda_l",
    "message_noise",
    "mf_dsgd",
    "muffliato",
    "noise_error",
    "per_mode",
    "push_sum",
    "random_walk",
    "spatial_covariance",
    "spatial_noise",
    "spatio_temporal_noise",
    "toeplitz",
    "trust_optimal",
    "tuned_decor",
    "two_hop_dsgd",
    "with_dropout",
    "zip_dl",
]


def __dir__() -> list[str]:
    return sorted(__all__)
