"""The name under which `participation.ParticipationByNode` was public first."""

from .participation import ParticipationByNode

__all__ = ["ParticipationByNode"]
