"""The report of a run, which is built from its audit.json and measurements.parquet. It needs no torch."""

from __future__ import annotations

from attnaudit.report.audit_schema import audit_schema
from attnaudit.report.render import build, write_pages

__all__ = ["audit_schema", "build", "write_pages"]
