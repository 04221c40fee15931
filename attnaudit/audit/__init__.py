"""A run of the audit without pytest: what is measured, what is judged, and the files it leaves. Imports no torch."""

from __future__ import annotations

from attnaudit.audit.audit_options import AuditOptions
from attnaudit.audit.case import Case
from attnaudit.audit.outcomes import Ledger
from attnaudit.audit.run_folder import RunFolder, new_run_name
from attnaudit.audit.session import AuditSession

__all__ = ["AuditOptions", "AuditSession", "Case", "Ledger", "RunFolder", "new_run_name"]
