"""How models move: `Dynamics` says it, `schedule` names step sizes,
`rounds` are its maps at one step, `responses` what it makes of injections.
"""

from .dynamics import MAX_RATE, MAX_RATE_RATIO, Dynamics
from .schedules import SCHEDULES, schedule

__all__ = ["MAX_RATE", "MAX_RATE_RATIO", "SCHEDULES", "Dynamics", "schedule"]


def __dir__() -> list[str]:
    return sorted(__all__)
