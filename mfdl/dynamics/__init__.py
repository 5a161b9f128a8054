"""How models move: `Dynamics` says it, `rounds` are its maps at one step, `responses` what it makes of injections."""

from .dynamics import MAX_RATE, MAX_RATE_RATIO, Dynamics

__all__ = ["MAX_RATE", "MAX_RATE_RATIO", "Dynamics"]


def __dir__() -> list[str]:
    return sorted(__all__)
