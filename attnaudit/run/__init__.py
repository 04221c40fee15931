"""One run of the audit, independent of pytest: it measures, judges and writes its files.

This package does not import torch.
"""

from __future__ import annotations

from attnaudit.run.audit_options import AuditOptions
from attnaudit.run.case import Case
from attnaudit.run.outcomes import Outcomes
from attnaudit.run.run_folder import RunFolder, new_run_name
from attnaudit.run.session import AuditSession

__all__ = ["AuditOptions", "AuditSession", "Case", "Outcomes", "RunFolder", "new_run_name"]
