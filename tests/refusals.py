"""A call that must be refused, and the words of the refusal that name why."""

import pytest

from mfdl import InvalidInput, UnsupportedMechanism


def refuses(keyword, call, /, *arguments, error=InvalidInput, **options):
    """Makes the call; passes where it raises this error with the keyword, a pattern, in its text."""
    with pytest.raises(error, match=keyword):
        call(*arguments, **options)


def unsupported(keyword, call, /, *arguments, **options):
    """Makes the call; passes where it raises UnsupportedMechanism with the keyword in its text."""
    refuses(keyword, call, *arguments, error=UnsupportedMechanism, **options)
