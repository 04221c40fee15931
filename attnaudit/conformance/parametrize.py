"""The conformance suite as pytest cases, one per model and check."""

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
    """The object that a test with the decorator `parametrize_with_checks` gets as `check`. Calling it runs the check.

    Attributes:
        case: The check and the model it runs on.
    """

    case: Case

    def __call__(self) -> str:
        """Run the check.

        If the check does not apply to the adapter, the test is skipped. If the adapter breaks the contract, the test
        fails with a message that gives the problem and the fix. If the adapter raised an exception, pytest also shows
        the traceback.

        Returns:
            One sentence about the result.
        """
        __tracebackhide__ = True
        import pytest

        try:
            return self.case.run()
        except NotSelectedError as reason:
            pytest.skip(str(reason))
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
    """Return a decorator that gives a test function one case per model and check.

    The test function must take the argument `check` and call it: `check()`.

    Args:
        models: Adapters, or functions that return an adapter. A function is called when the first case of its model
            runs. Give a mapping from names to models to choose the names that appear in the ids of the cases.
        instances: The instances from which the suite selects its examples. None for movie reviews of many lengths.
        expected_failures: Check -> reason, for checks that fail on all models; or model -> {check: reason}. These cases
            are marked as strict xfails, which fail if their check passes.
        quick: Whether to run only the quick suite.

    Raises:
        CheckError: No model is given, a model is neither an adapter nor a function, two models have the same name, an
            expected failure names an unknown model or check, or an expected failure has no reason.
        DataError: `instances` is empty.
    """
    import pytest

    named = _named(models)
    expected = dict(expected_failures or {})
    by_model = {name: value for name, value in expected.items() if not isinstance(value, str)}
    for name in by_model:
        if name not in named:
            raise CheckError(f"expected_failures: there is no model {name!r}. {nearest(name, named)}")
    for_all = {name: value for name, value in expected.items() if isinstance(value, str)}
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
    if not pairs:
        raise CheckError(
            "parametrize_with_checks: no model is given, so nothing would be tested. Give at least one adapter, or a "
            "function that returns one. If the models are read from a folder, check its path."
        )
    names = [name for name, _ in pairs]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise CheckError(
            f"two models are called {repeated[0]!r}. Give each its own name: parametrize_with_checks({{'name': "
            "model})."
        )
    return {name: _maker(one) for name, one in pairs}


def _is_adapter(model: Model) -> bool:
    # callable() cannot distinguish adapters from functions, because an adapter that is an nn.Module is also callable.
    return isinstance(getattr(model, "capabilities", None), Capabilities)


def _name(model: Model) -> str:
    return type(model).__name__ if _is_adapter(model) else str(getattr(model, "__name__", type(model).__name__))


def _maker(model: Model) -> Callable[[], ModelAdapter]:
    if _is_adapter(model):
        return lambda: cast(ModelAdapter, model)
    if not callable(model):
        raise CheckError(
            f"got a {type(model).__name__}, which is neither a model adapter (it has no capabilities) nor a function "
            "that returns one."
        )
    return model
