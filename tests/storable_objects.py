"""One object of every class that a file may hold, by the name of the class."""

import numpy as np

import mfdl_solvers
from mfdl import Cyclic, Dynamics, algorithms, factorization, gossip, noise, participation, trust
from mfdl.factorization.encoders import Banded, Buffered, Inverse, Toeplitz
from mfdl.privacy.gram_sensitivity import Sensitivity
from mfdl.released import ReleasedModel
from mfdl.runs.store import RunSteps
from mfdl.training.run import SeedRun
from mfdl_solvers.balls_in_bins_encoder import BinFactorization
from mfdl_solvers.coalitions import CoalitionFactorization
from mfdl_solvers.local_noise import LocalCovariances
from mfdl_solvers.structured import BinEncoder, StructuredFactorization

W = gossip.metropolis_hastings("path:n=3")
DYNAMICS = Dynamics(W, [0.5, 0.25, 0.125, 0.125], momentum=0.5)
SCHEME = Cyclic(2, 2)
ENDS = {
    "objective": 2.0, "lower_bound": 1.5, "status": "stopped", "iterations": 3, "seconds": 0.5, "notes": ("a note",),
}  # fmt: skip


def encoder():
    return mfdl_solvers.Factorization(np.eye(4), np.eye(4), **ENDS)


def kronecker():
    return mfdl_solvers.KroneckerFactorization(encoder(), encoder(), 2, **ENDS)


def local(matrix=None, **sizes):
    return noise.CausalNoise(matrix, **{"num_steps": 4, "num_nodes": 3, **sizes})


def scheduled():
    plan = np.eye(12)
    plan[3, 0] = 0.5
    return noise.ScheduledNoise(np.tri(4), plan, np.eye(3, dtype=bool), num_steps=4, num_nodes=3)


SAMPLES = {
    "LDP": trust.LDP, "SecureSum": lambda: trust.SecureSum([1]), "PNDP": lambda: trust.PNDP([0, "b", np.int64(2)]),
    "AnyReceiver": trust.AnyReceiver, "Eavesdropper": trust.Eavesdropper,
    "Colluding": lambda: trust.Colluding(("a", 1)), "Coalitions": lambda: trust.Coalitions(2),
    "FullCollusion": trust.FullCollusion, "Central": trust.Central, "ReleasedOnly": trust.ReleasedOnly,
    "Cyclic": lambda: Cyclic(2, 3), "Single": lambda: participation.Single(4),
    "EveryStep": lambda: participation.EveryStep(4), "Explicit": lambda: participation.Explicit([[0, 2], [1]], 4),
    "OncePerEpoch": lambda: participation.OncePerEpoch(2, 3),
    "MinSeparation": lambda: participation.MinSeparation(5, 2, 2),
    "PoissonSampling": lambda: participation.PoissonSampling(0.1, 4),
    "BallsInBins": lambda: participation.BallsInBins(2, 3),
    "CyclicPoisson": lambda: participation.CyclicPoisson(2, 3, 0.1),
    "RandomAllocation": lambda: participation.RandomAllocation(2, 3, per_epoch=False),
    "MinSeparationSampling": lambda: participation.MinSeparationSampling(6, 3, 0.1),
    "ParticipationByNode": lambda: participation.ParticipationByNode([SCHEME, Cyclic(1, 4), SCHEME]),
    "GossipMatrix": lambda: gossip.from_array(np.full((2, 2), 0.5), labels=("Ann", np.int64(7))),
    "GossipSequence": lambda: gossip.sequence([W, gossip.uniform("path:n=3")], repeat=False),
    "MixingCertificate": lambda: gossip.fastest_mixing("path:n=3").certificate,
    "PushSum": lambda: gossip.push_sum("path:n=3", 4), "Dynamics": lambda: DYNAMICS,
    "ReleasedModel": lambda: ReleasedModel("average:2+1"),
    "Round": lambda: algorithms.dp_dsgd(DYNAMICS, SCHEME).rounds[0],
    "LinearAlgorithm": lambda: algorithms.mafalda(DYNAMICS, SCHEME).releasing("average:2"),
    "CausalNoise": lambda: local(np.tri(4)), "JointNoise": lambda: noise.JointNoise(np.tri(12), 4, 3),
    "ScheduledNoise": scheduled, "Factorization": encoder,
    "EstimatedFactorization": lambda: factorization.temporal.EstimatedFactorization(
        np.eye(4), np.eye(4), **ENDS, objective_error=0.1
    ),
    "NodeFactorizations": lambda: factorization.nodes.NodeFactorizations((encoder(), encoder()), 0.5),
    "ClassFactorizations": lambda: factorization.nodes.ClassFactorizations(
        (encoder(),), 0.5, np.zeros(3, dtype=np.intp)
    ),
    "LocalCovariances": lambda: LocalCovariances(covariances=np.ones((3, 2, 2)), **ENDS),
    "SpatialFactorization": lambda: factorization.optimal_covariance(DYNAMICS, groups=[[0, 1], [1, 2]]),
    "SpatioTemporalFactorization": lambda: factorization.optimal_kronecker(DYNAMICS, SCHEME),
    "BinFactorization": lambda: BinFactorization(np.eye(4), np.eye(2), **ENDS), "KroneckerFactorization": kronecker,
    "PerModeFactorization": lambda: mfdl_solvers.PerModeFactorization(
        np.eye(3), np.ones((3, 4)), 2, kronecker(), **ENDS
    ),
    "CoalitionFactorization": lambda: CoalitionFactorization(1.0, (np.eye(2),), np.eye(3), ((0, 1), 2, 0.5), **ENDS),
    "StructuredFactorization": lambda: StructuredFactorization(
        encoder=Toeplitz([1.0, 0.5], 4), sensitivity=1.0, sensitivity_exact=True, **ENDS
    ),
    "BinEncoder": lambda: BinEncoder(encoder=Toeplitz([1.0, 0.5], 4), bin_gram=np.eye(2), **ENDS),
    "Toeplitz": lambda: Toeplitz([1.0, 0.5], 4),
    "Banded": lambda: Banded(np.array([[1.0, 0.0], [1.0, 0.5], [1.0, 0.5]])),
    "Buffered": lambda: Buffered(scales=[0.5], decays=[0.25], size=4),
    "Inverse": lambda: Inverse(Toeplitz([1.0, 0.5], 4)),
    "Sensitivity": lambda: Sensitivity(2.0, True, (0, 2), 1, 1e-9, lower=1.5, why="why", form="local"),
    "RunSteps": lambda: RunSteps({"mu": np.inf, "seed": 1}, np.arange(2), ("a", "b"), {"loss": np.ones((2, 2))}),
    "SeedRun": lambda: SeedRun(None, np.arange(2), np.ones((2, 3)), None, np.ones((3, 1)), False, 4, 0.5, "ab"),
}  # fmt: skip
