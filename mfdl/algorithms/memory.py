"""D-SGD with memory: nodes that track gradients, correct their averages, or use messages that are late or forwarded.

All add noise where gradients enter, so all messages together show the injected sums i = g + e and no more: with them
seen the privacy of a noise is that of plain D-SGD, an upper bound where messages are hidden. W is the averaging matrix
of a step, eta its learning rate; `noise` is on gradient sums, by default fresh and independent. Unless said otherwise
the builders refuse (UnsupportedMechanism) momentum, weight decay and several gossip rounds per step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from .. import check
from ..dynamics import Dynamics
from ..errors import InvalidInput, UnsupportedMechanism
from ..noise import NoiseOperator
from ..participation import Participation
from .checks import builder
from .gossip_sgd import receivers
from .linear_algorithm import LinearAlgorithm
from .maps import Maps, from_maps
from .mechanism_names import MECHANISMS


@MECHANISMS.register(paper="arXiv:1607.03218; with momentum arXiv:2209.15505")
@builder
def gradient_tracking(
    dynamics: Dynamics, participation: Participation, *, noise: NoiseOperator | None = None
) -> LinearAlgorithm:
    """Gradient tracking: nodes follow an estimate y of the average gradient, so that data that differ do no harm.

        y_t = W y_{t-1} + v_t - v_{t-1},  v_t = momentum v_{t-1} + i_t,  theta_{t+1} = W (theta_t - eta_t y_t)

    A node sends theta - eta y and y. Momentum is covered.
    Source: arXiv:1607.03218 (DIGing), with averaging after the step; with momentum arXiv:2209.15505.
    """
    n, beta = dynamics.num_nodes, dynamics.momentum
    eye, none = sp.eye_array(n), None

    def step(t: int, W: sp.csr_array, eta: float) -> Maps:  # state: theta, W y, v
        return {
            "P": sp.block_array([[eye, -eta * eye, -eta * (beta - 1) * eye], [none, eye, (beta - 1) * eye]]),
            "Q": sp.vstack([-eta * eye, eye]),
            "K": sp.block_array([[W, none], [none, W], [sp.csr_array((n, n)), sp.csr_array((n, n))]]),
            "F": sp.block_diag([sp.csr_array((2 * n, 2 * n)), beta * eye]) if beta else None,
            "J": sp.vstack([sp.csr_array((2 * n, n)), eye]),
            "receivers": sp.vstack([receivers(W)] * 2),
        }

    return _from_step("gradient-tracking", step, dynamics, participation, noise, momentum=True)


@MECHANISMS.register(paper="arXiv:1702.05122")
@builder
def exact_diffusion(
    dynamics: Dynamics, participation: Participation, *, noise: NoiseOperator | None = None
) -> LinearAlgorithm:
    """Exact diffusion: each step corrects the bias that the last one's averaging left.

        psi_{t+1} = theta_t - eta_t i_t,  theta_{t+1} = (I + W) / 2 (psi_{t+1} + theta_t - psi_t),  psi_0 = theta_0

    A node sends psi_{t+1} + theta_t - psi_t. EXTRA is the same with one gradient more on the way.
    Source: arXiv:1702.05122, Algorithm 1.
    """
    n = dynamics.num_nodes
    eye, zero = sp.eye_array(n), sp.csr_array((n, n))

    def step(t: int, W: sp.csr_array, eta: float) -> Maps:  # state: theta, psi
        return {
            "P": sp.hstack([2 * eye, -eye]),
            "Q": -eta * eye,
            "K": sp.vstack([(eye + W) / 2, zero]),
            "F": sp.block_array([[zero, zero], [eye, zero]]),
            "J": sp.vstack([zero, -eta * eye]),
        }

    start = sp.vstack([eye, eye])
    return _from_step("exact-diffusion", step, dynamics, participation, noise, state_from_start=start)


@MECHANISMS.register(paper="arXiv:1710.06952, with one fixed delay")
@builder
def delayed_dsgd(
    dynamics: Dynamics, participation: Participation, *, delay: int = 1, noise: NoiseOperator | None = None
) -> LinearAlgorithm:
    """D-SGD on slow links: what others sent arrives `delay` steps later.

        theta'_u = w_uu m_u(t) + sum_{v != u} w_uv m_v(t - delay),  m(t) = theta_t - eta_t i_t, and theta_0 for t < 0

    Weights and links are those of the step in which a message is used. An attacker sees a message when it is sent.
    delay = 0 is D-SGD.
    Source: the delayed exchange of asynchronous gossip, e.g. arXiv:1710.06952, with one fixed delay.
    """
    check.integer_at_least(0, delay=delay)
    n = dynamics.num_nodes
    eye = sp.eye_array(n)

    def step(t: int, W: sp.csr_array, eta: float) -> Maps:  # state: theta, m of the last step, ..., of `delay` ago
        self_weights = sp.diags_array(W.diagonal())
        if delay == 0:
            return {"P": eye, "Q": -eta * eye, "K": W}
        ages = sp.coo_array(([1.0] * (delay - 1), (range(2, delay + 1), range(1, delay))), shape=(delay + 1,) * 2)
        late = sp.coo_array(([1.0], ([0], [delay])), shape=(delay + 1,) * 2)
        return {
            "P": sp.hstack([eye, sp.csr_array((n, delay * n))]),
            "Q": -eta * eye,
            "K": sp.vstack([self_weights, eye, sp.csr_array(((delay - 1) * n, n))]),
            "F": sp.kron(ages, eye) + sp.kron(late, W - self_weights),
            "receivers": receivers(dynamics.gossip.at(min(t + delay, num_steps - 1)).weights),
        }

    num_steps = participation.num_steps
    start = sp.vstack([eye] * (delay + 1))
    return _from_step("delayed-dsgd", step, dynamics, participation, noise, state_from_start=start)


@MECHANISMS.register(paper="this library")
@builder
def two_hop_dsgd(
    dynamics: Dynamics, participation: Participation, *, share: float = 0.5, noise: NoiseOperator | None = None
) -> LinearAlgorithm:
    """D-SGD in which each node also forwards last step's messages of its neighbours.

        theta' = (1 - share) W m(t) + share W^2 m(t - 1),  m(t) = theta_t - eta_t i_t,  m(-1) = theta_0

    A message of a neighbour is known to its receivers; one of a neighbour's neighbour comes forwarded.

    Raises: InvalidInput: share outside [0, 1]. UnsupportedMechanism: besides, gossip that changes.
    """
    if not dynamics.gossip.is_constant:
        raise UnsupportedMechanism("two-hop-dsgd covers constant gossip only: the forwarding pattern is fixed.")
    share = check.non_negative(share=share)
    if share > 1:
        raise InvalidInput(f"share must lie in [0, 1], got {share:g}.")
    n, W = dynamics.num_nodes, dynamics.gossip.at(0).weights
    eye, zero = sp.eye_array(n), sp.csr_array((n, n))
    links = sp.coo_array(W - sp.diags_array(W.diagonal()))
    links.eliminate_zeros()
    v, x = links.coords  # after the n own messages one per link: v forwards what x sent
    forwarded = sp.csr_array((np.ones(links.nnz), (np.arange(links.nnz), x)), shape=(links.nnz, n))
    # u weighs what v forwards of x by w_uv w_vx, unless it heard x itself
    near = sp.csr_array(W + eye) != 0
    paths = sp.coo_array(W[:, v] @ sp.diags_array(links.data))
    heard = sp.csr_array(near[:, x], dtype=np.float64)
    two_hops = sp.csr_array(share * (paths - sp.csr_array(paths) * heard))
    direct, reached = sp.csr_array(share * (W @ W)) * near, receivers(W)

    def step(t: int, W: sp.csr_array, eta: float) -> Maps:  # state: theta, m of the last step
        return {
            "P": sp.block_array([[eye, None], [None, forwarded]]),
            "Q": sp.vstack([-eta * eye, sp.csr_array((links.nnz, n))]),
            "K": sp.block_array([[(1 - share) * W, two_hops], [eye, None]]),
            "F": sp.block_array([[zero, direct], [zero, zero]]),
            "receivers": sp.vstack([reached, reached[v]]),
        }

    given = {"state_from_start": sp.vstack([eye, eye]), "message_sender": np.concatenate([np.arange(n), v])}
    return _from_step("two-hop-dsgd", step, dynamics, participation, noise, **given)


@MECHANISMS.register(paper="arXiv:2003.10422")
@builder
def local_steps(
    dynamics: Dynamics, participation: Participation, *, steps: int = 2, noise: NoiseOperator | None = None
) -> LinearAlgorithm:
    """D-SGD that gossips after every `steps` gradient steps, and after the last.

        theta_{t+1} = W (theta_t - eta_t i_t) where a gossip is due, theta_t - eta_t i_t elsewhere

    T counts gradient steps.
    Source: local SGD on a graph, e.g. arXiv:2003.10422.
    """
    check.integer_at_least(1, steps=steps)
    n, T = dynamics.num_nodes, participation.num_steps
    eye = sp.csr_array(sp.eye_array(n))
    due = [(t + 1) % steps == 0 or t + 1 == T for t in range(T)]

    def step(t: int, _: sp.csr_array, eta: float) -> Maps:
        W = dynamics.gossip.at(sum(due[:t])).weights if due[t] else eye  # the next, as gossip is not due in every step
        return {"P": eye, "Q": -eta * eye, "K": W, "receivers": receivers(W)}

    sent = np.outer(due, np.ones(n, dtype=bool))
    return _from_step("local-steps", step, dynamics, participation, noise, transmitted=sent)


def _from_step(
    name: str,
    step: Callable[[int, sp.csr_array, float], Maps],
    dynamics: Dynamics,
    participation: Participation,
    noise: NoiseOperator | None,
    *,
    momentum: bool = False,
    **given: Any,
) -> LinearAlgorithm:
    if not dynamics.has_one_round:
        raise UnsupportedMechanism(
            f"{name} covers one gossip round per step, got gossip_rounds={dynamics.gossip_rounds} and "
            f"polynomial={dynamics.polynomial!r}; leave both out."
        )
    if dynamics.weight_decay or (dynamics.momentum and not momentum):
        raise UnsupportedMechanism(
            f"{name} covers {'no weight decay' if momentum else 'neither momentum nor weight decay'}; leave it out, or "
            "write the recursion down with mfdl.algorithms.from_maps."
        )
    rates = dynamics.learning_rates(participation.num_steps).tolist()

    def maps(t: int) -> Maps:
        W = dynamics.gossip.at(t).weights
        named = {"receivers": receivers(W), **step(t, W, rates[t])}
        return {**named, "R": named.get("Q"), "L": named.get("J")}

    return from_maps(maps, participation, dynamics, noise=noise, name=name, **given)
