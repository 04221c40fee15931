"""Measures: numbers per instance, per token or per data set, one module for each family.

Each measure is a function declared with `@measure("name", ...)`. Your own measures are declared in the same way.
"""

from attnaudit.engine.attention_view import AttentionView
from attnaudit.engine.columns import Columns
from attnaudit.engine.declared_measures import Request, StatefulMeasure, measure, one_of

__all__ = ["AttentionView", "Columns", "Request", "StatefulMeasure", "measure", "one_of"]
