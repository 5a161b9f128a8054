"""Boundary checks shared by the public constructors; inside the package the types are trusted.

Each check takes one keyword, `name=value`, so that the message can name the argument, and returns the
checked value as the plain type it stands for.
"""

from __future__ import annotations

import contextlib
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInput, UnusualSetting

FloatArray = NDArray[np.float64]

LARGEST = 1e60
"""Size of entries, and of their inverses: beyond, squares and their products leave the range of float64, and a loss
that underflows would read as none."""


WANTED = {  # by the name of a class: its objects in words with an example; how to get one
    "Dynamics": "a Dynamics, e.g. mfdl.Dynamics(mfdl.gossip.metropolis_hastings(graph))",
    "Gossip": "a gossip matrix or a sequence of them; average over a graph with "
    "mfdl.gossip.metropolis_hastings(graph), over a given W with mfdl.gossip.from_array(W), over one for each step "
    "with mfdl.gossip.sequence([...])",
    "Curvature": "a Curvature or its text such as 'power:1:100'; eigenvalues go to mfdl.objective.Curvature([...])",
    "Encoder": "an encoder with structure, e.g. mfdl.factorization.encoders.Toeplitz",
    "FactorizationProblem": "a FactorizationProblem, e.g. mfdl.factorization.problem(dynamics, participation)",
    "MaximumProblem": "a MaximumProblem; it is mfdl.factorization.maximum_problem(...)",
    "GossipMatrix": "one gossip matrix, e.g. mfdl.gossip.metropolis_hastings(graph)",
    "Graph": "a networkx graph or the name of one, e.g. 'ring:n=16'; mfdl.graphs.names() lists the names",
    "LinearAlgorithm": "a LinearAlgorithm, e.g. mfdl.algorithms.dp_dsgd(dynamics, participation); build a name with "
    "mfdl.algorithms.build(name, dynamics, participation), take a Mechanism's as .algorithm",
    "Mechanism": "a Mechanism, an algorithm with its noise and guarantee; make one: mfdl.calibrate(algorithm, "
    "mfdl.Privacy(trust, adjacency=..., clip_norm=...), mu=...), or with noise_std=... for a given noise",
    "Module": "a Module, the module itself, not a function that builds it",
    "NoiseOperator": "a noise operator of mfdl.noise, e.g. IndependentNoise(num_steps, num_nodes); that of an "
    "algorithm is algorithm.noise",
    "BallsInBinsGaussian": "a BallsInBinsGaussian, the certified curve",
    "PrivacyCurve": "a curve of mfdl.privacy.curves",
    "Optimizer": "an Optimizer, e.g. torch.optim.SGD(module.parameters(), lr=0.1)",
    "Participation": "a participation, e.g. mfdl.Cyclic(epochs=20, period=16)",
    "Probes": "Probes, e.g. mfdl.objective.Probes(count=8)",
    "Privacy": "a Privacy, e.g. mfdl.Privacy(mfdl.trust.LDP(), adjacency='zero-out', clip_norm=1.0)",
    "RandomGossip": "gossip that is drawn anew in each round, e.g. mfdl.gossip.randomized.links(W, 0.1)",
    "Partition": "a partition of records; one of a name is mfdl.partition.parse(name)",
    "SpatioTemporalFactorization": "a SpatioTemporalFactorization, e.g. mfdl.factorization.optimal_kronecker(dynamics, "
    "participation)",
    "SpatialFactorization": "a SpatialFactorization, e.g. mfdl.factorization.optimal_covariance(dynamics); a matrix is "
    "for mfdl.algorithms.spatial_covariance",
    "SpectralMeasure": "a SpectralMeasure; leave it out to have it computed",
    "StreamState": "what NoiseStream.state() gave",
    "Task": "a Task, e.g. mfdl.tasks.digits(graph); one of your own data is mfdl.tasks.from_module(...)",
    "TrustModel": "a trust model such as mfdl.trust.LDP(); one of a name is mfdl.trust.named(name)",
    "View": "a View; it is mfdl.View(A, B, num_nodes=n), or trust.view(algorithm, victim)",
}


def instance(*kinds: type, **named: Any) -> None:
    name, value = name_and_value(named)
    if not isinstance(value, kinds):
        wanted, _, ways = zip(*(WANTED[kind.__name__].partition("; ") for kind in kinds), strict=True)
        end = "; ".join(filter(None, (brief(value), *ways)))
        raise InvalidInput(f"{name} must be {' or '.join(wanted)}, got {end}.")


def brief(value: Any) -> str:
    """A value in a few words, for messages: a text or a number as it is, else its type.

    >>> brief("ring"), brief(None), brief([1, 2]), brief(dict)
    ("'ring'", 'None', 'list', 'the class dict, not called')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}, not called"
    plain = value is None or isinstance(value, bool | int | float | complex)
    return repr(value) if plain or (isinstance(value, str) and len(value) <= 80) else type(value).__name__


def name_and_value(named: dict[str, Any]) -> tuple[str, Any]:
    ((name, value),) = named.items()
    return name, value


def listed(contents: str, **named: Any) -> list[Any]:
    """The items of a list, tuple, set, array or other iterable of `contents` that is no text and no mapping."""
    name, value = name_and_value(named)
    try:
        if isinstance(value, str | bytes | Mapping | type):
            raise TypeError
        return list(value)
    except TypeError:
        raise InvalidInput(f"{name} must be a list of {contents}, got {brief(value)}.") from None


def mapping(contents: str, **named: Any) -> Mapping[Any, Any]:
    name, value = name_and_value(named)
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{name} must be a dictionary of {contents}, got {brief(value)}.")
    return value


def text(example: str, **named: Any) -> str:
    name, value = name_and_value(named)
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be a text such as {example}, got {brief(value)}.")
    return value


def texts(**named: Any) -> tuple[str, ...]:
    name, given = name_and_value(named)
    items = listed("texts", **named)
    if not all(isinstance(text, str) for text in items):
        raise InvalidInput(f"{name} must be a list of texts, got {given!r}.")
    return tuple(items)


def path(**named: Any) -> Path:
    name, value = name_and_value(named)
    try:
        return Path(value)
    except TypeError:
        raise InvalidInput(f"{name} must be a path, given as text or pathlib.Path, got {brief(value)}.") from None


def flag(**named: Any) -> bool:
    """True or False; a text such as "no", which Python takes for true, is refused."""
    name, value = name_and_value(named)
    if not isinstance(value, bool | np.bool_):
        raise InvalidInput(f"{name} must be True or False, got {brief(value)}.")
    return bool(value)


def function(example: str, **named: Any) -> None:
    name, value = name_and_value(named)
    if not callable(value):
        raise InvalidInput(f"{name} must be a function such as {example}, got {brief(value)}.")


def index(value: Any) -> int:
    """An integer as Python has it; TypeError for all else, bool among it."""
    if isinstance(value, bool | np.bool_):
        raise TypeError
    return operator.index(value)


def integer(**named: Any) -> int:
    name, value = name_and_value(named)
    try:
        return index(value)
    except TypeError:
        raise InvalidInput(f"{name} must be an integer, got {brief(value)}.") from None


def integer_at_least(minimum: int, **named: Any) -> int:
    """An integer >= minimum; bool is none here."""
    name, value = name_and_value(named)
    number = minimum - 1
    with contextlib.suppress(TypeError):
        value = number = index(value)
    if number < minimum:
        raise InvalidInput(f"{name} must be an integer >= {minimum}, got {value!r}.")
    return number


def at_most_steps(num_steps: int, **named: Any) -> int:
    """A number of diagonals, an integer >= 1: all T where it is more, with a warning."""
    name, value = name_and_value(named)
    width = integer_at_least(1, **named)
    if width > num_steps:
        warnings.warn(
            f"{name} {value} is more than the T = {num_steps} steps, so all {num_steps} diagonals are used; give at "
            f"most {num_steps}, or leave it out.",
            UnusualSetting,
            stacklevel=4,
        )
    return min(width, num_steps)


def _number(named: dict[str, Any], rule: str, holds: Callable[[float], bool]) -> float:
    name, value = name_and_value(named)
    try:
        number = math.nan if isinstance(value, bool | np.bool_ | str) or np.ndim(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not holds(number):
        raise InvalidInput(f"{name} must be {rule}, got {value!r}.")
    return number


def positive(**named: Any) -> float:
    return _number(named, "a finite number > 0", lambda number: 0 < number < math.inf)


def non_negative(**named: Any) -> float:
    return _number(named, "a finite number >= 0", lambda number: 0 <= number < math.inf)


def non_negative_or_inf(**named: Any) -> float:
    _, value = name_and_value(named)
    return math.inf if isinstance(value, float | np.floating) and value == math.inf else non_negative(**named)


def open_unit(**named: Any) -> float:
    return _number(named, "a number strictly between 0 and 1", lambda number: 0 < number < 1)


def as_array(**named: Any) -> NDArray[Any]:
    """What numpy makes of it: an array, a list of numbers, a tensor, a table of pandas; perhaps no copy."""
    name, value = name_and_value(named)
    try:
        return np.asarray(value)
    except (TypeError, RuntimeError) as error:  # a tensor that requires grad, or is not on the CPU
        if not hasattr(value, "detach"):
            raise InvalidInput(f"{name} must be a numeric array, got {brief(value)}.") from None
        reason = "requires grad" if value.requires_grad else f"is on {value.device}"
        raise InvalidInput(
            f"{name} must be plain numbers, got a tensor that {reason}; give {name}.detach().cpu()."
        ) from error
    except ValueError:
        raise InvalidInput(
            f"{name} must be a numeric array with rows of one length, got {brief(value)} of parts that differ."
        ) from None


def finite_array(ndim: int, **named: Any) -> FloatArray:
    """An own float64 copy of an array of `ndim` dimensions with finite entries."""
    name, value = name_and_value(named)
    try:
        given = as_array(**named)
        if given.dtype.kind == "c":  # numpy would drop the imaginary part
            raise InvalidInput(f"{name} must be real numbers, got complex ones.")
        array = np.array(given, dtype=np.float64)
    except InvalidInput:
        raise
    except (TypeError, ValueError, OverflowError):
        kind = type(value).__name__
        raise InvalidInput(f"{name} must be a numeric array with {ndim} dimensions, got {kind}.") from None
    if array.ndim != ndim:
        raise InvalidInput(f"{name} must have {ndim} dimensions, got shape {array.shape}.")
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise InvalidInput(f"{name} must be finite, got {array[where]} at index {where}.")
    return array


def square_array(**named: Any) -> FloatArray:
    name, _ = name_and_value(named)
    array = finite_array(2, **named)
    if array.shape[0] != array.shape[1]:
        raise InvalidInput(f"{name} must be square, got shape {array.shape}.")
    return array


def device(**named: Any) -> None:
    """A device of torch, by name, number or object, that can be used here; None is always fine."""
    name, value = name_and_value(named)
    if value is None:
        return
    import torch  # only a named device needs it

    try:
        torch.zeros(1, device=value).item()
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        here = "cpu or cuda" if torch.cuda.is_available() else "cpu, the only one here"
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InvalidInput(f"{name} {str(value)!r} cannot be used: {reason}; use {here}, or leave it out.") from None


def trained_in(**named: Any) -> None:
    name, value = name_and_value(named)
    import torch  # only a task or a run has one

    if not isinstance(value, torch.dtype) or value not in (torch.float32, torch.float64):
        raise InvalidInput(f"{name} must be torch.float32 or torch.float64, got {value!r}.")


def numbers_in_file(path: str, *, contents: str, ndim: Literal[1, 2] | None = None) -> FloatArray:
    """The finite numbers in a .npy file, or in a text with one row a line, apart by commas or spaces.

    Args: contents: of the file, for the message; ndim: of the array; default as the file has it.
    """
    try:
        if path.lower().endswith(".npy"):
            array = np.load(path, allow_pickle=False)
        else:
            text = Path(path).read_text(encoding="utf-8-sig")
            array = np.loadtxt(text.replace(",", " ").splitlines(), ndmin=ndim or 0)
    except (OSError, ValueError, EOFError) as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInput(
            f"{contents} file {path!r} cannot be read: {cause}; give a .npy file, or a text of numbers apart by commas "
            "or spaces."
        ) from None
    return finite_array(array.ndim if ndim is None else ndim, **{f"{contents} file {Path(path).name}": array})
