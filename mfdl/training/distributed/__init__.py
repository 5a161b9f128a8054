"""Training shared by several processes: each holds a part of the nodes and is sent the messages that cross the cut.

    with mfdl.training.distributed.ranks(4):
        run = mfdl.replay(mechanism, task, seeds=[0])

The numbers are those of one process, up to the order in which a sum is taken. Noise is never sent: every rank makes
that of its nodes from the run's key, shared secrets included.

A group is a torch.distributed process group (gloo, or NCCL where every rank has a GPU): started here, one process a
rank on this machine, or by torchrun. Rank 0 leads and sends work as pickles, the noise key among it: all ranks are one
party, the simulation. A rank that dies ends the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from ... import check, errors
from ...errors import InvalidInput, RankLost

Made = TypeVar("Made")
SERVE = "--serve"
PATIENCE = timedelta(minutes=30)
"""Longest wait for a live rank: longer than any step, evaluation or data set takes."""

SHARED_RUN = "a run shared by several processes"
MOMENT = 2.0
"""Seconds for a lost process to be gone, so that it can be named."""


@dataclasses.dataclass(eq=False)
class Group:
    """This process among its peers.

    Attributes: device: of sent tensors; sent_bytes: of rows of states and messages sent to other ranks so far, without
        whole models for checkpoints and evaluations; started: the processes that this one started; under_way: the work
        has passed the checks of every rank; left_off: a run failed with ranks at different places, so the group is
        unusable.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = dataclasses.field(default_factory=lambda: torch.device("cpu"))
    sent_bytes: int = 0
    started: tuple[subprocess.Popen[bytes], ...] = ()
    under_way: bool = False
    left_off: bool = False

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which writes files and shows progress."""
        return self.rank == 0

    @contextlib.contextmanager
    def doing(self, work: Callable[[Group], object]) -> Iterator[None]:
        """Sends work from the leader to all others, which do it in `serve`.

        A refusal before work is `under_way` happens on every rank; after any other error, such as a full disk
        that the leader alone meets, this group can do no more work.
        """
        if self.left_off:
            raise RankLost("an earlier run of this group failed halfway; start a new group of ranks.")
        self.same(lambda: work)
        self.left_off, self.under_way = True, False
        try:
            yield
        except InvalidInput:
            self.left_off = self.under_way
            raise
        self.left_off = False

    def serve(self) -> None:
        """Does the leader's work until it sends None."""
        while (work := self.same(lambda: None)) is not None:
            self.under_way = False
            try:
                work(self)
            except InvalidInput:  # the leader tells, unless it is this rank alone
                if self.under_way:
                    raise

    def same(self, make: Callable[[], Made]) -> Made:
        """The leader's value on every rank; an error of the leader is raised on every rank."""
        if self.size == 1:
            return make()
        cloudpickle = errors.imported("cloudpickle", SHARED_RUN)
        package: list[bytes | None] = [None]
        if self.leads:
            try:
                package = [cloudpickle.dumps((make(), None))]
            except Exception as error:
                package = [cloudpickle.dumps((None, error))]
        with self._lost():
            dist.broadcast_object_list(package, src=0, device=self.device)
        value, refusal = cloudpickle.loads(package[0])
        if refusal is not None:
            raise refusal
        return cast(Made, value)

    def exchange(self, sent: Sequence[tuple[int, torch.Tensor]], received: Sequence[tuple[int, torch.Tensor]]) -> None:
        """Sends tensors to ranks and fills others by theirs, all at once."""
        if not sent and not received:
            return
        work = [dist.P2POp(dist.isend, x, rank) for rank, x in sent]
        work += [dist.P2POp(dist.irecv, x, rank) for rank, x in received]
        self.sent_bytes += sum(x.nbytes for _, x in sent)
        with self._lost():
            for request in dist.batch_isend_irecv(work):
                request.wait()

    def gathered(self, rows: torch.Tensor, places: Sequence[torch.Tensor]) -> torch.Tensor:
        """The rows of all ranks, each at its places: on every rank."""
        if self.size == 1:
            return rows
        whole = rows.new_empty(sum(len(rows_of_rank) for rows_of_rank in places), *rows.shape[1:])
        for rank, rows_of_rank in enumerate(places):
            part = rows.contiguous() if rank == self.rank else rows.new_empty(len(rows_of_rank), *rows.shape[1:])
            with self._lost():
                dist.broadcast(part, rank)
            whole[rows_of_rank.to(whole.device)] = part
        return whole

    def summed(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, on every rank."""
        total = values.clone()
        if self.size == 1:
            return total
        with self._lost():
            dist.all_reduce(total)
        return total

    @contextlib.contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            ended = " and ".join(self._ended()) or "another rank ended or cannot be reached"
            raise RankLost(
                f"{ended}, so the run stopped: no rank can train without the models of its neighbours. What its last "
                "checkpoint holds is kept; the same call goes on from there, with any number of ranks."
            ) from error

    def _ended(self) -> list[str]:
        """Exit states of the started processes; a connection closes a moment before its process is gone."""
        until = time.monotonic() + MOMENT
        while True:
            ended = [f"rank {r} ended with status {p.poll()}" for r, p in enumerate(self.started, 1) if p.poll()]
            if ended or not self.started or time.monotonic() > until:
                return ended
            time.sleep(MOMENT / 100)


_current: ContextVar[Group | None] = ContextVar("mfdl ranks", default=None)


def require_packages() -> None:
    """Refuses several ranks before any work. Raises: MissingExtra: a required package is not installed."""
    for package in ("cloudpickle", "pymetis"):
        errors.imported(package, SHARED_RUN, "train in one process, without ranks")


def current() -> Group:
    """The group that shares training in this context; by default this process alone."""
    return _current.get() or Group()


@contextlib.contextmanager
def ranks(count: int) -> Iterator[Group]:
    """Starts count - 1 processes on this machine; inside, `replay` shares its nodes among them and this process.

    Args: count: R >= 1; each rank gets an equal share of the CPU threads.
    Raises: InvalidInput: a count below 1, a group inside a group, or inside a script of torchrun. MissingExtra:
        cloudpickle or pymetis is not installed. RankLost, inside: a rank ended.
    """
    count = check.integer_at_least(1, ranks=count)
    if count == 1:
        with leading(Group()) as group:
            yield group
        return
    if _current.get() is not None or dist.is_initialized():
        raise InvalidInput("this process belongs to a group of ranks already; leave that one before starting another.")
    _refuse_torchrun(count)
    require_packages()
    threads, each = torch.get_num_threads(), max(1, torch.get_num_threads() // count)
    with tempfile.TemporaryDirectory(prefix="mfdl-ranks-") as place, contextlib.ExitStack() as ending:
        store, started = Path(place) / "store", []
        local = {"GLOO_SOCKET_IFNAME": "lo"} if Path("/sys/class/net/lo").exists() else {}
        environment = {**os.environ, **local, "OMP_NUM_THREADS": str(each), "MFDL_PROGRESS": "0"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, "-m", __package__, SERVE, str(store), str(count)]
        for rank in range(1, count):
            options: dict[str, Any] = {
                "env": environment,
                "stdin": subprocess.DEVNULL,
                "start_new_session": True,
            }
            started.append(subprocess.Popen([*command, str(rank)], **options))
        ending.enter_context(_environment(local))
        torch.set_num_threads(each)
        ending.callback(torch.set_num_threads, threads)
        try:
            group = joined(0, count, dist.FileStore(str(store), count))
        except BaseException:
            _end(Group(started=tuple(started), left_off=True))
            raise
        group.started = tuple(started)
        ending.callback(dist.destroy_process_group)
        ending.callback(_end, group)
        with leading(group):
            yield group


def _refuse_torchrun(count: int) -> None:
    """Refuses ranks inside torchrun, which runs the whole script on each of its processes."""
    size = os.environ.get("WORLD_SIZE", "1")
    if "RANK" in os.environ and size != "1":
        raise InvalidInput(
            f"torchrun started this script as rank {os.environ['RANK']} of {size}, and each of them would train the "
            f"whole run with ranks({count}); start the script with python, which starts its own ranks, or a comparison "
            "with torchrun -m mfdl.training.distributed CONFIG, whose ranks train one run together."
        )


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Lets this process train alone, whatever group it belongs to."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


@contextlib.contextmanager
def leading(group: Group) -> Iterator[Group]:
    """Shares training inside, on the leader's side; afterwards the others receive the order to end."""
    token = _current.set(group)
    try:
        yield group
    finally:
        _current.reset(token)
        if not group.left_off:
            with contextlib.suppress(RankLost):
                group.same(lambda: None)


def joined(rank: int, size: int, store: Any = None) -> Group:
    """Enters the process group, by a store or by torchrun's variables: NCCL if every rank of this machine has a GPU."""
    require_packages()
    on_machine = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= on_machine
    place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank))) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(place)
    dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=size, timeout=PATIENCE)
    return Group(rank, size, place)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _end(group: Group) -> None:
    """Sends the order to end; a rank that does not end, or cannot be reached, is stopped."""
    for process in group.started:
        if group.left_off:
            process.kill()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


__all__ = ["Group", "RankLost", "apart", "current", "joined", "leading", "ranks", "require_packages"]
