"""The models and data sets of a run. Each is loaded once. What could not be loaded is not tried again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from attnaudit.model_families import audited_family
from attnaudit.processes import return_free_memory
from attnaudit.run.audit_items import item_by_id
from attnaudit.run.audit_options import AuditOptions

if TYPE_CHECKING:
    from attnaudit.adapters.loading import LoadedModel
    from attnaudit.data.draws import Draws
    from attnaudit.records import ConformanceResult

Result = TypeVar("Result")

#: The first part of the keys under which failures to load a model, and to read data, are kept.
_MODEL, _DATA = object(), object()


class RunInputs:
    """Loads models, draws rows, and keeps failures.

    Args:
        options: The options of the run.
    """

    def __init__(self, options: AuditOptions) -> None:
        self._options = options
        self._models: dict[str, tuple[LoadedModel, list[ConformanceResult]]] = {}
        self._families: dict[str, str] = {}
        self._rows: dict[str, Draws] = {}
        self._failures: dict[object, Exception] = {}

    def model(self, name: str) -> tuple[LoadedModel, list[ConformanceResult]]:
        """Return a model, and a list for the results of the test of its adapter, which is empty at first.

        Raises:
            AuditError: The model cannot be loaded.
        """
        if name not in self._models:
            from attnaudit.adapters.loading import load_model

            item = item_by_id(self._options.model_items(), name)
            self._models[name] = self.once((_MODEL, name), lambda: (load_model(item.source), []))
            self._families[name] = audited_family(self._models[name][0].family, self._options.unit)
        return self._models[name]

    def knows_family(self, name: str) -> bool:
        """Return whether a model has been loaded before, so that its family is known."""
        return name in self._families

    def family(self, name: str) -> str:
        """Return the family of a model that has been loaded before, even if it was released; "" for other models."""
        return self._families.get(name, "")

    def release(self, name: str) -> None:
        """Free the memory of a model. It is loaded again if it is needed again."""
        self._models.pop(name, None)

    def reject(self, name: str, error: Exception) -> None:
        """Release a model whose results would be wrong. From now on, `model` raises this error."""
        self.release(name)
        self._failures[_MODEL, name] = error

    def rows(self, name: str, *, lazily: bool) -> Draws:
        """Return the rows of a data set, which are kept after they are drawn.

        Args:
            name: The id of the data set.
            lazily: Whether rows are drawn only when they are needed.

        Raises:
            AuditError: The data cannot be read.
        """
        if name not in self._rows:
            item = item_by_id(self._options.data_items(), name)

            def read() -> Draws:
                from attnaudit.data import require_two_classes
                from attnaudit.data.draws import open_draws

                draws = open_draws(item.source, self._options.seed, lazily=lazily)
                if draws.hashed == "rows":
                    require_two_classes(draws.first(None))
                return_free_memory()
                return draws

            self._rows[name] = self.once((_DATA, name), read)
        return self._rows[name]

    def once(self, key: object, action: Callable[[], Result]) -> Result:
        """Run an action and return its result. If it has failed before, raise the same error again.

        Args:
            key: What the action concerns. For a model on a data set, it is (model, data).
            action: The action.
        """
        if key in self._failures:
            raise self._failures[key]
        try:
            return action()
        except Exception as error:
            self._failures[key] = error
            raise

    def scope_of(self, error: BaseException) -> tuple[str, str] | None:
        """Return what an error concerns: a model, a data set, or a pair of both. The error then fails all of its cases.

        Returns:
            (model, data) if the pair cannot be measured, (model, "") if the model cannot be loaded on any data set, and
            ("", data) if the data cannot be read for any model. None if the error concerns a single case.
        """
        keys = [key for key, failure in self._failures.items() if failure is error]
        for kind, name in (key for key in keys if isinstance(key, tuple)):
            if kind is _MODEL:
                return name, ""
            if kind is _DATA:
                return "", name
        return next((key for key in keys if isinstance(key, tuple)), None)
