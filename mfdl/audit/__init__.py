"""Audits: the privacy that runs show, against the privacy that is claimed."""

from .auditing import AuditConfig, audit
from .bins_results import BinsAuditResult, BinsCanaryResult
from .matrix import AuditMatrix, Cell, audit_matrix
from .reconstruction import Reconstruction, reconstruct
from .results import AuditResult, CanaryResult
from .system import System, Training, Transcript

__all__ = [
    "AuditConfig",
    "AuditMatrix",
    "AuditResult",
    "BinsAuditResult",
    "BinsCanaryResult",
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
