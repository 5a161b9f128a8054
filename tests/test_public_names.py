"""What the library promises to keep: the names of `mfdl` and its public packages, and that `import mfdl` is light."""

import importlib
import importlib.util
import re
import subprocess
import sys
import types

import pytest
from vocabulary import refuses

import mfdl

NAMES = {
    "mfdl": """
        BallsInBins Cyclic Dynamics ErrorWeights EveryStep Guarantee InvalidInput LinearAlgorithm Losses
        Mechanism MinSeparation NoiseKey PoissonSampling Privacy PrivateNode Run TrustModel
        UnsupportedMechanism View account algorithms audit calibrate compare data factorization gossip
        graphs losses optimize pairwise partition plan privacy replay runs sweep tasks testing trust
    """,
    "mfdl.algorithms": """
        LinearAlgorithm anti_pgd band_inv banded bisr blt bsr build cdp corn corn_pairwise d_mf decor
        delayed_dsgd dp_dsgd dsgd exact_diffusion from_maps gradient_tracking joint kronecker kronecker_bins
        lambda_cgd local_steps mafalda mafalda_bins mafalda_classes mafalda_l message_noise mf_dsgd
        muffliato noise_error per_mode push_sum random_walk spatial_covariance spatial_noise
        spatio_temporal_noise toeplitz trust_optimal tuned_decor two_hop_dsgd with_dropout zip_dl
    """,
    "mfdl.audit": """
        AuditResult AuditSettings AuditedSystem OneRunSettings OneRunSystem Training audit audit_matrix
        audit_one_run reconstruct
    """,
    "mfdl.factorization": """
        Factorization FactorizationProblem MaximumProblem NotConverged evaluate factorize
        factorize_balls_in_bins factorize_classes factorize_long factorize_nodes from_jax_privacy from_opake
        load maximum_problem optimal_covariance optimal_joint optimal_kronecker optimal_pairwise
        optimal_per_mode prefix_sum_encoder problem save solve_problem square_root_encoder
    """,
    "mfdl.gossip": """
        Gossip GossipMatrix GossipSequence average churn fastest_mixing from_array least_noise link_dropout
        load metropolis_hastings node_dropout one_peer_exponential peer_sampling push_sum random_matchings
        random_pairs randomized sampled_presence sampled_walk sequence uniform
    """,
    "mfdl.graphs": """
        Source SparseGraph adjacency content_hash labels load load_sparse names
    """,
    "mfdl.privacy": """
        ACCOUNTANTS BallsInBinsGaussian Gaussian Guarantee Losses MonteCarlo Owners PoissonGaussian Privacy
        PrivacyCurve ProductGaussian Target general_sensitivity noise_of_bins sensitivity_by_victim
        view_losses
    """,
    "mfdl.runs": """
        Cell Engine Store Tuning load_steps rows run_cells sweep
    """,
    "mfdl.tasks": """
        Evaluation Preconditioner Task a9a digits femnist from_file from_module housing least_squares load
        logistic mnist names partition quadratic rotated_quadratics
    """,
    "mfdl.data": """
        a9a california_housing expand femnist fetch home mnist names status
    """,
    "mfdl.dynamics": """
        Dynamics SCHEDULES schedule
    """,
    "mfdl.noise": """
        CausalNoise IndependentNoise JointNoise LocalNoise NoiseOperator ScheduledNoise SpatioTemporalNoise
        StepNoise ZeroNoise
    """,
    "mfdl.objective": """
        Curvature ErrorWeights NoiseObjective Probes
    """,
    "mfdl.operators": """
        Kronecker OutputRecursion StructuredOperator
    """,
    "mfdl.participation": """
        BallsInBins Cyclic CyclicPoisson EveryStep Explicit MinSeparation MinSeparationSampling OncePerEpoch
        Participation ParticipationByNode PatternSet PoissonSampling RandomAllocation Single
    """,
    "mfdl.trust": """
        AnyReceiver Central Coalitions Colluding Eavesdropper FullCollusion LDP PNDP ReleasedOnly SecureSum
        TrustModel named neighbourhood
    """,
    "mfdl_papers": """
        DecorBound DecorNoise DecorRate Fact Objective Paper PublishedBound Quantity ReducedView
        accumulated_error all_facts average_error bibliography central_rate cited corn_equation_9_renyi
        corn_equation_9b corn_renyi corn_theorem decor_accountant decor_constant decor_corollary
        decor_descent decor_disagreement decor_rate decor_rate_non_convex decor_step_size decor_step_sizes
        decor_theorem decor_theorem_2 decor_theorem_2_non_convex decor_victims errata fact flow_theorem
        greedy_rows heterogeneity hitting_times inverse_diagonal_limit largest_theta local_rate
        muffliato_as_coded muffliato_rate muffliato_squared one_step_error pairwise_error pn_f_dp
        published_claims reduce_view sampled_epsilon sampled_renyi sum_abs_gram sum_abs_gram_as_printed
        walk_known whisper_theorem
    """,
    "mfdl_papers.figures": """
        FIGURES PublishedFigure Reproduction RunScale Table VERDICTS Verdict named names reproduce
        reproduce_all
    """,
    "mfdl.partition": """
        Dirichlet Fixed Partition Uniform dealt parse
    """,
}


@pytest.mark.parametrize("package", NAMES)
def test_the_public_names_are_these_all_are_there_and_dir_shows_no_others(package):
    name = package.removeprefix("mfdl.")
    module = getattr(mfdl, name) if name in mfdl.__all__ else importlib.import_module(package)
    public = [name for name in dir(module) if not name.startswith("__")]
    assert public == sorted(NAMES[package].split())
    assert dir(module) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in public)
    for name in public if hasattr(module, "__path__") else ():  # a module of that name would take its place
        value = getattr(module, name)
        assert isinstance(value, types.ModuleType) or importlib.util.find_spec(f"{module.__name__}.{name}") is None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("train", "it is mfdl.replay(mechanism, task) here"), ("LDP", "there is mfdl.trust.LDP."),
        ("get_epsilon", "it is mfdl.account("), ("compose", "it is guarantee.compose_with(other) here"),
        ("Compare", "did you mean 'compare'?"), ("metropolis_hastings", "there is mfdl.gossip.metropolis_hastings."),
    ],
)  # fmt: skip
def test_absent_names_say_where_to_look(name, place):
    refuses(f"has no attribute '{name}'; {re.escape(place)}", getattr, mfdl, name, error=AttributeError)


def test_a_package_and_its_function_of_one_name():
    assert mfdl.audit.__name__ == "mfdl.audit"
    assert callable(mfdl.audit.audit)
    assert mfdl.partition is mfdl.partition
    assert dir(mfdl.testing) == sorted(mfdl.testing.__all__)  # its strategies and oracles: see tests/testing


def test_importing_mfdl_brings_no_other_library_and_no_module_of_its_own():
    code = (
        "import sys; before = set(sys.modules); import mfdl; dir(mfdl); new = set(sys.modules) - before; "
        "print(*sorted(name for name in new if name.split('.')[0] not in sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.split() == ["mfdl"]
