"""How measures are declared: a decorated function, or a decorated class for a measure that keeps state.

    @measure("gradient", argument=preset_and_place, gradients=True)
    def gradient(view: AttentionView, request: Request) -> Columns:
        ...

A check lists the measures that it needs. Each need is the name of a measure with its argument, such as
"gradient.meister.inputs". The decorator declares what the engine must know before it measures: which other measures and
adapter capabilities are needed, and whether the columns depend on the reading. The engine never tests the name of a
measure.
"""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from attnaudit.adapters.protocol import Capabilities
from attnaudit.engine.batches.attention_view import AttentionView
from attnaudit.engine.columns import Columns
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError, nearest
from attnaudit.registry import measures

#: The capabilities that a measure can name: the boolean fields of `Capabilities`.
CAPABILITIES = tuple(field.name for field in dataclasses.fields(Capabilities) if field.type in (bool, "bool"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The request that the engine passes to a measure for one batch.

    Attributes:
        name: The need in its canonical form, without a reading, such as "gradient.meister.inputs". Columns are named
            after it: the name itself, or the name with a suffix such as ".tau".
        argument: The part of the name after the first dot, as the measure's parser returns it; None if the measure has
            no parser.
        required: The columns of the other measures that this measure lists in its `requires`.
        lacking: The optional capabilities that the adapter does not have.
        views: The batch under each reading for which the same measure is computed. A measure can compute the results
            of several readings in the same passes, and keep those of other readings in their `memo`.
    """

    name: str
    argument: Any
    required: Columns
    lacking: frozenset[str] = frozenset()
    views: Sequence[AttentionView] = ()


class StatefulMeasure(ABC):
    """Base class of measures that keep state during an audit, such as measures over the whole data set.

    The engine creates one object per process, audit and reading, and calls `compute` for every batch. At the end, it
    calls `finish` once, in the process that judges.

    Args:
        name: The need, as in `Request.name`.
        argument: The parsed argument, as in `Request.argument`.
        lengths: (n,) number of real units of every instance, in the order of `Measurements.instances`; empty if
            `uses_lengths` is False.

    Attributes:
        uses_lengths: Whether the measure uses `lengths`. All texts are then encoded before the first batch.
        keeps_rows: Whether the object keeps numbers of the rows from `compute` until `finish`. All rows are then
            measured in one process, and such an audit cannot be resumed. False if `finish` uses only the columns and
            the states that `compute` returned.
    """

    uses_lengths: ClassVar[bool] = True
    keeps_rows: ClassVar[bool] = True

    def __init__(self, name: str, argument: Any, lengths: Sequence[int]) -> None:
        self.name = name
        self.argument = argument
        self.lengths = lengths

    @abstractmethod
    def compute(self, view: AttentionView, request: Request) -> Columns:
        """Return the columns of one batch.

        The engine calls this again, with smaller batches, if it runs out of memory.
        """

    def finish(self, measurements: Measurements) -> None:  # noqa: B027 - overriding it is optional
        """Add tables or facts to the measurements after the last batch. By default, do nothing.

        The states that `compute` returned for all instances are in `measurements.states`.
        """


#: Computes the columns of one batch.
BatchFunction = Callable[[AttentionView, Request], Columns]


class _FunctionMeasure(StatefulMeasure):
    """Runs a decorated function, which keeps no state."""

    uses_lengths = False
    keeps_rows = False

    def __init__(self, function: BatchFunction, name: str, argument: Any, lengths: Sequence[int]) -> None:
        super().__init__(name, argument, lengths)
        self.function = function

    def compute(self, view: AttentionView, request: Request) -> Columns:
        return self.function(view, request)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A declared measure together with its argument. Each need of a check stands for one such measure.

    Attributes:
        name: The need, with the argument in its canonical form.
        argument: The parsed argument.
        requires: Needs of other measures whose columns this measure reads.
        capabilities: Adapter capabilities without which the measure is refused.
        optional_capabilities: Adapter capabilities without which some or all columns of the measure are undefined.
        gradients: Whether the measure differentiates through the clean pass.
        depends_on_reading: Whether the columns differ between readings. If not, one measurement serves all readings.
        one_site: Whether the measure needs a reading of a single attention site. Rollout is then refused, because it
            combines all layers.
        early: Whether the measure is computed before the measures that are not early, because its passes also give
            results that these need.
        uses_lengths: See `StatefulMeasure`.
        keeps_rows: See `StatefulMeasure`.
        create: (name, argument, lengths) -> the object that computes the measure during one audit.
    """

    name: str
    argument: Any
    requires: tuple[str, ...]
    capabilities: tuple[str, ...]
    optional_capabilities: tuple[str, ...]
    gradients: bool
    depends_on_reading: bool
    one_site: bool
    early: bool
    uses_lengths: bool
    keeps_rows: bool
    create: Callable[[str, Any, Sequence[int]], StatefulMeasure]

    def lacking(self, capabilities: Capabilities) -> list[str]:
        """Return the required capabilities that an adapter does not have."""
        return [name for name in self.capabilities if not getattr(capabilities, name)]

    def request(self, required: Columns, capabilities: Capabilities, views: Sequence[AttentionView] = ()) -> Request:
        """Return the request for one batch of a model with these capabilities. `views` is as in `Request`."""
        lacking = frozenset(name for name in self.optional_capabilities if not getattr(capabilities, name))
        return Request(name=self.name, argument=self.argument, required=required, lacking=lacking, views=views)

    def start(self, lengths: Sequence[int]) -> StatefulMeasure:
        """Return the object that computes the measure during one audit.

        Args:
            lengths: (n,) number of real units of each instance.
        """
        return self.create(self.name, self.argument, lengths)


#: A value, or a function of the parsed argument that returns it.
Names = Sequence[str] | Callable[[Any], Sequence[str]]
Flag = bool | Callable[[Any], bool]


class MeasureDeclaration:
    """The declaration of a measure, which `measure` registers under the first word of its needs.

    Call it with the text after the first dot of a need to get the `Measure`.
    """

    def __init__(
        self,
        family: str,
        body: BatchFunction | type[StatefulMeasure],
        *,
        argument: Callable[[str], Any] | None,
        canonical: Callable[[Any], str] | None,
        requires: Names,
        capabilities: Names,
        optional_capabilities: Names,
        gradients: bool,
        depends_on_reading: Flag,
        one_site: Flag,
        early: Flag,
    ) -> None:
        self.family = family
        self.body = body
        self.parse_argument = argument
        self.canonical = canonical
        self.requires = requires
        self.capabilities = capabilities
        self.optional_capabilities = optional_capabilities
        self.gradients = gradients
        self.depends_on_reading = depends_on_reading
        self.one_site = one_site
        self.early = early
        functools.update_wrapper(self, body, updated=())

    def __call__(self, text: str) -> Measure:
        """Return the measure with an argument.

        Args:
            text: The text of the need after its first dot; "" if there is none.

        Raises:
            CheckError: The argument is invalid, or the declaration names an unknown capability.
        """
        argument = None
        if self.parse_argument is not None:
            argument = self.parse_argument(text)
        elif text:
            raise CheckError(f"'{self.family}' takes no argument, but got '.{text}'.")
        canonical = self.canonical(argument) if self.canonical else text
        capabilities = _resolved(self.capabilities, argument)
        if self.gradients and "differentiable" not in capabilities:
            capabilities = ("differentiable", *capabilities)
        optional = _resolved(self.optional_capabilities, argument)
        for capability in (*capabilities, *optional):
            if capability not in CAPABILITIES:
                raise CheckError(
                    f"measure '{self.family}' names an unknown capability '{capability}'. "
                    f"{nearest(capability, CAPABILITIES)}"
                )
        body = self.body
        stateful: type[StatefulMeasure] = body if isinstance(body, type) else _FunctionMeasure
        return Measure(
            name=f"{self.family}.{canonical}" if canonical else self.family,
            argument=argument,
            requires=_resolved(self.requires, argument),
            capabilities=capabilities,
            optional_capabilities=optional,
            gradients=self.gradients,
            depends_on_reading=_flag(self.depends_on_reading, argument),
            one_site=_flag(self.one_site, argument),
            early=_flag(self.early, argument),
            uses_lengths=stateful.uses_lengths,
            keeps_rows=stateful.keeps_rows,
            create=body if isinstance(body, type) else functools.partial(_FunctionMeasure, body),
        )


def _resolved(names: Names, argument: Any) -> tuple[str, ...]:
    """Return the names in a declaration. It lists the names, or gives a function that returns them for an argument."""
    return tuple(names(argument) if callable(names) else names)


def _flag(flag: Flag, argument: Any) -> bool:
    """Return a flag in a declaration. It gives the value, or a function that returns the value for an argument."""
    return flag if isinstance(flag, bool) else flag(argument)


def measure(
    name: str,
    *,
    argument: Callable[[str], Any] | None = None,
    canonical: Callable[[Any], str] | None = None,
    requires: Names = (),
    capabilities: Names = (),
    optional_capabilities: Names = (),
    gradients: bool = False,
    depends_on_reading: Flag = True,
    one_site: Flag = False,
    early: Flag = False,
) -> Callable[[BatchFunction | type[StatefulMeasure]], MeasureDeclaration]:
    """Register a function `(view, request) -> Columns`, or a subclass of `StatefulMeasure`, as a measure.

    `requires`, `capabilities`, `optional_capabilities`, `depends_on_reading`, `one_site` and `early` can be values, or
    functions that return the value for a parsed argument.

    Args:
        name: The first word of the needs that the measure serves, such as "gradient" for "gradient.meister.inputs".
        argument: A function that parses the rest of the need: "meister.inputs" in the example, or "" if there is none.
            It raises CheckError if the text is invalid. If None, the measure takes no argument.
        canonical: A function that returns the canonical text of the parsed argument. It is needed only if the same
            argument can be written in several ways.
        requires: Needs of other measures whose columns the measure reads.
        capabilities: Adapter capabilities without which the measure is refused, such as ("deletion",).
        optional_capabilities: Adapter capabilities without which the measure leaves columns undefined.
            `request.lacking` names those that the adapter lacks.
        gradients: Whether the measure differentiates through the clean pass. It then also needs the capability
            "differentiable".
        depends_on_reading: Whether the columns differ between readings of the model's attention.
        one_site: Whether the measure needs a reading of a single attention site. It is then refused under rollout.
        early: Whether the measure is computed before the measures that are not early, because its passes also give
            results that these need. An early measure reads no columns of other measures.

    Returns:
        A decorator, which replaces the function or class with its declaration.

    Raises:
        CheckError: The name is missing.
    """
    if not isinstance(name, str):
        raise CheckError(f'measure: found {name!r}; expected a name. Write @attnaudit.measures.measure("name").')

    def declare(body: BatchFunction | type[StatefulMeasure]) -> MeasureDeclaration:
        declaration = MeasureDeclaration(
            name,
            body,
            argument=argument,
            canonical=canonical,
            requires=requires,
            capabilities=capabilities,
            optional_capabilities=optional_capabilities,
            gradients=gradients,
            depends_on_reading=depends_on_reading,
            one_site=one_site,
            early=early,
        )
        measures.register(name)(declaration)
        return declaration

    return declare


def one_of(*choices: str) -> Callable[[str], str]:
    """Return an argument parser that accepts the given texts and nothing else.

    Examples:
        >>> one_of("inputs", "hidden")("inputs")
        'inputs'
    """

    def parse(text: str) -> str:
        if text not in choices:
            expected = " or ".join(f".{choice}" for choice in choices)
            raise CheckError(f"expected {expected}, but got '{'.' if text else ''}{text}'. {nearest(text, choices)}")
        return text

    return parse
