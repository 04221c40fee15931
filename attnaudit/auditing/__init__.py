"""A run of the audit without pytest: what is measured, what is judged, and the files it leaves. Imports no torch."""

from __future__ import annotations

from attnaudit.auditing.cases import Case
from attnaudit.auditing.ledger import Ledger
from attnaudit.auditing.options import AuditOptions
from attnaudit.auditing.run_folder import RunFolder, new_run_name
from attnaudit.auditing.session import AuditSession

__all__ = ["AuditOptions", "AuditSession", "Case", "Ledger", "RunFolder", "new_run_name"]
