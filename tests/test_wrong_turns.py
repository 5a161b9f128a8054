"""Mistakes that researchers make on their way in: each is refused in words, what was given and the way out among them.

A table: what was done, the call, the words that the message must have, and the class of the error where it is not
InvalidInput itself. What looks odd and works is the second table. Tasks: test_wrong_turns_of_tasks.py.
"""

from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from _privacy import applied
from refusals import refuses
from wrong_turns import AB, AP, KEY, LDP, Q1, TASK, TERMS, A, D, G, M, P, W, require_refused, same, x, y

import mfdl
from mfdl.errors import UnsupportedMechanism

WAY_TO_DYNAMICS = "mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph))"


def isolated() -> nx.Graph:
    graph = nx.path_graph(3)
    graph.add_node(9)
    return graph


REFUSED = {
    # graphs and gossip
    "a graph for gossip": (lambda: mfdl.Dynamics(G), ["got Graph", "mfdl.gossip.metropolis_hastings(graph)"]),
    "an array for gossip": (lambda: mfdl.Dynamics(np.eye(4)), ["got ndarray", "mfdl.gossip.from_array(W)"]),
    "a list for gossip": (lambda: mfdl.Dynamics([W, W]), ["got list", "mfdl.gossip.sequence([...])"]),
    "a function for gossip": (lambda: mfdl.Dynamics(lambda t: W), ["got function", "mfdl.gossip.sequence([...])"]),
    "a sequence of one": (lambda: mfdl.gossip.sequence(W), ["got GossipMatrix", "sequence([W1, W2, ...])"]),
    "a sequence of one, by class": (lambda: mfdl.gossip.GossipSequence(W), ["got GossipMatrix", "one W without"]),
    "a name for gossip": (lambda: mfdl.Dynamics("ring:n=4"), ["got 'ring:n=4'", "metropolis_hastings"]),
    "gossip for a graph": (lambda: mfdl.gossip.metropolis_hastings(W), ["got GossipMatrix", "a networkx graph"]),
    "a list of edges": (lambda: mfdl.gossip.metropolis_hastings([(0, 1)]), ["got list", "a networkx graph"]),
    "a node alone": (lambda: mfdl.gossip.metropolis_hastings(isolated()), ["3 of 4 nodes", "largest_component=True"]),
    "arcs": (lambda: mfdl.gossip.metropolis_hastings(nx.DiGraph([(0, 1)])), ["0 -> 1", "to_undirected()"]),
    "an adjacency as W": (lambda: mfdl.gossip.from_array(nx.to_numpy_array(G)), ["sums to 2", "divide each row"]),
    "a typo of a graph": (lambda: mfdl.graphs.load("florentin"), ["'florentin'", "did you mean 'florentine'"]),
    "no such file": (lambda: mfdl.graphs.load(Path("no.edges")), ["'no.edges' does not exist", "a named graph"]),
    "no graph file": (lambda: mfdl.graphs.load("g.gml"), ["'g.gml' does not exist", "check the path", "florentine"]),
    "a graph in GEXF": (lambda: mfdl.graphs.load("g.gexf"), [".csv", "networkx.read_gexf"]),
    "a W in text": (lambda: mfdl.gossip.load("W.txt", G), ["'W.txt'", "a .npy or .csv file"]),
    "messages without W": (lambda: mfdl.gossip.average({}, G, 0), ["got Graph", "from_array(W)"]),
    # dynamics and participation
    "gossip for dynamics": (lambda: mfdl.algorithms.mafalda(W, P), ["dynamics", "got GossipMatrix", WAY_TO_DYNAMICS]),
    "a graph for dynamics": (lambda: mfdl.algorithms.mafalda_l(G, P), ["dynamics", "got Graph", WAY_TO_DYNAMICS]),
    "None for dynamics": (lambda: mfdl.algorithms.corn(None, P), ["dynamics", "got None", WAY_TO_DYNAMICS]),
    "a class for dynamics": (lambda: mfdl.algorithms.bsr(mfdl.Dynamics, P), ["the class Dynamics, not called"]),
    "a number of steps": (lambda: mfdl.algorithms.dp_dsgd(D, 6), ["participation", "got 6", "mfdl.Cyclic(epochs=20"]),
    "swapped": (lambda: mfdl.algorithms.zip_dl(P, D), ["dynamics", "got Cyclic", WAY_TO_DYNAMICS]),
    "swapped by name": (lambda: mfdl.algorithms.build("d-mf", P, D), ["dynamics", "got Cyclic"]),
    "swapped name": (lambda: mfdl.algorithms.build(D, "dp-dsgd", P), ["dynamics", "got 'dp-dsgd'"]),
    "a scheme for each node": (lambda: mfdl.algorithms.mafalda_l(D, [P] * 4), ["participation", "got list"]),
    "swapped in factorize": (lambda: mfdl.factorization.factorize(P, D), ["dynamics", "got Cyclic"]),
    "a graph to factorize": (lambda: mfdl.factorization.factorize(G, P), ["dynamics", "got Graph"]),
    "a graph for a covariance": (lambda: mfdl.factorization.optimal_covariance(G), ["dynamics", "got Graph"]),
    "gossip for pairs": (lambda: mfdl.factorization.optimal_pairwise(W), ["dynamics", "got GossipMatrix"]),
    "steps for an encoder": (lambda: mfdl.factorization.prefix_sum_encoder(6), ["participation", "got 6"]),
    "a graph for pairs": (
        lambda: mfdl.decor_search.decor_deviations(G, P, mfdl.Privacy(adjacency="zero-out", clip_norm=1.0), mu=1.0),
        ["dynamics", "got Graph"],
    ),
    "broken epochs": (lambda: mfdl.Cyclic(2.5, 3), ["epochs must be an integer >= 1", "got 2.5"]),
    "a rate as text": (lambda: mfdl.Dynamics(W, "0.1"), ["learning_rate", "got '0.1'"]),
    # encoders and maps
    "an encoder by name": (
        lambda: mfdl.algorithms.mf_dsgd(D, P, "toeplitz"),
        ["encoder must be a numeric array of shape (T, T)", "got 'toeplitz'", "mfdl.algorithms.build(name, "],
    ),
    "an encoder with grad": (
        lambda: mfdl.algorithms.mf_dsgd(D, P, torch.eye(6, requires_grad=True)),
        ["encoder", "requires grad", "give encoder.detach().cpu()"],
    ),
    "an encoder of another T": (lambda: mfdl.algorithms.mf_dsgd(D, P, np.eye(5)), ["T = 6 steps", "got 5 x 5"]),
    "a map with grad": (
        lambda: mfdl.algorithms.from_maps({"P": torch.eye(4, requires_grad=True), "Q": np.eye(4)}, P),
        ["requires grad", ".detach().cpu()"],
    ),
    "a typo of a mechanism": (lambda: mfdl.algorithms.build("mafald", D, P), ["'mafald'", "did you mean 'mafalda'"]),
    "weights as text": (lambda: mfdl.algorithms.mafalda(D, P, weights="last:2"), ["'last:2'", "ErrorWeights.parse"]),
    "Zip-DL with momentum": (
        lambda: mfdl.algorithms.zip_dl(mfdl.Dynamics(W, 0.1, momentum=0.9), P),
        ["covers neither momentum nor weight decay"],
        UnsupportedMechanism,
    ),
    # privacy
    "a mechanism to calibrate": (
        lambda: mfdl.calibrate(M, mfdl.Privacy(**TERMS), mu=1.0),
        ["algorithm must be a LinearAlgorithm", "got Mechanism", "as .algorithm"],
    ),
    "a name to calibrate": (
        lambda: mfdl.calibrate("mafalda", mfdl.Privacy(**TERMS), mu=1.0),
        ["the name 'mafalda' needs dynamics", "mfdl.algorithms.build(name, dynamics, participation)"],
    ),
    "noise to account": (
        lambda: mfdl.account(A.noise, mfdl.Privacy(**TERMS), noise_std=1.0),
        ["algorithm", "got IndependentNoise"],
    ),
    "epochs to account": (
        lambda: mfdl.account(A, mfdl.Privacy(participation=3, **TERMS), noise_std=1.0),
        ["participation", "got 3", "mfdl.Cyclic"],
    ),
    "no noise to account": (
        lambda: mfdl.account(A, mfdl.Privacy(**TERMS)),
        ["exactly one of noise_std and noise_multiplier"],
    ),
    "losses of a mechanism": (lambda: mfdl.privacy.sensitivity_by_victim(M, LDP), ["got Mechanism", "as .algorithm"]),
    "losses of a graph": (lambda: mfdl.privacy.sensitivity_by_victim(G, LDP), ["algorithm", "got Graph"]),
    "losses swapped": (
        lambda: mfdl.privacy.sensitivity_by_victim(LDP, A),
        ["trust must be a trust model", "got LinearAlgorithm"],
    ),
    "losses of node 0": (
        lambda: mfdl.privacy.sensitivity_by_victim(A, LDP, victims=0),
        ["a list of node indices", "got 0"],
    ),
    "all losses of a mechanism": (
        lambda: mfdl.losses(M, mfdl.Privacy(LDP, adjacency="zero-out", clip_norm=1.0)),
        ["algorithm", "got Mechanism"],
    ),
    "a trust model as question": (lambda: mfdl.losses(A, LDP), ["privacy", "got LDP", "mfdl.Privacy("]),
    "a view of a mechanism": (lambda: LDP.view(M), ["algorithm", "got Mechanism"]),
    "trust by name": (
        lambda: mfdl.calibrate(A, mfdl.Privacy(**(TERMS | {"trust": "ldp"})), mu=1.0),
        ["'ldp'", "mfdl.trust.LDP()"],
    ),
    "trust by class": (
        lambda: mfdl.calibrate(A, mfdl.Privacy(**(TERMS | {"trust": mfdl.trust.LDP})), mu=1.0),
        ["the class LDP, not called", "mfdl.trust.LDP()"],
    ),
    "another adjacency": (
        lambda: mfdl.calibrate(A, mfdl.Privacy(**(TERMS | {"adjacency": "replace"})), mu=1.0),
        ["'replace'", "did you mean 'replace-one'"],
    ),
    "no target": (lambda: mfdl.calibrate(A, mfdl.Privacy(**TERMS)), ["exactly one target", "epsilon with delta"]),
    "epsilon alone": (lambda: mfdl.calibrate(A, mfdl.Privacy(**TERMS), epsilon=1.0), ["needs a delta", "delta=1e-6"]),
    "a typo of a method": (
        lambda: mfdl.calibrate(A, mfdl.Privacy(method="exat", **TERMS), mu=1.0),
        ["'exat'", "mean 'exact'"],
    ),
    "a constant as text": (
        lambda: mfdl.calibrate(A, mfdl.Privacy(lipschitz="1", **TERMS), mu=1.0),
        ["one number", "got '1'"],
    ),
    "a view of a name": (lambda: LDP.view(A, victim="0"), ["victim must be an integer >= 0", "got '0'"]),
    "a view of no node": (lambda: LDP.view(A, victim=4), ["victim must be a node index below 4", "got 4"]),
    "colluders as text": (
        lambda: mfdl.trust.Colluding("0"),
        ["colluders must be a list of at least one node", "got '0'"],
    ),
    "one colluder": (lambda: mfdl.trust.Colluding(0), ["colluders must be a list of", "e.g. [0]", "got 0"]),
    "a typo of a release": (
        lambda: mfdl.trust.TrustModel.from_masks(seen=np.ones(4, dtype=bool), release="nothing"),
        ["release must be one of none, average, all", "got 'nothing'"],
    ),
    "no release": (
        lambda: mfdl.trust.TrustModel.from_masks(release=None),
        ["release must be one of none, average, all", "got None"],
    ),
    "one attacker": (lambda: mfdl.trust.PNDP(3), ["a list of at least one node, e.g. [0]", "got 3"]),
    "a stranger attacks": (
        lambda: mfdl.calibrate(A, mfdl.Privacy(**(TERMS | {"trust": mfdl.trust.PNDP(["Medici"])})), mu=1.0),
        ["'Medici' is not in the graph", "labels start"],
    ),
    "a name to audit": (lambda: mfdl.audit.audit("dp-dsgd", trust=LDP), ["subject", "got 'dp-dsgd'"]),
    "noise of an algorithm": (
        lambda: mfdl.training.streams.noise_stream(A, 1.0, KEY, 3),
        ["noise must be a noise operator", "got LinearAlgorithm", "algorithm.noise"],
    ),
    "noise of a seed": (
        lambda: mfdl.training.streams.noise_stream(A.noise, 1.0, 0, 3),
        ["NoiseKey", "got int", "from_entropy()"],
    ),
    "noise below zero": (
        lambda: mfdl.training.streams.noise_stream(A.noise, -1, KEY, 3),
        ["noise_std must be", ">= 0", "got -1"],
    ),
    "noise of no numbers": (
        lambda: mfdl.training.streams.noise_stream(A.noise, 1.0, KEY, 0),
        ["dim must be an integer >= 1", "got 0"],
    ),
    "noise of half a step": (
        lambda: mfdl.training.streams.noise_stream(A.noise, 1.0, KEY, 3).step(0.5),
        ["step must lie in [0, 6)", "got 0.5"],
    ),
    "a matrix as factorization": (
        lambda: mfdl.algorithms.spatial_noise(D, P, np.eye(4), name="mine"),
        ["SpatialFactorization", "got ndarray", "mfdl.algorithms.spatial_covariance"],
    ),
    # arguments that other functions take
    "one victim to account": (
        lambda: mfdl.account(A, mfdl.Privacy(**TERMS), noise_std=1.0, victim=0),
        ["no victim", "by_victim"],
    ),
    "one victim of bins": (
        lambda: mfdl.account(AB, mfdl.Privacy(**TERMS), noise_std=1.0, victim=0),
        ["no victim", "by_victim"],
    ),
    "a bound of public batches": (
        lambda: mfdl.calibrate(A, mfdl.Privacy(**TERMS), mu=1.0, by="renyi"),
        ["by must be", "PoissonSampling"],
    ),
    "a bound to account with": (
        lambda: mfdl.account(AB, mfdl.Privacy(**TERMS), noise_std=1.0, by="renyi"),
        ["no by", "calibrate"],
    ),
    "a target to account": (
        lambda: mfdl.account(A, mfdl.Privacy(**TERMS), noise_std=1.0, mu=1.0),
        ["no mu", "mfdl.calibrate"],
    ),
    "a target to account bins": (
        lambda: mfdl.account(AB, mfdl.Privacy(**TERMS), mu=1.0),
        ["no mu", "epsilon with delta"],
    ),
    "noise to calibrate": (
        lambda: mfdl.calibrate(A, mfdl.Privacy(**TERMS), mu=1.0, noise_std=1.0),
        ["exactly one target", "mu must be left out"],
    ),
    "no noise of bins": (lambda: mfdl.account(AB, mfdl.Privacy(**TERMS)), ["give exactly one of noise_std"]),
    "no noise of Poisson batches": (lambda: mfdl.account(AP, mfdl.Privacy(**TERMS)), ["give exactly one of noise_std"]),
    "no target of bins": (
        lambda: mfdl.calibrate(AB, mfdl.Privacy(**TERMS)),
        ["exactly one target", "epsilon with delta"],
    ),
    "no delta of bins": (
        lambda: mfdl.calibrate(AB, mfdl.Privacy(**TERMS), epsilon=1.0),
        ["epsilon needs a delta", "delta=1e-6"],
    ),
    "no delta of Poisson batches": (lambda: mfdl.calibrate(AP, mfdl.Privacy(**TERMS), epsilon=1.0), ["needs a delta"]),
    "mu of Poisson batches": (
        lambda: mfdl.calibrate(AP, mfdl.Privacy(**TERMS), mu=1.0),
        ["no mu", "epsilon and delta"],
        UnsupportedMechanism,
    ),
    "a user of Poisson batches": (
        lambda: mfdl.account(AP, mfdl.Privacy(unit="user", **TERMS), noise_std=1.0),
        ["leave out unit", "one record"],
        UnsupportedMechanism,
    ),
    # values of another kind
    "an array as unit": (
        lambda: mfdl.account(A, mfdl.Privacy(unit=x, **TERMS), noise_std=1.0),
        ["unknown unit ndarray"],
    ),
    "an array as adjacency": (
        lambda: mfdl.Privacy(LDP, adjacency=x, clip_norm=1.0).record_shift,
        ["unknown adjacency ndarray"],
    ),
    "an array as counted_models": (
        lambda: mfdl.algorithms.mafalda(D, P, counted_models=x),
        ["unknown counted_models ndarray"],
    ),
    "an array as release": (lambda: LDP.view(A, release=x), ["release must be one of none, average, all"]),
    "no name to build": (lambda: mfdl.algorithms.build(None, D, P), ["name must be a text", "got None"]),
    "indices instead of a mask": (
        lambda: mfdl.TrustModel.from_masks(seen=[0, 4]),
        ["seen must be a boolean mask", "np.isin"],
    ),
    "mechanisms with a space": (
        lambda: mfdl.algorithms.build("dp-dsgd mafalda", D, P),
        ["separated by commas", "'dp-dsgd,mafalda'"],
    ),
    "Poisson sampling of every step": (
        lambda: mfdl.PoissonSampling(1, 5),
        ["rate must be below 1, got 1", "EveryStep(5)"],
    ),
    "one participation": (
        lambda: mfdl.participation.ParticipationByNode(P),
        ["a list of participations", "got Cyclic"],
    ),
    "one step allowed": (lambda: P.allows(3), ["steps must be a list of steps", "got 3"]),
    "a step allowed by name": (lambda: mfdl.MinSeparation(6, 2, 2).allows(["a"]), ["an integer", "got 'a'"]),
    "steps of an epoch as text": (lambda: mfdl.participation.OncePerEpoch(2, 3).allows("ab"), ["got 'ab'"]),
    "steps of no number": (lambda: mfdl.Cyclic(2, 3, steps="6"), ["steps must be an integer", "got '6'"]),
    "rates of no steps": (lambda: D.learning_rates(None), ["num_steps must be an integer", "got None"]),
    "weights of half a step": (lambda: mfdl.ErrorWeights("last:2").of_steps(2.5), ["num_steps", "got 2.5"]),
    "weights of no text": (lambda: mfdl.ErrorWeights.parse(None), ["text must be a text", "got None"]),
    "a release of no steps": (lambda: mfdl.released.ReleasedModel("average:2").of_steps("5"), ["num_steps", "got '5'"]),
    "one attacker of pairs": (
        lambda: mfdl.pairwise(A, mfdl.Privacy(adjacency="zero-out", clip_norm=1.0), attackers=0),
        ["attackers must be a list", "got 0"],
    ),
    "one victim of pairs": (
        lambda: mfdl.pairwise(A, mfdl.Privacy(adjacency="zero-out", clip_norm=1.0), victims=0),
        ["victims must be a list", "got 0"],
    ),
    "pairs of a mechanism": (
        lambda: mfdl.pairwise(M, mfdl.Privacy(adjacency="zero-out", clip_norm=1.0)),
        ["algorithm must be a LinearAlgorithm", "got Mechanism"],
    ),
    "a trust model for all pairs": (
        lambda: mfdl.pairwise(A, mfdl.Privacy(adjacency="zero-out", clip_norm=1.0), make_trust=LDP),
        ["make_trust must be a function", "got LDP"],
    ),
    "an algorithm for a matrix of audits": (
        lambda: mfdl.audit.audit_matrix(A, {"ldp": LDP}, mu=1.0, adjacency="zero-out", clip_norm=1.0),
        ["algorithms must be a dictionary", "got LinearAlgorithm"],
    ),
    "names for a matrix of audits": (
        lambda: mfdl.audit.audit_matrix({"a": A}, {"ldp": "ldp"}, mu=1.0, adjacency="zero-out", clip_norm=1.0),
        ["trusts['ldp'] must be a trust model", "got 'ldp'"],
    ),
    "sensitivity of a mechanism": (lambda: mfdl.privacy.gram_sensitivity.worst_sensitivity(M, LDP), ["got Mechanism"]),
    "sensitivity by name": (lambda: mfdl.privacy.gram_sensitivity.worst_sensitivity(A, "ldp"), ["trust", "got 'ldp'"]),
    "nodes of a graph": (lambda: mfdl.trust.base.nodes_of(G, [0]), ["algorithm", "got Graph"]),
    "nodes of no list": (lambda: mfdl.trust.base.nodes_of(A, 0), ["nodes must be a list", "got 0"]),
    "a near attacker": (lambda: mfdl.trust.neighbourhood(W, 0, 1), ["attackers must be a list", "got 1"]),
    "node_dropout of a graph": (lambda: mfdl.gossip.node_dropout(G, np.ones((2, 4), bool)), ["gossip", "got Graph"]),
    "churn of a list": (lambda: mfdl.gossip.churn(W, 5, [(0, 2)]), ["offline must be a dictionary", "got list"]),
    "churn of one round": (lambda: mfdl.gossip.churn(W, 5, {0: (0, 2)}), ["offline", "a start and a stop", "got 0"]),
    "a list of messages": (lambda: mfdl.gossip.average([x], W, 0), ["messages must be a dictionary", "got list"]),
    "labels of no list": (lambda: mfdl.gossip.from_array(np.eye(3), labels=3), ["labels must be a list", "got 3"]),
    "labels of a gossip matrix": (lambda: mfdl.graphs.labels(W), ["G must be a networkx graph", "got GossipMatrix"]),
    "a guarantee of no file": (lambda: mfdl.Guarantee.load(3), ["path must be a path", "got 3"]),
    "a mechanism of no file": (lambda: mfdl.Mechanism.load(None), ["path must be a path", "got None"]),
    "a folder of no name": (lambda: mfdl.runs.Store(3), ["folder must be a path", "got 3"]),
    "data at no folder": (lambda: mfdl.data.home(3), ["data_home must be a path", "got 3"]),
    "data of one number": (lambda: mfdl.data.expand([3]), ["wanted must be a text", "got 3"]),
    "one group": (
        lambda: mfdl.factorization.groups.checked_groups([0, 1], 3),
        ["groups must be a list of groups", "got 0"],
    ),
    "pairs of a graph": (lambda: mfdl.factorization.groups.edge_groups(G), ["gossip", "got Graph"]),
    "noise of bins as a number": (
        lambda: mfdl.algorithms.mafalda_bins(D, mfdl.BallsInBins(2, 3), noise_std=1.0),
        ["noise_std must be a function", "noise_of_bins", "got 1.0"],
    ),
    "an array to solve": (
        lambda: mfdl.factorization.solve_problem(np.eye(3)),
        ["posed must be a FactorizationProblem", "got ndarray"],
    ),
    "grams of no nodes": (
        lambda: mfdl.factorization.nodes.evaluate_nodes(np.eye(6), P, np.eye(6), lower_bounds=[0.0]),
        ["grams must have 3 dimensions"],
    ),
    "a partition by name": (
        lambda: mfdl.partition.dealt("uniform", y, 4, 0),
        ["partition", "got 'uniform'", "mfdl.partition.parse"],
    ),
    "a device by a huge number": (lambda: mfdl.replay(M, TASK, seeds=[0], device=10**30), ["cannot be used"]),
    "numbers that are no flag": (lambda: mfdl.losses(A, Q1).by_victim(1.0, adaptive=1), ["adaptive", "got 1"]),
    "numpy's True as a norm": (
        lambda: mfdl.calibrate(A, mfdl.Privacy(**(TERMS | {"clip_norm": np.True_})), mu=1.0),
        ["clip_norm", "True"],
    ),
    "probes as a number": (
        lambda: mfdl.objective.NoiseObjective(D, 3).estimated(probes=8),
        ["probes must be Probes", "got 8"],
    ),
    "a factor as a list": (lambda: mfdl.objective.NoiseObjective(D, 3).fresh_noise([1.0]), ["factor", "2 dimensions"]),
    "no value of an option": (
        lambda: mfdl.runs.sweep_config.SweepConfig(epochs=None),
        ["epochs must not be None", "leave it out"],
    ),
    "correlations of no pairs": (
        lambda: mfdl.privacy.BallsInBinsGaussian(1.0, 3, 0.5, "zero-out"),
        ["correlations must be pairs", "got 0.5"],
    ),
    "self messages by name": (
        lambda: mfdl.algorithms.zip_dl(D, P, self_messages="no"),
        ["self_messages must be True or False", "got 'no'"],
    ),
    "a bar, please": (lambda: mfdl.replay(M, TASK, seeds=[0], progress="yes"), ["'auto' or a function", "got 'yes'"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_turn_is_refused_with_the_way_out(name):
    require_refused(*REFUSED[name])


@pytest.mark.parametrize(
    ("call", "function", "nearest"),
    [
        (lambda: mfdl.replay(M, TASK, seed=0), "replay", "seeds"),
        (lambda: mfdl.algorithms.mafalda(D, P, tolerence=1e-3), "mafalda", "tolerance"),
        (lambda: mfdl.algorithms.build("muffliato", D, P, rounds=3), "muffliato", "gossip_rounds"),
        (lambda: mfdl.factorization.factorize(D, P, max_iter=3), "factorize", "max_iterations"),
        (lambda: mfdl.audit.audit(M, trust=LDP, trial=3), "audit", "trials"),
    ],
    ids=["replay", "mafalda", "build", "factorize", "audit"],
)
def test_an_unknown_keyword_names_the_function_and_the_nearest_one(call, function, nearest):
    refuses(rf"^{function}\(\) got an unexpected .*; did you mean '{nearest}'\?", call, error=TypeError)


def test_refusals_of_privacy_do_no_work_first(monkeypatch):
    def worked(*_, **__):
        raise AssertionError

    monkeypatch.setattr("mfdl.privacy.exposures.sensitivity_by_victim", worked)
    for wrong in ({"adjacency": "replace"}, {"clip_norm": 0}, {"noise_std": -1}, {"noise_multiplier": 1.0}):
        refuses(".", applied, mfdl.account, A, TERMS | {"noise_std": 1.0} | wrong)
    for wrong in ({"adjacency": "replace"}, {"clip_norm": "1"}, {"mu": "1"}, {"epsilon": 1.0}):
        refuses(".", applied, mfdl.calibrate, A, TERMS | {"mu": 1.0} | wrong)


WORKS = {
    "numpy's integers": lambda: mfdl.Cyclic(np.int64(2), np.int32(3)) == P,
    "a rate that is a tensor": lambda: mfdl.Dynamics(W, torch.tensor(0.5)).learning_rate == 0.5,
    "nodes in an array": lambda: mfdl.trust.PNDP(np.array([0])) == mfdl.trust.PNDP([0]),
    "colluders in a list": lambda: mfdl.trust.Colluding([0]) == mfdl.trust.Colluding((0,)),
    "an encoder that is a tensor": lambda: same(
        mfdl.algorithms.mf_dsgd(D, P, torch.eye(6)), mfdl.algorithms.mf_dsgd(D, P, np.eye(6))
    ),
    "a device and seeds as objects": lambda: (
        mfdl.replay(M, TASK, seeds=np.arange(1), device=torch.device("cpu"), stop_after=1).seeds[0].seed == 0
    ),
}


@pytest.mark.parametrize("name", WORKS)
def test_what_looks_odd_and_works(name):
    assert WORKS[name]()
