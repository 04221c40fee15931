"""The records of a run, which define the schema of audit.json.

A file holds one `RunRecord` and the records within it. `attnaudit schema` prints the same schema as JSON Schema.
A value that does not exist is None (null in JSON), never NaN. pytest-xdist workers send their records as
`msgspec.to_builtins(record)`, and `msgspec.convert` restores them. This module does not import torch.
"""

from attnaudit.records.check_records import (
    Chart,
    CheckRecord,
    Direction,
    Histogram,
    InconclusiveRule,
    Interval,
    Matrix,
    Planning,
    RankedInstance,
    Record,
    Reference,
    Requirement,
    Series,
    Severity,
    VerdictName,
    WorstOrder,
)
from attnaudit.records.run_records import (
    SCHEMA_VERSION,
    ConformanceResult,
    DataRecord,
    Environment,
    MeasureRecord,
    MissingCase,
    ModelRecord,
    PolicyQuestion,
    PolicyRecord,
    RunRecord,
)

__all__ = [
    "SCHEMA_VERSION",
    "Chart",
    "CheckRecord",
    "ConformanceResult",
    "DataRecord",
    "Direction",
    "Environment",
    "Histogram",
    "InconclusiveRule",
    "Interval",
    "Matrix",
    "MeasureRecord",
    "MissingCase",
    "ModelRecord",
    "Planning",
    "PolicyQuestion",
    "PolicyRecord",
    "RankedInstance",
    "Record",
    "Reference",
    "Requirement",
    "RunRecord",
    "Series",
    "Severity",
    "VerdictName",
    "WorstOrder",
]
