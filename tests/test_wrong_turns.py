"""Mistakes that researchers make on their way in: each is refused in words, what was given and the way out among them.

A table of calls, the words that the message must have, and the class of the error where it is not InvalidInput itself.
What looks odd and works is the second table. Tasks: test_wrong_turns_of_tasks.py.
"""

import functools
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from _privacy import applied
from vocabulary import each, refuses
from wrong_turns import (
    AB,
    AP,
    KEY,
    LDP,
    Q1,
    TASK,
    TERMS,
    TRUSTLESS,
    A,
    D,
    G,
    M,
    P,
    W,
    asked,
    require_refused,
    same,
    x,
    y,
)

import mfdl
from mfdl import (
    BallsInBins,
    Cyclic,
    Dynamics,
    ErrorWeights,
    Guarantee,
    Mechanism,
    MinSeparation,
    PoissonSampling,
    Privacy,
    TrustModel,
    account,
    algorithms,
    audit,
    calibrate,
    data,
    factorization,
    gossip,
    graphs,
    losses,
    pairwise,
    partition,
    privacy,
    replay,
    runs,
    trust,
)
from mfdl.errors import UnsupportedMechanism
from mfdl.training.streams import noise_stream

WITH_GRAD = torch.eye(4, requires_grad=True)
audit_matrix = functools.partial(audit.audit_matrix, mu=1.0, adjacency="zero-out", clip_norm=1.0)
WAY_TO_DYNAMICS = "mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph))"


def isolated() -> nx.Graph:
    graph = nx.path_graph(3)
    graph.add_node(9)
    return graph


REFUSED = [
    # graphs and gossip
    (lambda: Dynamics(G), ["got Graph", "mfdl.gossip.metropolis_hastings(graph)"]),
    (lambda: Dynamics(np.eye(4)), ["got ndarray", "mfdl.gossip.from_array(W)"]),
    (lambda: Dynamics([W, W]), ["got list", "mfdl.gossip.sequence([...])"]),
    (lambda: Dynamics(lambda t: W), ["got function", "mfdl.gossip.sequence([...])"]),
    (lambda: gossip.sequence(W), ["got GossipMatrix", "sequence([W1, W2, ...])"]),
    (lambda: gossip.GossipSequence(W), ["got GossipMatrix", "one W without"]),
    (lambda: Dynamics("ring:n=4"), ["got 'ring:n=4'", "metropolis_hastings"]),
    (lambda: gossip.metropolis_hastings(W), ["got GossipMatrix", "a networkx graph"]),
    (lambda: gossip.metropolis_hastings([(0, 1)]), ["got list", "a networkx graph"]),
    (lambda: gossip.metropolis_hastings(isolated()), ["3 of 4 nodes", "largest_component=True"]),
    (lambda: gossip.metropolis_hastings(nx.DiGraph([(0, 1)])), ["0 -> 1", "to_undirected()"]),
    (lambda: gossip.from_array(nx.to_numpy_array(G)), ["sums to 2", "divide each row"]),
    (lambda: graphs.load("florentin"), ["'florentin'", "did you mean 'florentine'"]),
    (lambda: graphs.load(Path("no.edges")), ["'no.edges' does not exist", "a named graph"]),
    (lambda: graphs.load("g.gml"), ["'g.gml' does not exist", "check the path", "florentine"]),
    (lambda: graphs.load("g.gexf"), [".csv", "networkx.read_gexf"]),
    (lambda: gossip.load("W.txt", G), ["'W.txt'", "a .npy or .csv file"]),
    (lambda: gossip.average({}, G, 0), ["got Graph", "from_array(W)"]),
    # dynamics and participation
    (lambda: algorithms.mafalda(W, P), ["dynamics", "got GossipMatrix", WAY_TO_DYNAMICS]),
    (lambda: algorithms.mafalda_l(G, P), ["dynamics", "got Graph", WAY_TO_DYNAMICS]),
    (lambda: algorithms.corn(None, P), ["dynamics", "got None", WAY_TO_DYNAMICS]),
    (lambda: algorithms.bsr(Dynamics, P), ["the class Dynamics, not called"]),
    (lambda: algorithms.dp_dsgd(D, 6), ["participation", "got 6", "mfdl.Cyclic(epochs=20"]),
    (lambda: algorithms.zip_dl(P, D), ["dynamics", "got Cyclic", WAY_TO_DYNAMICS]),
    (lambda: algorithms.build("d-mf", P, D), ["dynamics", "got Cyclic"]),
    (lambda: algorithms.build(D, "dp-dsgd", P), ["dynamics", "got 'dp-dsgd'"]),
    (lambda: algorithms.mafalda_l(D, [P] * 4), ["participation", "got list"]),
    (lambda: factorization.factorize(P, D), ["dynamics", "got Cyclic"]),
    (lambda: factorization.factorize(G, P), ["dynamics", "got Graph"]),
    (lambda: factorization.optimal_covariance(G), ["dynamics", "got Graph"]),
    (lambda: factorization.optimal_pairwise(W), ["dynamics", "got GossipMatrix"]),
    (lambda: factorization.prefix_sum_encoder(6), ["participation", "got 6"]),
    (lambda: mfdl.decor_search.decor_deviations(G, P, TRUSTLESS, mu=1.0), ["dynamics", "got Graph"]),
    (lambda: Cyclic(2.5, 3), ["epochs must be an integer >= 1", "got 2.5"]),
    (lambda: Dynamics(W, "0.1"), ["learning_rate", "got '0.1'"]),
    # encoders and maps
    (lambda: algorithms.mf_dsgd(D, P, "toeplitz"), ["array of shape (T, T)", "got 'toeplitz'", "build(name, "]),
    (lambda: algorithms.mf_dsgd(D, P, torch.eye(6, requires_grad=True)), ["requires grad", "encoder.detach().cpu()"]),
    (lambda: algorithms.mf_dsgd(D, P, np.eye(5)), ["T = 6 steps", "got 5 x 5"]),
    (lambda: algorithms.from_maps({"P": WITH_GRAD, "Q": np.eye(4)}, P), ["requires grad", ".detach().cpu()"]),
    (lambda: algorithms.build("mafald", D, P), ["'mafald'", "did you mean 'mafalda'"]),
    (lambda: algorithms.mafalda(D, P, weights="last:2"), ["'last:2'", "ErrorWeights.parse"]),
    (lambda: algorithms.zip_dl(Dynamics(W, 0.1, momentum=0.9), P), ["neither momentum nor"], UnsupportedMechanism),
    # privacy
    (lambda: calibrate(M, asked(), mu=1.0), ["algorithm must be a LinearAlgorithm", "got Mechanism", "as .algorithm"]),
    (lambda: calibrate("mafalda", asked(), mu=1.0), ["'mafalda' needs dynamics", "build(name, dynamics, partic"]),
    (lambda: account(A.noise, asked(), noise_std=1.0), ["algorithm", "got IndependentNoise"]),
    (lambda: account(A, asked(participation=3), noise_std=1.0), ["participation", "got 3", "mfdl.Cyclic"]),
    (lambda: account(A, asked()), ["exactly one of noise_std and noise_multiplier"]),
    (lambda: privacy.sensitivity_by_victim(M, LDP), ["got Mechanism", "as .algorithm"]),
    (lambda: privacy.sensitivity_by_victim(G, LDP), ["algorithm", "got Graph"]),
    (lambda: privacy.sensitivity_by_victim(LDP, A), ["trust must be a trust model", "got LinearAlgorithm"]),
    (lambda: privacy.sensitivity_by_victim(A, LDP, victims=0), ["a list of node indices", "got 0"]),
    (lambda: losses(M, Q1), ["algorithm", "got Mechanism"]),
    (lambda: losses(A, LDP), ["privacy", "got LDP", "mfdl.Privacy("]),
    (lambda: LDP.view(M), ["algorithm", "got Mechanism"]),
    (lambda: calibrate(A, asked(trust="ldp"), mu=1.0), ["'ldp'", "mfdl.trust.LDP()"]),
    (lambda: calibrate(A, asked(trust=trust.LDP), mu=1.0), ["the class LDP, not called", "mfdl.trust.LDP()"]),
    (lambda: calibrate(A, asked(adjacency="replace"), mu=1.0), ["'replace'", "did you mean 'replace-one'"]),
    (lambda: calibrate(A, asked()), ["exactly one target", "epsilon with delta"]),
    (lambda: calibrate(A, asked(), epsilon=1.0), ["needs a delta", "delta=1e-6"]),
    (lambda: calibrate(A, asked(method="exat"), mu=1.0), ["'exat'", "mean 'exact'"]),
    (lambda: calibrate(A, asked(lipschitz="1"), mu=1.0), ["one number", "got '1'"]),
    (lambda: LDP.view(A, victim="0"), ["victim must be an integer >= 0", "got '0'"]),
    (lambda: LDP.view(A, victim=4), ["victim must be a node index below 4", "got 4"]),
    (lambda: trust.Colluding("0"), ["colluders must be a list of at least one node", "got '0'"]),
    (lambda: trust.Colluding(0), ["colluders must be a list of", "e.g. [0]", "got 0"]),
    (lambda: TrustModel.from_masks(seen=np.ones(4, bool), release="nothing"), ["none, average, all", "got 'nothing'"]),
    (lambda: TrustModel.from_masks(release=None), ["release must be one of none, average, all", "got None"]),
    (lambda: trust.PNDP(3), ["a list of at least one node, e.g. [0]", "got 3"]),
    (lambda: calibrate(A, asked(trust=trust.PNDP(["Medici"])), mu=1.0), ["'Medici' is not in", "labels start"]),
    (lambda: audit.audit("dp-dsgd", trust=LDP), ["subject", "got 'dp-dsgd'"]),
    (lambda: noise_stream(A, 1.0, KEY, 3), ["must be a noise operator", "got LinearAlgorithm", "algorithm.noise"]),
    (lambda: noise_stream(A.noise, 1.0, 0, 3), ["NoiseKey", "got int", "from_entropy()"]),
    (lambda: noise_stream(A.noise, -1, KEY, 3), ["noise_std must be", ">= 0", "got -1"]),
    (lambda: noise_stream(A.noise, 1.0, KEY, 0), ["dim must be an integer >= 1", "got 0"]),
    (lambda: noise_stream(A.noise, 1.0, KEY, 3).step(0.5), ["step must lie in [0, 6)", "got 0.5"]),
    (lambda: algorithms.spatial_noise(D, P, np.eye(4), name="mine"), ["got ndarray", "algorithms.spatial_covariance"]),
    # arguments that other functions take
    (lambda: account(A, asked(), noise_std=1.0, victim=0), ["no victim", "by_victim"]),
    (lambda: account(AB, asked(), noise_std=1.0, victim=0), ["no victim", "by_victim"]),
    (lambda: calibrate(A, asked(), mu=1.0, by="renyi"), ["by must be", "PoissonSampling"]),
    (lambda: account(AB, asked(), noise_std=1.0, by="renyi"), ["no by", "calibrate"]),
    (lambda: account(A, asked(), noise_std=1.0, mu=1.0), ["no mu", "mfdl.calibrate"]),
    (lambda: account(AB, asked(), mu=1.0), ["no mu", "epsilon with delta"]),
    (lambda: calibrate(A, asked(), mu=1.0, noise_std=1.0), ["exactly one target", "mu must be left out"]),
    (lambda: account(AB, asked()), ["give exactly one of noise_std"]),
    (lambda: account(AP, asked()), ["give exactly one of noise_std"]),
    (lambda: calibrate(AB, asked()), ["exactly one target", "epsilon with delta"]),
    (lambda: calibrate(AB, asked(), epsilon=1.0), ["epsilon needs a delta", "delta=1e-6"]),
    (lambda: calibrate(AP, asked(), epsilon=1.0), ["needs a delta"]),
    (lambda: calibrate(AP, asked(), mu=1.0), ["no mu", "epsilon and delta"], UnsupportedMechanism),
    (lambda: account(AP, asked(unit="user"), noise_std=1.0), ["leave out unit", "one record"], UnsupportedMechanism),
    # values of another kind
    (lambda: account(A, asked(unit=x), noise_std=1.0), ["unknown unit ndarray"]),
    (lambda: Privacy(LDP, adjacency=x, clip_norm=1.0).record_shift, ["unknown adjacency ndarray"]),
    (lambda: algorithms.mafalda(D, P, counted_models=x), ["unknown counted_models ndarray"]),
    (lambda: LDP.view(A, release=x), ["release must be one of none, average, all"]),
    (lambda: algorithms.build(None, D, P), ["name must be a text", "got None"]),
    (lambda: TrustModel.from_masks(seen=[0, 4]), ["seen must be a boolean mask", "np.isin"]),
    (lambda: algorithms.build("dp-dsgd mafalda", D, P), ["separated by commas", "'dp-dsgd,mafalda'"]),
    (lambda: PoissonSampling(1, 5), ["rate must be below 1, got 1", "EveryStep(5)"]),
    (lambda: mfdl.participation.ParticipationByNode(P), ["a list of participations", "got Cyclic"]),
    (lambda: P.allows(3), ["steps must be a list of steps", "got 3"]),
    (lambda: MinSeparation(6, 2, 2).allows(["a"]), ["an integer", "got 'a'"]),
    (lambda: mfdl.participation.OncePerEpoch(2, 3).allows("ab"), ["got 'ab'"]),
    (lambda: Cyclic(2, 3, steps="6"), ["steps must be an integer", "got '6'"]),
    (lambda: D.learning_rates(None), ["num_steps must be an integer", "got None"]),
    (lambda: ErrorWeights("last:2").weights_by_step(2.5), ["num_steps", "got 2.5"]),
    (lambda: ErrorWeights.parse(None), ["text must be a text", "got None"]),
    (lambda: mfdl.released.ReleasedModel("average:2").weights_by_step("5"), ["num_steps", "got '5'"]),
    (lambda: pairwise(A, TRUSTLESS, attackers=0), ["attackers must be a list", "got 0"]),
    (lambda: pairwise(A, TRUSTLESS, victims=0), ["victims must be a list", "got 0"]),
    (lambda: pairwise(M, TRUSTLESS), ["algorithm must be a LinearAlgorithm", "got Mechanism"]),
    (lambda: pairwise(A, TRUSTLESS, make_trust=LDP), ["make_trust must be a function", "got LDP"]),
    (lambda: audit_matrix(A, {"ldp": LDP}), ["algorithms must be a dictionary", "got LinearAlgorithm"]),
    (lambda: audit_matrix({"a": A}, {"ldp": "ldp"}), ["trusts['ldp'] must be a trust model", "got 'ldp'"]),
    (lambda: trust.base.node_indices(G, [0]), ["algorithm", "got Graph"]),
    (lambda: trust.base.node_indices(A, 0), ["nodes must be a list", "got 0"]),
    (lambda: trust.neighbourhood(W, 0, 1), ["attackers must be a list", "got 1"]),
    (lambda: gossip.node_dropout(G, np.ones((2, 4), bool)), ["gossip", "got Graph"]),
    (lambda: gossip.churn(W, 5, [(0, 2)]), ["offline must be a dictionary", "got list"]),
    (lambda: gossip.churn(W, 5, {0: (0, 2)}), ["offline", "a start and a stop", "got 0"]),
    (lambda: gossip.average([x], W, 0), ["messages must be a dictionary", "got list"]),
    (lambda: gossip.from_array(np.eye(3), labels=3), ["labels must be a list", "got 3"]),
    (lambda: graphs.labels(W), ["G must be a networkx graph", "got GossipMatrix"]),
    (lambda: Guarantee.load(3), ["path must be a path", "got 3"]),
    (lambda: Mechanism.load(None), ["path must be a path", "got None"]),
    (lambda: runs.Store(3), ["folder must be a path", "got 3"]),
    (lambda: data.home(3), ["data_home must be a path", "got 3"]),
    (lambda: data.expand([3]), ["wanted must be a text", "got 3"]),
    (lambda: factorization.seeded_covariances.checked_groups([0, 1], 3), ["groups must be a list of groups", "got 0"]),
    (lambda: factorization.seeded_covariances.edge_groups(G), ["gossip", "got Graph"]),
    (lambda: algorithms.mafalda_bins(D, BallsInBins(2, 3), noise_std=1.0), ["a function", "noise_of_bins", "got 1.0"]),
    (lambda: factorization.solve_problem(np.eye(3)), ["posed must be a FactorizationProblem", "got ndarray"]),
    (lambda: factorization.nodes.evaluate_nodes(np.eye(6), P, np.eye(6), lower_bounds=[0.0]), ["have 3 dimensions"]),
    (lambda: partition.dealt("uniform", y, 4, 0), ["partition", "got 'uniform'", "mfdl.partition.parse"]),
    (lambda: replay(M, TASK, seeds=[0], device=10**30), ["cannot be used"]),
    (lambda: losses(A, Q1).by_victim(1.0, adaptive=1), ["adaptive", "got 1"]),
    (lambda: calibrate(A, asked(clip_norm=np.True_), mu=1.0), ["clip_norm", "True"]),
    (lambda: mfdl.objective.NoiseObjective(D, 3).estimated(probes=8), ["probes must be Probes", "got 8"]),
    (lambda: mfdl.objective.NoiseObjective(D, 3).fresh_noise([1.0]), ["factor", "2 dimensions"]),
    (lambda: runs.sweep_config.SweepConfig(epochs=None), ["epochs must not be None", "leave it out"]),
    (lambda: privacy.BallsInBinsGaussian(1.0, 3, 0.5, "zero-out"), ["correlations must be pairs", "got 0.5"]),
    (lambda: algorithms.zip_dl(D, P, self_messages="no"), ["self_messages must be True or False", "got 'no'"]),
    (lambda: replay(M, TASK, seeds=[0], progress="yes"), ["'auto' or a function", "got 'yes'"]),
]


@pytest.mark.parametrize("row", REFUSED)
def test_a_wrong_turn_is_refused_with_the_way_out(row):
    require_refused(*row)


@each(
    "call, function, nearest",
    (lambda: replay(M, TASK, seed=0), "replay", "seeds"),
    (lambda: algorithms.mafalda(D, P, tolerence=1e-3), "mafalda", "tolerance"),
    (lambda: algorithms.build("muffliato", D, P, rounds=3), "muffliato", "gossip_rounds"),
    (lambda: factorization.factorize(D, P, max_iter=3), "factorize", "max_iterations"),
    (lambda: audit.audit(M, trust=LDP, trial=3), "audit", "trials"),
    ids=["replay", "mafalda", "build", "factorize", "audit"],
)
def test_an_unknown_keyword_names_the_function_and_the_nearest_one(call, function, nearest):
    refuses(rf"^{function}\(\) got an unexpected .*; did you mean '{nearest}'\?", call, error=TypeError)


def test_refusals_of_privacy_do_no_work_first(monkeypatch):
    def worked(*_, **__):
        raise AssertionError

    monkeypatch.setattr("mfdl.privacy.exposures.sensitivity_by_victim", worked)
    for wrong in ({"adjacency": "replace"}, {"clip_norm": 0}, {"noise_std": -1}, {"noise_multiplier": 1.0}):
        refuses(".", applied, account, A, TERMS | {"noise_std": 1.0} | wrong)
    for wrong in ({"adjacency": "replace"}, {"clip_norm": "1"}, {"mu": "1"}, {"epsilon": 1.0}):
        refuses(".", applied, calibrate, A, TERMS | {"mu": 1.0} | wrong)


WORKS = {
    "numpy's integers": lambda: Cyclic(np.int64(2), np.int32(3)) == P,
    "a rate that is a tensor": lambda: Dynamics(W, torch.tensor(0.5)).learning_rate == 0.5,
    "nodes in an array": lambda: trust.PNDP(np.array([0])) == trust.PNDP([0]),
    "colluders in a list": lambda: trust.Colluding([0]) == trust.Colluding((0,)),
    "an encoder that is a tensor": lambda: same(
        algorithms.mf_dsgd(D, P, torch.eye(6)), algorithms.mf_dsgd(D, P, np.eye(6))
    ),
    "a device and seeds as objects": lambda: (
        replay(M, TASK, seeds=np.arange(1), device=torch.device("cpu"), stop_after=1).seeds[0].seed == 0
    ),
}


@pytest.mark.parametrize("name", WORKS)
def test_what_looks_odd_and_works(name):
    assert WORKS[name]()
