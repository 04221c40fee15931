"""Registries, which find models, data sets, checkpoint formats, measures and checks by name.

Objects are registered by a decorator, such as `@models.register("name")`, or by an entry point of an installed package.
If an entry point leads to an object with a decorator, both must give it the same name. Checks and measures need the
decorator. Some registries also import all modules of a package of attnaudit, and these modules register their objects
with the decorator. Nothing is imported before it is needed.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Generic, TypeVar

from attnaudit.code_identity.defining_file import defining_file
from attnaudit.errors import AuditError, nearest

T = TypeVar("T")
#: The names of attnaudit's own modules begin with this.
OWN_MODULES = "attnaudit."


@lru_cache(maxsize=16)
def _installed(group: str, _path: tuple[str, ...]) -> EntryPoints:
    """Return the entry points of a group. The files of all packages in the folders of sys.path are read for it."""
    return entry_points(group=group)


def _file_of(item: object) -> str:
    """Return the file that contains the code of a function or a class; "" if there is no such file."""
    members = vars(item).values() if isinstance(item, type) else ()
    for one in (inspect.unwrap(item) if callable(item) else item, *members):
        code = getattr(one, "__code__", None)
        file = defining_file(code, getattr(one, "__globals__", {})) if isinstance(code, CodeType) else ""
        if file and Path(file).is_file():
            return str(Path(file).resolve())
    return ""


def _module_that_registers() -> tuple[object, int]:
    """Return the import during which a module registers an object, and the line. The import is its spec.

    The spec is None if the object is registered in a function or a class, or in a script. A module that is imported
    again has another spec.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(OWN_MODULES):
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != "<module>":
        return None, 0
    return frame.f_globals.get("__spec__"), frame.f_lineno


class Registry(Generic[T]):
    """A mapping from names to registered objects.

    Args:
        kind: The word for the objects in messages, such as "model".
        group: The name of the group of entry points that provide further objects.
        package: The name of a package whose modules register objects when they are imported; None for no package.
        decorator: The name under which users import `register`, for messages; "" if they do not.
        remedy: A function that says what to do about an object of an entry point that no decorator has registered, as
            the end of a sentence; "" if the object can be used without a decorator. By default, every object can.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        *,
        package: str | None = None,
        decorator: str = "",
        remedy: Callable[[object], str] = lambda _item: "",
    ) -> None:
        self.kind = kind
        self.group = group
        self._package = package
        self._decorator = decorator
        self._remedy = remedy
        self._known: dict[str, T] = {}
        self._decorated: set[str] = set()  # the names that a decorator gave
        self._origin: dict[str, str] = {}
        self._file: dict[str, str] = {}
        self._import: dict[str, tuple[object, int]] = {}  # as `_module_that_registers` returns it

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers an object.

        Args:
            name: The name, without spaces, slashes and colons.

        Raises:
            AuditError: The name is invalid. The decorator also raises AuditError if this process or an installed
                package has already registered another object under the name.
        """
        if not isinstance(name, str):
            fix = f' Write @{self._decorator}("name").' if self._decorator else ""
            raise AuditError(f"{self.kind} name: found {name!r}; expected text.{fix}")
        if not name or any(c.isspace() or c in "/\\:" for c in name):
            raise AuditError(f"{self.kind} name {name!r}: expected a non-empty name without spaces, slashes or colons.")

        def add(item: T) -> T:
            origin = f"{getattr(item, '__module__', '?')}.{getattr(item, '__qualname__', '?')}"
            if name in self._known and self._origin[name] != origin:
                raise AuditError(
                    f"{self.kind} '{name}' is registered twice, by {self._origin[name]} and by {origin}. "
                    "Rename one of them."
                )
            module, line = _module_that_registers()
            earlier, earlier_line = self._import.get(name, (None, 0))
            if module is not None and module is earlier and self._known.get(name) is not item:
                raise AuditError(
                    f"{self.kind} '{name}' is registered twice, in lines {earlier_line} and {line} of "
                    f"{getattr(module, 'origin', origin)}. Rename one of them."
                )
            file = _file_of(item)
            # pytest gives the same module name to all conftest.py files, so their origins can be equal.
            if file and name in self._known and self._file.get(name, file) != file:
                raise AuditError(
                    f"{self.kind} '{name}' is registered twice, in {self._file[name]} and in {file}. Rename one of "
                    "them."
                )
            installed = None if origin.startswith(OWN_MODULES) else self._entry_points().get(name)
            if installed is not None and not _may_lead_to(installed, origin):
                raise AuditError(
                    f"{self.kind} '{name}' is registered twice, by {installed.value} of an installed package and by "
                    f"{origin}. Rename one of them."
                )
            self._known[name] = item
            self._decorated.add(name)
            self._origin[name] = origin
            self._import[name] = module, line
            if file:
                self._file[name] = file
            return item

        return add

    def forget_files(self) -> None:
        """Let a file register the names of another file, because the files of another project are read next."""
        self._file.clear()

    def _import_modules(self) -> None:
        """Import the modules of the registry's package, which register their objects."""
        if self._package is None:
            return
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self._package}.{module.name}")

    def _entry_points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in _installed(self.group, tuple(sys.path))}

    def names(self) -> list[str]:
        """Return all names in alphabetical order, without importing the objects of entry points."""
        self._import_modules()
        return sorted({*self._known, *self._entry_points()})

    def origins(self) -> list[str]:
        """Return the module of each object that this process has imported, in the order of import."""
        return [str(getattr(item, "__module__", "")) for item in self._known.values()]

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in self.names()

    def get(self, name: str) -> T:
        """Return the object that is registered under a name.

        Raises:
            AuditError: No object has this name. The message suggests similar names. Or its entry point has another name
                than the object, leads to an object that cannot be used, or cannot be imported.
        """
        if name not in self._known:
            self._import_modules()
        if name in self._known:
            self._refuse_other_key(name)
            return self._known[name]
        if name not in self._entry_points():
            _installed.cache_clear()  # A package may have been installed since.
        point = self._entry_points().get(name)
        if point is None:
            raise AuditError(f"Unknown {self.kind} '{name}'. {self.suggestion(name)}")
        return self._load(point)

    def suggestion(self, name: str) -> str:
        """Return a sentence about an unknown name, which suggests similar names.

        If an entry point with another name leads to an object with this name, the sentence is about the entry point.
        """
        point = next((one for one in self._entry_points().values() if one.attr == name), None)
        if point is None:
            return nearest(name, self.names())
        try:
            self._load(point)
        except AuditError as error:
            return str(error)
        return f"Did you mean '{point.name}'?"

    def _load(self, point: EntryPoint) -> T:
        """Import the object of an entry point, and register it if no decorator has done so.

        Raises:
            AuditError: The object cannot be imported or used, or a decorator has given it another name.
        """
        name, place = point.name, f"{self.kind} '{point.name}' ({point.value})"
        try:
            item: T = point.load()
        except Exception as error:
            raise AuditError(
                f"{place} cannot be imported: {type(error).__name__}: {error}. Fix or reinstall the package "
                "that provides it."
            ) from error
        names = [known for known, other in self._known.items() if other is item and known in self._decorated]
        if name in names:
            return item
        if names:
            raise AuditError(self._other_key(point, names[0]))
        if name in self._known:
            raise AuditError(
                f"{place}: another object, {self._origin[name]}, is registered under this name. Rename one of them."
            )
        remedy = self._remedy(item)
        if remedy:
            raise AuditError(f"{place} is {_described(item)}; {remedy}.")
        self._known[name] = item
        self._origin[name] = point.value.replace(":", ".")
        return item

    def _refuse_other_key(self, name: str) -> None:
        """Raise AuditError if the entry point of a registered object has another name than the object.

        Whether such an object was found would otherwise depend on whether its module had already been imported.
        """
        origin = self._origin.get(name, OWN_MODULES)
        if origin.startswith(OWN_MODULES) or name not in self._decorated or name in self._entry_points():
            return
        for point in self._entry_points().values():
            if point.value.replace(":", ".") == origin and point.name not in self._decorated:
                raise AuditError(self._other_key(point, name))

    def _other_key(self, point: EntryPoint, name: str) -> str:
        """Return the message about an entry point that leads to an object which is registered under another name."""
        return (
            f"{self.kind} '{name}': its entry point is named '{point.name}'; expected the same name. In the group "
            f'{self.group} of the package that provides it, write {name} = "{point.value}", and reinstall the package.'
        )


def _may_lead_to(point: EntryPoint, origin: str) -> bool:
    """Return whether an entry point names an object, or a package that may import the object from a module inside it.

    Args:
        point: The entry point.
        origin: The module and the name of the object.
    """
    return point.value.replace(":", ".") == origin or origin.rpartition(".")[0].startswith(f"{point.module}.")


def _described(item: object) -> str:
    """Return what kind of object an entry point leads to, such as "a function"."""
    if inspect.isclass(item):
        return "a class"
    if inspect.isroutine(item):
        return "a function"
    if inspect.ismodule(item):
        return "a module"
    return f"an object of type {type(item).__name__}"


def register_dataset(name: str, *, order: str | None = None) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Return a decorator that registers a data set, or a function that returns one or yields its rows.

    Args:
        name: The name, without spaces, slashes and colons.
        order: "random" if the function yields its rows in random order, so that its first rows are a random sample. An
            audit then reads only the rows that it audits, and the number of all rows may be unknown. None if all rows
            must be read.

    Raises:
        AuditError: The name or `order` is invalid. The decorator also raises AuditError if another object is already
            registered under the name, or if `order` is given for an object that is not a function.
    """
    if order not in (None, "random"):
        raise AuditError(f"data set '{name}': order is {order!r}. Expected \"random\", or no order.")
    register = datasets.register(name)

    def add(item: Callable[[], Any]) -> Callable[[], Any]:
        if order is None:
            return register(item)
        if not callable(item):
            raise AuditError(
                f"data set '{name}': order=\"random\" is for functions that yield rows, but this is a "
                f"{type(item).__name__}. Leave order out."
            )
        item.attnaudit_order = order  # type: ignore[attr-defined]
        return register(item)

    return add


def has_random_order(registered: object) -> bool:
    """Return whether a registered data set yields its rows in random order."""
    return getattr(registered, "attnaudit_order", None) == "random"


def _remedy_of_model(item: object) -> str:
    return "" if callable(item) else "expected a function without arguments that returns a model adapter"


def _remedy_of_dataset(item: object) -> str:
    return "expected a function that returns or yields rows" if inspect.ismodule(item) else ""


def _remedy_of_format(item: object) -> str:
    missing = [name for name in ("recognises", "load") if not callable(getattr(item, name, None))]
    expected = "expected a module with the functions recognises(folder) and load(folder)"
    return f"{expected}, but {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing" if missing else ""


def _remedy_of_measure(item: object) -> str:
    return (
        'decorate it with @measure("name")' if callable(item) else 'expected a function decorated with @measure("name")'
    )


def _remedy_of_check(item: object) -> str:
    if inspect.isclass(item):
        return "decorate it with @checks.registered"
    return "decorate it with @checks.check" if callable(item) else "expected a function decorated with @checks.check"


models: Registry[Callable[[], Any]] = Registry(
    "model", "attnaudit.models", decorator="attnaudit.register_model", remedy=_remedy_of_model
)
datasets: Registry[Callable[[], Any]] = Registry(
    "data set", "attnaudit.datasets", decorator="attnaudit.register_dataset", remedy=_remedy_of_dataset
)
checkpoint_formats: Registry[Any] = Registry("checkpoint format", "attnaudit.checkpoints", remedy=_remedy_of_format)
measures: Registry[Any] = Registry(
    "measure", "attnaudit.measures", package="attnaudit.measures", remedy=_remedy_of_measure
)
checks: Registry[Any] = Registry(
    "check", "attnaudit.checks", package="attnaudit.checks.builtin", remedy=_remedy_of_check
)


def begin_project() -> None:
    """Let files register names again that the files of another project registered before in this process."""
    for registry in (models, datasets, checkpoint_formats, measures, checks):
        registry.forget_files()
