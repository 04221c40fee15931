"""A run of the audit without pytest: what is measured, what is judged, and the files it leaves. Imports no torch."""

from __future__ import annotations

from attnaudit.run.audit_options import AuditOptions
from attnaudit.run.case import Case
from attnaudit.run.outcomes import Ledger
from attnaudit.run.run_folder import RunFolder, new_run_name
from attnaudit.run.session import AuditSession

__all__ = ["AuditOptions", "AuditSession", "Case", "Ledger", "RunFolder", "new_run_name"]
