"""Records as checked copies of a caller's arrays, tensors, tables of pandas or torch Datasets; digests of code.

Functions that compute different things have different digests: of code, constants, defaults, closures, arguments and
attributes. Tensors and arrays enter by their content, others by their repr: an object whose repr hides its state may be
missed, so unseeded runs do not rest on this.
"""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from ... import check
from ...errors import InvalidInput

ARRAYS = ("features", "targets", "test_features", "test_targets")


def caller_arrays(train: Any, test: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    """The four arrays, by the names of ARRAYS: as they are, or those of two Datasets.

    Raises: InvalidInput: both given, neither, or half of either; a Dataset that cannot be stacked.
    """
    missing = [name for name, array in arrays.items() if array is None]
    datasets = {"train": train, "test": test}
    lacking = [name for name, dataset in datasets.items() if dataset is None]
    if len(lacking) == 2:
        if missing:
            raise InvalidInput(
                f"records must be given as {', '.join(ARRAYS)}, or as Datasets, train and test; got no "
                f"{', no '.join(missing)}."
            )
        return arrays
    if given := [name for name in ARRAYS if name not in missing]:
        raise InvalidInput(
            f"records must be given once, got train or test and also {', '.join(given)}; leave out one or the other."
        )
    if lacking:
        raise InvalidInput(
            f"{lacking[0]} must be a Dataset too, got None; torch.utils.data.random_split holds some records back."
        )
    (features, targets), (test_features, test_targets) = (dataset_arrays(**{name: datasets[name]}) for name in datasets)
    return dict(zip(ARRAYS, (features, targets, test_features, test_targets), strict=True))


def dataset_arrays(**named: Any) -> tuple[Any, Any]:
    """(features, targets) of a map-style Dataset of such pairs, each stacked, one row per record.

    Raises: InvalidInput: no Dataset of known length, an item that is no pair of numbers, or items of several shapes.
    """
    name, dataset = check.name_and_value(named)
    if isinstance(dataset, DataLoader):
        raise InvalidInput(f"{name} must be a Dataset, got a DataLoader, which makes batches; give loader.dataset.")
    if isinstance(dataset, IterableDataset):
        raise InvalidInput(
            f"{name} must be a Dataset with items by number, got the IterableDataset {type(dataset).__name__}; give "
            "list(dataset)."
        )
    if not isinstance(dataset, type) and hasattr(dataset, "__getitem__") and not hasattr(dataset, "__len__"):
        raise InvalidInput(
            f"{name} must say how many records it holds, got {check.brief(dataset)} without a length; define __len__."
        )
    if isinstance(dataset, type | str) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise InvalidInput(
            f"{name} must be a Dataset of pairs (features, target), e.g. torch.utils.data.TensorDataset(x, y), got "
            f"{check.brief(dataset)}."
        )
    if type(dataset) is TensorDataset and len(dataset.tensors) == 2:
        return dataset.tensors
    if len(dataset) == 0:
        raise InvalidInput(f"{name} must hold at least one record, got none.")
    pairs = [_pair(name, dataset, row) for row in range(len(dataset))]
    features, targets = zip(*pairs, strict=True)
    return _stacked(f"features of {name}", features), _stacked(f"targets of {name}", targets)


def _pair(name: str, dataset: Any, row: int) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        item = dataset[row]
    except Exception as error:
        raise InvalidInput(
            f"{name} fails at item {row}: {type(error).__name__}: {error}; look at {name}[{row}]."
        ) from error
    if not isinstance(item, tuple | list) or len(item) != 2:
        got = f"{len(item)} parts" if isinstance(item, tuple | list) else check.brief(item)
        raise InvalidInput(
            f"{name} must hold a pair (features, target) for each record, got {got} at item {row}; wrap it in a "
            "Dataset that gives pairs, such as torch.utils.data.TensorDataset(features, targets)."
        )
    for part in item:
        if type(part).__module__.startswith("PIL."):
            raise InvalidInput(
                f"{name} must hold numbers, got a PIL image at item {row}; apply transforms.ToTensor() in the Dataset "
                "(transform=...)."
            )
    features, target = (check.as_array(**{f"item {row} of {name}": part}) for part in item)
    return features, target


def _stacked(name: str, rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    shapes = [array.shape for array in rows]
    other = next((row for row, shape in enumerate(shapes) if shape != shapes[0]), None)
    if other is not None:
        raise InvalidInput(
            f"{name} must have one shape, got {shapes[0]} at item 0 and {shapes[other]} at item {other}; resize or pad "
            "them alike."
        )
    return np.stack(rows)


def by_name(features: Any, test_features: Any) -> Any:
    """The test features with columns in the order of the train features, if both are tables with names of columns.

    Raises: InvalidInput: names that are not the same, or that repeat in another order.
    """
    if not (hasattr(features, "columns") and hasattr(test_features, "columns")):
        return test_features
    names, others = list(features.columns), list(test_features.columns)
    if names == others:
        return test_features
    if set(names) != set(others) or len(names) != len(set(names)) or len(names) != len(others):
        unlike = sorted(map(repr, set(names) ^ set(others))) or ["names that repeat"]
        raise InvalidInput(
            f"test_features must have the columns of features, in any order, got tables that differ in "
            f"{', '.join(unlike[:5])}; rename or drop columns."
        )
    return test_features[names]


def require_same_order(part: str, features: Any, targets: Any) -> None:
    """Refuses tables whose rows have the same labels in another order: rows are paired by position."""
    if hasattr(features, "iloc") and hasattr(targets, "iloc"):
        rows, values = list(features.index), list(targets.index)
        if rows != values and set(rows) == set(values):
            raise InvalidInput(
                f"{part}features and {part}targets must have their rows in one order, got the same index in two; give "
                f"{part}targets.loc[{part}features.index]."
            )


def features(**named: Any) -> NDArray[Any]:
    """An own copy (float32 or int64) of at least one finite record."""
    name, array = _array(named)
    if array.dtype.kind not in "fiub" or array.ndim < 1 or array.size == 0:
        raise InvalidInput(
            f"{name} must be a numeric array with at least one record, got shape {array.shape} of {array.dtype}"
            f"{_way_out(name, check.name_and_value(named)[1], array)}."
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold is named below
        copy = np.array(array, dtype=np.int64 if array.dtype.kind in "iu" else np.float32)
    if copy.dtype == np.float32:
        finite = np.isfinite(copy.reshape(len(copy), -1)).all(axis=1)
        if not finite.all():
            row = int(np.argmin(finite))  # exact: booleans
            raise InvalidInput(
                f"{name} must be finite in float32, got {array[row].ravel()[~np.isfinite(copy[row].ravel())][0]} in "
                f"row {row} ({int((~finite).sum())} of {len(copy)} rows are not); remove or repair these records."
            )
    return copy


def targets(kind: str, **named: Any) -> NDArray[Any]:
    """An own copy of the targets, one per record: int64 classes >= 0 or finite float32 values."""
    name, array = _array(named)
    if array.ndim != 1:
        raise InvalidInput(
            f"{name} must have one number per record, got shape {array.shape}; one column is {name}.ravel(), and "
            f"one-hot rows are the classes {name}.argmax(1)."
        )
    if kind == "regression":
        return features(**{name: array}).astype(np.float32)
    if array.dtype.kind not in "iu" or array.size == 0:
        numbers = array.dtype.kind in "fb"
        classes = f"{name}.astype(int)" if numbers else f"np.unique({name}, return_inverse=True)[1]"
        raise InvalidInput(
            f"{name} must be integer classes 0, 1, ... for classification, got {array.size} of {array.dtype}; convert "
            f"them, {classes}{', or use kind=' + repr('regression') if numbers else ''}."
        )
    if array.min() < 0:
        row = int(array.argmin())  # exact: integers
        raise InvalidInput(
            f"{name} must be classes >= 0, got {array.min()} in row {row}; number the classes with "
            f"np.unique({name}, return_inverse=True)[1]."
        )
    return array.astype(np.int64)


def require_scores(scores: int, **named: NDArray[Any]) -> None:
    """Refuses classes for which a module with so many outputs has no score."""
    name, array = check.name_and_value(named)
    if array.max() >= scores:
        shifted = array.min() > 0 and array.max() - array.min() < scores
        way_out = f"number them from 0: {name} - {array.min()}" if shifted else "give the module more outputs"
        raise InvalidInput(
            f"{name} must be classes 0 to {scores - 1}, as the module gives {scores} outputs, got {array.max()} in row "
            f"{int(array.argmax())}; {way_out}."  # exact: integers
        )


def _array(named: dict[str, Any]) -> tuple[str, NDArray[Any]]:
    name, value = check.name_and_value(named)
    if isinstance(value, Dataset | DataLoader):
        part = "test" if name.startswith("test") else "train"
        raise InvalidInput(
            f"{name} must be a numeric array, got {type(value).__name__}; a Dataset of features and targets is "
            f"{part}=dataset, without {', '.join(ARRAYS)}."
        )
    return name, check.as_array(**named)


def _way_out(name: str, value: Any, array: NDArray[Any]) -> str:
    if hasattr(value, "toarray"):
        return f"; give {name}.toarray()"
    if array.dtype.kind in "OUS" and array.ndim:
        numbers = f"{name}.to_numpy(float)" if hasattr(value, "to_numpy") else f"{name}.astype(float)"
        return f"; give {numbers}, or an encoding of words such as sklearn's OneHotEncoder"
    return ""


def callable_digest(function: Any) -> bytes:
    """32 bytes of a function, a partial, or a callable object.

    >>> callable_digest(functools.partial(max, default=1)) == callable_digest(functools.partial(max, default=2))
    False
    """
    return _digest(_facts(function, depth=0))


def module_digest(module: torch.nn.Module) -> bytes:
    """32 bytes of the layers, their settings and the code of each layer's forward; not of the parameters' values."""
    layers = [
        (name, type(layer).__qualname__, layer.extra_repr(), _code(type(layer).forward), _settings(layer))
        for name, layer in module.named_modules()
    ]
    return _digest((str(module), layers))


def _facts(value: Any, depth: int) -> Any:
    if depth > 8:
        return type(value).__qualname__
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return ("array", value.shape, value.dtype.str, np.ascontiguousarray(value).tobytes())
    if isinstance(value, types.FunctionType):
        cells = [_facts(cell.cell_contents, depth + 1) for cell in value.__closure__ or ()]
        defaults = [_facts(v, depth + 1) for v in value.__defaults__ or ()]
        keywords = sorted((k, _facts(v, depth + 1)) for k, v in (value.__kwdefaults__ or {}).items())
        return (value.__qualname__, _code(value), cells, defaults, keywords)
    if isinstance(value, functools.partial):
        keywords = sorted((k, _facts(v, depth + 1)) for k, v in value.keywords.items())
        return ("partial", _facts(value.func, depth + 1), [_facts(v, depth + 1) for v in value.args], keywords)
    if isinstance(value, types.MethodType):
        return ("method", _facts(value.__func__, depth + 1), _facts(value.__self__, depth + 1))
    if isinstance(value, torch.nn.Module):
        return ("module", module_digest(value), [_facts(p, depth + 1) for p in value.state_dict().values()])
    if callable(value) and hasattr(value, "__dict__") and not isinstance(value, type):
        state = sorted((k, _facts(v, depth + 1)) for k, v in vars(value).items())
        return (type(value).__qualname__, _code(type(value).__call__), state)
    if isinstance(value, list | tuple):
        return [_facts(v, depth + 1) for v in value]
    if isinstance(value, dict):
        return sorted((repr(k), _facts(v, depth + 1)) for k, v in value.items())
    return repr(value)


def _settings(layer: torch.nn.Module) -> list[tuple[str, str]]:
    plain = (bool, int, float, complex, str, type(None), list, tuple, dict)
    return sorted((k, repr(v)) for k, v in vars(layer).items() if not k.startswith("_") and isinstance(v, plain))


def _code(function: Any) -> Any:
    code = getattr(function, "__code__", None)
    return repr(function) if code is None else _code_facts(code)


def _code_facts(code: types.CodeType) -> tuple[Any, ...]:
    constants = [_code_facts(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return code.co_code, constants, code.co_names, code.co_varnames


def _digest(facts: Any) -> bytes:
    return hashlib.sha256(repr(facts).encode()).digest()
