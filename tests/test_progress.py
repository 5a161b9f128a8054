"""What long work says: to a terminal, a notebook, a function, or nobody."""

import functools
import io
import os
import subprocess
import sys
import time
from contextlib import redirect_stderr

import numpy as np
import pytest
from vocabulary import ZERO_OUT, dynamics_on, each, refuses

from mfdl import Cyclic, Losses, Privacy, algorithms, audit, calibrate, factorization, privacy, progress, replay, trust
from mfdl.progress import SILENT, Callback, OnScreen, Row, Silent, reporter
from mfdl.runs.pairwise_losses import pairwise_losses
from mfdl.testing.tasks import still_task

RING = dynamics_on("ring:n=4", learning_rate=0.1)
PART = Cyclic(epochs=2, period=2)
FRESH = algorithms.dp_dsgd(RING, PART)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def outside(monkeypatch):
    monkeypatch.setattr(progress, "QUIET_UNDER", ("A_TEST_OF_THIS",))
    monkeypatch.delenv(progress.ENVIRONMENT_VARIABLE, raising=False)


@pytest.fixture
def terminal(outside, monkeypatch):
    """To redirect stderr to, which pytest sets anew for every test: a place that somebody looks at; rows at once."""
    opened = Terminal()
    monkeypatch.setattr(progress, "SHOWN_AFTER", 0.0)
    monkeypatch.setattr(progress, "PER_SECOND", 100)
    monkeypatch.setenv("TERM", "xterm")
    return opened


@pytest.fixture
def rows(monkeypatch):
    drawn = []
    monkeypatch.setattr(progress.SCREEN, "add", drawn.append)
    monkeypatch.setattr(progress.SCREEN, "remove", lambda row: None)
    return drawn


def test_by_default_nothing_is_shown_in_tests_and_in_ci(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.delenv(progress.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.delenv("CI", raising=False)
    assert reporter() is SILENT
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    assert isinstance(reporter(), OnScreen)
    monkeypatch.setenv("CI", "true")
    assert reporter() is SILENT


@each(
    "message, kind",
    ("", OnScreen), ("auto", OnScreen), ("0", Silent), ("off", Silent), ("1", OnScreen), ("ON", OnScreen),
)  # fmt: skip
def test_the_environment_decides_for_auto_alone(terminal, monkeypatch, message, kind):
    monkeypatch.setenv(progress.ENVIRONMENT_VARIABLE, message)
    with redirect_stderr(terminal):
        assert type(reporter()) is kind
        assert type(reporter("auto")) is kind
        assert type(reporter(True)) is OnScreen
        assert type(reporter(False)) is type(reporter(None)) is Silent


def test_what_cannot_be_meant_is_refused(terminal, monkeypatch):
    refuses("progress must be True, False, 'auto", reporter, "yes")
    monkeypatch.setenv(progress.ENVIRONMENT_VARIABLE, "2")
    refuses(r"MFDL_PROGRESS must be 0 \(off\), 1 \(on\)", reporter)


@pytest.mark.parametrize("words", [0, 1, 2])
def test_a_function_is_called_with_as_many_words_as_it_was_promised(words):
    calls = []
    report = reporter(lambda *texts: calls.append(texts), words=words)
    with report.bar("work", 3) as advance:
        advance()
        advance(2, "more work")
    assert calls == [texts[:words] for texts in [(1, "work"), (2, "more work")]]
    assert isinstance(report, Callback)
    assert report.within() is SILENT
    assert reporter(report) is report


def wait_for(drawn):
    ends = time.monotonic() + 600
    while not drawn() and time.monotonic() < ends:
        time.sleep(0.01)


def test_a_terminal_shows_work_inside_work_and_is_clean_afterwards(terminal):
    with (
        redirect_stderr(terminal),
        reporter().bar("outer [bold]", 4) as advance,
        reporter().bar("inner", 2000, unit="bytes") as inner,
    ):
        advance(3)
        inner(1000)
        wait_for(lambda: "3/4" in terminal.getvalue() and "inner" in terminal.getvalue())
    text = terminal.getvalue()
    assert all(words in text for words in ("outer [bold]", "3/4", "inner", "0.0/0.0 MB", "left"))
    assert text.endswith("\x1b[2K")  # the last row is erased, the cursor where it was
    assert progress.SCREEN.thread is None


def test_what_is_over_soon_is_never_drawn(terminal, monkeypatch):
    monkeypatch.setattr(progress, "SHOWN_AFTER", 60.0)
    with redirect_stderr(terminal), reporter().bar("work", 4) as advance:
        time.sleep(0.05)
        advance()
    assert terminal.getvalue() == ""


def test_the_screen_closes_when_work_fails(terminal):
    def work():
        with redirect_stderr(terminal), reporter().status("work"):
            wait_for(lambda: "work" in terminal.getvalue())
            raise ZeroDivisionError

    refuses(None, work, error=ZeroDivisionError)
    assert progress.SCREEN.thread is None
    assert "work" in terminal.getvalue()


def test_a_file_that_was_asked_for_gets_plain_lines(outside, monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(progress, "SHOWN_AFTER", 0.0)
    monkeypatch.setattr(progress, "LOG_AFTER", 0.0)
    monkeypatch.setattr(progress, "PER_SECOND", 100)
    with reporter(True).bar("work", 4) as advance, reporter(True).status("a part"):
        advance()
        wait_for(log.getvalue)
    (line,) = log.getvalue().splitlines()
    assert line == "work 1/4 | a part, 0 s"


def test_a_command_tells_a_log_what_it_does(outside, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress.in_logs():
        assert isinstance(reporter(), OnScreen)
        monkeypatch.setenv("MFDL_PROGRESS", "0")
        assert reporter() is SILENT
    monkeypatch.delenv("MFDL_PROGRESS")
    assert reporter() is SILENT


def test_a_search_fills_with_the_logarithm_of_its_gap(rows):
    with reporter(True).search("work", 1e-4) as report:
        (row,) = rows
        for iterations, gap, share in [(0, np.inf, 0), (10, 1.0, 0), (20, 0.01, 0.5), (30, 0.1, 0.5), (40, 1e-5, 1)]:
            report(iterations, gap)
            assert row.done == pytest.approx(share)
    assert row.amount() == "40 iterations, gap at most 1e-05, tolerance 0.0001"


def test_the_row_of_a_notebook_is_text_that_is_redrawn(monkeypatch):
    display = pytest.importorskip("IPython.display")
    shows = []

    class Handle:
        def update(self, data, raw):
            shows.append(data["text/plain"])

    monkeypatch.setattr(display, "display", lambda data, **options: shows.append(data["text/plain"]) or Handle())
    drawn, row = progress._InNotebook(), Row("work", 4)
    for _ in range(2):
        row.advance()
        drawn.show([row])
    drawn.close()
    assert [text[:4] for text in shows] == ["work", "work", ""]
    assert "2/4" in shows[1]


def test_a_worker_process_shows_nothing(terminal, monkeypatch):
    monkeypatch.setattr(progress.multiprocessing, "parent_process", lambda: object())
    with redirect_stderr(terminal):
        assert reporter() is SILENT


@pytest.mark.slow
def test_a_command_in_no_terminal_writes_its_answer_alone():
    command = [sys.executable, "-m", "mfdl", "account", "--graph", "ring:n=4", "--epochs", "1", "--json"]
    env = {name: value for name, value in os.environ.items() if name not in ("PYTEST_CURRENT_TEST", "CI")}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    assert done.stdout.startswith("{")
    assert done.stderr == ""


def replayed(**options):
    calibrated = calibrate(FRESH, LDP, mu=1.0, progress=False)
    return replay(calibrated, still_task(4, np.ones((8, 1)), 2), seeds=[0, 1], **options)


def audited(**options):
    return audit.audit(FRESH, trust=trust.LDP(), noise_std=1.0, trials=400, level=0.5, **ZERO_OUT, **options)


def matrix(**options):
    settings = ZERO_OUT | {"mu": 1.0, "trials": 400, "level": 0.5}
    return audit.audit_matrix({"dp-dsgd": FRESH}, {"ldp": trust.LDP()}, **settings, **options)


def of_ring(function, *more, **chosen):
    return functools.partial(function, RING, *more, **chosen)


LDP = Privacy(trust.LDP(), **ZERO_OUT)
FACTORIZING = [("factorizing 4 steps", 1.0)]
WORK = {
    "replay": (replayed, [("dp-dsgd on still", 8)]),
    "losses": (functools.partial(Losses.from_algorithm, FRESH, LDP), [("losses of dp-dsgd under ldp", 4)]),
    "coalitions": (
        functools.partial(privacy.sensitivity_by_victim, FRESH, trust.Coalitions(1)),
        [("losses of dp-dsgd under coalitions", 12)],
    ),
    "pairwise": (
        functools.partial(pairwise_losses, FRESH, lambda v: trust.PNDP([v]), jobs=1),
        [("losses of dp-dsgd, attackers", 4)],
    ),
    "calibrate": (functools.partial(calibrate, FRESH, LDP, mu=1.0), None),
    "audit": (audited, None),
    "audit_matrix": (matrix, None),
    "factorize": (of_ring(factorization.factorize, PART), FACTORIZING),
    "autodiff": (of_ring(factorization.factorize, PART, solver="autodiff"), FACTORIZING),
    "nodes": (of_ring(factorization.factorize_nodes, PART), [("factorizing nodes", 4)]),
    "classes": (of_ring(factorization.factorize_classes, PART), [("factorizing classes of nodes", 1)]),
    "covariance": (of_ring(factorization.optimal_covariance), [("factorizing 4 nodes", None)]),
    "per-mode": (of_ring(factorization.optimal_per_mode, PART), [("factorizing 4 steps x 4 nodes, per-mode", None)]),
    "mafalda": (of_ring(algorithms.mafalda, PART), FACTORIZING),
}


@pytest.mark.parametrize("name", WORK)
def test_long_work_shows_itself_and_is_silenced_by_one_word(name, rows):
    work, expected = WORK[name]
    work()  # under pytest
    work(progress=False)
    work(progress=None)
    assert not rows
    work(progress=True)
    assert rows
    if expected is not None:
        assert [(row.doing.partition(",")[0] if name == "replay" else row.doing, row.total) for row in rows] == expected
    for row in rows:
        assert row.total is None or row.done == pytest.approx(row.total)


@pytest.mark.parametrize("solver", ["dense", "autodiff"])
def test_a_factorization_tells_iterations_and_a_gap_that_ends_at_its_own(solver):
    reported = []
    options = {"solver": solver, "progress": lambda *words: reported.append(words)}
    solution = factorization.factorize(dynamics_on("path:n=5"), Cyclic(3, 4), **options)
    iterations, gaps = zip(*reported, strict=True)
    assert list(iterations) == sorted(set(iterations))
    assert iterations[-1] <= solution.iterations
    assert gaps[-1] == pytest.approx(solution.gap, abs=1e-4)
    assert min(gaps) >= -1e-12
