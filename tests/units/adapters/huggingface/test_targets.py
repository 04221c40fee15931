"""Targets of Transformers models: their logits against plain PyTorch, the reading, and messages about bad rows."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface import transformer
from attnaudit.instances import Instance
from attnaudit.targets import Target
from tests import architectures

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
        ids, decoder = reader(prompt, return_tensors="pt")["input_ids"], [plain.config.decoder_start_token_id]
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
@pytest.mark.parametrize("answer", ["good", "unbelievably moving"])
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
