"""Audits: the privacy that runs show, against the privacy that is claimed."""

from .auditing import AuditResult, CanaryResult, audit
from .matrix import AuditMatrix, Cell, audit_matrix
from .reconstruction import Reconstruction, reconstruct
from .system import System, Training, Transcript

__all__ = [
    "AuditMatrix",
    "AuditResult",
    "CanaryResult",
    "Cell",
    "Reconstruction",
    "System",
    "Training",
    "Transcript",
    "audit",
    "audit_matrix",
    "reconstruct",
]


def __dir__() -> list[str]:
    return sorted(__all__)
