"""The JSON Schema of audit.json, derived from the classes of its records."""

from __future__ import annotations

from typing import Any

import msgspec

from attnaudit.records import SCHEMA_VERSION, RunRecord


def audit_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of audit.json. Its descriptions are the docstrings of the records."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"attnaudit audit.json, version {SCHEMA_VERSION}",
        **msgspec.json.schema(RunRecord),
    }
