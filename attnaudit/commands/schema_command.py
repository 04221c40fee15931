"""`attnaudit schema`: print the JSON Schema of audit.json."""

from __future__ import annotations

import argparse
import json

from attnaudit.report import audit_schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments, because `attnaudit schema` has none."""


def run(options: argparse.Namespace) -> int:
    """Print the JSON Schema of audit.json, and return the exit status 0."""
    print(json.dumps(audit_schema(), indent=2))
    return 0
