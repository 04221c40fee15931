"""An adapter that leaves out part of the model's own forward pass is found by comparing the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnaudit.adapters import BagAdapter, PooledAttentionAdapter, SeveralAttentionsAdapter
from attnaudit.adapters.optional_methods import ConvertedModelAdapter, not_compared
from attnaudit.conformance import full, quick
from attnaudit.errors import AdapterError
from attnaudit.input_files.array_files import UnitArray
from attnaudit.instances import Instance
from attnaudit.targets import Target
from tests.pooled_models import MODELS, Parts, pair, softmax, two_levels
from tests.small_models import WORDS, Attention, Encoder, dataset, tokenize, tokenize_with_ends

INSTANCES = dataset().instances


class Classifier(nn.Module):
    """A classifier with its own forward pass.

    Args:
        outputs: The number of logits.
        shortcut: How much a path around the attention contributes to the logits.
    """

    def __init__(self, outputs: int = 2, shortcut: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.encoder = nn.Embedding(len(WORDS), 6), Encoder()
        self.attention, self.decoder = Attention(), nn.Linear(10, outputs)
        self.dropout, self.shortcut, self.shapes = nn.Dropout(0.5), shortcut, set[tuple[int, ...]]()

    def forward(self, ids: Tensor) -> Tensor:
        self.shapes.add(tuple(ids.shape))
        real, embedded = torch.ones_like(ids, dtype=torch.bool), self.embedding(ids)
        states = self.dropout(self.encoder(embedded, real))
        context = (self.attention(states, real)[..., None] * states).sum(1)
        return self.decoder(context) + self.shortcut * embedded.sum((1, 2))[:, None].cos()


def parts_of(model: Classifier) -> dict[str, Any]:
    return {
        "embedding": model.embedding,
        "encoder": model.encoder,
        "attention": model.attention,
        "decoder": model.decoder,
        "tokenize": tokenize,
        "classes": ("negative", "positive"),
        "modules": (model,),
    }


def adapter(model: Classifier, **changes: Any) -> PooledAttentionAdapter:
    return PooledAttentionAdapter(**{**parts_of(model), "original": model, **changes})


@pytest.mark.parametrize("outputs", [1, 2])
def test_equal_logits_pass_and_no_text_is_padded(outputs: int) -> None:
    model = Classifier(outputs)
    (result,) = [one for one in quick(adapter(model), INSTANCES) if one.check == "original_model"]
    assert (result.outcome, result.detail) == (
        "pass",
        "the logits equal those of your model's own forward(), on 6 texts",
    )
    lengths = {len(one.text.split()) for one in INSTANCES}
    assert {count for count, _ in model.shapes} == {1}
    assert {width for _, width in model.shapes} <= lengths


def test_a_path_around_the_attention_is_refused() -> None:
    message = r"original_model: the logits of the adapter differ by 0\.\d+ from those of your model's own forward\(\)"
    with pytest.raises(AdapterError, match=message):
        quick(adapter(Classifier(shortcut=0.5)), INSTANCES)


def test_without_the_forward_pass_this_is_reported() -> None:
    without = adapter(Classifier(shortcut=0.5), original=None)
    assert not isinstance(without, ConvertedModelAdapter)
    (result,) = [one for one in full(without, INSTANCES) if one.check == "original_model"]
    assert result.outcome == "skip"
    assert result.detail == (
        "not compared with your model's own forward() (pass original=... to the adapter; see docs/adapters.md)"
    )
    assert not_compared(adapter(Classifier())) == ""


def test_a_subclass_may_compare_in_its_own_way() -> None:
    class Compares(PooledAttentionAdapter):
        def compare_with_original(self, inputs: Any) -> str:
            return "compared"

    model = Classifier()
    made = Compares(**parts_of(model))
    (result,) = [one for one in quick(made, INSTANCES) if one.check == "original_model"]
    assert result.detail == "compared"


def ends_in_logits(changed: Callable[[Tensor], Any]) -> PooledAttentionAdapter:
    model = Classifier()
    return adapter(model, original=lambda ids: changed(model(ids)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda logits: (logits, None), r"original returned a tuple; .* original=lambda ids: model\(ids\)\[0\]"),
        (lambda logits: logits.argmax(), r"original returned the shape \(\); expected the logits of one text"),
        (lambda logits: logits[0], r"original returned the shape \(2,\).*Original is called|is called for one text"),
        (lambda logits: logits[:, :1], r"original returned 1 logit for a text, but the decoder returns 2"),
        (lambda logits: logits.softmax(-1), r"as probabilities do\. Return the values before the softmax"),
        (lambda logits: logits * torch.nan, "logits that are not finite for the text"),
        (lambda logits: logits + torch.rand(1), "two calls of original with the same text.*modules=\\(model,\\)"),
        (lambda logits: logits.nothing, r"original raised AttributeError at .* for the text '[a-z ]+'"),
    ],
)
def test_a_wrong_function_is_described(changed: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        quick(ends_in_logits(changed), INSTANCES)


def test_a_function_with_other_arguments_is_refused_at_once() -> None:
    with pytest.raises(AdapterError, match=r"original takes the arguments \(ids, mask\); expected .*original\(ids\)"):
        adapter(Classifier(), original=lambda ids, mask: ids)


def test_special_tokens_are_part_of_the_ids() -> None:
    model = Classifier()
    made = adapter(model, tokenize=tokenize_with_ends, attend_special=True)
    assert "original_model" in {one.check for one in quick(made, INSTANCES)}


def test_the_logit_of_a_label_is_compared() -> None:
    made = adapter(Classifier(3).eval(), classes=("toxic", "rude", "spam"), target=Target(kind="label", name="rude"))
    result = made.compare_with_original(made.collate(INSTANCES))
    assert result == "the logits equal those of your model's own forward(), on 8 texts"


def queried(**changes: Any) -> PooledAttentionAdapter:
    model = Classifier(3)
    joint = nn.Linear(16, 3)

    def attend(states: Tensor, allowed: Tensor, query: Tensor) -> Tensor:
        return model.attention(states, allowed)

    def forward(ids: Tensor, query: Tensor) -> Tensor:
        states = model.encoder(model.embedding(ids), ids >= 0)
        context = (model.attention(states, ids >= 0)[..., None] * states).sum(1)
        return joint(torch.cat([context, model.embedding(query).sum(1)], -1))

    given = parts_of(model) | {
        "classes": ("a", "b", "c"),
        "attention": attend,
        "decoder": lambda context, query: joint(torch.cat([context, query], -1)),
        "modules": (model, joint),
        "query": lambda embedded, mask: (embedded * mask[..., None]).sum(1),
        "original": forward,
    }
    return PooledAttentionAdapter(**{**given, **changes})


def test_a_query_is_the_second_argument_and_closed_classes_are_not_compared() -> None:
    rows = [Instance(id=str(n), text=one.text, query="good " * (n + 1)) for n, one in enumerate(INSTANCES)]
    for changes in ({}, {"open_classes": lambda instance: [True, len(instance.text) > 10, True]}):
        made = queried(**changes)
        assert made.compare_with_original(made.collate(rows)).endswith("on 8 texts")
    swapped = queried(original=lambda ids, query: torch.zeros(1, 3))
    with pytest.raises(AdapterError, match="differ by"):
        swapped.compare_with_original(swapped.collate(rows))


def test_several_attentions_and_bags_are_compared_too() -> None:
    model = Classifier().eval()

    def pool(states: Tensor, allowed: Tensor, attend: Any) -> Tensor:
        return model.decoder(attend("one", model.attention(states, allowed), states))

    parts = {key: value for key, value in parts_of(model).items() if key not in ("attention", "decoder")}
    several = SeveralAttentionsAdapter(**parts, pool=pool, sites={"one": 1}, original=model)
    assert several.compare_with_original(several.collate(INSTANCES)).endswith("on 8 texts")

    layer = nn.Linear(4, 2)
    values = {"a": torch.randn(5, 4), "b": torch.randn(2, 4)}
    bags = BagAdapter(
        encoder=lambda vectors, mask: vectors,
        attention=lambda states, allowed: allowed / allowed.sum(1, keepdim=True),
        decoder=layer,
        classes=("no", "yes"),
        features=4,
        modules=(layer,),
        read=lambda instance: UnitArray(features=values[instance.id]),
        original=lambda vectors: layer(vectors.mean(1)),
    )
    rows = [Instance(id=name, text=name) for name in values]
    assert bags.compare_with_original(bags.collate(rows)).endswith("on 2 texts")


def forward_of_levels(ids: Tensor) -> Tensor:
    """Run a hierarchical attention network on the sentences (S, W) of one text."""
    model, real = Parts(), ids != 0
    states = model.encode(model.embedding(ids), real)
    weights = softmax(4 * model.score(states)[..., 0], real)
    of_sentences: Tensor = model.upper((weights[:, None] @ states)[None, :, 0])[0]
    present = torch.ones(of_sentences.shape[:2], dtype=torch.bool)
    logits: Tensor = model.decoder((model.attend_once(of_sentences, present)[:, None] @ of_sentences)[:, 0])
    return logits


def forward_of_a_pair(ids: Tensor, query: Tensor) -> Tensor:
    """Run a model that compares a text (1, T) with a query (1, Q)."""
    model = Parts()
    states = [model.encode(model.embedding(one), one >= 0) for one in (ids, query)]
    of_text, of_query = model.both_ways(*states, ids >= 0, query >= 0)
    return model.aggregated(*states, of_text @ states[1], of_query @ states[0], ids >= 0, query >= 0)


@pytest.mark.parametrize(
    ("kind", "original"),
    [
        ("levels", forward_of_levels),
        ("pair", forward_of_a_pair),
        ("pair, the query explained", forward_of_a_pair),
    ],
)
def test_levels_and_pairs_are_compared_too(kind: str, original: Callable[..., Tensor]) -> None:
    build, rows = MODELS[kind]
    made = build(original=original)
    assert made.compare_with_original(made.collate(rows)).endswith(f"on {len(rows)} texts")
    wrong = build(original=lambda *given: original(*given) + given[0].shape[1])
    with pytest.raises(AdapterError, match="differ by"):
        wrong.compare_with_original(wrong.collate(rows))


def test_errors_say_what_the_function_gets() -> None:
    levels = two_levels(original=lambda ids: ids.nothing)
    with pytest.raises(AdapterError, match="the sentences of one text at a time, with padding after shorter sentences"):
        levels.compare_with_original(levels.collate(MODELS["levels"][1]))
    with pytest.raises(
        AdapterError, match=r"original takes the arguments \(ids\); expected .*original\(ids, query_ids\)"
    ):
        pair(original=lambda ids: ids)
