"""The one mechanism by which models, data sets, checkpoint formats, measures and checks are found.

Three ways in: a decorator (`@models.register("name")`), a sibling file in the package that belongs to the
registry, and an entry point of an installed distribution. Nothing is imported before it is asked for.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from attnaudit.errors import AuditError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """Names and the things they stand for.

    kind: the word used in messages ("model"). group: the entry-point group. package: a package whose
    modules register themselves when imported.
    """

    def __init__(self, kind: str, group: str, *, package: str | None = None) -> None:
        self.kind = kind
        self.group = group
        self._package = package
        self._known: dict[str, T] = {}
        self._origin: dict[str, str] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: register the decorated thing under `name`. The same name from two places is an error."""
        if not name or any(c.isspace() or c in "/\\:" for c in name):
            raise AuditError(f"{self.kind} name {name!r}: expected a non-empty name without spaces, slashes or colons.")

        def add(thing: T) -> T:
            origin = f"{getattr(thing, '__module__', '?')}.{getattr(thing, '__qualname__', '?')}"
            if name in self._known and self._origin[name] != origin:
                raise AuditError(
                    f"{self.kind} '{name}' is registered twice, by {self._origin[name]} and by {origin}: rename one."
                )
            shipped = None if origin.startswith("attnaudit.") else self._entry_points().get(name)
            if shipped is not None and shipped.value.replace(":", ".") != origin:
                raise AuditError(
                    f"{self.kind} '{name}' is registered twice, by {shipped.value} of an installed package and by "
                    f"{origin}: rename one."
                )
            self._known[name] = thing
            self._origin[name] = origin
            return thing

        return add

    def _import_siblings(self) -> None:
        if self._package is None:
            return
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self._package}.{module.name}")

    def _entry_points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def names(self) -> list[str]:
        """Every name, sorted, without importing what entry points refer to."""
        self._import_siblings()
        return sorted({*self._known, *self._entry_points()})

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in self.names()

    def get(self, name: str) -> T:
        """The thing registered as `name`. Raises AuditError with the nearest names when there is none."""
        if name in self._known:
            return self._known[name]
        self._import_siblings()
        if name in self._known:
            return self._known[name]
        point = self._entry_points().get(name)
        if point is None:
            raise AuditError(f"Unknown {self.kind} '{name}'. {nearest(name, self.names())}")
        try:
            thing: T = point.load()
        except Exception as error:
            raise AuditError(
                f"{self.kind} '{name}' ({point.value}) cannot be imported: {type(error).__name__}: {error}. "
                "Reinstall the package that provides it."
            ) from error
        self._known[name] = thing
        self._origin[name] = point.value
        return thing


models: Registry[Callable[[], Any]] = Registry("model", "attnaudit.models")
datasets: Registry[Callable[[], Any]] = Registry("data set", "attnaudit.datasets")
checkpoint_formats: Registry[Any] = Registry("checkpoint format", "attnaudit.checkpoints")
measures: Registry[Any] = Registry("measure", "attnaudit.measures", package="attnaudit.measures")
checks: Registry[Any] = Registry("check", "attnaudit.checks", package="attnaudit.checks")
