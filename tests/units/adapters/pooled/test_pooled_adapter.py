from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attnaudit.adapters import Encoding, ModelAdapter, PooledAttentionAdapter
from attnaudit.adapters.padding import pad
from attnaudit.errors import AdapterError, DataError
from attnaudit.instances import Instance
from tests import strategies
from tests.small_models import WORDS, Attention, adapter, dataset, parts, tokenize_with_ends

sentences = strategies.texts(WORDS[1:], max_words=9)


def test_it_is_a_model_adapter() -> None:
    assert isinstance(adapter(), ModelAdapter)


@given(st.lists(sentences, min_size=1, max_size=5))
@settings(max_examples=25)
def test_rows_do_not_depend_on_their_batch(texts: list[str]) -> None:
    model = adapter(2, tokenize=tokenize_with_ends)
    rows = [Instance(id=str(i), text=t) for i, t in enumerate(texts)]
    together = model.run(model.collate(rows)).logits
    for b, one in enumerate(rows):
        torch.testing.assert_close(model.run(model.collate([one])).logits[0], together[b], atol=1e-5, rtol=0)


def test_logits_are_the_decoder_of_the_weighted_states() -> None:
    model = adapter(2)
    inputs = model.collate(dataset().instances)
    trace = model.run(inputs, hidden=True)
    context = (trace.attention["attention"][:, 0, 0, :, None] * trace.hidden["attention"]).sum(1)
    torch.testing.assert_close(model.decoder(context), trace.logits)


def test_special_tokens_are_never_attended() -> None:
    model = adapter(tokenize=tokenize_with_ends)
    inputs = model.collate(dataset().instances)
    weights = model.run(inputs).attention["attention"][:, 0, 0]
    assert weights[inputs.special["text"]].abs().max() == 0
    assert inputs.real().sum(1).tolist() == [len(one.text.split()) for one in dataset().instances]


@given(sentences, st.data())
def test_deletion_equals_encoding_the_shorter_text(text: str, data: st.DataObject) -> None:
    words = text.split()
    if len(words) < 2:
        return
    gone = data.draw(st.integers(0, len(words) - 1))
    model = adapter(tokenize=tokenize_with_ends)
    inputs = model.collate([Instance(id="a", text=text), Instance(id="b", text="good bad very dull good film a")])
    variant = model.run(model.delete(inputs, "text", [(0, gone + 1)])).logits
    shorter = " ".join(words[:gone] + words[gone + 1 :])
    expected = model.run(model.collate([Instance(id="c", text=shorter)])).logits
    torch.testing.assert_close(variant, expected, atol=1e-5, rtol=0)


@given(sentences, st.data())
def test_keeping_some_tokens_equals_encoding_them_alone(text: str, data: st.DataObject) -> None:
    words = text.split()
    kept = data.draw(st.lists(st.booleans(), min_size=len(words), max_size=len(words)).filter(any))
    model = adapter(tokenize=tokenize_with_ends)
    inputs = model.collate([Instance(id="a", text="good bad very dull good film a"), Instance(id="b", text=text)])
    keep = torch.zeros((1, inputs.ids["text"].shape[1]), dtype=torch.bool)
    keep[0, : len(words) + 2] = torch.tensor([True, *kept, True])
    variant = model.run(model.keep(inputs, "text", torch.tensor([1]), keep)).logits
    shorter = " ".join(word for word, stays in zip(words, kept, strict=True) if stays)
    expected = model.run(model.collate([Instance(id="c", text=shorter)])).logits
    torch.testing.assert_close(variant, expected, atol=1e-5, rtol=0)


def test_substitution_equals_encoding_an_unknown_word_and_leaves_padding_alone() -> None:
    model = adapter(tokenize=tokenize_with_ends, mask_id=1)
    inputs = model.collate([Instance(id="a", text="good bad very dull"), Instance(id="b", text="dull film")])
    replaced = torch.zeros((1, inputs.ids["text"].shape[1]), dtype=torch.bool)
    replaced[0, 1] = replaced[0, -1] = True
    variant = model.substitute(inputs, "text", torch.tensor([1]), replaced)
    assert variant.mask["text"].tolist() == inputs.mask["text"][1:].tolist()
    expected = model.run(model.collate([Instance(id="c", text="unheard film")])).logits
    torch.testing.assert_close(model.run(variant).logits, expected, atol=1e-5, rtol=0)


def test_without_a_mask_token_nothing_is_substituted() -> None:
    model = adapter()
    assert not model.capabilities.mask
    assert adapter(mask_id=1).capabilities.mask
    inputs = model.collate(dataset().instances)
    with pytest.raises(AdapterError, match=r"no mask token\. Pass mask_id"):
        model.substitute(inputs, "text", torch.tensor([0]), inputs.mask["text"][:1])


def test_padding_marks_what_is_real() -> None:
    padded, mask = pad([[4, 5, 6], [], [7]], value=0, device=torch.device("cpu"))
    assert padded.tolist() == [[4, 5, 6], [0, 0, 0], [7, 0, 0]]
    assert mask.sum(1).tolist() == [3, 0, 1]


def test_one_class_is_refused() -> None:
    with pytest.raises(AdapterError, match="at least two different class names"):
        adapter(classes=("good",))


@pytest.mark.parametrize("module", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_a_recurrent_module_is_no_encoder(module: type[torch.nn.RNNBase]) -> None:
    with pytest.raises(
        AdapterError, match=rf"encoder is an nn\.{module.__name__}, which accepts no mask.*lambda embedded"
    ):
        adapter(encoder=module(4, 4, batch_first=True))


@pytest.mark.parametrize(("name", "token"), [("mask_id", 10_000), ("mask_id", -1), ("pad_id", 10_000)])
def test_an_id_without_an_embedding_is_refused(name: str, token: int) -> None:
    with pytest.raises(AdapterError, match=rf"{name} is {token}, but the embedding has \d+ rows"):
        adapter(**{name: token})


def test_padding_replaces_no_word() -> None:
    with pytest.raises(AdapterError, match=r"mask_id and pad_id are both 0\..*id of the mask token or of the unknown"):
        adapter(mask_id=0)
    assert adapter(mask_id=0, pad_id=1).mask_id == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": "abc"}, r"classes='abc' is a single string; expected a sequence of names"),
        ({"modules": nn.Linear(1, 1)}, r"modules is a Linear; expected a sequence of modules.*modules=\(model,\)"),
        ({"modules": nn.Sequential(nn.Linear(1, 1))}, r"modules is a Sequential; expected a sequence"),
        ({"modules": 3}, r"modules is a int; expected a sequence of modules"),
        (
            {"modules": (nn.Linear(1, 1), nn.Linear(1, 1).weight)},
            r"modules\[1\] is a Parameter; expected an",
        ),
        ({"modules": ()}, "None of the given parts"),
        (
            {"embedding": nn.Embedding(3, 2).weight},
            r"embedding is a Parameter, .*Give the module instead",
        ),
        (
            {"embedding": "words"},
            r"embedding is a str, which cannot be called; .* called as embedding\(ids\)\.$",
        ),
        (
            {"attention": lambda states: states},
            r"attention takes the arguments \(states\); expected a function of 2 arguments, called as "
            r"attention\(states, allowed\) \(too many positional arguments\)",
        ),
        ({"encoder": nn.Linear(6, 10)}, r"encoder takes the arguments \(input\); .*encoder\(embeddings, mask\)"),
        ({"decoder": lambda context, query: context}, r"decoder takes .* of 1 argument, called as decoder\(context\)"),
        ({"tokenize": lambda: None}, r"tokenize takes the arguments \(\); .*tokenize\(text\)"),
        (
            {"query": lambda embedded, mask: embedded.sum(1), "attention": lambda states, allowed: states},
            r"of 3 arguments, called as attention\(states, allowed, query_state\)",
        ),
    ],
)
def test_a_wrong_option_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        adapter(**changes)


def test_functions_without_a_known_signature_are_accepted() -> None:
    assert adapter(attention=Attention(), encoder=torch.add, modules=(nn.Linear(1, 1),)).encoder is torch.add


def test_an_id_outside_the_vocabulary_names_its_row_and_token() -> None:
    def unknown(text: str) -> Encoding:
        return Encoding([999 if word == "film" else 2 for word in text.split()], text.split())

    message = (
        r"^films\.csv:2, 'the film is good': tokenize gives the token 'film' the id 999, but the embedding has "
        r"16 rows\. Give ids from 0 to 15;"
    )
    with pytest.raises(AdapterError, match=message):
        adapter(tokenize=unknown).collate(dataset().instances)
    with pytest.raises(AdapterError, match="the id -1, but"):
        adapter(tokenize=lambda text: Encoding([-1], ["word"])).collate(dataset().instances)


def test_an_id_without_an_embedding_in_a_function_is_explained() -> None:
    table = nn.Embedding(10, 6)
    made = adapter(embedding=lambda ids: 2 * table(ids), modules=(table,))
    with pytest.raises(AdapterError, match=r"embedding raised IndexError.*from 0 to 1\d\. Probably tokenize"):
        made.embed(made.collate(dataset().instances))


def test_parts_without_parameters_are_refused() -> None:
    with pytest.raises(AdapterError, match=r"modules=\(model,\)"):
        PooledAttentionAdapter(
            embedding=lambda ids: ids,
            encoder=lambda e, m: e,
            attention=lambda h, m: m,
            decoder=lambda c: c,
            tokenize=lambda t: Encoding([], []),
            classes=("a", "b"),
        )


@pytest.mark.parametrize(
    ("tokenize", "message"),
    [
        (lambda t: [1, 2], "tokenize returned list"),
        (
            lambda t: Encoding([1, 2], ["one"]),
            r"films\.csv:2, 'the film is good': tokenize returned 2 ids and 1 token; expected one token per id",
        ),
        (lambda t: Encoding([1], ["one"], [True, False]), "1 id, 1 token and 2 special flags"),
        (lambda t: Encoding([1.5], ["one"]), r"token ids are torch.float32, such as 1.5\. Give whole numbers"),
    ],
)
def test_a_wrong_tokenizer_is_named(tokenize: object, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        adapter(tokenize=tokenize).collate(dataset().instances)


def test_too_long_a_text_names_its_row() -> None:
    with pytest.raises(DataError, match=r"films.csv:2: the text has 4 tokens, but the model takes at most 3"):
        adapter(max_tokens=3).collate(dataset().instances)


def test_wrong_shapes_are_named() -> None:
    inputs = adapter().collate(dataset().instances)
    with pytest.raises(AdapterError, match="encoder returned shape"):
        adapter(encoder=lambda e, m: e.sum(1)).run(inputs)
    with pytest.raises(AdapterError, match="attention returned shape"):
        adapter(attention=lambda h, m: h).run(inputs)
    with pytest.raises(AdapterError, match="dropped a dimension"):
        adapter(decoder=lambda c: c.sum(-1), modules=(nn.Linear(1, 1),)).run(inputs)


def test_a_non_linear_decoder_has_no_weights() -> None:
    with pytest.raises(AdapterError, match=r"not an nn\.Linear"):
        adapter(decoder=nn.Sequential(nn.Linear(10, 1))).decoder_weights()


def test_a_decoder_without_bias_has_a_zero_bias() -> None:
    weight, bias = adapter(decoder=nn.Linear(10, 2, bias=False)).decoder_weights()
    assert (tuple(weight.shape), bias.tolist()) == ((2, 10), [0.0, 0.0])


def test_all_parts_are_hashed_and_moved() -> None:
    made = parts()
    assert next(iter(adapter().modules)).weight.shape == made["embedding"].weight.shape  # type: ignore[attr-defined]
    assert len(adapter().modules) == 4
