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
    "CyclicPoisson": "mfdl.participation",
    "Dynamics": "mfdl.dynamics",
    "ErrorWeights": "mfdl.objective",
    "EveryStep": "mfdl.participation",
    "Explicit": "mfdl.participation",
    "Guarantee": "mfdl.privacy.guarantee",
    "InvalidInput": "mfdl.errors",
    "LinearAlgorithm": "mfdl.algorithms",
    "Mechanism": "mfdl.mechanism",
    "MinSeparation": "mfdl.participation",
    "MinSeparationSampling": "mfdl.participation",
    "NoiseKey": "mfdl.training.keys",
    "NoiseObjective": "mfdl.objective",
    "NotConverged": "mfdl.factorization",
    "OncePerEpoch": "mfdl.participation",
    "PairwiseLosses": "mfdl.runs.pairwise_losses",
    "ParticipationByNode": "mfdl.participation",
    "PoissonSampling": "mfdl.participation",
    "Owners": "mfdl.privacy.owners",
    "Losses": "mfdl.privacy.losses",
    "PrivateNode": "mfdl.training.private_node",
    "Privacy": "mfdl.privacy.questions",
    "RandomAllocation": "mfdl.participation",
    "ReleasedModel": "mfdl.released",
    "Round": "mfdl.algorithms",
    "Run": "mfdl.training.run",
    "Single": "mfdl.participation",
    "TrustModel": "mfdl.trust",
    "UnsupportedMechanism": "mfdl.errors",
    "View": "mfdl.trust.view",
    "account": "mfdl.noise_scale",
    "algorithms": "=mfdl.algorithms",
    "audit": "=mfdl.audit",
    "calibrate": "mfdl.noise_scale",
    "compare": "mfdl.runs.compared",
    "data": "=mfdl.data",
    "decor_deviations": "mfdl.decor_search",
    "factorization": "=mfdl.factorization",
    "general_sensitivity": "mfdl.privacy.gram_sensitivity",
    "gossip": "=mfdl.gossip",
    "graphs": "=mfdl.graphs",
    "losses": "mfdl.noise_scale",
    "noise_stream": "mfdl.training.streams",
    "pairwise": "mfdl.runs.pairwise_losses",
    "plan": "mfdl.planning.planner",
    "partition": "=mfdl.training.tasks.partition",
    "privacy": "=mfdl.privacy",
    "replay": "mfdl.training.replay",
    "runs": "=mfdl.runs",
    "sweep": "mfdl.runs.sweeping",
    "tasks": "=mfdl.training.tasks",
    "testing": "=mfdl.testing",
    "trust": "=mfdl.trust",
    "sensitivity_by_victim": "mfdl.privacy.attacking_sets",
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
    from .algorithms import LinearAlgorithm, Round
    from .decor_search import decor_deviations
    from .dynamics import Dynamics
    from .errors import InvalidInput, UnsupportedMechanism
    from .factorization import NotConverged
    from .mechanism import Mechanism
    from .noise_scale import account, calibrate, losses
    from .objective import ErrorWeights, NoiseObjective
    from .participation import (
        BallsInBins,
        Cyclic,
        CyclicPoisson,
        EveryStep,
        Explicit,
        MinSeparation,
        MinSeparationSampling,
        OncePerEpoch,
        ParticipationByNode,
        PoissonSampling,
        RandomAllocation,
        Single,
    )
    from .planning.planner import plan
    from .privacy.attacking_sets import sensitivity_by_victim
    from .privacy.gram_sensitivity import general_sensitivity
    from .privacy.guarantee import Guarantee
    from .privacy.losses import Losses
    from .privacy.owners import Owners
    from .privacy.questions import Privacy
    from .released import ReleasedModel
    from .runs.compared import compare
    from .runs.pairwise_losses import PairwiseLosses, pairwise
    from .runs.sweeping import sweep
    from .training import tasks
    from .training.keys import NoiseKey
    from .training.private_node import PrivateNode
    from .training.replay import replay
    from .training.run import Run
    from .training.streams import noise_stream
    from .training.tasks import partition
    from .trust import TrustModel
    from .trust.view import View
