"""Audits: the privacy that runs show, against the privacy that is claimed."""

from .audit_cells import AuditCell, AuditMatrix, audit_matrix
from .audit_results import AuditResult, CanaryResult
from .audited_claims import AuditSettings
from .auditing import audit
from .observation import AuditedSystem, CanaryRecords, OneRunSystem, Training, Transcript
from .one_run import OneRunResult, OneRunSettings, audit_one_run
from .reconstruction import Reconstruction, reconstruct

__all__ = [
    "AuditCell",
    "AuditMatrix",
    "AuditResult",
    "AuditSettings",
    "AuditedSystem",
    "CanaryRecords",
    "CanaryResult",
    "OneRunResult",
    "OneRunSettings",
    "OneRunSystem",
    "Reconstruction",
    "Training",
    "Transcript",
    "audit",
    "audit_matrix",
    "audit_one_run",
    "reconstruct",
]


def __dir__() -> list[str]:
    return sorted(__all__)
