"""Differentially private decentralized learning as a factorization A = B C over time x nodes.

Everything an attacker sees is linear, O = A G + B Z, so every algorithm is a workload, every trust model a
choice of what is seen and known, every guarantee one sensitivity, and every better algorithm a better
factorization. Names load lazily: `import mfdl` brings none of the heavy libraries.

What is named here is public, and so is what the packages named here list in `__all__`; `dir` shows no more. Every other
module that a page names, as `mfdl.dynamics`, loads in the same way. `mfdl.audit` is a package, whose function of that
name is `mfdl.audit.audit`; `mfdl.partition` is the module of `mfdl.tasks` that deals records to nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import algorithms, audit, data, factorization, gossip, graphs, privacy, runs, testing, trust
    from .algorithms import LinearAlgorithm
    from .dynamics import Dynamics
    from .errors import InvalidInput, UnsupportedMechanism
    from .mechanism import Mechanism
    from .noise_scale import account, calibrate, losses
    from .objective import ErrorWeights
    from .optimal_mechanism import optimize
    from .participation import (
        BallsInBins,
        Cyclic,
        EveryStep,
        MinSeparation,
        PoissonSampling,
    )
    from .planning.planner import plan
    from .privacy.guarantee import Guarantee
    from .privacy.losses import Losses
    from .privacy.questions import Privacy
    from .runs.compared import compare
    from .runs.pairwise_losses import pairwise
    from .runs.running import sweep
    from .training import tasks
    from .training.keys import NoiseKey
    from .training.private_node import PrivateNode
    from .training.replay import replay
    from .training.run import Run
    from .training.tasks import partition
    from .trust import TrustModel
    from .trust.view import View

__all__ = [
    "BallsInBins", "Cyclic", "Dynamics", "ErrorWeights", "EveryStep", "Guarantee", "InvalidInput",
    "LinearAlgorithm", "Losses", "Mechanism", "MinSeparation", "NoiseKey", "PoissonSampling", "Privacy",
    "PrivateNode", "Run", "TrustModel", "UnsupportedMechanism", "View", "__version__", "account", "algorithms",
    "audit", "calibrate", "compare", "data", "factorization", "gossip", "graphs", "losses", "optimize", "pairwise",
    "partition", "plan", "privacy", "replay", "runs", "sweep", "tasks", "testing", "trust",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    from .extensions import public

    return public(__name__, name)


def __dir__() -> list[str]:
    return sorted(__all__)
