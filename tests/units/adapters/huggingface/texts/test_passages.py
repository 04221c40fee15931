"""Prompts with passages: which tokens belong to a passage, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.protocol import TEXT
from attnaudit.conformance.suite import Subject, cases
from attnaudit.engine.measuring import measure
from attnaudit.errors import AdapterError, DataError, ModelError
from attnaudit.instances import Dataset, Instance
from attnaudit.model_families import covers
from attnaudit.targets import Target
from tests.small_sources import TEMPLATE, rows, small_language_model


def _adapter(template: str = TEMPLATE, **settings: Any) -> Any:
    return transformer(*small_language_model(), template=template, target=Target(kind="string"), **settings)


def test_the_adapter_keeps_the_contract() -> None:
    subject = Subject("sources", _adapter, rows())
    assert [result for result in (case.result() for case in cases(subject)) if result.outcome == "fail"] == []


def test_tokens_know_their_passage() -> None:
    inputs = _adapter().collate(rows())
    assert inputs.passages[TEXT][1].tolist()[:10] == [0] * 5 + [1] * 5
    assert set(inputs.passages[TEXT][1, 10:].tolist()) == {-1}
    assert torch.equal(inputs.real(), inputs.passages[TEXT] >= 0)
    # Equal passages are different units.
    assert inputs.passages[TEXT][2].unique().tolist() == [-1, 0, 1, 2, 3]


def test_a_deleted_passage_gives_the_prompt_of_the_other_passages() -> None:
    adapter, row = _adapter(), rows()[0]
    inputs = adapter.collate([row])
    for gone in range(3):
        keep = inputs.passages[TEXT] != gone
        shorter = adapter.keep(inputs, TEXT, torch.tensor([0]), keep)
        others = tuple(one for i, one in enumerate(row.passages) if i != gone)
        expected = adapter.collate([replace(row, passages=others)])
        assert torch.equal(shorter.ids[TEXT], expected.ids[TEXT])
        assert torch.allclose(adapter.run(shorter).logits, adapter.run(expected).logits, atol=1e-5)


def test_special_tokens_belong_to_no_passage() -> None:
    from tokenizers import processors

    model, tokenizer = small_language_model()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A <s>", special_tokens=[("<s>", 2)]
    )
    adapter = transformer(model, tokenizer, template=TEMPLATE, target=Target(kind="string"))
    inputs = adapter.collate(rows()[:1])
    assert inputs.passages[TEXT][0, :7].tolist() == [-1, 0, 0, 0, 0, 0, 1]
    assert inputs.passages[TEXT][0, -1] == -1
    assert inputs.special[TEXT][0, [0, -1]].all()


def test_a_prompt_that_is_too_long_is_refused_and_never_truncated() -> None:
    row = replace(rows()[0], passages=("the sky is blue",) * 9)
    with pytest.raises(DataError, match=r"with its 9 passages is 55 tokens long, but the model takes at most 48\."):
        _adapter().collate([row])
    with pytest.raises(DataError, match="Passages are never truncated"):
        _adapter(max_tokens=20).collate([rows()[0]])


def test_rows_that_do_not_fit_the_template() -> None:
    with pytest.raises(DataError, match=r"the row has no passages, but the template of the model has \{passages\}"):
        _adapter().collate([replace(rows()[0], passages=())])
    with pytest.raises(DataError, match="the token 'x:a' contains a part of a passage and a part of the template"):
        _adapter("x:{passages}{text} : {answer}")
    plain = _adapter("question : {text} answer : {answer}")
    data = Dataset(name="rows", source="test", description="", instances=tuple(rows()))
    with pytest.raises(DataError, match="the row has passages, but the model reads none"):
        measure(plain, data, ["attention"], model="m", seed=0)
    texts = tuple(Instance(id=one.id, text=one.text, answer=one.answer) for one in rows())
    with pytest.raises(AdapterError, match="units of this audit are sources, but the model reads no passages"):
        measure(plain, replace(data, instances=texts), ["attention"], model="m", seed=0, unit="sources")
    with pytest.raises(ModelError, match=r"\{passages\} at most once"):
        _adapter("{passages}{passages}{text} {answer}")


def test_a_file_is_refused() -> None:
    """The name of the file would otherwise be read as a text."""
    with pytest.raises(DataError, match="the row names a file, but the model reads texts"):
        _adapter().collate([replace(rows()[0], file="/pictures/1.png")])


def test_an_answer_that_is_in_no_passage_is_measured() -> None:
    row = replace(rows()[0], answer="red")
    data = Dataset(name="rows", source="test", description="", instances=(row,))
    found, _ = measure(_adapter(), data, ["top_k_drop.1"], model="m", seed=0, unit="sources")
    assert abs(found.scalar("top_k_drop.1")[0]) < 10


def test_only_a_policy_for_sources_covers_the_family() -> None:
    family = _adapter().family
    assert family == "transformer, llama, sources"
    assert not covers(["transformer", "transformer, string"], family)
    assert covers(["transformer, sources"], family)


@pytest.mark.parametrize("query", ["mean", "target"])
def test_a_single_head_of_a_reading_with_several_queries(query: str) -> None:
    adapter, row = _adapter(), rows()[0]
    data = Dataset(name="rows", source="test", description="", instances=(row,))
    reading = f"{query}@layer=0,heads=2"
    found, _ = measure(adapter, data, [f"attention/{reading}"], model="m", seed=0, unit="sources")
    inputs = adapter.collate([row])
    queries = inputs.real()[0] if query == "mean" else inputs.extra["target_queries"][0]
    weights = adapter.run(inputs).attention["layer.0"][0, 2, queries].mean(0)
    by_passage = torch.stack([weights[inputs.passages[TEXT][0] == i].sum() for i in range(3)])
    assert found.vector(f"attention/{reading}")[0] == pytest.approx((by_passage / by_passage.sum()).tolist(), abs=1e-5)
