"""What a guarantee covers of a run: its period, its divisors, its task.

In: a mechanism and a task. Out: how often each record is fed and what sums are divided by, or a refusal; and the
guarantee in words, with what of the task it leaves out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .. import check
from ..check import FloatArray
from ..dynamics.dynamics import MAX_RATE_RATIO
from ..errors import InvalidInput, UnsupportedMechanism
from ..mechanism import Mechanism
from . import clip_rules
from .clip_rules import ClipRule, Flat, Quantile
from .tasks import Task
from .tasks.partition import Period


def fed_every(mechanism: Mechanism, given: int | None) -> Period:
    """Steps after which the executor feeds the same records again, at each node if they differ."""
    if given is not None:
        given = check.integer_at_least(1, period=given)
    if mechanism.sampling is not None:
        if given is not None:
            raise InvalidInput(
                f"period must be left out under {mechanism.sampling.describe()}, got {given}: batches are drawn."
            )
        return 1  # all records in one class, of which each step draws
    if mechanism.unit == "user":
        return given or 1
    participation = mechanism.algorithm.participation
    nodes = range(mechanism.algorithm.num_nodes)
    periods = tuple(b for u in nodes if (b := participation.of_node(u).fed_every) is not None)
    if len(periods) < len(nodes):
        raise UnsupportedMechanism(
            f"the executor feeds each record to the same step of every epoch, i.e. cyclic participation, or to every "
            f"step; the mechanism was accounted for {participation.describe()}. Reshuffled or sampled batches are "
            "other schemes and are not covered."
        )
    period: Period = periods[0] if len(set(periods)) == 1 else periods
    if given not in (None, period):
        raise InvalidInput(
            f"period must be {period}, the one of {participation.describe()} that record-level privacy was accounted "
            f"for, got {given}; leave it out, or calibrate anew."
        )
    return period


def epoch(mechanism: Mechanism, period: Period) -> int:
    """Steps in which each record takes part once, on average if batches are drawn."""
    return longest(period) if mechanism.sampling is None else round(1 / mechanism.sampling.expected_rate)


def longest(period: Period) -> int:
    return period if isinstance(period, int) else max(period)


def divisors(mechanism: Mechanism, task: Task, period: Period, seed: int) -> FloatArray:
    """What a node's clipped gradients and noise are divided by: at user level the mean is taken inside the clip.

    Of batches that are drawn, the expected size. Divisors scale gradients and noise of a node alike: they cancel where
    all messages are seen and show the injected sums, and where all nodes have the same. Elsewhere (hidden messages,
    noise that enters where gradients do not) the mechanism must have been calibrated with them.
    Raises: InvalidInput: it was not.
    """
    algorithm = mechanism.algorithm
    user, drawn = mechanism.unit == "user", mechanism.sampling
    if drawn is not None:
        sizes = np.asarray(drawn.expected_rate * task.public_batch_sizes(1, seed))
    else:
        sizes = np.ones(algorithm.num_nodes) if user else task.public_batch_sizes(period, seed)
    ratio = sizes / algorithm.divisors
    by_sums = drawn is not None or algorithm.divisors_cancel  # all that is seen follows from the injected sums
    cancel = by_sums and mechanism.guarantee.release == "not applicable"
    if (not cancel and np.ptp(ratio) > 0) or (algorithm.noise_on_messages and (ratio != 1).any()):
        if user:
            raise InvalidInput(
                "at user level clipped means are divided by nothing, but the mechanism was calibrated with divisors "
                f"{algorithm.divisors.min():g} to {algorithm.divisors.max():g}; calibrate the algorithm without them."
            )
        raise InvalidInput(
            f"the guarantee under trust model {mechanism.guarantee.trust!r} depends on public batch sizes, and the "
            f"task's ({sizes.min():g} to {sizes.max():g}) are not those it was calibrated with; calibrate "
            "algorithm.with_divisors(task.public_batch_sizes(period))."
        )
    return sizes


def clip_schedule(given: object, mechanism: Mechanism) -> FloatArray:
    """Public relative clipping norms, one for each step.

    A step with c_t is the local map x - (eta / c_t) g, g clipped to c_t clip_norm: a Lipschitz constant for eta and
    clip_norm does not apply to it, so guarantees that assume such a constant require c_t = 1.
    Raises: InvalidInput: no number > 0 at some step, another number of them than steps, or clips that span too much; a
        c_t other than 1 under a guarantee that rests on a Lipschitz constant.
    """
    num_steps = mechanism.algorithm.num_steps
    clips = check.finite_array(1, clip_schedule=given)
    if len(clips) != num_steps or (clips <= 0).any() or clips.max() > MAX_RATE_RATIO * clips.min():
        span = f"{len(clips)} from {clips.min():g} to {clips.max():g}" if clips.size else "none"
        raise InvalidInput(
            f"clip_schedule must hold one number > 0 for each of {num_steps} steps, the largest at most "
            f"{MAX_RATE_RATIO:g} times the smallest, got {span}."
        )
    if mechanism.lipschitz is not None and (clips != 1).any():
        step = int(np.argmax(clips != 1))  # exact: booleans
        raise InvalidInput(
            f"clip_schedule must be 1 in every step where the guarantee assumes local maps x - eta g(x) with Lipschitz "
            f"constant {mechanism.lipschitz:g}, got {clips[step]:g} in step {step}: gradients are then clipped to "
            f"{clips[step]:g} clip_norm and divided by it, which is another local map; leave clip_schedule out, or "
            "calibrate without lipschitz."
        )
    return clips


def clip_rule(text: str, mechanism: Mechanism) -> ClipRule:
    """The rule that a text names, at the clipping norm of a mechanism.

    Raises: InvalidInput: another text; a rule other than the flat one under a guarantee with a Lipschitz constant.
    """
    rule = clip_rules.parse(text, mechanism.clip_norm)
    if isinstance(rule, Quantile) and mechanism.unit == "user":
        raise UnsupportedMechanism(
            f"clipping {rule} follows norms of records, and at user level a node has one gradient; take flat or "
            "automatic."
        )
    if mechanism.lipschitz is not None and not isinstance(rule, Flat):
        raise InvalidInput(
            f"clipping must be flat where the guarantee assumes local maps with Lipschitz constant "
            f"{mechanism.lipschitz:g}, got {rule}, which may be steeper; calibrate without lipschitz."
        )
    return rule


def left_out(mechanism: Mechanism, task: Task) -> str:
    """What of the preparation of a task no guarantee covers: what the task declares of its records.

    Constants of features and the first model are named under secret sampling, where the theorem asks for them.
    """
    constants = "" if mechanism.sampling is None else task.public_constants or ""
    if not task.from_records:
        return constants
    return task.from_records if constants in ("", "none") else f"{constants}; {task.from_records}"


def statement(
    mechanism: Mechanism, declared: str, delta: float | None = None, step_rule: str = "", clipping: str = "flat"
) -> str:
    """The guarantee of a run as fields, one a line, its clip and step rules, and what it leaves out.

    Args: declared: of `left_out`; delta: of the printed epsilon; default that of the guarantee.
    """
    guarantee = mechanism.guarantee
    lines = [str(guarantee if delta is None else guarantee.at_delta(delta))]
    if words := clip_rules.parse(clipping, mechanism.clip_norm).words:
        lines.append(f"clip rule: {words}")
    if step_rule:
        lines.append(f"step rule: {step_rule}, a function of privatised gradients")
    if declared not in ("", "none"):
        lines.append(f"not covered, declared public: {declared}")
    return "\n".join(lines)


def require_injected_sums(mechanism: Mechanism, use: str, way: str) -> None:
    """Refuses a guarantee that holds for less than every function of the injected sums.

    Args: use: of the gradients or sums, in words; way: what to do instead.
    """
    guarantee, algorithm = mechanism.guarantee, mechanism.algorithm
    seen = guarantee.release == "not applicable" and algorithm.divisors_cancel
    if mechanism.lipschitz is not None or not guarantee.adaptive or not seen:
        raise UnsupportedMechanism(
            f"this guarantee, under trust model {guarantee.trust!r}, holds for the linear algorithm {algorithm.name!r} "
            f"alone and not for {use}; calibrate under one who sees all messages (mfdl.trust.LDP(), Eavesdropper()) "
            f"with noise on the gradients, or {way}."
        )


def _steps_in_words(mechanism: Mechanism) -> str:
    return " in the same steps" if mechanism.guarantee.owners.same_steps else ""


def require_covered(mechanism: Mechanism, task: Task) -> None:
    """Refuses a task that the mechanism's guarantee does not cover; divisors have their own check."""
    task.require_nodes(mechanism.algorithm.labels)
    if not mechanism.guarantee.owners.covers(task.record_owners):
        raise InvalidInput(
            f"records of task {task.name!r} may be held by {task.record_owners.describe()}, and the guarantee covers "
            f"{mechanism.guarantee.owners.describe()}{_steps_in_words(mechanism)}; calibrate with owners= as the task "
            "states them."
        )
    if mechanism.guarantee.adjacency == "add-remove":
        raise UnsupportedMechanism(
            "under add-remove adjacency the number of records is not public, but the executor's split, record-to-step "
            "map and divisors follow it; use zero-out (the record's gradient is replaced by zero) or replace-one."
        )
    if mechanism.sampling is not None and task.public_constants is None:
        raise UnsupportedMechanism(
            f"under {mechanism.sampling.describe()} task {task.name!r} must declare what was computed from its records "
            "before training, as no guarantee covers that; state public_constants='mean and standard deviation of each "
            "feature' or what else there is, or 'none' if nothing follows from the records."
        )
    if mechanism.lipschitz is not None and not (task.lipschitz is not None and task.lipschitz <= mechanism.lipschitz):
        raise InvalidInput(
            f"the guarantee assumes local maps with Lipschitz constant {mechanism.lipschitz:g}, and task {task.name!r} "
            f"claims {task.lipschitz}; calibrate without lipschitz, or state Task(lipschitz=...) if you can prove it."
        )


# ---- a node in a training loop of the user


def require_batch(records: object, **tensors: object) -> None:
    """Refuses what has no axis of records."""
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor):
            raise InvalidInput(f"{name} must be a tensor, got {type(value).__name__}; torch.as_tensor makes one.")
        if not value.ndim:
            raise InvalidInput(
                f"{name} must be a batch of records, shape (B, ...), got shape (); a batch of one record is "
                "features[None] and targets[None]."
            )
    if records is not None and not hasattr(records, "__len__"):
        raise InvalidInput(
            f"records must be a list of a number for each record, got {check.brief(records)}; leave it out, or give "
            "[number] for a batch of one record."
        )


def require_types(**given: Any) -> None:
    ways = {
        "optimizer": (torch.optim.Optimizer, "torch.optim.SGD(module.parameters(), lr=0.1)"),
        "module": (torch.nn.Module, "the module itself, not a function that builds it"),
        "mechanism": (Mechanism, "mfdl.calibrate(algorithm, ...)"),
    }
    for name, value in given.items():
        kind, way = ways[name]
        if not isinstance(value, kind):
            raise InvalidInput(f"{name} must be a {kind.__name__}, e.g. {way}, got {type(value).__name__}.")


def require_same_parameters(optimizer: torch.optim.Optimizer, module: torch.nn.Module) -> None:
    moved = {id(p) for group in optimizer.param_groups for p in group["params"]}
    named = {name: id(p) for name, p in module.named_parameters() if p.requires_grad}
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UnsupportedMechanism(
            "LBFGS evaluates gradients several times a step, and one was accounted; use SGD, Adam or another optimizer "
            "of one gradient a step."
        )
    missing = [name for name, identity in named.items() if identity not in moved]
    if missing or len(moved) != len(named):
        raise InvalidInput(
            "optimizer must hold exactly the trainable parameters of module, got "
            f"{f'none for {missing[0]!r}' if missing else f'{len(moved)} tensors for {len(named)}'}; make it with "
            "module.parameters()."
        )


def require_own_loop(mechanism: Mechanism) -> None:
    """Refuses a guarantee that does not hold in a training loop of the user, see `PrivateNode`."""
    mechanism.require_unchanged()
    guarantee = mechanism.guarantee
    if mechanism.sampling is not None:
        raise UnsupportedMechanism(
            f"this guarantee counts on batches that are drawn secretly, by {guarantee.participation}, and here "
            "the caller chooses the records of each step; train by mfdl.replay, which draws them, or calibrate for a "
            "public participation such as Cyclic."
        )
    if guarantee.adjacency == "add-remove":
        raise UnsupportedMechanism(
            "under add-remove adjacency the number of records is not public, but steps and divisors may follow it; use "
            "zero-out or replace-one."
        )
    require_injected_sums(mechanism, "what another optimizer or loop makes of the gradients", "train by mfdl.replay")
