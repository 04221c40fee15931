"""Measures: numbers per instance, per token or per data set. Each module contains a family of related measures.

A measure is a function, or a subclass of `StatefulMeasure`, that is decorated with `@measure("name", ...)`. Custom
measures are declared in the same way. A measure returns columns of numbers. It can also return facts, which are short
texts that say how something was measured.
"""

from attnaudit.engine.batches.attention_view import AttentionView
from attnaudit.engine.columns import Columns
from attnaudit.engine.declared_measures import Request, StatefulMeasure, measure, one_of

__all__ = ["AttentionView", "Columns", "Request", "StatefulMeasure", "measure", "one_of"]
