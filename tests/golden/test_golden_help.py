"""`--help` of every command and subcommand, line by line."""

import functools
import os
from unittest import mock

from _cases import mfdl_prints
from _stored import compare

TERMINAL = {"COLUMNS": "100", "NO_COLOR": "1"}


def commands(*parents):
    """The parents as one command, and every command below them, as their help lists it."""
    below, listing = [parents], False
    for line in help_of(parents):
        if listing and line.startswith("  ") and not line.startswith("   "):
            below += commands(*parents, line.split()[0])
        listing = line == "Commands:" or (listing and line.startswith(" "))
    return below


@functools.cache
def help_of(command):
    with mock.patch.dict(os.environ, TERMINAL):
        code, text = mfdl_prints(*command, "--help")
    assert code == 0, text
    return text.splitlines()


def test_help_of_every_command():
    compare("help", {" ".join(("mfdl", *command)): help_of(command) for command in commands()})
