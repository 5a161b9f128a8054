"""Words of every test file: properties by their examples, tables of cases, refusals by keyword, and small settings."""

import hypothesis
import pytest
from effort import examples
from hypothesis import assume, example
from hypothesis import strategies as st

from mfdl import Dynamics, InvalidInput, UnsupportedMechanism, gossip

__all__ = ["ZERO_OUT", "assume", "dynamics_on", "each", "example", "given", "refuses", "st", "unsupported"]

ZERO_OUT = {"adjacency": "zero-out", "clip_norm": 1.0}


def given(*strategies, **named):
    """Hypothesis's `given`; a number that comes first says how many examples the property deserves."""
    if strategies and isinstance(strategies[0], int):
        return lambda test: examples(strategies[0])(hypothesis.given(*strategies[1:], **named)(test))
    return hypothesis.given(*strategies, **named)


def each(names, *rows, **options):
    """pytest's `parametrize` with its rows one by one."""
    return pytest.mark.parametrize(names, rows, **options)


def refuses(keyword, call, /, *arguments, error=InvalidInput, **options):
    """Makes the call; passes where it raises this error with the keyword, a pattern, in its text; None is any text."""
    with pytest.raises(error, match=keyword):
        call(*arguments, **options)


def unsupported(keyword, call, /, *arguments, **options):
    """Makes the call; passes where it raises UnsupportedMechanism with the keyword in its text."""
    refuses(keyword, call, *arguments, error=UnsupportedMechanism, **options)


def dynamics_on(graph, *rates, **options):
    """Dynamics under the Metropolis-Hastings weights of a graph."""
    return Dynamics(gossip.metropolis_hastings(graph), *rates, **options)
