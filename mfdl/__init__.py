"""Differentially private decentralized learning as a factorization A = B C over time x nodes.

Everything an attacker sees is linear, O = A G + B Z, so every algorithm is a workload, every trust model a
choice of what is seen and known, every guarantee one sensitivity, and every better algorithm a better
factorization. Names load lazily: `import mfdl` brings none of the heavy libraries.

What is named here is public, and so is what the packages named here list in `__all__`; `dir` shows no more. Every other
module that a page names, as `mfdl.dynamics`, loads in the same way.
`mfdl.audit` is a package, whose function of that name is `mfdl.audit.audit`; `mfdl.partition` is the module of
`mfdl.tasks` that deals records to nodes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# name -> module that holds it; "=module" is the module itself
_EXPORTS = {
    "BallsInBins": "mfdl.participation",
    "Cyclic": "mfdl.participation",
    "Dynamics": "mfdl.dynamics",
    "ErrorWeights": "mfdl.objective",
    "EveryStep": "mfdl.participation",
    "Guarantee": "mfdl.privacy.guarantee",
    "InvalidInput": "mfdl.errors",
    "LinearAlgorithm": "mfdl.algorithms",
    "Mechanism": "mfdl.mechanism",
    "MinSeparation": "mfdl.participation",
    "NoiseKey": "mfdl.training.keys",
    "PoissonSampling": "mfdl.participation",
    "Losses": "mfdl.privacy.losses",
    "PrivateNode": "mfdl.training.private_node",
    "Privacy": "mfdl.privacy.questions",
    "Run": "mfdl.training.run",
    "TrustModel": "mfdl.trust",
    "UnsupportedMechanism": "mfdl.errors",
    "View": "mfdl.trust.view",
    "account": "mfdl.noise_scale",
    "algorithms": "=mfdl.algorithms",
    "audit": "=mfdl.audit",
    "calibrate": "mfdl.noise_scale",
    "compare": "mfdl.runs.compared",
    "data": "=mfdl.data",
    "factorization": "=mfdl.factorization",
    "gossip": "=mfdl.gossip",
    "graphs": "=mfdl.graphs",
    "losses": "mfdl.noise_scale",
    "optimize": "mfdl.noise_scale",
    "pairwise": "mfdl.runs.pairwise_losses",
    "partition": "=mfdl.training.tasks.partition",
    "plan": "mfdl.planning.planner",
    "privacy": "=mfdl.privacy",
    "replay": "mfdl.training.replay",
    "runs": "=mfdl.runs",
    "sweep": "mfdl.runs.running",
    "tasks": "=mfdl.training.tasks",
    "testing": "=mfdl.testing",
    "trust": "=mfdl.trust",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        from .extensions import submodule

        return submodule(__name__, name)
    where = _EXPORTS[name]
    module = importlib.import_module(where.removeprefix("="))
    value = module if where.startswith("=") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from . import algorithms, audit, data, factorization, gossip, graphs, privacy, runs, testing, trust
    from .algorithms import LinearAlgorithm
    from .dynamics import Dynamics
    from .errors import InvalidInput, UnsupportedMechanism
    from .mechanism import Mechanism
    from .noise_scale import account, calibrate, losses, optimize
    from .objective import ErrorWeights
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
