"""What the library promises to keep: the names of `mfdl` and its public packages, and that `import mfdl` is light."""

import importlib
import re
import subprocess
import sys

import pytest

import mfdl

NAMES = {
    "mfdl": """
        BallsInBins Cyclic Dynamics ErrorWeights EveryStep Guarantee InvalidInput LinearAlgorithm Mechanism
        MinSeparation NoiseKey PoissonSampling Losses PrivateNode Privacy RandomAllocation Run TrustModel
        UnsupportedMechanism View account algorithms audit calibrate compare data factorization gossip graphs
        losses optimize pairwise partition plan privacy replay runs sweep tasks testing trust
    """,
    "mfdl.algorithms": """
        LinearAlgorithm Round per_mode anti_pgd band_inv banded bisr blt bsr build cdp corn corn_pairwise d_mf decor
        delayed_dsgd dp_dsgd dsgd exact_diffusion from_maps gradient_tracking lambda_cgd
        local_steps mafalda mafalda_bins mafalda_classes mafalda_l message_noise mf_dsgd muffliato noise_error push_sum
        random_walk joint spatio_temporal_noise spatial_covariance spatial_noise kronecker kronecker_bins toeplitz
        trust_optimal tuned_decor two_hop_dsgd with_dropout zip_dl
    """,
    "mfdl.audit": """
        AuditCell AuditMatrix AuditResult AuditSettings AuditedSystem CanaryRecords CanaryResult OneRunResult
        OneRunSettings OneRunSystem Reconstruction Training Transcript audit audit_matrix audit_one_run reconstruct
    """,
    "mfdl.factorization": """
        AttackerView PER_MODE_TOLERANCE CORRELATIONS COVARIANCE_SOLVERS ClassFactorizations EstimatedFactorization
        MEASURES MaximumProblem maximum_problem
        EstimatedProblem FORMS Factorization FactorizationProblem NodeFactorizations NotConverged
        PREFIX_SUM_TOLERANCE PairwisePrice SOLVERS SavedFactorization BallsInBinsFactorization
        SpatioTemporalFactorization SpatialFactorization StructuredFactorization causal_encoder checked_groups
        default_tolerance degree_labels edge_groups evaluate evaluate_long evaluate_nodes factorize
        factorize_balls_in_bins factorize_classes factorize_long factorize_nodes from_jax_privacy from_opake load
        optimal_per_mode
        optimal_covariance optimal_local_noise
        optimal_pairwise optimal_joint optimal_kronecker prefix_sum_encoder prefix_sum_gram problem
        read_groups save solve_problem square_root_encoder
    """,
    "mfdl.gossip": """
        BALANCE_TOLERANCE Gossip GossipMatrix GossipSequence MAX_DENSE_NODES PushSum RandomGossip SUM_TOLERANCE
        SYMMETRY_TOLERANCE node_dropout average churn sampled_presence sampled_walk from_array from_file link_dropout
        load metropolis_hastings mixing_parameter one_peer_exponential peer_sampling push_sum random_matchings
        random_pairs randomized sequence uniform
    """,
    "mfdl.graphs": """
        Edge FILE_SUFFIXES MAX_DRAWS MAX_EDGES MAX_NODES Source SparseGraph adjacency content_hash index_of
        labels load load_sparse names require_connected
    """,
    "mfdl.privacy": """
        ACCOUNTANTS UNITS BallsInBinsGaussian Composed Exposures Gaussian Guarantee Losses MonteCarlo
        MonteCarloCurve Owners PoissonGaussian Privacy PrivacyCurve ProductGaussian Sensitivity Target
        ViewGram general_sensitivity noise_of_bins sensitivity_by_victim view_gram view_losses
        worst_sensitivity
    """,
    "mfdl.runs": """
        Cell Engine RunSteps Store SweepConfig Tuning load_steps rows run_cells sweep
    """,
    "mfdl.tasks": """
        Evaluation Preconditioner Task TaskInstance a9a digits femnist from_file from_module housing least_squares load
        logistic mnist names partition quadratic rotated_quadratics
    """,
    "mfdl.data": """
        DataFile ENVIRONMENT_VARIABLE FEMNIST FileStatus HOUSING REGISTRY a9a california_housing expand femnist fetch
        home mnist mnist_files names read_idx status
    """,
    "mfdl.dynamics": """
        Dynamics MAX_RATE MAX_RATE_RATIO SCHEDULES schedule
    """,
    "mfdl.noise": """
        CausalNoise IndependentNoise JointNoise LocalNoise NoiseOperator NoiseStream ScheduledNoise SpatioTemporalNoise
        StepNoise StreamState ZeroNoise
    """,
    "mfdl.objective": """
        Curvature ErrorWeights Estimate EstimatedGram ExcessLoss NoiseObjective COUNTED_MODELS Probes SpectralMeasure
    """,
    "mfdl.operators": """
        Kronecker OutputRecursion RecursionMaps Selection StateRecursion StructuredOperator WeightedStates
    """,
    "mfdl.participation": """
        BallsInBins Cyclic CyclicPoisson EveryStep Explicit MinSeparation MinSeparationSampling OncePerEpoch
        Participation ParticipationByNode Pattern PatternSet PoissonSampling RandomAllocation Sampled Single
    """,
    "mfdl.trust": """
        AnyReceiver Central Coalitions Colluding Eavesdropper FullCollusion LDP MODELS Neighbourhood PNDP ReleasedOnly
        SecureSum TrustModel named neighbourhood nodes_of
    """,
    "mfdl_papers": """
        DecorBound DecorNoise DecorRate Fact Objective Paper PublishedBound Quantity ReducedView accumulated_error
        all_facts average_error bibliography central_rate cited corn_equation_9_renyi corn_equation_9b corn_renyi
        corn_theorem
        decor_accountant decor_constant decor_corollary decor_descent decor_disagreement decor_rate
        decor_rate_non_convex decor_step_size decor_step_sizes decor_theorem decor_theorem_2
        decor_theorem_2_non_convex decor_victims errata fact flow_theorem greedy_rows heterogeneity hitting_times
        inverse_diagonal_limit largest_theta local_rate muffliato_as_coded muffliato_rate muffliato_squared
        one_step_error pairwise_error
        pn_f_dp published_claims reduce_view sampled_epsilon sampled_renyi sum_abs_gram sum_abs_gram_as_printed
        walk_known whisper_theorem
    """,
    "mfdl_papers.figures": """
        FIGURES PublishedFigure Reproduction RunScale Table VERDICTS Verdict named names reproduce reproduce_all
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
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("train", "it is mfdl.replay(mechanism, task) here"), ("LDP", "there is mfdl.trust.LDP."),
        ("Compare", "did you mean 'compare'?"), ("metropolis_hastings", "there is mfdl.gossip.metropolis_hastings."),
    ],
)  # fmt: skip
def test_absent_names_say_where_to_look(name, place):
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'; {re.escape(place)}"):
        getattr(mfdl, name)


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
