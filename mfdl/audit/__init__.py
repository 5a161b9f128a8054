"""Audits: the privacy that runs show, against the privacy that is claimed."""

from .audit_cells import AuditCell, AuditMatrix, audit_matrix
from .audit_results import AuditResult, CanaryResult
from .audited_claims import AuditSettings
from .auditing import audit
from .observation import AuditedSystem, Training, Transcript
from .reconstruction import Reconstruction, reconstruct

__all__ = [
    "AuditCell",
    "AuditMatrix",
    "AuditResult",
    "AuditSettings",
    "AuditedSystem",
    "CanaryResult",
    "Reconstruction",
    "Training",
    "Transcript",
    "audit",
    "audit_matrix",
    "reconstruct",
]


def __dir__() -> list[str]:
    return sorted(__all__)
