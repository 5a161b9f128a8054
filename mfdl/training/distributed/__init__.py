"""Training shared by several processes: each holds a part of the nodes and is sent the messages that cross the cut.

    with mfdl.training.distributed.ranks(4):
        run = mfdl.replay(mechanism, task, seeds=[0])

The numbers are those of one process, up to the order in which a sum is taken. Noise is never sent: every rank makes
that of its nodes from the run's key, shared secrets included.

A group is a torch.distributed process group (gloo, or NCCL where every rank has a GPU), started here or by torchrun.
Rank 0 leads and sends work as pickles, the noise key among it: all ranks are one party, the simulation. A rank that
dies ends the run. `Shares` assigns nodes to ranks by a partition of the graph that cuts few edges; `Seen` makes the
tensor that a map's rows of a rank multiply.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import scipy.sparse as sp
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from ... import check, errors, matrices
from ...algorithms import LinearAlgorithm
from ...algorithms.round import MAPS, SHAPES, Round
from ...errors import InvalidInput, RankLost
from ...operators import Map

Made = TypeVar("Made")
SERVE = "--serve"
PATIENCE = timedelta(minutes=30)  # longest wait for a live rank: longer than any step, evaluation or data set takes
SHARED_RUN = "a run shared by several processes"
MOMENT = 2.0  # seconds for a lost process to be gone, so that it can be named


@dataclasses.dataclass(eq=False)
class Group:
    """This process among its peers.

    Attributes: device: of sent tensors; sent_bytes: of rows of states and messages so far; started: processes of this
        one; under_way: the work has passed the checks of every rank; left_off: a run failed with ranks at different
        places, so the group is unusable.
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
    Raises: MissingExtra: cloudpickle or pymetis is not installed. RankLost, inside: a rank ended.
    """
    count = check.integer_at_least(1, ranks=count)
    if count == 1:
        with leading(Group()) as group:
            yield group
        return
    if _current.get() is not None or dist.is_initialized():
        raise InvalidInput("this process belongs to a group of ranks already; leave that one before starting another.")
    if "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":  # torchrun runs the script on each process
        raise InvalidInput(
            f"torchrun started this script as rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}, each of which "
            f"would train the whole run with ranks({count}); start the script with python, which starts its own ranks, "
            "or a comparison with torchrun -m mfdl.training.distributed CONFIG, whose ranks train one run together."
        )
    require_packages()
    threads, each = torch.get_num_threads(), max(1, torch.get_num_threads() // count)
    with tempfile.TemporaryDirectory(prefix="mfdl-ranks-") as place, contextlib.ExitStack() as ending:
        store = Path(place) / "store"
        local = {"GLOO_SOCKET_IFNAME": "lo"} if Path("/sys/class/net/lo").exists() else {}
        environment = {**os.environ, **local, "OMP_NUM_THREADS": str(each), "MFDL_PROGRESS": "0"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, "-m", __package__, SERVE, str(store), str(count)]
        options: dict[str, Any] = {"env": environment, "stdin": subprocess.DEVNULL, "start_new_session": True}
        started = tuple(subprocess.Popen([*command, str(rank)], **options) for rank in range(1, count))
        ending.enter_context(_environment(local))
        torch.set_num_threads(each)
        ending.callback(torch.set_num_threads, threads)
        try:
            group = joined(0, count, dist.FileStore(str(store), count))
        except BaseException:
            _end(Group(started=started, left_off=True))
            raise
        group.started = started
        ending.callback(dist.destroy_process_group)
        ending.callback(_end, group)
        with leading(group):
            yield group


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
    for process in group.started:
        if group.left_off:
            process.kill()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


SOURCES = ("state", "messages", "nodes", "injection slots")  # operands of maps: the words of their columns
RankOfRow = NDArray[np.intp]
SEED = 0  # every rank makes the partition for itself
NO_RANK = -1


@dataclasses.dataclass(frozen=True, eq=False)
class Seen:
    """Operand of a rank: its own rows of a tensor, and behind them rows that others send.

    Attributes: columns: their indices; sends: places among its own rows, and receives: numbers of rows, by rank.
    """

    group: Group
    columns: NDArray[np.intp]
    sends: Sequence[tuple[int, torch.Tensor]] = ()
    receives: Sequence[tuple[int, int]] = ()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Own rows, shape (rows, dim), followed by the received ones; called by every rank."""
        if not self.sends and not self.receives:
            return x
        received = [(rank, x.new_empty(count, *x.shape[1:])) for rank, count in self.receives]
        self.group.exchange([(rank, x[places].contiguous()) for rank, places in self.sends], received)
        return torch.cat([x, *(rows for _, rows in received)])


class Share:
    """The rows of an algorithm that one rank of a group holds; nodes, slots: in increasing order, None: all.

    Raises: InvalidInput: more ranks than nodes.
    Cost: O(entries) for each distinct map.
    """

    def __init__(self, algorithm: LinearAlgorithm, group: Group, device: torch.device) -> None:
        self.group, self._sizes, self._device = group, algorithm.sizes, device
        self.shares = None if group.size == 1 else Shares.from_algorithm(algorithm, group.size)
        self.nodes = None if self.shares is None else self.shares.rows("nodes", group.rank)
        self.slots = None if self.shares is None else self.shares.rows("injection slots", group.rank).tolist()
        self._number = matrices.numbered()
        self._seen: dict[tuple[object, ...], Seen] = {}
        self._cut: dict[tuple[str, int, int], Map] = {}

    def size(self, name: str) -> int:
        return self._sizes[name] if self.shares is None else len(self.shares.rows(name, self.group.rank))

    def round_maps(self, kind: Round) -> tuple[dict[str, Map], dict[str, Seen]]:
        """(this rank's rows of each map by its name, their operands by the word of their columns)."""
        maps = {name: getattr(kind, name) for name in MAPS}
        seen = {word: self._seen_by({n: m for n, m in maps.items() if SHAPES[n][1] == word}, word) for word in SOURCES}
        return {name: self._rows(m, SHAPES[name][0], seen[SHAPES[name][1]]) for name, m in maps.items()}, seen

    def single_map(self, matrix: Map, rows: str, columns: str) -> tuple[Map, Seen]:
        """As `round` of a single map, its rows and columns named by the words of `round.SHAPES`."""
        seen = self._seen_by({rows: matrix}, columns, (rows,))
        return self._rows(matrix, rows, seen), seen

    def own_rows(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        return whole if self.shares is None else whole[self._places(name, self.group.rank)]

    def gathered(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks, on every rank; every rank must call it."""
        if self.shares is None:
            return rows
        return self.group.gathered(rows, [self._places(name, rank) for rank in range(self.group.size)])

    def mean(self, models: torch.Tensor) -> torch.Tensor:
        """The mean model of all nodes, float64 sums, shape (1, dim); every rank must call it."""
        if self.shares is None:
            return models.mean(0, keepdim=True, dtype=torch.float64).to(models.dtype)
        total = self.group.summed(models.sum(0, keepdim=True, dtype=torch.float64))
        return (total / self._sizes["nodes"]).to(models.dtype)

    def any(self, here: bool) -> bool:
        """Whether it holds on any rank; every rank must call it."""
        if self.shares is None:
            return here
        return bool(self.group.summed(torch.tensor([float(here)], device=self._device)))

    def _places(self, name: str, rank: int) -> torch.Tensor:
        assert self.shares is not None
        return torch.as_tensor(self.shares.rows(name, rank), device=self._device)

    def _seen_by(self, maps: dict[str, Map], columns: str, rows: Sequence[str] | None = None) -> Seen:
        given = [(rows[0] if rows else SHAPES[name][0], m) for name, m in maps.items() if m is not None]
        key = columns, *((word, self._number(m)) for word, m in given)
        if key not in self._seen:
            self._seen[key] = self._needed([m for _, m in given], [word for word, _ in given], columns)
        return self._seen[key]

    def _needed(self, maps: Sequence[sp.csr_array], rows: Sequence[str], columns: str) -> Seen:
        if self.shares is None:
            return Seen(self.group, np.arange(self._sizes[columns]))
        holder, me = self.shares.rank_of[columns], self.group.rank
        size = holder.size
        requests = np.zeros(0, dtype=np.intp)  # rank that needs it x size + column
        for matrix, word in zip(maps, rows, strict=True):
            entries = sp.coo_array(matrix)
            asking = self.shares.rank_of[word][entries.row]
            away = asking != holder[entries.col]
            requests = np.union1d(requests, asking[away] * size + entries.col[away])
        asking, column = np.divmod(requests, size)
        mine = self.shares.rows(columns, me)
        sends = []
        for rank in np.unique(asking[holder[column] == me]):
            places = np.searchsorted(mine, column[(asking == rank) & (holder[column] == me)])
            sends.append((int(rank), torch.as_tensor(places, device=self._device)))
        needed = column[asking == me]
        needed = needed[np.argsort(holder[needed], kind="stable")]  # exact: integers
        ranks, counts = np.unique(holder[needed], return_counts=True)
        received = [(int(rank), int(count)) for rank, count in zip(ranks, counts, strict=True)]
        return Seen(self.group, np.concatenate([mine, needed]), sends, received)

    def _rows(self, matrix: Map, rows: str, seen: Seen) -> Map:
        if matrix is None or self.shares is None:
            return matrix
        key = rows, self._number(matrix), self._number(seen)  # one matrix may make messages and state
        if key not in self._cut:
            place = np.full(matrix.shape[1], -1)
            place[seen.columns] = np.arange(seen.columns.size)
            part = sp.csr_array(matrix)[self.shares.rows(rows, self.group.rank)]
            shape = part.shape[0], seen.columns.size
            cut = sp.csr_array((part.data, place[part.indices], part.indptr), shape=shape)
            cut.sort_indices()
            self._cut[key] = cut
        return self._cut[key]


@dataclasses.dataclass(frozen=True, eq=False)
class Shares:
    """The rank that holds each row, by "nodes", "state", "messages" and "injection slots"; cut_edges: between ranks."""

    rank_of: Mapping[str, RankOfRow]
    num_ranks: int
    cut_edges: int

    @classmethod
    def from_algorithm(cls, algorithm: LinearAlgorithm, num_ranks: int) -> Shares:
        """Assigns nodes by the links of the graph, messages by their senders, state by its model.

        Raises: InvalidInput: more ranks than nodes.
        """
        links = _links(algorithm)
        nodes, num_slots = partition(links, num_ranks), algorithm.noise.slots_per_step
        messages, unassigned = nodes[algorithm.message_sender], np.full(num_slots, NO_RANK)
        state = np.full(algorithm.sizes["state"], NO_RANK)
        state = _filled(state, algorithm.model_from_state, nodes, transposed=True)
        slots = nodes if num_slots == nodes.size else unassigned
        for kind in algorithm.kinds:
            state = _filled(state, kind.state_from_gradient, nodes)
            state = _filled(state, kind.message_from_state, messages, transposed=True)
            state = _filled(state, kind.state_from_message, messages)
            slots = _filled(slots, kind.message_from_noise, messages, transposed=True)
            slots = _filled(slots, kind.state_from_noise, state, transposed=True)
        rank_of = {"nodes": nodes, "state": state, "messages": messages, "injection slots": slots}
        crossing = nodes[links.row] != nodes[links.col]
        assigned = {name: np.maximum(ranks, 0) for name, ranks in rank_of.items()}
        return cls(assigned, num_ranks, int(np.count_nonzero(crossing)) // 2)

    def rows(self, name: str, rank: int) -> NDArray[np.intp]:
        return np.flatnonzero(self.rank_of[name] == rank)


def partition(links: sp.coo_array, num_ranks: int) -> RankOfRow:
    """The rank of each node: parts of nearly equal size with few links between them (METIS).

    Raises: InvalidInput: more ranks than nodes.
    """
    num_nodes = links.shape[0]
    if num_ranks > num_nodes:
        raise InvalidInput(
            f"ranks must be at most the number of nodes, {num_nodes}, got {num_ranks}: every rank holds some."
        )
    if num_ranks == 1:
        return np.zeros(num_nodes, dtype=np.intp)
    neighbours = sp.csr_array(links)
    pymetis = errors.imported("pymetis", "a partition of the nodes")
    options = pymetis.Options(seed=SEED)
    edges = pymetis.CSRAdjacency(neighbours.indptr, neighbours.indices)
    _, parts = pymetis.part_graph(num_ranks, edges, options=options)
    rank_of = np.asarray(parts, dtype=np.intp)
    # METIS may leave a part of a tiny graph empty
    return rank_of if np.unique(rank_of).size == num_ranks else np.arange(num_nodes) * num_ranks // num_nodes


def _links(algorithm: LinearAlgorithm) -> sp.coo_array:
    """Links in any round, either way, without self-loops; coo (n, n)."""
    n, m = algorithm.num_nodes, algorithm.messages_per_round
    sender = sp.csr_array((np.ones(m), (np.arange(m), algorithm.message_sender)), shape=(m, n))
    links = sp.csr_array((n, n))
    for reads in {id(kind.state_from_message): kind.state_from_message for kind in algorithm.kinds}.values():
        if reads is not None:
            links = links + abs(algorithm.model_from_state) @ (abs(reads) @ sender)
    links = sp.csr_array(links + links.T)
    links.setdiag(0)
    links.eliminate_zeros()
    return sp.coo_array(links)


def _filled(ranks: RankOfRow, matrix: Map, rank_of_column: RankOfRow, *, transposed: bool = False) -> RankOfRow:
    """Rows without a rank get the rank of their first entry that has one."""
    if matrix is None:
        return ranks
    entries = sp.coo_array(sp.csr_array(matrix.T if transposed else matrix))
    others = rank_of_column[entries.col]
    filled_entries = np.flatnonzero(others != NO_RANK)[::-1]  # the first entry is written last
    first = np.full(ranks.size, NO_RANK)
    first[entries.row[filled_entries]] = others[filled_entries]
    return np.where(ranks == NO_RANK, first, ranks)
