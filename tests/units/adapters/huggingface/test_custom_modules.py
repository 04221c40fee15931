"""Modules of users, and adapters in the layers of a model: what they return, and which parts of them are audited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.protocol import TEXT
from attnaudit.errors import AuditError
from attnaudit.instances import Instance
from attnaudit.targets import Target
from tests import architectures

TEXTS = [Instance(id=str(n), text=text) for n, text in enumerate(architectures.SENTENCES[:4])]
CLASSES = ["negative", "positive"]


class Reviews(nn.Module):
    """A classifier of the first token. `make` changes what forward() returns."""

    def __init__(self, make: Callable[[Tensor], Any] = lambda logits: logits) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = architectures.build("bert")[0].base_model
        self.head = nn.Linear(architectures.HIDDEN, 2)
        self.make = make

    def states(self, ids: Tensor, mask: Tensor, **rest: Tensor) -> Tensor:
        states: Tensor = self.encoder(input_ids=ids, attention_mask=mask, **rest).last_hidden_state
        return states

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return self.make(self.head(self.states(input_ids, attention_mask)[:, 0]))


def audited(module: nn.Module, kind: str = "wordpiece", **options: Any) -> Any:
    return transformer(module.eval(), architectures.tokenizer(kind), **options)


class Named(NamedTuple):
    probabilities: Tensor
    logits: Tensor


def test_the_field_logits_of_a_named_tuple_is_read() -> None:
    module = Reviews(lambda logits: Named(logits.softmax(-1), logits))
    adapter = audited(module, classes=CLASSES)
    with torch.no_grad():
        inputs = adapter.collate(TEXTS)
        expected = module(inputs.ids[TEXT], inputs.mask[TEXT].long()).logits
        torch.testing.assert_close(adapter.run(inputs).logits, expected, rtol=0, atol=1e-5)


def test_a_tuple_with_several_tensors_that_may_be_the_logits_is_refused() -> None:
    module = Reviews(lambda logits: (logits.softmax(-1), logits))
    with pytest.raises(AuditError, match=r"returned 2 tensors that may be the logits \(B, 2\).*\[1\]"):
        audited(module, classes=CLASSES)


class WithTypes(Reviews):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Any:
        return self.head(self.states(input_ids, attention_mask, token_type_ids=token_type_ids)[:, 0])


def test_token_types_that_forward_requires_are_passed_for_single_texts() -> None:
    adapter = audited(WithTypes(), classes=CLASSES)
    with torch.no_grad():
        expected = audited(Reviews(), classes=CLASSES)
        inputs = adapter.collate(TEXTS)
        torch.testing.assert_close(adapter.run(inputs).logits, expected.run(inputs).logits, rtol=0, atol=1e-5)


def test_what_to_do_if_a_function_reads_token_types_that_are_missing() -> None:
    def logits(model: Any, inputs: Any) -> Any:
        return model(inputs["input_ids"], inputs["attention_mask"], inputs["token_type_ids"])

    with pytest.raises(AuditError, match=r"KeyError: 'token_type_ids'.*inputs\.get\('token_type_ids'\)"):
        audited(WithTypes(), classes=CLASSES, logits=logits)


class Lexicon(Reviews):
    """It looks every token up a second time, in an embedding of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.lexicon = nn.Embedding(self.encoder.config.vocab_size, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        found = (self.lexicon(input_ids) * attention_mask[..., None]).sum(1)
        return self.head(self.states(input_ids, attention_mask)[:, 0]) + found


def test_a_module_that_embeds_the_tokens_twice_is_refused() -> None:
    with pytest.raises(AuditError, match=r"embedded 2 times in one forward\(\), by lexicon, encoder\.embeddings"):
        audited(Lexicon(), classes=CLASSES)


class Truncating(Reviews):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return super().forward(input_ids[:, :12], attention_mask[:, :12])


def test_a_module_that_truncates_its_input_is_refused_with_the_length() -> None:
    adapter = audited(Truncating(), classes=CLASSES)
    with torch.no_grad(), pytest.raises(AuditError, match=r"pass max_tokens=12 to transformer\(\)"):
        adapter.run(adapter.collate(TEXTS))
    shorter = audited(Truncating(), classes=CLASSES, max_tokens=12)
    with torch.no_grad():
        assert shorter.run(shorter.collate(TEXTS)).logits.shape == (len(TEXTS), 2)


class Writer(nn.Module):
    def __init__(self, *, in_dictionary: bool) -> None:
        super().__init__()
        self.model = architectures.build("gpt2-lm")[0]
        self.in_dictionary = in_dictionary

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        logits = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        return {"logits": logits} if self.in_dictionary else logits


@pytest.mark.parametrize("in_dictionary", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"labels": architectures.LABELS, "template": architectures.TEMPLATE},
        {"target": Target(kind="string", name="good"), "template": "{text} it was {answer}"},
    ],
)
def test_a_module_around_a_language_model_is_audited_as_the_language_model(
    options: dict[str, Any], in_dictionary: bool
) -> None:
    adapter = audited(Writer(in_dictionary=in_dictionary), "bytes", **options)
    plain = audited(architectures.build("gpt2-lm")[0], "bytes", **options)
    with torch.no_grad():
        logits, expected = (one.run(one.collate(TEXTS)).logits for one in (adapter, plain))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    assert adapter.capabilities.reading == plain.capabilities.reading


class EncoderOnly(nn.Module):
    """It runs only the encoder of a model that also has a decoder."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = architectures.build("t5", task="Model")[0]
        self.head = nn.Linear(architectures.HIDDEN, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        states = self.model.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.head((states * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True))


def test_an_encoder_without_its_decoder_has_a_single_stack() -> None:
    adapter = audited(EncoderOnly(), "unigram", classes=CLASSES)
    assert adapter.capabilities.reading == "mean@layer=-1,heads=mean"
    assert [site.key for site in adapter.sites()] == ["layer.0", "layer.1", "layer.2"]


class FurtherLayers(Reviews):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(architectures.HIDDEN, 4, 48, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        states = self.states(input_ids, attention_mask)
        return self.head(self.layers(states, src_key_padding_mask=~attention_mask.bool())[:, 0])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_layers_of_pytorch_after_the_model_are_found_as_mixers() -> None:
    adapter = audited(FurtherLayers(), classes=CLASSES)
    assert adapter.capabilities.unseen_mixers == ("module.layers.layers.0.self_attn (MultiheadAttention)",)
    assert torch.backends.mha.get_fastpath_enabled()


class AttentionPooling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 1, architectures.HIDDEN))

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        scores = (self.query @ states.transpose(1, 2)).masked_fill(mask[:, None] == 0, -1e9)
        return (torch.softmax(scores, -1) @ states)[:, 0]


class Pooling(AttentionPooling):
    pass


class Pooled(Reviews):
    def __init__(self, pooling: nn.Module) -> None:
        super().__init__()
        self.encoder = architectures.build("deberta-v2")[0].base_model
        self.pooling = pooling

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return self.head(self.pooling(self.states(input_ids, attention_mask), attention_mask))


def test_pooling_in_a_module_that_is_called_attention() -> None:
    with pytest.raises(AuditError, match=r"give its class a name without 'Attention'"):
        audited(Pooled(AttentionPooling()), "unigram", classes=CLASSES)
    assert audited(Pooled(Pooling()), "unigram", classes=CLASSES).capabilities.unseen_mixers == (
        "module.pooling (Pooling)",
    )


def test_a_forward_function_that_is_compiled_is_replaced_by_the_original() -> None:
    model, tokenizer = architectures.build("bert")
    model.forward = torch.compile(model.forward, backend="eager")
    adapter = transformer(model, tokenizer)
    assert not hasattr(model.forward, "_torchdynamo_orig_callable")
    assert "compile(forward)" in adapter.original.note


@pytest.mark.parametrize("name", ["bert", "deberta-v2"])
def test_a_model_that_runs_in_autocast_is_refused_with_the_fix(name: str) -> None:
    model, tokenizer = architectures.build(name)
    model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)
    with pytest.raises(AuditError, match=r"torch\.autocast\(\).*keep_fp32_wrapper=False.*model\.to\(torch\.bfloat16\)"):
        transformer(model, tokenizer)


def test_a_class_that_adds_a_head_to_a_model_without_one() -> None:
    import transformers

    class Classifier(transformers.BertModel):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.head = nn.Linear(config.hidden_size, 2)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
            return {"logits": self.head(super().forward(input_ids, attention_mask).last_hidden_state[:, 0])}

    torch.manual_seed(0)
    assert audited(Classifier(architectures.build("bert")[0].config)).capabilities.reading.startswith("cls@")


@pytest.mark.parametrize(
    ("name", "targets", "projection"),
    [
        ("bert", "all-linear", "bert.encoder.layer.0.attention.output.dense"),
        ("llama", ["o_proj"], "model.layers.0.self_attn.o_proj"),
        ("llama", ["q_proj"], "model.layers.0.self_attn.o_proj"),
        ("gpt2", ["c_proj"], "transformer.h.0.attn.c_proj"),
    ],
)
def test_value_vectors_contain_the_adapter_of_the_output_projection(name: str, targets: Any, projection: str) -> None:
    peft = pytest.importorskip("peft")
    model, tokenizer = architectures.build(name)
    options = {"fan_in_fan_out": True} if name == "gpt2" else {}
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=targets, init_lora_weights=False, **options)
    adapter = transformer(peft.get_peft_model(model, settings), tokenizer)
    inputs, outputs = adapter.collate(TEXTS), []
    module = adapter.model.get_submodule(projection)
    handle = module.register_forward_hook(lambda _module, _args, output: outputs.append(output))
    with torch.no_grad():
        site = adapter.sites()[0]
        trace = adapter.run(inputs, hidden=True)
        handle.remove()
        values = adapter.value_vectors(trace, site)
        found = torch.einsum("bhqk,bhkm->bqm", trace.attention[site.key], values)
        expected = outputs[0] - module(torch.zeros(1, 1, architectures.HIDDEN))
    torch.testing.assert_close(found[inputs.mask[TEXT]], expected[inputs.mask[TEXT]], rtol=0, atol=2e-5)


def test_virtual_tokens_inside_a_module_are_refused_with_the_method() -> None:
    peft = pytest.importorskip("peft")
    module = Reviews()
    settings = peft.PrefixTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=3)
    module.encoder = peft.get_peft_model(module.encoder, settings)
    with pytest.raises(AuditError, match="PREFIX_TUNING adds virtual tokens"):
        audited(module, classes=CLASSES)


def test_trainable_tokens_of_peft_are_refused_with_the_fix() -> None:
    peft = pytest.importorskip("peft")
    model, tokenizer = architectures.build("bert")
    settings = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], trainable_token_indices=[5])
    with pytest.raises(AuditError, match=r"no embedding module.*merge_and_unload"):
        transformer(peft.get_peft_model(model, settings), tokenizer)
