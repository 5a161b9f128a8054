"""What a function computes, as bytes: two that compute different things have different fingerprints.

Code, constants, defaults, values in closures, arguments of partials, attributes of callable objects; for a module its
layers and the code of their forward. Values that have no stable text (a tensor, an array) enter by their content,
others by their repr: an object whose repr hides its state is the one way to be missed, so unseeded runs do not rest on
this.
"""

from __future__ import annotations

import functools
import hashlib
import types
from typing import Any

import numpy as np
import torch


def of_callable(function: Any) -> bytes:
    """32 bytes of a function, a partial, or a callable object.

    >>> of_callable(functools.partial(max, default=1)) == of_callable(functools.partial(max, default=2))
    False
    """
    return _digest(_facts(function, depth=0))


def of_module(module: torch.nn.Module) -> bytes:
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
        return ("module", of_module(value), [_facts(p, depth + 1) for p in value.state_dict().values()])
    if callable(value) and hasattr(value, "__dict__") and not isinstance(value, type):
        state = sorted((k, _facts(v, depth + 1)) for k, v in vars(value).items())
        return (type(value).__qualname__, _code(type(value).__call__), state)
    if isinstance(value, list | tuple):
        return [_facts(v, depth + 1) for v in value]
    if isinstance(value, dict):
        return sorted((repr(k), _facts(v, depth + 1)) for k, v in value.items())
    return repr(value)


def _settings(layer: torch.nn.Module) -> list[tuple[str, str]]:
    """Plain attributes of a layer, such as a factor or a negative slope."""
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
