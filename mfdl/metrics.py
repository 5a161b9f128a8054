"""What a trained model is measured by: loss and accuracy on the test records, and more where it is asked for.

A name is the same everywhere: an option of `replay` and of `mfdl compare`, a key of `SeedRun.metrics`, a column of rows
and files, a picture's metric, and with `result_key` a key in results.

No guarantee covers any of them, nor times, nor whether a run diverged: they are computed without noise, from records or
from models that may not be released. The annotation `NotPrivate[...]` marks such fields of a dataclass. Publishing
them, choosing parameters by them or stopping by them is outside every guarantee.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable
from typing import Annotated, TypeVar

from .errors import InvalidInput, require_known

WORDS = {
    "loss": "test loss", "accuracy": "test accuracy", "train_loss": "train loss",
    "average_loss": "test loss of the average model", "average_accuracy": "test accuracy of the average model",
    "average_train_loss": "train loss of the average model",
}  # fmt: skip
METRICS = tuple(name for name in WORDS if name not in ("loss", "accuracy"))
"""Those on request: the loss of each node's model over all train records of all nodes, and test loss, test accuracy and
train loss of the average of all nodes' models, one number for all nodes."""
LAST_STEPS = 50  # final figures average the evaluations of at most so many last steps
T = TypeVar("T")

NOT_PRIVATE = "not covered by any guarantee: computed without noise, for research"
NotPrivate = Annotated[T, NOT_PRIVATE]


def final_steps(finished_steps: int) -> int:
    """Number of last steps over which final figures are averaged: 50, in short runs a quarter of all.

    >>> final_steps(320), final_steps(32)
    (50, 8)
    """
    return min(LAST_STEPS, -(-finished_steps // 4))


def result_key(at: str, metric: str) -> str:
    """The key of a number in results: of "final" or "last" models, the test loss spelt out.

    >>> result_key("final", "loss"), result_key("last", "train_loss")
    ('final_test_loss', 'last_train_loss')
    """
    return f"{at}_test_loss" if metric == "loss" else f"{at}_{metric}"


def metric_of(key: str) -> str:
    metric = key.partition("_")[2]
    return "loss" if metric == "test_loss" else metric


def is_of_nodes(name: str) -> bool:
    """Whether each node has its own; else there is one for their average."""
    return not name.startswith("average_")


def is_accuracy(name: str) -> bool:
    """Whether it is a share of records classified rightly, which a regression has not; else a loss."""
    return name.endswith("accuracy")


def requested(metrics: Iterable[str]) -> tuple[str, ...]:
    """The metrics of these names, each once, in the order of METRICS; "train-loss" is read as "train_loss".

    >>> requested(["average-loss", "train_loss"])
    ('train_loss', 'average_loss')
    """
    if isinstance(metrics, str) or not isinstance(metrics, Iterable):
        raise InvalidInput(f"metrics must be a list of names among {', '.join(METRICS)}, got {metrics!r}.")
    names = [name.replace("-", "_") if isinstance(name, str) else name for name in metrics]
    for name in names:
        require_known("metric on request", name, METRICS)
    return tuple(name for name in METRICS if name in names)


def require_measured(metrics: Iterable[str], kind: str, task: str) -> None:
    for name in metrics:
        if is_accuracy(name) and kind != "classification":
            raise InvalidInput(f"metric {name!r} needs a classifier, and task {task!r} is a regression; leave it out.")


def not_private_fields(kind: type) -> tuple[str, ...]:
    """Names of the fields of a dataclass whose type carries the mark, in their order.

    >>> from mfdl.training.tasks import Evaluation
    >>> not_private_fields(Evaluation)
    ('loss', 'accuracy', 'metrics')
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple(name for name, hint in hints.items() if NOT_PRIVATE in getattr(hint, "__metadata__", ()))
