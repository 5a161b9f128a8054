"""Malformed input for every entry point of the library, and how each of them answers.

A case is drawn from a `random.Random`, so a seed repeats it and Hypothesis can shrink it. Most cases start from valid
input and spoil one to three places; a case that is still valid may succeed; sizes are small so that cases end soon.

In: the name of a surface, a random generator, an empty folder. Out: an `Outcome`: accepted, refused, stopped (a solver
before its tolerance), or one of FAULTS.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from _fault_files import (
    checkpoint_file,
    compare_folder,
    config_file,
    factorization_file,
    gossip_file,
    graph_file,
    groups_file,
    small_training,
)
from _fault_judge import SECONDS, Outcome, check_files, command, confined, content_of, judged
from _fault_values import (
    BASE,
    GRAPHS,
    MECHANISMS,
    NAMES,
    NUMBERS,
    OPTIONS,
    SETTINGS,
    TEXTS,
    TRUSTS,
    array,
    number,
)

from mfdl import ErrorWeights, Privacy, check, factorization, gossip, graphs, trust
from mfdl.algorithms import registry
from mfdl.dynamics import Dynamics
from mfdl.noise_scale import calibrate
from mfdl.participation import Cyclic, EveryStep, Explicit, MinSeparation, OncePerEpoch, Single
from mfdl.privacy import gaussian
from mfdl.runs.experiment import Experiment
from mfdl.training import checkpoint
from mfdl.training.keys import NoiseKey, normals
from mfdl.training.replay import replay
from mfdl.training.tasks import partition


def run_case(surface: str, random: Random, folder: Path, seconds: float = SECONDS) -> Outcome:
    """Draws one case of a surface, tries it in an empty folder and judges what happened there."""
    with confined(folder):
        act = SURFACES[surface](random, folder)
        before = content_of(folder)
        outcome = judged(act, seconds)
        return check_files(folder, before, outcome) if outcome.good else outcome


def _flags(name: str) -> Callable[[Random, Path], Callable[[], Outcome]]:
    """The options of one command, one to three of them spoilt."""

    def drawn(random: Random, folder: Path) -> Callable[[], Outcome]:
        arguments = [name, *BASE[name]]
        if name == "compare":
            arguments += ["--out", "out"]
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            flag = random.choice(list(OPTIONS[name]))
            allowed = OPTIONS[name][flag]
            arguments.append(flag)
            if allowed:
                arguments.append(random.choice(allowed if random.random() < 0.8 else TEXTS + NUMBERS))
        if random.random() < 0.1:
            arguments.insert(random.randrange(1, len(arguments) + 1), random.choice(TEXTS))
        if random.random() < 0.05:
            arguments.pop(random.randrange(1, len(arguments)))
        return lambda: command(arguments)

    return drawn


def _names(random: Random, folder: Path) -> Callable[[], Outcome]:
    words = ("mechanisms", "trust", "data", "list", "explain", "fetch", "--json", "--all", "--data-home", "--help",
    "--version",
             "facebook", "mnist", *TRUSTS, *TEXTS)  # fmt: skip
    arguments = [random.choice(words) for _ in range(random.randrange(1, 5))]
    return lambda: command(arguments)


def _api(random: Random, folder: Path) -> Callable[[], Any]:
    """A public constructor or function with numbers of any kind."""
    a, b, c = (number(random) for _ in range(3))
    W = gossip.metropolis_hastings("ring:n=4")
    text = random.choice(TEXTS + NUMBERS + GRAPHS + MECHANISMS + SETTINGS + NAMES)
    small = random.choice((1, 2, 3))
    fields: dict[str, Any] = {
        random.choice([f.name for f in dataclasses.fields(Experiment)]): random.choice((a, text, (text,)))
    }
    calls: tuple[Callable[[], Any], ...] = (
        lambda: Cyclic(epochs=a, period=small),
        lambda: Cyclic(epochs=a, period=b, steps=c),
        lambda: EveryStep(a),
        lambda: Single(a),
        lambda: OncePerEpoch(epochs=a, period=small),
        lambda: MinSeparation(steps=a, max_participations=b, separation=c),
        lambda: Explicit(a, b),
        lambda: Dynamics(W, a, momentum=b if random.random() < 0.5 else 0.0),
        lambda: Dynamics(W, 0.1, weight_decay=a, gossip_rounds=small),
        lambda: Dynamics(W, 0.1, gossip_rounds=a),
        lambda: gossip.from_array(array(random)),
        lambda: gossip.from_array(array(random, 4), "ring:n=4"),
        lambda: gossip.load(random.choice((text, a)), "ring:n=4"),
        lambda: graphs.load(random.choice((text, a))),
        lambda: ErrorWeights.parse(text).weights_by_step(4),
        lambda: ErrorWeights(random.choice((a, [a, b])), random.choice(("nodes", "average", a, [a]))),
        lambda: gaussian.record_shift(random.choice(("zero-out", "replace-one", text)), a),
        lambda: gaussian.epsilon_from_mu(a, b),
        lambda: gaussian.epsilon_from_mu(a, 1e-6),
        lambda: gaussian.mu_from_epsilon(a, b),
        lambda: gaussian.mu_from_epsilon(1.0, a),
        lambda: gaussian.noise_std(a, b, c),
        lambda: registry.check_name(text),
        lambda: registry.parse_parameters(random.choice(MECHANISMS), [text]),
        lambda: trust.named(random.choice((*TRUSTS, text)), attackers=a, colluders=b, coalition_size=c),
        lambda: trust.named("coalitions", coalition_size=a),
        lambda: trust.named("pndp", attackers=random.choice((a, [a], [text]))),
        lambda: NoiseKey.from_seed(a),
        lambda: NoiseKey(a),
        lambda: NoiseKey.from_seed(0).derive(a),
        lambda: normals(NoiseKey.from_seed(0), a if a not in (10**9,) else 1, [0], 2),
        lambda: normals(NoiseKey.from_seed(0), 0, random.choice((a, [a])), 2),
        lambda: partition.parse(text),
        lambda: check.finite_array(2, value=array(random)),
        lambda: check.square_array(value=array(random)),
        lambda: check.integer_at_least(1, value=a),
        lambda: check.positive(value=a),
        lambda: check.non_negative(value=a),
        lambda: check.open_unit(value=a),
        lambda: Experiment(**fields),
        lambda: factorization.factorize(Dynamics(W), Cyclic(epochs=1, period=2), tolerance=a),
        lambda: factorization.optimal_covariance(Dynamics(W), max_inverse_diagonal=a, horizon=1),
        lambda: factorization.optimal_covariance(Dynamics(W), coalition_size=a),
        lambda: checkpoint.save(folder / "c", step=a, models={}, metadata={"x": b}),
        lambda: _calibrated(random, a, b),
        lambda: _replayed(random, a, folder),
    )
    call = random.choice(calls)
    return lambda: (call(), None)[1]


def _calibrated(random: Random, a: Any, b: Any) -> Any:
    algorithm = registry.build("dp-dsgd", Dynamics(gossip.metropolis_hastings("ring:n=4")), EveryStep(2))
    arguments: dict[str, Any] = {"trust": trust.LDP(), "adjacency": "zero-out", "clip_norm": 1.0, "mu": 1.0}
    arguments[random.choice(("mu", "clip_norm", "adjacency", "trust", "unit", "release", "lipschitz", "method"))] = a
    mu = arguments.pop("mu")
    return calibrate(algorithm, Privacy(**arguments), mu=mu)


def _replayed(random: Random, a: Any, folder: Path) -> Any:
    mechanism, task = small_training()
    arguments: dict[str, Any] = {"seeds": [0], "stop_after": 2}
    name = random.choice(("seeds", "key", "period", "eval_every", "stop_after"))
    arguments[name] = a
    return replay(mechanism, task, **arguments)


RARE = {"folders of mfdl compare": 8, "checkpoints": 2, "mfdl compare": 2}
"""Surfaces whose valid cases train, and so get one case where others get this many."""

SURFACES: dict[str, Callable[[Random, Path], Callable[[], Any]]] = {
    "mfdl factorize": _flags("factorize"),
    "mfdl account": _flags("account"),
    "mfdl compare": _flags("compare"),
    "mfdl audit": _flags("audit"),
    "mfdl attack": _flags("attack"),
    "mfdl mechanisms, trust, data": _names,
    "--config files": config_file,
    "graph files": graph_file,
    "gossip files": gossip_file,
    "factorization files": factorization_file,
    "groups files": groups_file,
    "checkpoints": checkpoint_file,
    "folders of mfdl compare": compare_folder,
    "public API": _api,
}

ORDER = tuple(name for turn in range(8) for name in SURFACES if turn % RARE.get(name, 1) == 0)
"""Surfaces of the numbered cases, over and over."""
