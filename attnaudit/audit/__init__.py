"""One run of the audit, without pytest: what is measured and judged, and the files that it writes. Imports no torch."""

from __future__ import annotations

from attnaudit.audit.audit_options import AuditOptions
from attnaudit.audit.case import Case
from attnaudit.audit.outcomes import Outcomes
from attnaudit.audit.run_folder import RunFolder, new_run_name
from attnaudit.audit.session import AuditSession

__all__ = ["AuditOptions", "AuditSession", "Case", "Outcomes", "RunFolder", "new_run_name"]
