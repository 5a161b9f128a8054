"""Moves of models: `Dynamics` and its rounds as sparse maps, `schedule` for learning rates by name, and `responses`,
how injections propagate into models.
"""

from .dynamics import SCHEDULES, Dynamics, schedule

__all__ = ["SCHEDULES", "Dynamics", "schedule"]


def __dir__() -> list[str]:
    return sorted(__all__)
