"""The functions that run the suite, expected failures, and the pytest decorator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from attnaudit.adapters import Inputs, Trace
from attnaudit.conformance import CHECKS, check_adapter, full, parametrize_with_checks, quick
from attnaudit.errors import AdapterError, CheckError, DataError
from attnaudit.instances import Instance
from tests.small_models import adapter as pooled
from tests.units.conformance.conformance_models import PLAIN, SmallTransformer

NAMES = [check.name for check in CHECKS]


class NoisyAndForgetful(SmallTransformer):
    """Two faults: logits that grow with each pass, and no extra entries after deletion."""

    passes = 0
    noise = 0.1

    def run(self, inputs: Inputs, **given: Any) -> Trace:
        self.passes += 1
        trace = super().run(inputs, **given)
        return replace(trace, logits=trace.logits + self.noise * self.passes)

    def delete(self, inputs: Inputs, stream: str, drop: Any) -> Inputs:
        return replace(super().delete(inputs, stream, drop), extra={})


def outcomes(adapter: SmallTransformer, **expected: str) -> dict[str, tuple[str, str]]:
    return {one.check: (one.outcome, one.detail) for one in full(adapter, PLAIN, expected=expected)}


def test_the_plain_call_tries_movie_reviews_and_returns_what_was_found() -> None:
    results = check_adapter(SmallTransformer())
    assert [one.check for one in results] == NAMES
    assert {one.outcome for one in results} == {"pass", "skip"}


def test_a_model_that_cannot_do_without_a_query_is_given_one() -> None:
    class AsksForAQuery(SmallTransformer):
        def collate(self, instances: Any) -> Inputs:
            if any(one.query is None for one in instances):
                raise DataError("a query is needed")
            return super().collate(instances)

    results = {one.check: one for one in check_adapter(AsksForAQuery(cross=True))}
    assert results["query"].detail == "another query changes the logits"
    assert results["sites"].detail == "3 sites, 6 heads in total"


def test_the_plain_call_lists_all_that_fails() -> None:
    class Forgetful(NoisyAndForgetful):
        noise = 0.0

    for kind, fails in ((Forgetful, {"deletion"}), (NoisyAndForgetful, {"evaluation_mode"})):
        with pytest.raises(AdapterError) as caught:  # later checks are not tried when the logits are random
            check_adapter(kind(), PLAIN)
        first, *lines = str(caught.value).splitlines()
        assert first.startswith(f"{kind.__name__} breaks the adapter contract (")
        assert {line.partition(":")[0].strip() for line in lines} >= fails
        assert ("evaluation_mode" in first) == (kind is NoisyAndForgetful)
        assert len(lines) == 1 or kind is Forgetful


def test_a_failure_that_is_expected_is_skipped_with_its_reason() -> None:
    class Forgets(SmallTransformer):
        def delete(self, inputs: Inputs, stream: str, drop: Any) -> Inputs:
            return replace(super().delete(inputs, stream, drop), extra={})

    outcome, detail = outcomes(Forgets(), deletion="extra entries come later")["deletion"]
    assert outcome == "skip"
    assert detail.startswith(
        "fails as expected (extra entries come later): delete() returns Inputs.extra with the entries []"
    )


def test_a_check_that_passes_although_it_was_expected_to_fail_has_failed() -> None:
    found = outcomes(SmallTransformer(), padding="positions are absolute")
    assert found["padding"] == (
        "fail",
        "the check passes, but was expected to fail (positions are absolute). Remove it from the expected failures.",
    )
    with pytest.raises(AdapterError, match="padding: the check passes, but was expected to fail"):
        check_adapter(SmallTransformer(), PLAIN, expected={"padding": "positions are absolute"})


def test_a_check_that_does_not_apply_is_skipped_whatever_is_expected() -> None:
    assert outcomes(SmallTransformer(left_padding=False), left_padding="positions are absolute")["left_padding"] == (
        "skip",
        "the capabilities declare left_padding=False",
    )


def test_unknown_names_and_missing_reasons_are_refused() -> None:
    with pytest.raises(CheckError, match=r"'paddin'.*Did you mean 'padding'"):
        full(SmallTransformer(), PLAIN, expected={"paddin": "a reason"})
    with pytest.raises(CheckError, match="'padding': give the reason"):
        full(SmallTransformer(), PLAIN, expected={"padding": " "})
    with pytest.raises(CheckError, match="no model 'other'"):
        parametrize_with_checks([SmallTransformer], expected_failures={"other": {"padding": "a reason"}})
    with pytest.raises(CheckError, match="two models are called 'SmallTransformer'"):
        parametrize_with_checks([SmallTransformer, SmallTransformer()])
    with pytest.raises(CheckError, match="got a str, which is neither a model adapter"):
        parametrize_with_checks(["demo"])  # type: ignore[list-item]


def test_after_a_basic_failure_nothing_else_is_tried() -> None:
    class NoSites(SmallTransformer):
        def sites(self) -> tuple[Any, ...]:
            return ()

    found = outcomes(NoSites())
    assert found["sites"][0] == "fail"
    assert {detail for name, (_, detail) in found.items() if name not in ("sites", "shapes", "evaluation_mode")} == {
        "not run, because 'sites' fails."
    }


def test_a_fault_of_the_data_is_not_blamed_on_the_adapter() -> None:
    with pytest.raises(DataError, match="4 tokens, but the model takes at most 3"):
        full(pooled(max_tokens=3), [Instance(id="1", text="the film is good", where="films.csv:2")])


def test_texts_without_a_real_token_are_left_out() -> None:
    adapter = SmallTransformer()
    results = {one.check: one for one in full(adapter, [Instance(id="none", text=" "), *PLAIN])}
    assert results["special_tokens"].outcome == "pass"
    assert results["padding"].detail.endswith("(lengths 3 to 20)")


def test_a_factory_is_called_once_and_only_when_a_case_runs() -> None:
    made = []

    def small() -> SmallTransformer:
        made.append(SmallTransformer())
        return made[-1]

    mark = parametrize_with_checks({"small": small}, instances=PLAIN)
    name, parameters = mark.args
    assert name == "check"
    assert [one.id for one in parameters] == [f"small-{check}" for check in NAMES]
    assert made == []
    assert parameters[0].values[0]() == "2 sites, 4 heads in total"
    assert parameters[1].values[0]() == "all shapes are as declared, and all values are finite"
    assert len(made) == 1


def test_expected_failures_are_strict_marks_on_their_cases() -> None:
    given = {"padding": "for all", "first": {"deletion": "for the first"}}
    models = {"first": SmallTransformer, "second": SmallTransformer()}
    parameters = parametrize_with_checks(models, expected_failures=given, quick=True).args[1]
    marked = {one.id: one.marks[0] for one in parameters if one.marks}
    assert set(marked) == {"first-padding", "first-deletion", "second-padding"}
    assert all(mark.name == "xfail" and mark.kwargs["strict"] for mark in marked.values())
    assert marked["first-deletion"].kwargs["reason"] == "for the first"
    assert not any("each_site" in one.id for one in parameters)


@pytest.mark.parametrize("models", [[], {}, ()])
def test_the_decorator_needs_a_model(models: Any) -> None:
    with pytest.raises(CheckError, match=r"no model is given.* Give at least one adapter"):
        parametrize_with_checks(models)


def test_an_empty_list_of_instances_is_refused() -> None:
    adapter = SmallTransformer()
    runs = (
        lambda: check_adapter(adapter, instances=[]),
        lambda: full(adapter, []),
        lambda: quick(adapter, []),
        lambda: parametrize_with_checks([adapter], instances=[]),
    )
    for run in runs:
        with pytest.raises(DataError, match=r"instances is empty.* Give at least one instance, or leave out"):
            run()
