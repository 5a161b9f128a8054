"""Audits: the privacy that runs show, against the privacy that is claimed."""

from .audit_cells import audit_matrix
from .audited_claims import AuditResult, AuditSettings
from .auditing import audit
from .observation import AuditedSystem, OneRunSystem, Training
from .one_run import OneRunSettings, audit_one_run
from .reconstruction import reconstruct

__all__ = [
    "AuditResult", "AuditSettings", "AuditedSystem", "OneRunSettings", "OneRunSystem", "Training", "audit",
    "audit_matrix", "audit_one_run", "reconstruct",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
