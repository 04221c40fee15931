"""Models around a Transformers model are audited as they are used, or refused with the fix."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface import transformer
from attnaudit.conformance import full, quick
from attnaudit.errors import AdapterError, AuditError, ModelError
from attnaudit.instances import Instance
from tests import architectures
from tests.slow_cases import slow_except

peft = pytest.importorskip("peft")

TEXTS = [Instance(id=str(n), text=text) for n, text in enumerate(architectures.SENTENCES)]
CLASSES = ["negative", "positive"]


class Reviews(nn.Module):
    """A user's classifier, which reads the first token."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = architectures.build("bert")[0].base_model
        self.config = {"mine": True}  # a user's own configuration, unlike that of Transformers
        self.head = nn.Linear(architectures.HIDDEN, 2)
        nn.init.normal_(self.head.weight)

    def states(self, ids: Tensor, mask: Tensor) -> Tensor:
        states: Tensor = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return states

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return self.head(self.states(input_ids, attention_mask)[:, 0])


class Unusual(Reviews):
    """Its arguments have other names, it reads the mean of all tokens, and the logits are deep in its output."""

    def forward(self, ids: Tensor, mask: Tensor) -> Any:
        states = self.states(ids, mask)
        return None, {"answer": self.head((states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))}


class Frozen(Reviews):
    """It runs its encoder without gradients."""

    def states(self, ids: Tensor, mask: Tensor) -> Tensor:
        with torch.no_grad():
            return super().states(ids, mask)


class PassesOn(Reviews):
    def forward(self, **inputs: Any) -> Any:
        return {"loss": None, "logits": self.head(self.encoder(**inputs).last_hidden_state[:, 0])}


def joined_heads() -> Any:
    """An MVP classifier, whose attention weights have the shape (B·H, Q, K)."""
    import transformers

    tokenizer = architectures.tokenizer("unigram")
    config = transformers.MvpConfig(
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None, decoder_start_token_id=tokenizer.eos_token_id, forced_eos_token_id=None, d_model=32,
        encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
        decoder_ffn_dim=48, max_position_embeddings=64, attn_implementation="eager",
        id2label=dict(enumerate(CLASSES)), label2id={name: n for n, name in enumerate(CLASSES)},
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.MvpForSequenceClassification(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model, tokenizer


def test_weights_whose_rows_and_heads_are_one_axis() -> None:
    model, tokenizer = joined_heads()
    adapter = transformer(model, tokenizer)
    inputs = adapter.collate(TEXTS)
    with torch.no_grad():
        output = model(**adapter.runner.builder.arguments(inputs), output_attentions=True)
        trace = adapter.run(inputs)
    torch.testing.assert_close(trace.logits, output.logits, rtol=0, atol=1e-5)
    last = max(site.key for site in adapter.sites() if site.kind == "cross")
    expected = output.cross_attentions[-1] * trace.allowed[last]
    torch.testing.assert_close(trace.attention[last], expected, rtol=0, atol=1e-5)


def lora() -> Any:
    model, _ = architectures.build("bert")
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"], init_lora_weights=False)
    return peft.get_peft_model(model, settings).eval()


def compiled() -> Any:
    return torch.compile(architectures.build("bert")[0])


def compiled_in_place() -> Any:
    model, _ = architectures.build("bert")
    model.compile()
    return model


WRAPPED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "lora": (lora, {}, "cls@layer=-1,heads=mean"),
    "compiled": (compiled, {}, "cls@layer=-1,heads=mean"),
    "compiled in place": (compiled_in_place, {}, "cls@layer=-1,heads=mean"),
    "data parallel": (lambda: nn.DataParallel(architectures.build("bert")[0]), {}, "cls@layer=-1,heads=mean"),
    "own": (Reviews, {"classes": CLASSES}, "cls@layer=-1,heads=mean"),
    "frozen": (Frozen, {"classes": CLASSES}, "cls@layer=-1,heads=mean"),
    "passes on": (PassesOn, {"classes": CLASSES}, "cls@layer=-1,heads=mean"),
    "unusual": (
        Unusual,
        {"classes": CLASSES, "logits": lambda m, given: m(given["input_ids"], given["attention_mask"])[1]["answer"]},
        "mean@layer=-1,heads=mean",
    ),
}


@pytest.mark.parametrize("name", slow_except(WRAPPED, ["lora", "compiled in place", "own", "unusual"]))
def test_a_wrapped_model_is_the_model_that_is_used(name: str) -> None:
    make, options, reading = WRAPPED[name]
    torch.manual_seed(0)
    model = make().eval()
    tokenizer = architectures.tokenizer("wordpiece")
    batch = tokenizer([one.text for one in TEXTS], padding=True, return_tensors="pt")
    given = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    eager = getattr(model, "_orig_mod", model)
    read = options.get("logits", lambda module, inputs: module(**inputs))
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        expected = read(eager, given)
    expected = expected if isinstance(expected, Tensor) else expected["logits"]
    adapter = transformer(model, tokenizer, **options)
    assert adapter.capabilities.reading == reading
    assert adapter.capabilities.unseen_mixers == ()
    with torch.no_grad():
        torch.testing.assert_close(adapter.run(adapter.collate(TEXTS)).logits, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRAPPED)
def test_a_wrapped_model_passes_the_whole_suite(name: str) -> None:
    make, options, _ = WRAPPED[name]
    torch.manual_seed(0)
    adapter = transformer(make().eval(), architectures.tokenizer("wordpiece"), **options)
    assert {one.check: one.detail for one in full(adapter, TEXTS) if one.outcome == "fail"} == {}


def prompts() -> Any:
    settings = peft.PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3)
    return peft.get_peft_model(architectures.build("bert")[0], settings)


def partly_compiled() -> Any:
    model = Reviews()
    model.encoder = torch.compile(model.encoder)
    return model


def two_encoders() -> Any:
    model = Reviews()
    model.other = architectures.build("bert")[0]
    return model


def quantised() -> Any:
    model, _ = architectures.build("bert")
    model.config.quantization_config = {"quant_method": "bitsandbytes"}
    return model


def packed() -> Any:
    """A model with the weights of a GGUF file in their packed form."""
    model = converted()
    model.register_buffer("blocks", torch.zeros(3, dtype=torch.uint8))
    return model


def converted() -> Any:
    """A model with the weights of a GGUF file, which Transformers converted to float32."""
    model, _ = architectures.build("bert")
    model.config.quantization_config = {"quant_method": "gguf"}
    model.is_quantized = True
    return model


class Detached(Reviews):
    def states(self, ids: Tensor, mask: Tensor) -> Tensor:
        return super().states(ids, mask).detach()


class Random(Reviews):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return self.head(nn.functional.dropout(self.states(input_ids, attention_mask)[:, 0], 0.5))


class WithoutMask(Reviews):
    def forward(self, input_ids: Tensor) -> Any:
        return self.head(self.encoder(input_ids).last_hidden_state[:, 0])


class ReadsPadding(Reviews):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return self.head(self.states(input_ids, attention_mask).mean(1))


class TwoRows(Reviews):
    """It reads every text twice, in rows of their own."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        ids, mask = (torch.cat([one, one]) for one in (input_ids, attention_mask))
        return self.head(self.states(ids, mask)[: len(input_ids), 0])


class Reversed(Reviews):
    """It also reads every text backwards."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        backwards = self.states(input_ids.flip(1), attention_mask.flip(1))
        return self.head(self.states(input_ids, attention_mask)[:, 0] + backwards[:, -1])


class Repeated(Reviews):
    """It runs a part of a classifier three times, and reads the last result."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = architectures.build("bert")[0]

    def states(self, ids: Tensor, mask: Tensor) -> Tensor:
        *_, states = (self.encoder.bert(ids, mask).last_hidden_state for _ in range(3))
        return states


class Rare(Reviews):
    """Its result changes at every call whose number is a multiple of a period."""

    def __init__(self, period: int) -> None:
        super().__init__()
        self.period, self.calls = period, 0

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        self.calls += 1
        factor = 1.0 if self.calls % self.period else 1.5
        return self.head(self.states(input_ids, attention_mask)[:, 0] * factor)


def inner_kernel() -> Any:
    """A model without Transformers' attention interface, with one inside that uses it."""
    model, _ = joined_heads()
    model.inside = architectures.build("bert", implementation="sdpa")[0]
    return model


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (Detached, {"classes": CLASSES}, r"its logits have no gradient\. Look for torch\.no_grad"),
        (Random, {"classes": CLASSES}, r"two runs of the same texts .*self\.training"),
        (WithoutMask, {"classes": CLASSES}, r"Attention at 'layer\.0' reaches padding\. Pass the attention mask"),
        (ReadsPadding, {"classes": CLASSES}, r"reads the states of padding.*pack_padded_sequence"),
        (TwoRows, {"classes": CLASSES}, r"TwoRows: no embedding module .*one text per row"),
        (Reversed, {"classes": CLASSES}, r"Reversed: the encoder ran 2 times in one forward\(\).*docs/adapters\.md"),
        (Repeated, {"classes": CLASSES}, r"Repeated: the encoder ran 3 times in one forward\(\).*use its output again"),
        (inner_kernel, {}, r"kernel sdpa.*get_submodule\('inside'\)\.set_attn_implementation\('eager'\)"),
        (Reviews, {}, "a custom module has no class names.*classes="),
        (Reviews, {"classes": ["a", "b", "c"]}, r"returned shape .*expected logits of shape \(B, 3\).*logits=lambda"),
        (Reviews, {"classes": ["a", "a"]}, "expected at least two different names"),
        (Unusual, {"classes": CLASSES}, "forward\\(\\) has none of the arguments input_ids.*logits=lambda"),
        (
            two_encoders,
            {"classes": CLASSES},
            "exactly one Transformers model, but this module contains BertModel, BertForSequenceClassification",
        ),
        (
            lambda: nn.Linear(2, 2),
            {"classes": CLASSES},
            "exactly one Transformers model, but this module contains none",
        ),
        (partly_compiled, {"classes": CLASSES}, "a module inside it is compiled"),
        (prompts, {}, "PREFIX_TUNING adds virtual tokens"),
        (quantised, {}, r"quantised \(bitsandbytes\)"),
        (packed, {}, r"quantised \(gguf\)"),
    ],
)
def test_what_is_refused(make: Callable[[], Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(AuditError, match=message):
        transformer(make(), architectures.tokenizer("wordpiece"), **options)


@pytest.mark.parametrize("period", [5, 37])
def test_a_result_that_changes_at_some_calls_is_the_reason_that_is_given(period: int) -> None:
    """The advice to correct keep() and replay() would not help, because the author wrote no adapter."""
    torch.manual_seed(0)
    with pytest.raises(AdapterError, match=r"^Rare: two runs of the same texts .*a counter of its calls\.$"):
        quick(transformer(Rare(period), architectures.tokenizer("wordpiece"), classes=CLASSES), TEXTS)


class Probability(nn.Module):
    """A module around a classifier with a single output, which returns the probability of the second class."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = architectures.build("bert", num_labels=1)[0]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.encoder(input_ids, attention_mask).logits.sigmoid()


def test_a_probability_around_a_classifier_with_one_output() -> None:
    def logit(model: Any, inputs: Any) -> Tensor:
        return model(inputs["input_ids"], inputs["attention_mask"]).logit()

    model, tokenizer = Probability().eval(), architectures.tokenizer("wordpiece")
    adapter = transformer(model, tokenizer, classes=CLASSES, logits=logit)
    given = tokenizer([one.text for one in TEXTS], padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = logit(model, given)
        logits = adapter.run(adapter.collate(TEXTS)).logits
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


class NamesNothing(nn.Module):
    """Its forward() names no arguments, so it can only be called by a function that reads the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.model = architectures.build("bert")[0]
        self.model.forward = lambda *args, call=self.model.forward, **kwargs: call(*args, **kwargs)

    def forward(self, *arguments: Any) -> Any:
        return self.model(*arguments).logits


def test_arguments_that_nothing_names() -> None:
    adapter = transformer(
        NamesNothing().eval(), architectures.tokenizer("wordpiece"), classes=CLASSES,
        logits=lambda model, inputs: model(inputs["input_ids"], inputs["attention_mask"]),
    )  # fmt: skip
    expected = transformer(*architectures.build("bert"))
    inputs = adapter.collate(TEXTS)
    with torch.no_grad():
        torch.testing.assert_close(adapter.run(inputs).logits, expected.run(inputs).logits, rtol=0, atol=1e-5)


def saved_adapter(folder: Path, base: str, **changes: Any) -> Path:
    model = lora()
    model.save_pretrained(folder / "adapter")
    path = folder / "adapter" / "adapter_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) | {"base_model_name_or_path": base} | changes
    path.write_text(json.dumps(settings), encoding="utf-8")
    return folder / "adapter"


@pytest.mark.parametrize("head", [True, False])
def test_an_adapter_folder_with_its_base_model(tmp_path: Path, head: bool) -> None:
    model, tokenizer = architectures.build("bert")
    (model if head else model.base_model).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    adapter = transformer(saved_adapter(tmp_path, "../base"))
    expected = transformer(lora(), tokenizer)
    inputs = adapter.collate(TEXTS)
    with torch.no_grad():
        torch.testing.assert_close(adapter.run(inputs).logits, expected.run(inputs).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("ending", "task", "head"),
    [("ForTokenClassification", "TOKEN_CLS", "classifier"), ("ForQuestionAnswering", "QUESTION_ANS", "qa_outputs")],
)
def test_an_adapter_folder_of_a_tagger_or_a_model_that_finds_answers(
    tmp_path: Path, ending: str, task: str, head: str
) -> None:
    """The base folder has no head. The adapter has one, with three tags for a tagger."""
    settings = {"id2label": {0: "O", 1: "PER", 2: "LOC"}, "label2id": {}} if head == "classifier" else {}
    model, tokenizer = architectures.build("bert", task=ending, **settings)
    # PEFT's model for question answering ignores token_type_ids.
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    model.base_model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    options = peft.LoraConfig(task_type=task, r=4, target_modules=["query", "value"], init_lora_weights=False)
    wrapped = peft.get_peft_model(model, options).eval()
    assert any(head in name for name in peft.get_peft_model_state_dict(wrapped))
    wrapped.save_pretrained(tmp_path / "adapter")
    path = tmp_path / "adapter" / "adapter_config.json"
    stored = json.loads(path.read_text(encoding="utf-8")) | {"base_model_name_or_path": "../base"}
    path.write_text(json.dumps(stored), encoding="utf-8")
    row = Instance(id="1", text="the plot is dull and the acting is terrible", query="what is dull", position=1)
    row = dataclasses.replace(row, **({"query": None} if head == "classifier" else {"position": None}))
    found, expected = transformer(tmp_path / "adapter"), transformer(wrapped, tokenizer)
    with torch.no_grad():
        logits = [adapter.run(adapter.collate([row])).logits for adapter in (found, expected)]
    torch.testing.assert_close(*logits, rtol=0, atol=1e-5)
    assert found.capabilities.classes == expected.capabilities.classes


def test_a_container_that_ignores_token_types_is_refused_with_the_fix() -> None:
    model, tokenizer = architectures.build("bert", task="ForQuestionAnswering")
    options = peft.LoraConfig(task_type="QUESTION_ANS", target_modules=["query"], init_lora_weights=False)
    wrapped = peft.get_peft_model(model, options).eval()
    with pytest.raises(AdapterError, match=r"ignores token_type_ids.* set model_input_names to \['input_ids'"):
        transformer(wrapped, tokenizer)


def test_adapter_folders_that_cannot_be_read(tmp_path: Path) -> None:
    folder = saved_adapter(tmp_path, "somebody/model")
    with pytest.raises(ModelError, match=r"'somebody/model' is not a folder on this machine.*merge_and_unload"):
        transformer(folder)
    with pytest.raises(ModelError, match="the task_type of the adapter is FEATURE_EXTRACTION; expected one of SEQ_CLS"):
        transformer(saved_adapter(tmp_path, "x", task_type="FEATURE_EXTRACTION"))
    architectures.save("bert", tmp_path / "base")
    (saved_adapter(tmp_path, "../base") / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no adapter_model\.safetensors"):
        transformer(folder)


def test_converted_weights_of_a_gguf_file_are_accepted() -> None:
    assert len(transformer(converted(), architectures.tokenizer("wordpiece")).sites()) > 0
