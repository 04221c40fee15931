"""The pytest front end: one readable case per model and check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from attnaudit.adapters.protocol import Capabilities, ModelAdapter
from attnaudit.conformance.contract import BrokenContractError
from attnaudit.conformance.suite import Case, NotSelectedError, Subject, cases
from attnaudit.errors import CheckError, nearest
from attnaudit.instances import Instance

if TYPE_CHECKING:
    import pytest

Model = ModelAdapter | Callable[[], ModelAdapter]


@dataclass(frozen=True)
class PytestCase:
    """What the decorated test is given as `check`: called, it runs the check."""

    case: Case

    def __call__(self) -> str:
        """The sentence about what was found. Fails the test with what is broken and the mend, showing where the adapter
        raised, if it did; skips it where the adapter's capabilities do not select the check."""
        __tracebackhide__ = True
        import pytest

        try:
            return self.case.run()
        except NotSelectedError as why:
            pytest.skip(str(why))
        except BrokenContractError as broken:
            if broken.__cause__ is not None:
                raise
            pytest.fail(str(broken), pytrace=False)


def parametrize_with_checks(
    models: Sequence[Model] | Mapping[str, Model],
    *,
    instances: Sequence[Instance] | None = None,
    expected_failures: Mapping[str, str | Mapping[str, str]] | None = None,
    quick: bool = False,
) -> pytest.MarkDecorator:
    """Decorates a test function with the argument `check`, which calls it: a case per model and check of the suite.

    models: adapters, or functions that make one, called when its first case runs; a mapping names them. instances: to
    try them on; None: movie reviews of many lengths. expected_failures: check -> reason for all models, or model ->
    {check: reason}: such a case is a strict xfail, so that one which passes fails the run. quick: only the quick form.
    Raises CheckError for unknown names."""
    import pytest

    named = _named(models)
    given = dict(expected_failures or {})
    by_model = {name: value for name, value in given.items() if not isinstance(value, str)}
    for name in by_model:
        if name not in named:
            raise CheckError(f"expected_failures: there is no model {name!r}. {nearest(name, named)}")
    for_all = {name: value for name, value in given.items() if isinstance(value, str)}
    broken = (BrokenContractError, pytest.fail.Exception)
    parameters = []
    for name, make in named.items():
        subject = Subject(name, make, instances, thorough=not quick)
        for case in cases(subject, {**for_all, **by_model.get(name, {})}):
            marks = [pytest.mark.xfail(reason=case.reason, strict=True, raises=broken)]
            parameters.append(
                pytest.param(PytestCase(case), id=f"{name}-{case.check.name}", marks=marks if case.reason else ())
            )
    return pytest.mark.parametrize("check", parameters)


def _named(models: Sequence[Model] | Mapping[str, Model]) -> dict[str, Callable[[], ModelAdapter]]:
    pairs = list(models.items()) if isinstance(models, Mapping) else [(_name(one), one) for one in models]
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise CheckError(f"two models are called {twice[0]!r}. Name them: parametrize_with_checks({{'name': model}}).")
    return {name: _maker(one) for name, one in pairs}


def _is_adapter(model: Model) -> bool:
    # A module can be called too: what tells an adapter is that it has capabilities of its own.
    return isinstance(getattr(model, "capabilities", None), Capabilities)


def _name(model: Model) -> str:
    return type(model).__name__ if _is_adapter(model) else str(getattr(model, "__name__", type(model).__name__))


def _maker(model: Model) -> Callable[[], ModelAdapter]:
    if _is_adapter(model):
        return lambda: cast(ModelAdapter, model)
    if not callable(model):
        raise CheckError(
            f"a {type(model).__name__} is neither a model adapter, which has capabilities, nor a function that makes "
            "one."
        )
    return model
