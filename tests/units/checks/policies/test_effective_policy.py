"""The effective policy: what its hash depends on, and what it does not depend on."""

from __future__ import annotations

import dataclasses
import importlib
import linecache
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit import checks
from attnaudit.checks.base import Check
from attnaudit.checks.check_arguments import LATER_DEFAULTS
from attnaudit.checks.custom_check import check
from attnaudit.checks.policies.effective_policy import effective_policy, effective_policy_of_file, hash_of
from attnaudit.errors import CheckError
from attnaudit.records import EffectivePolicy, PolicyException
from attnaudit.registry import checks as registry

EVERY: list[Check] = [
    checks.Agreement(at_least="floor + 0.2"),
    checks.Agreement(importance="leave_one_out", severity="report"),
    checks.PermutationFragility(at_least=0.08),
    checks.AdversarialDivergence(severity="report", tvd=0.05),
    checks.InformationRanking(at_least=0.5, inconclusive="warn"),
    checks.TrainedAdversary(compare_seeds=2, at_most="2 * seeds", severity="gate"),
]
KNOWN = PolicyException(check="permutation_fragility.tvd", reason="known")
#: A check, and the same check with one other argument, for every argument.
CHANGES: list[tuple[Check, Check]] = [
    (checks.Agreement(at_least=0.1), changed)
    for changed in (
        checks.Agreement(at_least=0.11),
        checks.Agreement(at_least="floor + 0.1"),
        checks.Agreement(at_least=0.1, severity="report"),
        checks.Agreement(at_least=0.1, confidence=0.9),
        checks.Agreement(at_least=0.1, inconclusive="warn"),
        checks.Agreement(at_least=0.1, inconclusive="pass"),
        checks.Agreement(at_least=0.1, reading="rollout@query=own"),
        checks.Agreement(at_least=0.1, at="hidden"),
        checks.Agreement(at_least=0.1, preset="jain_wallace"),
        checks.Agreement(at_least=0.1, importance="leave_one_out"),
    )
]
CHANGES += [
    (checks.TrainedAdversary(), checks.TrainedAdversary(**{argument: value}))
    for argument, value in {
        "seeds": 2, "train": "mine", "dev": "mine", "weight": 0.02, "divergence": "jsd", "frozen": True, "sweep": True,
        "compare_seeds": 1, "at_most": 0.5,
    }.items()
]  # fmt: skip


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.names()
    monkeypatch.setattr(registry, "_known", dict(registry._known))
    monkeypatch.setattr(registry, "_origin", dict(registry._origin))


def sha256(*declared: Check, **options: Any) -> str:
    return effective_policy(declared, **options).sha256


@given(st.permutations(EVERY), st.lists(st.sampled_from(EVERY)))
def test_neither_the_order_nor_repetitions_matter(order: list[Check], again: list[Check]) -> None:
    assert effective_policy([*order, *again]) == effective_policy(EVERY)


@given(st.sets(st.integers(0, len(EVERY) - 1)), st.sets(st.integers(0, len(EVERY) - 1)))
def test_other_checks_give_another_hash(first: set[int], second: set[int]) -> None:
    hashes = [sha256(*(EVERY[i] for i in chosen)) for chosen in (first, second)]
    assert (hashes[0] == hashes[1]) == (first == second)


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_every_argument_matters(before: Check, after: Check) -> None:
    assert sha256(before) != sha256(after)
    assert sha256(*EVERY, before) != sha256(*EVERY, after)


@given(
    limit=st.floats(0.001, 1),
    other=st.floats(0.001, 1),
    confidence=st.sampled_from([0.9, 0.95]),
    severity=st.sampled_from(["gate", "report"]),
)
def test_checks_have_the_same_hash_exactly_if_they_are_equal(
    limit: float, other: float, confidence: float, severity: Any
) -> None:
    one = checks.UniformFragility(at_least=limit)
    two = checks.UniformFragility(at_least=other, confidence=confidence, severity=severity)
    assert (sha256(one) == sha256(two)) == (one == two)


def test_every_argument_of_every_check_is_in_its_table() -> None:
    for name in registry.names():
        kind = registry.get(name)
        if isinstance(kind, type) and kind.__module__.startswith("attnaudit."):
            (table,) = effective_policy([kind(severity="report")]).checks
            expected = {"id", "name", *(set(kind.argument_names()) - {"detach", *LATER_DEFAULTS})}
            assert set(table) == expected, name


def test_two_checks_with_the_same_id_are_both_listed() -> None:
    assert len(effective_policy([checks.Agreement(at_least=0.1), checks.Agreement(at_least=0.2)]).checks) == 2


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("floor + 0.2", "0.2+floor", True),
        ("floor + 0.5 * (gradient_loo - floor)", "(floor + gradient_loo) * 0.5", True),
        ("floor + 0.2", "floor - 0.2", False),
        ("floor + 0.2", "gradient_loo + 0.2", False),
        ("-floor", "-1.0 * floor", True),
    ],
)
def test_a_relative_threshold_counts_by_its_value(one: str, other: str, same: bool) -> None:
    declared = [checks.Agreement(at_least=text) for text in (one, other)]
    assert (sha256(declared[0]) == sha256(declared[1])) == same
    (table,) = effective_policy(declared[:1]).checks
    assert sha256(dataclasses.replace(declared[0], at_least=table["at_least"])) == sha256(declared[0])


def test_exceptions_and_informational_matter() -> None:
    hashes = {
        sha256(*EVERY),
        sha256(*EVERY, informational=True),
        sha256(*EVERY, exceptions=[KNOWN]),
        sha256(*EVERY, exceptions=[msgspec.structs.replace(KNOWN, reason="other")]),
        sha256(*EVERY, exceptions=[msgspec.structs.replace(KNOWN, model="demo")]),
        sha256(*EVERY, exceptions=[msgspec.structs.replace(KNOWN, data="demo")]),
    }
    assert len(hashes) == 6
    both = [KNOWN, msgspec.structs.replace(KNOWN, model="demo")]
    assert sha256(*EVERY, exceptions=both) == sha256(*EVERY, exceptions=[*reversed(both), KNOWN])


@given(
    order=st.permutations(range(3)),
    comments=st.lists(st.sampled_from(["", "# why\n", "\n\n", "  \t\n"]), min_size=4, max_size=4),
    written=st.booleans(),
)
def test_a_file_and_the_same_checks_in_python_have_the_same_hash(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], comments: list[str], written: bool
) -> None:
    tables = [
        '[[check]]\nname = "Agreement"\nat_least = "floor  +  0.2"\n' + 'importance = "gradient"\n' * written,
        '[[check]]\nname="PermutationFragility"\nat_least=0.08\n' + 'severity = "gate"\nconfidence = 0.95\n' * written,
        '[[exception]]\ncheck = "permutation_fragility.tvd"\nreason = "known"\n',
    ]
    parts = [comments[0]]
    for position, comment in zip(order, comments[1:], strict=True):
        parts += [tables[position], comment]
    path = tmp_path_factory.mktemp("policies") / "p.toml"
    path.write_text("".join(parts), encoding="utf-8")
    declared = [checks.PermutationFragility(at_least=0.08), checks.Agreement(at_least="floor + 0.2")]
    assert effective_policy_of_file(path) == effective_policy(declared, [KNOWN])


def test_the_hash_survives_json() -> None:
    made = effective_policy([*EVERY, custom("return m.scalar('attention.max')")], [KNOWN])
    read = msgspec.json.decode(msgspec.json.encode(made), type=EffectivePolicy)
    assert read == made
    assert hash_of(read) == read.sha256 == made.sha256
    assert hash_of(msgspec.structs.replace(made, checks=made.checks[::-1])) == made.sha256


def test_the_hash_is_the_same_in_every_process() -> None:
    code = (
        "from attnaudit import checks; from attnaudit.checks.policies.effective_policy import effective_policy\n"
        "@checks.check(title='t', question='q')\n"
        "def peak(m): return [x in {'a', 'b', 'c', 'd'} for x in (1, 2)]\n"
        "print(effective_policy([checks.Agreement(at_least=0.1), peak(at_least=0.5)]).sha256)\n"
    )
    hashes = set()
    for seed in ("1", "2", "3"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
        )
        hashes.add(done.stdout)
    assert len(hashes) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Custom checks

_numbers: Iterator[int] = iter(range(10**6))


def function(body: str, *, source: bool = True, before: str = "", name: str = "peak") -> Callable[..., Any]:
    """Define a function, with or without a source that `inspect` finds."""
    text = f"{before}\ndef {name}(m):\n    {body}\n"
    file = f"<written {next(_numbers)}>"
    if source:
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    namespace: dict[str, Any] = {"__name__": "conftest_of_tests"}
    exec(compile(text, file, "exec"), namespace)
    defined: Callable[..., Any] = namespace[name]
    return defined


def custom(body: str, *, source: bool = True, before: str = "", **facts: Any) -> Check:
    registry._known.pop("peak", None)
    made = function(body, source=source, before=before)
    return check(**{"title": "t", "question": "q", **facts})(made)(at_least=0.5)


@pytest.mark.parametrize("source", [True, False])
@pytest.mark.parametrize(
    "other",
    [
        "return m.scalar('attention.min')",
        "return -m.scalar('attention.max')",
        "return [x for x in m.scalar('attention.max')]",
        "return m.vector('attention.max')",
    ],
)
def test_the_code_of_a_custom_check_matters(other: str, source: bool) -> None:
    body = "return m.scalar('attention.max')"
    assert sha256(custom(body, source=source)) == sha256(custom(body, source=source, before="\n\n# moved"))
    assert sha256(custom(body, source=source)) != sha256(custom(other, source=source))


def test_comments_white_space_and_docstrings_of_a_custom_check_do_not_matter() -> None:
    plain = custom("return m.scalar('attention.max')")
    assert sha256(plain) == sha256(custom("'''Doc.'''\n    # Why.\n\n    return (m.scalar( 'attention.max' ))  # end"))


@pytest.mark.parametrize("source", [True, False])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("LIMIT = 1", "LIMIT = 2"),
        ("def LIMIT(x): return x", "def LIMIT(x): return -x"),
        ("def deep(x): return 1\ndef LIMIT(x): return deep(x)", "def deep(x): return 2\ndef LIMIT(x): return deep(x)"),
        ("class LIMIT:\n  a = 1", "class LIMIT:\n  a = 2"),
        ("class LIMIT:\n  def f(self): return 1", "class LIMIT:\n  def f(self): return 2"),
        ("LIMIT = {1, 2}", "LIMIT = {1, 3}"),
        ("LIMIT = {'a': 1}", "LIMIT = {'a': 2}"),
        ("import numpy as np; LIMIT = np.array([1.0])", "import numpy as np; LIMIT = np.array([2.0])"),
        (
            "import functools\n@functools.lru_cache\ndef LIMIT(): return 1",
            "import functools\n@functools.lru_cache\ndef LIMIT(): return 2",
        ),
        ("LIMIT = lambda x: x", "LIMIT = lambda x: -x"),
    ],
)
def test_what_a_custom_check_names_in_its_module_matters(one: str, other: str, source: bool) -> None:
    first, second = (custom("return LIMIT", source=source, before=before) for before in (one, other))
    assert sha256(first) != sha256(second)
    assert sha256(first) == sha256(custom("return LIMIT", source=source, before=f"{one}\nUNUSED = 3"))


def test_a_decorator_of_a_custom_check_matters() -> None:
    def made(sign: str) -> Check:
        before = (
            "import functools\n"
            "def turned(f):\n  @functools.wraps(f)\n"
            f"  def inner(m): return {sign}f(m)\n  return inner\n@turned"
        )
        return custom("return m.scalar('attention.max')", before=before)

    assert sha256(made("-")) == sha256(made("-"))
    assert sha256(made("-")) != sha256(made(""))


def test_functions_of_other_modules_of_the_user_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)

    def made(value: int, before: str, body: str) -> Check:
        (tmp_path / "helpers_of_tests.py").write_text(f"def limit(): return {value}\n", encoding="utf-8")
        sys.modules.pop("helpers_of_tests", None)
        linecache.clearcache()
        importlib.invalidate_caches()
        sys.dont_write_bytecode, former = True, sys.dont_write_bytecode
        try:
            return custom(body, before=before)
        finally:
            sys.dont_write_bytecode = former

    for before, body in (
        ("from helpers_of_tests import limit", "return limit()"),
        ("import helpers_of_tests", "return helpers_of_tests.limit()"),
    ):
        assert sha256(made(1, before, body)) == sha256(made(1, before, body))
        first = sha256(made(1, before, body))
        assert first != sha256(made(2, before, body))


def test_variables_of_an_enclosing_function_and_defaults_matter() -> None:
    def made(limit: float) -> Check:
        def peak(m: Any, at: float = limit) -> Any:
            return m.scalar("attention.max") > limit

        registry._known.pop("peak", None)
        return check(title="t", question="q")(peak)(at_least=0.5)

    assert sha256(made(0.1)) == sha256(made(0.1))
    assert sha256(made(0.1)) != sha256(made(0.2))


@pytest.mark.parametrize(
    "facts", [{"needs": ["uniform"]}, {"statistic": "median"}, {"low": 0}, {"high": 1}, {"statistic": "proportion"}]
)
def test_facts_that_decide_the_numbers_of_a_custom_check_matter(facts: dict[str, Any]) -> None:
    assert sha256(custom("return 1")) != sha256(custom("return 1", **facts))


def test_texts_of_a_custom_check_do_not_matter() -> None:
    other = custom("return 1", title="other", question="other", why="other", unit="u", worst="highest")
    assert sha256(custom("return 1")) == sha256(other)


def test_the_class_of_another_package_is_hashed_and_a_built_in_one_is_not() -> None:
    (built_in,) = effective_policy([checks.Conicity(severity="report")]).checks
    assert "code" not in built_in

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Other(type(checks.Conicity(severity="report"))):  # type: ignore[misc]
        name_of_argument: int = 1

    (other,) = effective_policy([Other(severity="report")]).checks
    assert len(str(other["code"])) == 64
    assert sha256(Other(severity="report")) != sha256(Other(severity="report", name_of_argument=2))


@pytest.mark.parametrize("name", ["code", "baseline_name"])
def test_an_argument_with_the_name_of_a_fact_or_of_the_baseline_is_refused(name: str) -> None:
    kind = type(checks.Conicity(severity="report"))
    other = dataclasses.make_dataclass("Other", [(name, int, 1)], bases=(kind,), frozen=True, kw_only=True)
    with pytest.raises(CheckError, match=f"Other: a check cannot have an argument '{name}'"):
        effective_policy([other(severity="report")])


def test_a_policy_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="there is no such policy file"):
        effective_policy_of_file(tmp_path / "none.toml")
