"""Splits options of a test into the `Privacy` that they describe and the target or noise beside it."""

import dataclasses

from mfdl import Privacy

FIELDS = {field.name for field in dataclasses.fields(Privacy)}


def separated(options):
    """The fields of `Privacy` as one, and the other options: `calibrate(algorithm, *separated...)` takes both."""
    privacy = Privacy(**{name: value for name, value in options.items() if name in FIELDS})
    return privacy, {name: value for name, value in options.items() if name not in FIELDS}


def applied(door, *arguments):
    """A door, such as `mfdl.account`, called with options of both kinds, the last of the arguments."""
    *before, options = arguments
    privacy, others = separated(options)
    return door(*before, privacy, **others)
