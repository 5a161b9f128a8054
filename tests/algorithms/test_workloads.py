"""The matrices of the papers, against the recursion in fractions and the definitions written out block by block."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from vocabulary import dynamics_on, given, refuses, st, unsupported

from mfdl import Dynamics, EveryStep, UnsupportedMechanism, algorithms
from mfdl.operators import Kronecker
from mfdl.testing import dense_averaged_workload, dense_gossip_workload, exact_run, rank, to_float
from mfdl.testing.strategies import ALL_NAMES, linear_algorithms, user_algorithms

ROWS = st.sampled_from(["messages", "models"])
PATH = dynamics_on("path:n=3", learning_rate=0.5)
CLOSE = {"rtol": 1e-7, "atol": 1e-7}  # optimal encoders and covariances may be ill-conditioned


def looked_at(algorithm, rows):
    """Rows of the workload over gradients and base noise, as fractions."""
    run = exact_run(algorithm)
    if rows == "models":
        return [row for models in [*run.models[1:], run.final] for row in models], run.num_gradients
    seen = zip(run.messages, algorithm.sent, strict=True)
    return [row for sent, mask in seen for row, visible in zip(sent, mask, strict=True) if visible], run.num_gradients


def from_start(algorithm, rows):
    """Rows over start models: what each round makes of the state that they give, written out."""

    def times(matrix, x, size):
        return np.zeros((size, x.shape[1])) if matrix is None else matrix @ x

    start, state_of = algorithm.state_from_start, algorithm.model_from_state
    state = (state_of.T if start is None else start).toarray()
    messages, models = [], []
    for kind, t, sent in zip(algorithm.rounds, algorithm.step_of_round, algorithm.sent, strict=True):
        models += [state_of @ state] if t > 0 else []
        message = times(kind.message_from_state, state, algorithm.messages_per_round)
        messages.append(message[sent])
        state = times(kind.state_from_message, message, len(state)) + times(kind.state_from_state, state, len(state))
    return np.vstack([*models, state_of @ state] if rows == "models" else messages)


def check(algorithm, rows):
    """A and B are what the recursion says, and the other matrices make them; None where models are more than that."""
    workload, (exact, split) = algorithm.workload(rows), looked_at(algorithm, rows)
    beside = [
        getattr(kind, f"state_from_{term}") for kind in algorithm.kinds for term in ("state", "gradient", "noise")
    ]
    if rows == "models" and any(part is not None and (algorithm.model_from_state @ part).nnz for part in beside):
        with pytest.raises(UnsupportedMechanism, match="more than the messages of their round; use models_from_gradie"):
            _ = workload.A
        return None, exact
    dense = np.asarray(to_float(exact), dtype=float).reshape(len(exact), split + algorithm.noise.shape[1])
    A, B, N = workload.A.dense(), workload.B.dense(), workload.N.dense()
    assert_allclose(A, dense[:, :split], **CLOSE)
    assert_allclose(B, dense[:, split:], **CLOSE)
    assert_allclose(N, algorithm.noise @ np.eye(algorithm.noise.shape[1]), **CLOSE)
    assert_allclose(workload.M.dense(), from_start(algorithm, rows), **CLOSE)
    for matrix in (getattr(workload, name) for name in ("A", "B", "N", "W_T", "M", "Q", "S", "commutation")):
        assert tuple(map(sum, matrix.blocks)) == matrix.shape
        y = np.arange(matrix.shape[0], dtype=float)
        assert_allclose(matrix.rmatvec(y), matrix.dense().T @ y, **CLOSE)
    product = (workload.S @ workload.W_T @ workload.Q).matmat(np.eye(split))
    if all(kind.state_from_gradient is None for kind in algorithm.kinds):
        assert_allclose(product, A, **CLOSE)
    else:
        assert workload.A.formula.endswith("(messages <- G)")
    return workload, exact


@given(150, algorithm=linear_algorithms(ALL_NAMES, max_nodes=3, max_epochs=2, max_period=2), rows=ROWS, data=st.data())
def test_the_matrices_of_every_algorithm(algorithm, rows, data):
    if not algorithm.noise_on_messages:
        sizes = st.lists(st.integers(1, 4), min_size=algorithm.num_nodes, max_size=algorithm.num_nodes)
        algorithm = algorithm.with_divisors(data.draw(sizes))
    workload, _ = check(algorithm, rows)
    if workload is None or workload.noising == "N":
        return
    B, C, N = workload.B.dense(), workload.C.dense(), workload.N.dense()
    products = ((B, C, workload.A.dense()), (N, C, np.eye(len(N))), (C, N, (C @ N).T))  # the last two: N is C^+
    for left, right, product in products:
        assert_allclose(
            left @ right, product, rtol=0, atol=1e-9 * max(1, (np.abs(left) @ np.abs(right)).max(initial=0))
        )
    assert workload.noising == ("C^-1" if N.shape[0] == N.shape[1] else "C^+")


@given(200, algorithm=user_algorithms(), rows=ROWS)
def test_an_encoder_where_there_is_one_exactly_and_words_where_there_is_none(algorithm, rows):
    workload, exact = check(algorithm, rows)
    if workload is None:
        return
    noise = [row[algorithm.num_steps * algorithm.num_nodes :] for row in exact]
    if rank(exact) == rank(noise):
        assert_allclose(workload.B.dense() @ workload.C.dense(), workload.A.dense(), **CLOSE)
        assert "\nC = " in str(workload)
    else:
        with pytest.raises(UnsupportedMechanism, match="shows gradients without noise, so whoever sees them all has"):
            _ = workload.C
        assert "no C gives A = B C" in str(workload)


@pytest.mark.parametrize("gossip_rounds", [1, 2])
def test_the_letters_are_those_of_the_definitions(gossip_rounds):
    algorithm = algorithms.muffliato(PATH, EveryStep(2), gossip_rounds=gossip_rounds)
    messages, models, rounds = algorithm.workload(), algorithm.workload("models"), 2 * gossip_rounds
    assert_allclose(messages.W_T.dense(), dense_gossip_workload(PATH.gossip, rounds), atol=1e-15)
    averaged = dense_averaged_workload(PATH.gossip, rounds).reshape(2, gossip_rounds * 3, -1)[:, -3:].reshape(6, -1)
    assert_allclose((models.S @ models.W_T).matmat(np.eye(3 * rounds)), averaged, atol=1e-15)
    powers = [np.linalg.matrix_power(PATH.gossip.at(0).dense(), r) for r in range(rounds + 1)]
    assert_allclose(messages.M.dense(), np.vstack(powers[:-1]), atol=1e-15)
    assert_allclose(models.M.dense(), np.vstack(powers[gossip_rounds::gossip_rounds]), atol=1e-15)
    first = np.eye(gossip_rounds)[:, :1]  # of the rounds of a step
    assert_allclose(messages.Q.dense(), -0.5 * np.kron(np.kron(np.eye(2), first), np.eye(3)), atol=0)


def test_kronecker_products_are_kronecker_objects():
    rates = Dynamics(PATH.gossip, learning_rate=[0.5, 0.25])
    workload = algorithms.bsr(rates, EveryStep(2)).workload("models")
    factors = {
        "C": (np.array([[1, 0], [0.5, 1]]), np.eye(3)),
        "N": (np.array([[1, 0], [-0.5, 1]]), np.eye(3)),
        "Q": (np.diag([-0.5, -0.25]), np.eye(3)),
        "S": (np.eye(2), PATH.gossip.at(0).dense()),
    }
    for name, pair in factors.items():
        operator = getattr(workload, name).operator
        assert isinstance(operator, Kronecker)
        for given_, expected in zip((operator.time, operator.space), pair, strict=True):
            assert_allclose(sp.csr_array(given_).toarray(), expected, atol=1e-15)


def test_the_commutation_gathers_the_columns_of_a_node():
    algorithm = algorithms.dp_dsgd(PATH, EveryStep(4)).workload("models")
    by_node = (algorithm.A @ algorithm.commutation).matmat(np.eye(12))
    for node in range(3):
        assert_allclose(by_node[:, 4 * node : 4 * node + 4], algorithm.A.dense()[:, node::3], atol=0)


def test_what_is_refused():
    algorithm = algorithms.dsgd(PATH, EveryStep(2))
    with pytest.raises(UnsupportedMechanism, match="'none' adds no noise: B is empty, and no C gives A = B C"):
        _ = algorithm.workload().C
    refuses("rows must be one of messages, models, got", algorithm.workload, "final")
    large = algorithms.dp_dsgd(dynamics_on("ring:n=64"), EveryStep(65)).workload()
    unsupported(r"W_T \(I_65 \(x\) -I_64\), 4160 x 4160", large.A.dense)
    assert_allclose((large.B @ large.C).matvec(np.ones(4160)), large.A.matvec(np.ones(4160)))


@pytest.mark.parametrize(("build", "drawn"), [(algorithms.dp_dsgd, "A B C W_T"), (algorithms.dsgd, "A B W_T")])
def test_the_picture_shows_blocks_of_time(build, drawn):
    figure = build(PATH, EveryStep(3)).workload().plot()
    assert [ax.get_title().split(" =")[0] for ax in figure.axes] == drawn.split()
    assert len(figure.axes[0].lines) == 4  # two between three blocks, each way
