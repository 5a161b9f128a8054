"""What reconstructions refuse, and what they read of the transcript of a run."""

import re

import networkx as nx
import numpy as np
import pytest
from refusals import refuses
from test_reconstruction import CONSTANT, END, KINDS, on

from mfdl import InvalidInput, View, algorithms, trust
from mfdl.audit import reconstruct

RING, NOISY = on("ring:n=5", 3), on("path:n=5", 3, algorithms.dp_dsgd, gossip_rounds=2)
LARGE = on(nx.complete_graph(40), 100)
TRANSCRIPT = {"messages": np.zeros((3, 5, 2)), "known_gradients": np.zeros((3, 5, 2)), "final_models": np.zeros((5, 2))}
OF_TWO_ROUNDS = {"messages": np.zeros((3, 10, 2)), "known_gradients": np.zeros((3, 5, 2))}


def recovered(**changed):
    return reconstruct(RING, END).recover(**(TRANSCRIPT | changed))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reconstruct(RING, trust.AnyReceiver()), "more than one view.*name the attackers"),
        (lambda: reconstruct(RING, trust.Coalitions(1)), "more than one view"),
        (lambda: reconstruct(RING, trust.PNDP([9])), "below num_nodes=5, got 9"),
        (lambda: reconstruct(RING, trust.PNDP(["nobody"])), "'nobody' is not in the graph"),
        (lambda: reconstruct(RING, None), "trust must be a trust model"),
        (lambda: reconstruct(RING, END, gradients="constnat"), "did you mean 'constant'"),
        (lambda: reconstruct(RING, END, noise_std=-1.0), "noise_std must be a finite number >= 0"),
        (lambda: reconstruct(RING, END, clip_norm=0.0), "clip_norm must be a finite number > 0"),
        (lambda: reconstruct(RING, END, victim=7), "victim must be below num_nodes=5"),
        (lambda: reconstruct(NOISY, END), "noise_std must be given"),
        (lambda: reconstruct(LARGE, END, release="none"), "3900 equations for 3900 gradients.*above.*fewer steps"),
        (lambda: recovered(messages=np.zeros((2, 5, 2))), r"\(3, 5, d\) for 3 rounds of 5 messages, got shape"),
        (lambda: recovered(final_models=None), "final_models must be given"),
        (lambda: recovered(known_gradients=None), "known_gradients must be given"),
        (
            lambda: recovered(messages=np.where(np.arange(15).reshape(3, 5, 1) == 6, np.nan, 0.0) * np.ones(2)),
            r"node 0.*1 of 6",
        ),
        (lambda: reconstruct(RING, END).solve(np.zeros((3, 2))), "observations must have 11 rows"),
        (
            lambda: reconstruct(View(np.eye(2), np.zeros((2, 0)))).recover(np.zeros((3, 5, 2))),
            "bare view has no transcript",
        ),
    ],
)
def test_bad_arguments_are_refused(call, message):
    refuses(message, call)


def test_constant_gradients_of_a_large_view_are_solved_for():
    assert reconstruct(LARGE, END, gradients=CONSTANT, release="none").exposed.sum() == 39


class TestShapesOfTranscripts:
    """Exactly those documented: broadcasting or a transposed array would give wrong gradients in silence."""

    rng = np.random.default_rng(0)

    @pytest.mark.parametrize(
        ("name", "expected", "shapes"),
        [
            (
                "known_gradients",
                (3, 5, 2),
                [(1, 5, 2), (5, 2), (2, 5, 2), (3, 5, 1), (3, 1, 2), (1, 1, 1), (5, 3, 2), (30,)],
            ),
            ("known_noise", (15, 2), [(3, 5, 2), (1, 2), (2,), (15, 1), (15,), (14, 2)]),
        ],
    )
    def test_what_is_known_is_not_broadcast(self, name, expected, shapes):
        for kind in KINDS:
            solved = reconstruct(NOISY, END, gradients=kind, noise_std=1.0, release="none")
            for shape in shapes:
                with pytest.raises(InvalidInput, match=rf"{name} must have shape {re.escape(str(expected))}, got \("):
                    solved.recover(**(OF_TWO_ROUNDS | {name: np.ones(shape)}))

    def test_only_what_is_known_is_read_and_that_must_be_finite(self):
        solved = reconstruct(NOISY, END, noise_std=1.0, release="none")
        sent, G, Z = (self.rng.standard_normal(shape) for shape in ((3, 10, 2), (3, 5, 2), (15, 2)))
        expected = solved.observations(sent, known_gradients=G, known_noise=Z)
        gradients_known, noise_known = solved.view.known_gradients, solved.view.knowledge.known_noise.ravel()
        assert gradients_known.any()
        assert noise_known.any()
        some_G, some_Z = np.where(gradients_known[:, :, None], G, np.nan), np.where(noise_known[:, None], Z, np.inf)
        got = solved.observations(sent, known_gradients=some_G, known_noise=some_Z)
        np.testing.assert_array_equal(got, expected)
        t, u = np.argwhere(gradients_known)[0]
        some_G[t, u, 1], some_Z[np.flatnonzero(noise_known)[0], 0] = np.nan, np.inf
        with pytest.raises(InvalidInput, match=rf"known_gradients must be finite, got nan at index \({t}, {u}, 1\)"):
            solved.observations(sent, known_gradients=some_G, known_noise=Z)
        refuses("known_noise must be finite, got inf", solved.observations, sent, known_gradients=G, known_noise=some_Z)

    @pytest.mark.parametrize("rounds", [1, 2])
    def test_messages_come_by_step_or_by_round_and_in_no_other_order(self, rounds):
        T, n, d = 3, 4, 2
        solved = reconstruct(on(f"ring:n={n}", T, gossip_rounds=rounds), END, release="none")
        total = T * rounds * n
        sent, G = self.rng.standard_normal((total, d)), np.zeros((T, n, d))
        by_step = solved.recover(sent.reshape(T, rounds * n, d), known_gradients=G)
        np.testing.assert_array_equal(solved.recover(sent.reshape(T * rounds, n, d), known_gradients=G), by_step)
        others = {(a, total // a) for a in range(1, total + 1) if total % a == 0} - {(T, rounds * n), (T * rounds, n)}
        assert (n, T * rounds) in others
        for shape in others:
            with pytest.raises(InvalidInput, match=rf"\({T * rounds}, {n}, d\) for .*, got shape \({shape[0]}, "):
                solved.recover(sent.reshape(*shape, d), known_gradients=G)

    @pytest.mark.parametrize("name", ["messages", "known_gradients", "known_noise"])
    def test_what_is_not_real_numbers_is_refused_by_name(self, name):
        solved = reconstruct(NOISY, END, noise_std=1.0, release="none")
        for wrong in ("text", [["1", "2"]], [[1.0], [1.0, 2.0]], np.ones((15, 2), complex)):
            refuses(f"{name} must be an array of real numbers, got ", solved.recover, **OF_TWO_ROUNDS | {name: wrong})
