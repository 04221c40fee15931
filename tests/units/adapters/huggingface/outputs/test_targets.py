"""Targets of Transformers models: their logits against plain PyTorch, the reading, and messages about bad rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.protocol import TARGET_QUERIES, TEXT
from attnaudit.conformance import quick
from attnaudit.engine.batches.scopes import expanded, scope_of
from attnaudit.engine.measuring import measure
from attnaudit.errors import AdapterError, DataError, ModelError
from attnaudit.instances import Dataset, Instance
from attnaudit.targets import Target
from tests import architectures
from tests.slow_cases import slow_except

TAGS = {0: "O", 1: "PER", 2: "LOC"}
TEXT_OF_ROW = "the plot is dull and the acting is terrible"
STRING = Target(kind="string")


def adapter_of(name: str, task: str, target: Target | None = None, **options: Any) -> tuple[Any, Any, Any]:
    """Return the adapter, and a model with equal weights and its tokenizer, for plain PyTorch."""
    settings = options.pop("settings", {})
    model, reader = architectures.build(name, task=task, **settings)
    plain, _ = architectures.build(name, task=task, **settings)
    return transformer(model, reader, target=target, **options), plain, reader


def logits_of(adapter: Any, *instances: Instance) -> Tensor:
    with torch.no_grad():
        logits: Tensor = adapter.run(adapter.collate(instances)).logits
    return logits


def log_odds(p: Tensor) -> Tensor:
    return torch.log(p) - torch.log1p(-p)


def row(text: str = TEXT_OF_ROW, **fields: Any) -> Instance:
    return Instance(id="a", text=text, **fields)


def test_what_a_reading_leaves_out_is_named() -> None:
    adapter, _, _ = adapter_of("bert", "ForMaskedLM", STRING, template="{text} it was {answer}")
    rows = Dataset(name="d", source="", description="", instances=(row(answer="good"),))
    _, record = measure(adapter, rows, ("leave_one_out.inputs",), model="m", seed=0)
    assert any(
        "of its weight is on tokens of the template and special tokens and is left out" in n for n in record.notes
    )


@torch.no_grad()
def test_the_logit_of_a_label_is_the_models_own() -> None:
    settings = {"problem_type": "multi_label_classification", "id2label": TAGS, "label2id": {}}
    adapter, plain, reader = adapter_of("bert", "", Target(kind="label", name="PER"), settings=settings)
    expected = plain(**reader(TEXT_OF_ROW, return_tensors="pt")).logits[:, 1:2]
    torch.testing.assert_close(logits_of(adapter, row()), expected, atol=1e-5, rtol=0)
    assert adapter.capabilities.classes == ("not PER", "PER")
    assert adapter.capabilities.labels == ("O", "PER", "LOC")
    assert adapter.capabilities.decides
    assert adapter.family == "transformer, bert, multi-label"


@torch.no_grad()
@pytest.mark.parametrize("query_first", [True, False])
def test_the_logit_of_a_score_is_shifted_and_scaled(query_first: bool) -> None:
    target = Target(kind="score", threshold=0.3, scale=2.0)
    settings = {"num_labels": 1, "id2label": {0: "relevance"}, "label2id": {}}
    adapter, plain, reader = adapter_of("bert", "", target, settings=settings, query_first=query_first)
    texts = ("what is dull", TEXT_OF_ROW) if query_first else (TEXT_OF_ROW, "what is dull")
    expected = (plain(**reader(*texts, return_tensors="pt")).logits - 0.3) / 2.0
    torch.testing.assert_close(logits_of(adapter, row(query="what is dull")), expected, atol=1e-5, rtol=0)
    assert adapter.capabilities.classes == ("below 0.3", "at least 0.3")


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "roberta", "deberta-v2"])
def test_the_logits_of_a_tag_are_those_of_the_words_first_token(name: str) -> None:
    adapter, plain, reader = adapter_of(name, "ForTokenClassification", settings={"id2label": TAGS, "label2id": {}})
    encoded = reader(TEXT_OF_ROW, return_tensors="pt", return_offsets_mapping=True)
    start = TEXT_OF_ROW.index("acting")
    (offsets,) = encoded.pop("offset_mapping").tolist()
    position = next(p for p, (a, b) in enumerate(offsets) if a <= start < b)
    all_tags = plain(**encoded).logits[0]
    torch.testing.assert_close(logits_of(adapter, row(position=6))[0], all_tags[position], atol=1e-5, rtol=0)
    assert adapter.capabilities.classes == ("O", "PER", "LOC")
    # Without a position: the word with the most probable tag other than "O".
    words = [word.start() for word in re.finditer(r"\S+", TEXT_OF_ROW)]
    first = [next(p for p, (a, b) in enumerate(offsets) if a <= word < b) for word in words]
    chosen = max(first, key=lambda p: float(all_tags[p].softmax(0)[1:].max()))
    torch.testing.assert_close(logits_of(adapter, row())[0], all_tags[chosen], atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_logit_of_a_span_is_the_log_odds_of_its_probability() -> None:
    adapter, plain, reader = adapter_of("bert", "ForQuestionAnswering")
    question = "what is dull"
    encoded = reader(question, TEXT_OF_ROW, return_tensors="pt", return_offsets_mapping=True)
    (offsets,) = encoded.pop("offset_mapping").tolist()
    second = [p for p, text in enumerate(encoded.sequence_ids()) if text == 1]
    output = plain(**encoded)
    start, end = output.start_logits[0].double().softmax(0), output.end_logits[0].double().softmax(0)
    first, last = TEXT_OF_ROW.index("the acting"), TEXT_OF_ROW.index("the acting") + len("the acting")
    s = next(p for p in second if offsets[p][0] == first)
    e = max(p for p in second if offsets[p][1] <= last)
    expected = log_odds(start[s] * end[e])
    given = logits_of(adapter, row(query=question, answer="the acting"))[0, 0].double()
    torch.testing.assert_close(given, expected, atol=1e-5, rtol=0)
    best = max((float(start[i] * end[j]), i, j) for i in second for j in second if i <= j < i + 30)
    found = logits_of(adapter, row(query=question))[0, 0].double()
    torch.testing.assert_close(found, log_odds(torch.tensor(best[0], dtype=torch.float64)), atol=1e-5, rtol=0)
    assert not adapter.capabilities.decides


def string_by_hand(plain: Any, reader: Any, task: str, prompt: str, answer: str) -> Tensor:
    """Return the log-odds of the probability of the answer, one token after another, in float64."""
    if task == "encoder-decoder":
        written = reader(text_target=answer, add_special_tokens=False)["input_ids"]
        before = [reader.bos_token_id] if reader.bos_token_id is not None else []  # as the decoder learns to write it
        ids, decoder = reader(prompt, return_tensors="pt")["input_ids"], [plain.config.decoder_start_token_id, *before]
        total = torch.zeros((), dtype=torch.float64)
        for token in written:
            logits = plain(input_ids=ids, decoder_input_ids=torch.tensor([decoder])).logits[0, -1]
            total += logits.double().log_softmax(0)[token]
            decoder.append(token)
        return log_odds(total.exp())
    whole = prompt + answer
    encoded = reader(whole, return_offsets_mapping=True)
    places = [p for p, (a, b) in enumerate(encoded["offset_mapping"]) if b > len(prompt) and a < b]
    ids = torch.tensor([encoded["input_ids"]])
    total = torch.zeros((), dtype=torch.float64)
    if task == "masked":
        masked = ids.clone()
        masked[0, places] = reader.mask_token_id
        table = plain(input_ids=masked).logits[0].double().log_softmax(-1)
        return log_odds(sum((table[p, ids[0, p]] for p in places), total).exp())
    for place in places:
        total += plain(input_ids=ids[:, :place]).logits[0, -1].double().log_softmax(0)[ids[0, place]]
    return log_odds(total.exp())


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "ending", "task", "template"),
    [
        ("bert", "ForMaskedLM", "masked", "{text} {answer}"),
        ("roberta", "ForMaskedLM", "masked", "{text} {answer}"),
        ("gpt2-lm", "", "causal", None),
        ("llama-lm", "", "causal", "{text}. It was {answer}"),
        ("t5-lm", "", "encoder-decoder", None),
        ("bart-lm", "", "encoder-decoder", "{text} It was"),
    ],
)
@pytest.mark.parametrize("answer", slow_except(["good", "unbelievably moving"], ["unbelievably moving"]))
def test_the_logit_of_a_string(name: str, ending: str, task: str, template: str | None, answer: str) -> None:
    adapter, plain, reader = adapter_of(name, ending, STRING, template=template)
    others = [row("bad", answer="bad"), row("a film that is never dull", answer="dull, dull and terrible")]
    found = logits_of(adapter, row(answer=answer), *others)[0, 0].double()
    filled = (template or ("{text} {answer}" if task == "causal" else "{text}")).replace("{text}", TEXT_OF_ROW)
    prompt = filled.replace("{answer}", "")
    if task != "encoder-decoder":  # the space before the answer belongs to its first token
        prompt, answer = prompt.removesuffix(" "), " " + answer
    expected = string_by_hand(plain, reader, task, prompt, answer)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-6)
    assert adapter.capabilities.classes == ("any other string", "the string")
    assert adapter.family.endswith(", string")


ML = {"problem_type": "multi_label_classification", "id2label": TAGS, "label2id": {}}
TAGGER = {"id2label": TAGS, "label2id": {}}
LONG = " ".join(["dull"] * 80)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (("bert", ""), {"settings": ML}, r"assigns any number of labels.*docs/targets.md#a-label"),
        (("bert", ""), {"settings": ML, "target": Target(kind="label", name="PERS")}, "no output 'PERS'.*'PER'"),
        (("bert", ""), {"settings": {"id2label": {0: "s"}, "label2id": {}}}, "gives a score.*docs/targets.md#a-score"),
        (("bert", ""), {"target": STRING}, "has no target of kind 'string'. Expected 'class' or 'label' or 'score'"),
        (("bert", ""), {"target": Target(kind="score", scale=1.0)}, "the scores negative, positive. Name one"),
        (("bert", "ForMaskedLM"), {"target": Target()}, "has no target of kind 'class'. Expected 'string'"),
        (("gpt2-lm", ""), {}, r"pass labels.*docs/targets.md#a-string"),
        (("gpt2-lm", ""), {"target": STRING, "labels": {"a": " good"}}, "Remove either labels or the target"),
        (("gpt2-lm", ""), {"target": STRING, "template": "{answer} {text}"}, r"expected \{answer\} once, after"),
        (("gpt2-lm", ""), {"target": STRING, "template": "{text}"}, r"expected \{answer\} once, after"),
        (("t5-lm", ""), {"target": STRING, "template": "{text} {answer}"}, r"expected \{text\} once"),
        (("bart", "ForQuestionAnswering"), {}, "encoder and a decoder"),
    ],
)
def test_targets_that_do_not_fit_the_model(model: tuple[str, str], options: dict[str, Any], message: str) -> None:
    name, task = model
    with pytest.raises(ModelError, match=message):
        adapter_of(name, task, **options)


@pytest.fixture(scope="module")
def adapters() -> dict[str, Any]:
    score = {"id2label": {0: "s"}, "label2id": {}}
    return {
        "tag": adapter_of("bert", "ForTokenClassification", settings=TAGGER)[0],
        "span": adapter_of("bert", "ForQuestionAnswering")[0],
        "causal": adapter_of("gpt2-lm", "", STRING, template="{text}{answer}")[0],
        "masked": adapter_of("bert", "ForMaskedLM", STRING)[0],
        "score": adapter_of("bert", "", Target(kind="score", scale=1.0), settings=score)[0],
    }


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("tag", {"position": 9}, "'position' is 9, but the text has 9 words"),
        ("tag", {"text": LONG, "position": 79}, "word 79 is not among the tokens.*truncated"),
        ("tag", {"query": "who"}, "a tagger reads a single text"),
        ("span", {"answer": "plot"}, "has no query, but the model answers a question about the text"),
        ("span", {"query": "who", "answer": "a good film"}, "does not contain 'a good film'"),
        ("span", {"query": "who", "answer": "plot", "position": 3}, "does not contain 'plot' from word 3 on"),
        ("span", {"text": LONG + " end", "query": "who", "answer": "end"}, "the answer 'end' is not among the tokens"),
        ("causal", {}, "column 'answer' is empty"),
        ("causal", {"answer": "ly"}, "contains a part of the answer 'ly' and other characters.*Separate"),
        ("masked", {"answer": "good"}, r"contains \[MASK\] 0 times"),
        ("masked", {"text": "[MASK] and [MASK]", "answer": "good"}, r"contains \[MASK\] 2 times"),
        ("masked", {"text": "it is [MASK]", "answer": "字"}, "vocabulary does not contain the answer '字'"),
        ("score", {"query": "who"}, "unknown whether the model reads it before or after.*query_first"),
    ],
)
def test_rows_that_do_not_fit_the_target(
    name: str, fields: dict[str, Any], message: str, adapters: Mapping[str, Any]
) -> None:
    with pytest.raises(DataError, match=f"rows.csv:7: .*{message}"):
        adapters[name].collate([row(**{"text": TEXT_OF_ROW, **fields}, where="rows.csv:7")])


@torch.no_grad()
def test_a_mask_in_the_text_is_filled_by_an_answer_of_several_tokens(adapters: Mapping[str, Any]) -> None:
    adapter = adapters["masked"]
    inputs = adapter.collate([row("it was [MASK] and dull", answer="unbelievably moving")])
    masked = inputs.ids[TEXT][0] == adapter.runner.builder.tokenizer.mask_token_id
    assert int(masked.sum()) > 1
    assert torch.equal(inputs.extra[TARGET_QUERIES][0], masked)
    assert not bool((inputs.real()[0] & masked).any())


def test_the_reading_is_that_of_the_tokens_of_the_target(adapters: Mapping[str, Any]) -> None:
    adapter = adapters["causal"]
    (reading,) = expanded(adapter, adapter.capabilities.reading)
    inputs = adapter.collate([row(answer=" good and bad"), row("dull", answer=" good")])
    scope = scope_of(adapter, reading)
    queries = scope.row_mask(scope.site, inputs, inputs.ids[TEXT].shape[1])[:, 0, :, 0]
    special = inputs.special[TEXT] & ~inputs.real()
    for b, count in enumerate((3, 1)):
        places = queries[b].nonzero()[:, 0].tolist()
        answer = (inputs.extra["target_marks"][b] > 0).nonzero()[:, 0].tolist()
        assert places == [place - 1 for place in answer]
        assert len(places) >= count
        assert bool(special[b, answer].all())
    with pytest.raises(AdapterError, match="is computed from the same tokens in every row"):
        expanded(adapters["score"], "target@layer=-1,heads=mean")


@pytest.mark.parametrize("name", ["tag", "span"])
def test_a_token_of_the_target_can_be_masked_but_not_deleted(name: str, adapters: Mapping[str, Any]) -> None:
    adapter = adapters[name]
    assert not adapter.capabilities.deletion
    inputs = adapter.collate([row(query="who" if name == "span" else None)])
    place = int(inputs.extra[TARGET_QUERIES][0].int().argmax())
    here = torch.arange(inputs.ids[TEXT].shape[1])[None] == place
    with torch.no_grad():
        assert bool(adapter.run(adapter.substitute(inputs, TEXT, torch.tensor([0]), here)).logits.isfinite().all())
        with pytest.raises(AdapterError, match="was deleted, but the target is computed from it"):
            adapter.run(adapter.delete(inputs, TEXT, [(0, place)]))


@pytest.mark.parametrize("name", ["tag", "span", "causal", "masked"])
def test_the_quick_conformance_suite_passes(name: str, adapters: Mapping[str, Any]) -> None:
    words = architectures.SENTENCES[:4]
    text = {"masked": "{} [MASK]"}.get(name, "{}")
    rows = [
        Instance(
            id=str(n), text=text.format(one), answer=" good" if name in ("causal", "masked") else None,
            query="who" if name == "span" else None, position=n if name == "tag" else None,
        )
        for n, one in enumerate(words)
    ]  # fmt: skip
    assert not [one for one in quick(adapters[name], rows) if one.outcome == "fail"]
