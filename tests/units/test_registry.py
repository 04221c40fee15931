"""Each name stands for one object: registering a name again does not replace the first object."""

from __future__ import annotations

import pytest

import attnaudit
from attnaudit.errors import AuditError
from attnaudit.registry import Registry, checks, datasets, models


def test_a_shipped_name_is_not_replaced() -> None:
    for registry, name in ((models, "demo"), (datasets, "movie-reviews")):
        with pytest.raises(AuditError, match=f"'{name}' is registered twice, by attnaudit.* and by tests.*Rename one"):

            @registry.register(name)
            def mine() -> None: ...

    assert checks.get("UniformFragility").__module__ == "attnaudit.checks.builtin.uniform_fragility"


def test_a_name_is_registered_only_once() -> None:
    own: Registry[object] = Registry("thing", "attnaudit.no_such_group")
    own.register("one")(test_a_shipped_name_is_not_replaced)
    own.register("one")(test_a_shipped_name_is_not_replaced)
    with pytest.raises(AuditError, match="thing 'one' is registered twice"):
        own.register("one")(test_a_name_is_registered_only_once)


@pytest.mark.parametrize("name", ["register_model", "register_dataset"])
def test_a_decorator_needs_parentheses(name: str) -> None:
    with pytest.raises(AuditError, match=rf'expected text\. Write @attnaudit\.{name}\("name"\)\.'):

        @getattr(attnaudit, name)
        def mine() -> None: ...

    with pytest.raises(AuditError, match=r"thing name: found 1; expected text\.$"):
        Registry("thing", "attnaudit.no_such_group").register(1)  # type: ignore[arg-type]
