"""The report of a run, built from its audit.json and measurements.parquet without torch."""

from __future__ import annotations

from attnaudit.report.audit_schema import audit_schema
from attnaudit.report.render import build, write_pages

__all__ = ["audit_schema", "build", "write_pages"]
