"""Decentralized learning algorithms, each a builder of one `LinearAlgorithm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .error_in_models import noise_error
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
        mf_dsgd,
        toeplitz,
    )
    from .gossip_sgd import anti_pgd, cdp, dp_dsgd, dsgd, muffliato
    from .linear_algorithm import LinearAlgorithm
    from .maps import delayed_dsgd, exact_diffusion, from_maps, gradient_tracking, local_steps, two_hop_dsgd
    from .noise_for_trust import message_noise, trust_optimal
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


def __getattr__(name: str) -> Any:
    from ..extensions import public

    return public(__name__, name)


def __dir__() -> list[str]:
    return sorted(__all__)
