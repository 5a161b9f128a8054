"""What the papers state: `bounds` of privacy, `rates` and constants of averaging and training.

Nothing here decides a guarantee; it is there to be compared with.
"""

from . import bounds, rates

__all__ = ["bounds", "rates"]
