"""What follows from what is seen, by the pattern of the maps, against row spaces over the rationals."""

import numpy as np
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from mfdl import Dynamics, EveryStep, algorithms, gossip
from mfdl.algorithms.workloads import flow
from mfdl.testing import oracles, user_algorithms

PATH = Dynamics(gossip.metropolis_hastings("path:n=3"))


def masks_of(algorithm, rng):
    seen = rng.random((len(algorithm.rounds), algorithm.messages_per_round)) < 0.8
    gradients = rng.random((algorithm.num_steps, algorithm.num_nodes)) < 0.3
    parts = rng.random((algorithm.num_steps, algorithm.noise.columns_per_step)) < 0.3
    return seen, gradients, parts


@examples(150)
@given(user_algorithms(), st.integers(0, 2**32 - 1))
def test_what_is_called_known_is_a_combination_of_what_is_seen(algorithm, seed):
    """Models before a step of what came earlier; final models and injected sums of everything. Never the other way."""
    seen, gradients, parts = masks_of(algorithm, np.random.default_rng(seed))
    verdict = flow(algorithm, seen, gradients, parts)
    run = oracles.exact_run(algorithm)
    hidden = np.flatnonzero(np.concatenate([~gradients.ravel(), ~parts.ravel()]))

    def rows(table):
        return [[row[i] for i in hidden] for row in table]

    def spanned(table, by):
        return oracles.rank([*by, *table]) == oracles.rank(by) if by else not any(any(row) for row in table)

    earlier: list = []
    for r, step in enumerate(algorithm.step_of_round):
        if step >= 0 and verdict.models:
            assert spanned(rows(run.models[step]), earlier)
        earlier += rows([row for row, mask in zip(run.messages[r], seen[r], strict=True) if mask])
    if verdict.final_models:
        assert spanned(rows(run.final), earlier)
    if verdict.injections:
        N = oracles.rational(algorithm.noise.matmat(np.eye(algorithm.noise.shape[1])))
        injected = [[int(i == j) for j in range(algorithm.axis.size)] + N[i] for i in range(algorithm.axis.size)]
        assert spanned(rows(injected), earlier)


@examples(60)
@given(user_algorithms(), st.integers(0, 2**32 - 1))
def test_who_sees_more_knows_more(algorithm, seed):
    rng = np.random.default_rng(seed)
    seen, gradients, parts = masks_of(algorithm, rng)
    less, more = flow(algorithm, seen, gradients, parts), flow(algorithm, seen | True, gradients, parts)
    for field in ("models", "final_models", "injections"):
        assert getattr(less, field) <= getattr(more, field)
    assert (more.hidden_states <= less.hidden_states).all()
    assert (more.hidden_messages <= less.hidden_messages).all()


def test_every_mechanism_shows_its_injections_to_who_sees_all():
    for build in (
        algorithms.dp_dsgd,
        algorithms.gradient_tracking,
        algorithms.exact_diffusion,
        algorithms.delayed_dsgd,
        algorithms.muffliato,
    ):
        algorithm = build(PATH, EveryStep(4))
        assert algorithm.of_all_sent.injections
        assert algorithm.of_all_sent.models
        assert algorithm.divisors_cancel
    hidden = algorithms.local_steps(PATH, EveryStep(4))  # which sends every second sum only
    assert not hidden.of_all_sent.injections
    assert not hidden.of_all_sent.models
    assert not algorithms.zip_dl(PATH, EveryStep(2)).of_all_sent.injections
