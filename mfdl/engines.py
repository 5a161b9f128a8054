"""Where many calls run: in this process one after another, on worker processes, or on a Dask cluster.

In: a function that can be pickled and its items. Out: results as they finish. Whatever the engine, a call has one BLAS
and one torch thread, so that its numbers do not depend on how many run beside it. A worker process that dies takes its
item with it, and the item is done again: by a new pool here, by another worker there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from . import errors
from .errors import InvalidInput, require_known

NAMES = ("joblib", "dask")
DEATHS = 3
"""Of pools of worker processes, with no item finished in between: then what is left of the work is given up."""

ANSWER_SECONDS = 10  # that a scheduler has for its first answer

Finished = tuple[int, Any]  # the place of the item, what the function returned


@dataclasses.dataclass(frozen=True)
class Engine:
    """One way to do many pieces of work.

    Attributes:
        name: "joblib", worker processes of this machine, or "dask", which `mfdl[dask]` installs.
        jobs: how many at a time; None: one per core, at a scheduler all of its workers. 1 with joblib: in this process.
        scheduler: address of a running Dask scheduler, such as tcp://host:8786; None: a cluster of `jobs` workers on
            this machine, for the time of a call.
    """

    name: str = "joblib"
    jobs: int | None = 1
    scheduler: str | None = None

    def __post_init__(self) -> None:
        require_known("engine", self.name, NAMES)
        if self.jobs is not None and (isinstance(self.jobs, bool) or not isinstance(self.jobs, int) or self.jobs < 1):
            raise InvalidInput(f"jobs must be an integer >= 1, or None for one per core, got {self.jobs!r}.")
        if self.scheduler is not None and self.name != "dask":
            raise InvalidInput(f"a scheduler ({self.scheduler}) belongs to engine dask, not to {self.name}.")
        if self.name == "dask":
            errors.imported("distributed", "engine dask", "use the engine joblib")

    @property
    def workers(self) -> int:
        return self.jobs or os.cpu_count() or 1

    def run(
        self, function: Callable[..., Any], items: Iterable[Any], *, here: dict[str, Any] | None = None
    ) -> Iterator[Finished]:
        """(place, function(item)) of every item, in the order in which they finish.

        Args: here: further arguments of calls in this process, such as functions that tell progress.
        Raises: InvalidInput: a scheduler that cannot be reached, or workers that die again and again.
        """
        waiting = list(enumerate(items))
        if not waiting:
            return
        if self.name == "dask":
            yield from _on_dask(self, function, waiting)
        elif min(self.workers, len(waiting)) == 1:
            for place, item in waiting:
                with one_thread():
                    done = function(item, **(here or {}))
                yield place, done
        else:
            yield from _on_processes(self, function, waiting)


@functools.cache
def _libraries() -> Any:
    """A controller of the libraries that start threads; a search takes milliseconds and finds those that are loaded."""
    import scipy.linalg  # noqa: F401
    import torch  # noqa: F401
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread of BLAS, OpenMP and torch inside, as many as before afterwards."""
    import torch

    before = torch.get_num_threads()
    with _libraries().limit(limits=1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@dataclasses.dataclass(frozen=True)
class _Call:
    """An item in a worker process, on one thread, where paths mean what they mean here; it ends with a parent."""

    function: Callable[..., Any]
    ends_with: int | None = None
    folder: str = dataclasses.field(default_factory=os.getcwd)

    def __call__(self, place: int, item: Any) -> Finished:
        import torch

        if self.ends_with is not None:
            _end_with(self.ends_with)
        # for good: a worker of a cluster may run several calls at a time, and none may give threads back to another
        _libraries().limit(limits=1)
        torch.set_num_threads(1)
        if os.path.isdir(self.folder):  # a machine of a cluster need not have it
            os.chdir(self.folder)
        return place, self.function(item)


@functools.cache
def _end_with(parent: int) -> None:
    """Ends this process soon after its parent was killed; else it would wait minutes for another item."""
    if os.getppid() == parent:
        threading.Thread(target=_watch, args=(parent,), name="mfdl parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _on_processes(
    engine: Engine, function: Callable[..., Any], waiting: Sequence[tuple[int, Any]]
) -> Iterator[Finished]:
    from joblib import Parallel, delayed  # processes are started only here
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    # a worker that has grown by 300 MB is replaced between two items: nothing that a user has to know
    warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
    call, left, deaths = _Call(function, ends_with=os.getpid()), dict(waiting), 0
    while left:
        pool = Parallel(n_jobs=min(engine.workers, len(left)), return_as="generator_unordered")
        results = pool(delayed(call)(place, item) for place, item in list(left.items()))
        try:
            with contextlib.closing(results):
                for place, done in results:
                    del left[place]
                    deaths = 0
                    yield place, done
        except TerminatedWorkerError:
            deaths += 1
            if deaths == DEATHS:
                raise InvalidInput(
                    f"worker processes were killed {DEATHS} times in a row, mostly for want of memory; lower --jobs."
                ) from None


def _on_dask(engine: Engine, function: Callable[..., Any], waiting: Sequence[tuple[int, Any]]) -> Iterator[Finished]:
    from distributed import KilledWorker, as_completed

    call = _Call(function)
    with _client(engine) as client:
        futures = [client.submit(call, place, item, pure=False) for place, item in waiting]
        try:
            for _, done in as_completed(futures, with_results=True, loop=client.loop):
                yield done
        except KilledWorker as error:
            raise InvalidInput(f"{error}; mostly for want of memory: give workers more, or start fewer.") from None


@contextlib.contextmanager
def _client(engine: Engine) -> Iterator[Any]:
    from distributed import Client, LocalCluster

    if engine.scheduler is not None:
        try:
            client = Client(engine.scheduler, timeout=ANSWER_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise InvalidInput(
                f"no Dask scheduler answers at {engine.scheduler} ({error or type(error).__name__}); start one with "
                "`dask scheduler`, or leave --scheduler out for workers on this machine."
            ) from None
        with client:
            yield client
        return
    with (
        LocalCluster(n_workers=engine.workers, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client
