"""Answers of `mfdl factorize`: objective, lower bound and gap of noise over time, over nodes, or over both."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from .. import check, factorization, graphs
from ..algorithms.registry import build
from ..check import FloatArray
from ..dynamics import Dynamics
from ..errors import InvalidInput, require_known, unknown_name
from ..factorization import Factorization, FactorizationProblem, MaximumProblem
from ..factorization.balls_in_bins_encoders import BallsInBinsFactorization, BinEncoder, BinFactorization
from ..factorization.long_runs import StructuredFactorization
from ..factorization.nodes import NodeFactorizations
from ..factorization.seeded_covariances import Groups, SpatialFactorization, read_groups
from ..factorization.setting import Setting
from ..factorization.spatio_temporal import SpatioTemporalFactorization
from ..factorization.temporal import PREFIX_SUM_TOLERANCE, EstimatedFactorization
from ..gossip import Gossip
from ..objective import Probes
from ..objective.counted_models import COUNTED_MODELS
from ..participation import BallsInBins, Cyclic
from ..privacy.sampled_exposures import noise_of_bins
from ..progress import Progress, Silent, reporter
from ..runs.output import json_number, require_writable, versions
from .configs import PER_NODE, SECRET, SPATIAL, FactorizeConfig

OF_BINS = ("noise_std", "root_error", "root_error_bound")
OVER_NODES = ("max_inverse_diagonal", "sigma_ldp", "sigma_cor", "independent_objective", "bound_over")


def run_factorize(
    config: FactorizeConfig, out: str | os.PathLike[str] | None = None, *, progress: Progress = "auto"
) -> dict[str, Any]:
    if out is not None:
        require_writable(Path(out))
    graph, gossip = config.sparse_network()
    groups = None if config.groups is None else read_groups(config.groups, gossip.labels)
    job = Job(config, gossip, groups, reporter(progress))
    with threadpool_limits(config.jobs):
        began = time.perf_counter()
        solved, grams = job.solve()
        seconds = time.perf_counter() - began
    of_bins = _facts_of_bins(config, solved) if isinstance(solved, BallsInBinsFactorization) else {}
    certified = solved.best if isinstance(solved, BallsInBinsFactorization) else solved
    weights = job.counted["weights"]
    shared = {
        **config.values("mechanism", "graph", "counted_models", "momentum", "weight_decay", "lr"),
        **({} if config.measure == "sum" else config.values("measure")),
        "error_weights": None if weights is None else weights.describe(), "graph_hash": graphs.content_hash(graph),
        "gossip": gossip.name,
    }  # fmt: skip
    if out is not None:
        header = {**shared, "gossip_hash": gossip.content_hash, "node_labels": [*map(str, gossip.labels)], **of_bins}
        _save(out, job, certified, grams, header | {"versions": versions()})
    return {
        **shared, "nodes": gossip.num_nodes,
        **{name: json_number(getattr(certified, name)) for name in ("objective", "lower_bound", "gap")},
        "status": certified.status, "iterations": certified.iterations, "seconds": seconds,
        "notes": list(certified.notes), **_facts(config, certified), **of_bins,
    }  # fmt: skip


def _facts_of_bins(config: FactorizeConfig, solved: BallsInBinsFactorization) -> dict[str, Any]:
    names = ("correlation", "objective", "lower_bound")
    tried = [{"noise_std": json_number(std)} | {n: getattr(best, n) for n in names} for _, std, best in solved.tried]
    return {
        **config.values("participation", "epsilon", "delta", "adjacency"),
        **{name: getattr(solved, name) for name in OF_BINS},
        "correlation": solved.best.correlation,
        "tried": tried,
        "bound_over": f"{solved.best.bound_over}, at the same noise",
    }


def _facts(config: FactorizeConfig, solved: Certified) -> dict[str, Any]:
    if isinstance(solved, SpatialFactorization):
        return {
            **dict.fromkeys(("steps", "epochs", "period")), **{name: getattr(solved, name) for name in OVER_NODES},
            "coalition": solved.coalition_size, "groups": len(solved.groups), "horizon": config.horizon,
            "private_std": math.sqrt(solved.private_variance),
        }  # fmt: skip
    facts: dict[str, Any] = {
        "steps": config.epochs * config.period,
        **config.values("epochs", "period"),
        "sensitivity": getattr(solved, "sensitivity", None),  # none where batches are secret
    }
    if isinstance(solved, EstimatedFactorization):
        facts |= {"objective_error": solved.objective_error, **config.values("probes", "probe_seed")}
    if (structure_facts := getattr(solved, "structure_facts", None)) is not None:
        facts |= {"form": config.form, **structure_facts}
    if isinstance(solved, SpatioTemporalFactorization):
        facts |= {
            "coalition": solved.coalition_size,
            "groups": 1 if solved.space is None else len(solved.space.groups),
            "private_std": 0.0 if solved.space is None else math.sqrt(solved.space.private_variance),
            "independent_objective": solved.independent_objective,
            "bound_over": "noise over time and nodes, against an outsider",
        }
    return facts


def _save(out: str | os.PathLike[str], job: Job, solved: Certified, grams: Any, header: dict[str, Any]) -> None:
    if not isinstance(solved, SpatialFactorization):
        rate = f"constant, {job.config.lr:g}; H and objective are in units of its square"
        header = {**header, "participation": job.made_for, "learning_rate": rate}
    factorization.save(out, solved, header=header, grams=grams)


OfTime = Factorization | NodeFactorizations | StructuredFactorization | BinFactorization | BinEncoder
Certified = OfTime | SpatioTemporalFactorization | SpatialFactorization
Solved = Certified | BallsInBinsFactorization


class Job:
    def __init__(self, config: FactorizeConfig, gossip: Gossip, groups: Groups | None, progress: Silent) -> None:
        self.config, self.groups, self.progress = config, groups, progress
        self.dynamics = Dynamics(gossip, learning_rate=config.lr, **config.values("momentum", "weight_decay"))
        tolerance = config.tolerance
        if tolerance is None:
            grouped = factorization.seeded_covariances.default_tolerance(groups, config.coalition)
            tolerance = factorization.spatio_temporal.PER_MODE_TOLERANCE if config.mechanism == "per-mode" else grouped
        self.counted: dict[str, Any] = {"weights": config.weights, "counted_models": config.counted_models}
        self.limits: dict[str, Any] = {"tolerance": tolerance, "max_iterations": config.max_iterations}

    @property
    def made_for(self) -> Cyclic | BallsInBins:
        if self.config.mechanism == SECRET:
            return BallsInBins(epochs=self.config.epochs, bins=self.config.period)
        return self.participation

    @property
    def participation(self) -> Cyclic:
        return Cyclic(epochs=self.config.epochs, period=self.config.period)

    def solve(self) -> tuple[Solved, FloatArray | None]:
        """The factorization and, for noise over time, the error Gram (one per node where the encoders are)."""
        if self.config.mechanism == SECRET:
            solved = self._solve_bins()
            return solved, solved.error_gram
        if self.config.form is not None:
            return self._solve_form(self.config.form), None
        if self.config.over_time:
            return self._over_time(self.config.mechanism)
        return (self._over_nodes() if self.config.mechanism in SPATIAL else self._over_both()), None

    def _solve_bins(self) -> BallsInBinsFactorization:
        config = self.config
        noise_std = noise_of_bins(bins=config.period, **config.values("epsilon", "delta", "adjacency"))
        options: dict[str, Any] = {"weights": config.weights, "progress": self.progress}
        options |= {"form": config.solver, "bandwidth": config.bandwidth}
        return factorization.factorize_balls_in_bins(self.dynamics, config.epochs, config.period, noise_std, **options)

    def _solve_form(self, form: str) -> StructuredFactorization:
        require_known("counted_models", self.config.counted_models, COUNTED_MODELS)
        config = self.config
        more: dict[str, Any] = {**self.counted, **config.values("bandwidth", "buffers"), "progress": self.progress}
        if config.max_iterations != type(config).max_iterations:
            more |= config.values("max_iterations")
        return factorization.factorize_long(self.dynamics, self.participation, form=form, **more)

    def _over_nodes(self) -> SpatialFactorization:
        config, n = self.config, self.dynamics.num_nodes
        if config.solver not in (known := ["dense", *factorization.seeded_covariances.COVARIANCE_SOLVERS]):
            raise unknown_name("solver of noise over nodes", config.solver, known)
        common = {"max_inverse_diagonal": config.max_inverse_diagonal, "horizon": config.horizon, **self.counted}
        if config.mechanism != "corn":
            with self.progress.status(f"factorizing {n} nodes"):
                return factorization.optimal_pairwise(self.dynamics, coalition_size=config.coalition, **common)
        grouped = config.solver != "dense" and config.coalition == 0  # the program for groups, with one group
        groups = [list(range(n))] if self.groups is None and grouped else self.groups
        common |= {"method": "newton" if config.solver == "dense" else config.solver, "progress": self.progress}
        common |= {"coalition_size": config.coalition, **self.limits}
        return factorization.optimal_covariance(self.dynamics, groups=groups, **common)

    def _over_both(self) -> SpatioTemporalFactorization:
        scheme, common = self.participation, {**self.counted, **self.limits, "progress": self.progress}
        if self.config.mechanism == "kronecker":
            common |= {"coalition_size": self.config.coalition, "groups": self.groups}
            return factorization.optimal_kronecker(self.dynamics, scheme, **common)
        per_mode = self.config.mechanism == "per-mode"
        solve = factorization.optimal_per_mode if per_mode else factorization.optimal_joint
        return solve(self.dynamics, scheme, **common)

    def _over_time(self, mechanism: str) -> tuple[Factorization | NodeFactorizations, FloatArray | None]:
        check.positive(tolerance=self.limits["tolerance"])
        require_known("counted_models", self.config.counted_models, COUNTED_MODELS)
        require_known("solver", self.config.solver, factorization.temporal.SOLVERS)
        if mechanism in PER_NODE:
            return self._best_per_node(by_class=mechanism == "mafalda-classes")
        if mechanism == "mafalda":
            posed, best = self._best_shared()
            return best, _error_gram(posed)
        if mechanism == "d-mf":
            return self._prefix_sums()
        # bsr and file:FILE are built without optimising anything; a file is checked against nodes and steps
        noise = build(mechanism, self.dynamics, self.participation).noise.causal
        if noise is None or noise.factor is not None or (C := noise.written.array) is None:
            raise InvalidInput(
                f"{mechanism} holds noise correlated over nodes, with its objective and bound; factorize "
                "evaluates encoders over time. Use it as a mechanism of `mfdl compare` or `mfdl account`."
            )
        if noise.shared:
            return self._judged_shared(C)
        per_node, grams = self._best_per_node()
        bounds = [node.lower_bound for node in per_node.nodes]
        return factorization.nodes.evaluate_nodes(grams, self.participation, C, lower_bounds=bounds), grams

    def _prefix_sums(self) -> tuple[Factorization, FloatArray | None]:
        limits = {**self.limits, "tolerance": min(self.limits["tolerance"], PREFIX_SUM_TOLERANCE)}
        try:
            solved = factorization.prefix_sum_encoder(self.participation, progress=self.progress, **limits)
            return self._judged_shared(solved.encoder)
        except factorization.NotConverged as error:  # still a valid encoder, and its objective is what it is
            fixed, gram = self._judged_shared(error.factorization.encoder)
            note = "the solver of the prefix-sum encoder stopped before the tolerance"
            return dataclasses.replace(fixed, status=self.config.STOPPED, notes=(*fixed.notes, note)), gram

    def _best_shared(self) -> tuple[FactorizationProblem | MaximumProblem, Factorization]:
        posed: FactorizationProblem | MaximumProblem
        if self.config.measure == "maximum":
            posed = factorization.maximum_problem(self.dynamics, self.participation, **self.counted)
        else:
            probes = Probes(self.config.probes, self.config.probe_seed)
            posed = factorization.problem(self.dynamics, self.participation, probes=probes, **self.counted)
        options = {"solver": self.config.solver, "device": self.config.device, "progress": self.progress, **self.limits}
        return posed, factorization.solve_problem(posed, **options)

    def _judged_shared(self, encoder: FloatArray) -> tuple[Factorization, FloatArray | None]:
        posed, best = self._best_shared()
        fixed = factorization.evaluate(posed, encoder, lower_bound=best.lower_bound)
        loose = f"the lower bound is valid but loose: its solver stopped {best.distance}"
        notes = (*best.notes, loose) if best.status == self.config.STOPPED else best.notes
        return dataclasses.replace(fixed, notes=notes), _error_gram(posed)

    def _best_per_node(self, *, by_class: bool = False) -> tuple[NodeFactorizations, FloatArray]:
        if self.config.solver != "dense":
            raise InvalidInput("one encoder per node is solved by --solver dense only.")
        solve = factorization.factorize_classes if by_class else factorization.factorize_nodes
        options = {"allow_stopped": True, "progress": self.progress, **self.counted, **self.limits}
        best = solve(self.dynamics, self.participation, **options)
        counted = Setting(self.dynamics, self.participation, **self.counted).noise_objective
        return best, np.stack(list(counted.over_steps_of_nodes()))


def _error_gram(posed: FactorizationProblem | MaximumProblem) -> FloatArray | None:
    """H; None for the largest error, which has one for each step."""
    return posed.error_gram if isinstance(posed, FactorizationProblem) else None
