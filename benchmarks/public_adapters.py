"""Public models around Transformers models, and the code that makes each of them auditable.

Nothing of these repositories is copied: the files are imported from clones. `build` makes a small model with random
weights from a configuration; in a real audit, the user's own loading code takes its place. `adapt` is the code that an
audit needs, and its lines are counted. `forward` and `attention` call the model as its repository does, without
attnaudit.

Shapes: B rows, T tokens.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
import transformers
from torch import Tensor, nn

from attnaudit.adapters.huggingface import transformer
from tests.architectures import tokenizer as small_tokenizer

#: What a tokenizer returns for a batch of texts.
Batch = Mapping[str, Tensor]
#: Sizes of the small models. Some repositories fix the width at that of BERT base.
SMALL = {
    "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 48,
    "max_position_embeddings": 80,
}  # fmt: skip
WIDE = {**SMALL, "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 2}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 3, "num_decoder_layers": 2}
BART = {
    "d_model": 32, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 80,
    "bos_token_id": None, "forced_eos_token_id": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicModel:
    """A model from a public repository.

    Attributes:
        name: The class of the model.
        repository: Owner and name of the repository on GitHub.
        commit: The commit that was audited.
        licence: The licence of the file.
        file: The file that defines the class.
        root: The folder from which it is imported, if that is not its own folder.
        special: What makes the model unlike a Transformers classifier.
        build: Given the folder of the clone -> the model and its tokenizer.
        adapt: Given the model and its tokenizer -> the adapter.
        forward: Runs the model as its repository does. None for a model that is refused.
        attention: Runs the Transformers model inside with its eager kernel -> stack of sites -> weights of each layer.
        packages: Packages that the file imports, and that attnaudit does not need.
        pairs: Whether the model reads pairs of texts.
        deletes: Whether leave-one-out is compared, in addition to logits and attention weights.
    """

    name: str
    repository: str
    commit: str
    licence: str
    file: str
    special: str
    build: Callable[[Path], tuple[Any, Any]]
    adapt: Callable[[Any, Any], Any]
    forward: Callable[[Any, Batch], Tensor] | None = None
    attention: Callable[[Any, Batch], dict[str, tuple[Tensor, ...]]] | None = None
    root: str | None = None
    packages: tuple[str, ...] = ()
    pairs: bool = False
    deletes: bool = False

    @property
    def import_folder(self) -> str:
        """The folder from which the file is imported, relative to the clone."""
        return str(Path(self.file).parent) if self.root is None else self.root

    @property
    def folder(self) -> str:
        """The name of the folder that `git clone` makes."""
        return self.repository.partition("/")[2]


# -- building ------------------------------------------------------------------------------------------------------


@contextmanager
def imported_from(folder: Path) -> Iterator[None]:
    """Let modules be imported from a folder, and forget them at the end: several repositories have a `model.py`."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def _module(name: str) -> ModuleType:
    return importlib.import_module(name)


def _configuration(kind: str, tokenizer: Any, sizes: Mapping[str, Any], **settings: Any) -> Any:
    given = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, **sizes, **settings}
    return getattr(transformers, f"{kind}Config")(**given)


@contextmanager
def _local_checkpoint(name: str, tokenizer: Any, **settings: Any) -> Iterator[None]:
    """Put a small BERT where `from_pretrained(name)` finds it, so that nothing is downloaded."""
    with TemporaryDirectory(prefix="attnaudit-") as scratch, chdir(scratch):
        transformers.BertModel(_configuration("Bert", tokenizer, WIDE, **settings)).save_pretrained(name)
        tokenizer.save_pretrained(name)
        yield


def draw_weights(model: nn.Module) -> None:
    """Draw the matrices of a model wide enough that its attention is far from uniform."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "norm" not in name.lower():
                spread = 1.1 / parameter.shape[-1] ** 0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)


# -- one sigmoid output, other names of arguments --------------------------------------------------------------------


def build_sentiment(_clone: Path) -> tuple[Any, Any]:
    tokenizer = small_tokenizer("wordpiece")
    with _local_checkpoint("bert-base-uncased", tokenizer, return_dict=False):
        return _module("model").BERTBaseUncased(), tokenizer


def adapt_sentiment(model: Any, tokenizer: Any) -> Any:
    def logits(model: Any, inputs: Batch) -> Tensor:
        return model(inputs["input_ids"], inputs["attention_mask"], inputs.get("token_type_ids"))

    return transformer(model, tokenizer, classes=["negative", "positive"], logits=logits)


def sentiment_forward(model: Any, batch: Batch) -> Tensor:
    return model(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])


def bert_attention(model: Any, batch: Batch) -> dict[str, tuple[Tensor, ...]]:
    model.bert.set_attn_implementation("eager")
    return {"layer": model.bert(**batch, output_attentions=True, return_dict=True).attentions}


# -- several inputs ------------------------------------------------------------------------------------------------


def build_relation(_clone: Path) -> tuple[Any, Any]:
    tokenizer = small_tokenizer("wordpiece")
    configuration = _configuration("Bert", tokenizer, SMALL, num_labels=3)
    return _module("model").RBERT(configuration, SimpleNamespace(dropout_rate=0.1)), tokenizer


def adapt_relation(model: Any, tokenizer: Any) -> Any:
    def logits(model: Any, inputs: Batch) -> Tensor:
        mask = inputs["attention_mask"]
        positions, last = torch.arange(mask.shape[1]), mask.sum(1, keepdim=True) - 2
        first, second = (positions == 1).expand_as(mask), positions == last  # the two entities
        return model(inputs["input_ids"], mask, inputs.get("token_type_ids"), None, first.long(), second.long())[0]

    return transformer(model, tokenizer, classes=["cause", "effect", "other"], logits=logits)


def relation_forward(model: Any, batch: Batch) -> Tensor:
    mask = batch["attention_mask"]
    first, second = torch.zeros_like(mask), torch.zeros_like(mask)
    for row, length in enumerate(mask.sum(1).tolist()):
        first[row, 1] = second[row, length - 2] = 1
    return model(batch["input_ids"], mask, batch["token_type_ids"], None, first, second)[0]


# -- a mask computed from the ids, probabilities in place of logits --------------------------------------------------


def build_defect(_clone: Path) -> tuple[Any, Any]:
    tokenizer = small_tokenizer("bytes")
    configuration = _configuration("Roberta", tokenizer, SMALL, num_labels=1)
    encoder = transformers.RobertaForSequenceClassification(configuration)
    return _module("model").Model(
        encoder, configuration, tokenizer, SimpleNamespace(dropout_probability=0.1)
    ), tokenizer


def adapt_defect(model: Any, tokenizer: Any) -> Any:
    def logits(model: Any, inputs: Batch) -> Tensor:
        return model(inputs["input_ids"]).logit()

    return transformer(model, tokenizer, classes=["correct", "defective"], logits=logits)


def defect_forward(model: Any, batch: Batch) -> Tensor:
    return model(batch["input_ids"]).logit()


def defect_attention(model: Any, batch: Batch) -> dict[str, tuple[Tensor, ...]]:
    model.encoder.set_attn_implementation("eager")
    return {"layer": model.encoder(**batch, output_attentions=True).attentions}


# -- a dictionary as the only argument, mean pooling -----------------------------------------------------------------


def build_feedback(_clone: Path) -> tuple[Any, Any]:
    tokenizer = small_tokenizer("unigram")
    relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
    settings = SimpleNamespace(
        model=SimpleNamespace(pretrained_backbone=False, pooling_type="MeanPooling", gru_pooling=None),
        general=SimpleNamespace(target_columns=["grammar", "vocabulary"]),
        tokenizer=tokenizer,
    )
    configuration = _configuration("DebertaV2", tokenizer, SMALL, **relative, output_hidden_states=True)
    return _module("models.custom_model").CustomModel(settings, configuration), tokenizer


def adapt_feedback(model: Any, tokenizer: Any) -> Any:
    def logits(model: Any, inputs: Batch) -> Tensor:
        return model(inputs)

    return transformer(model, tokenizer, classes=["grammar", "vocabulary"], logits=logits)


def feedback_forward(model: Any, batch: Batch) -> Tensor:
    return model(dict(batch))


def feedback_attention(model: Any, batch: Batch) -> dict[str, tuple[Tensor, ...]]:
    return {"layer": model.backbone(**batch, output_attentions=True).attentions}


# -- an encoder-decoder language model as a classifier ---------------------------------------------------------------


def build_code_t5(_clone: Path) -> tuple[Any, Any]:
    tokenizer = small_tokenizer("unigram")
    ends = {"eos_token_id": tokenizer.eos_token_id, "decoder_start_token_id": tokenizer.pad_token_id}
    configuration = _configuration("T5", tokenizer, T5, **ends)
    encoder = transformers.T5ForConditionalGeneration(configuration)
    settings = SimpleNamespace(max_source_length=512, model_type="codet5")
    return _module("models").DefectModel(encoder, configuration, tokenizer, settings), tokenizer


def adapt_code_t5(model: Any, tokenizer: Any) -> Any:
    def logits(model: Any, inputs: Batch) -> Tensor:
        model.args.max_source_length = inputs["input_ids"].shape[1]
        return model(inputs["input_ids"]).log()

    return transformer(model, tokenizer, classes=["correct", "defective"], logits=logits)


def code_t5_forward(model: Any, batch: Batch) -> Tensor:
    model.args.max_source_length = batch["input_ids"].shape[1]
    return model(batch["input_ids"]).log()


def code_t5_attention(model: Any, batch: Batch) -> dict[str, tuple[Tensor, ...]]:
    model.encoder.set_attn_implementation("eager")
    given = {**batch, "labels": batch["input_ids"], "decoder_attention_mask": batch["attention_mask"]}
    return _both_stacks(model.encoder(**given, output_attentions=True))


def _both_stacks(output: Any) -> dict[str, tuple[Tensor, ...]]:
    return {
        "encoder": output.encoder_attentions,
        "decoder": output.decoder_attentions,
        "cross": output.cross_attentions,
    }


# -- pairs of texts ------------------------------------------------------------------------------------------------


def build_cross_encoder(_clone: Path) -> tuple[Any, Any]:
    tokenizer = small_tokenizer("wordpiece")
    model = transformers.BertForSequenceClassification(_configuration("Bert", tokenizer, SMALL, num_labels=1))
    with TemporaryDirectory(prefix="attnaudit-") as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        encoder = _module("sentence_transformers").CrossEncoder(folder, device="cpu")
    return encoder, encoder.tokenizer


def adapt_cross_encoder(model: Any, tokenizer: Any) -> Any:
    def logits(model: Any, inputs: Batch) -> Tensor:
        return logits_of_output(model, inputs)

    return transformer(model, tokenizer, classes=["irrelevant", "relevant"], logits=logits)


def cross_encoder_attention(model: Any, batch: Batch) -> dict[str, tuple[Tensor, ...]]:
    model.model.set_attn_implementation("eager")
    return {"layer": model.model(**batch, output_attentions=True).attentions}


# -- LoRA without PEFT -----------------------------------------------------------------------------------------------


def build_lora(_clone: Path) -> tuple[Any, Any]:
    layers, tokenizer = _module("loralib"), small_tokenizer("wordpiece")
    model = transformers.BertForSequenceClassification(_configuration("Bert", tokenizer, SMALL))
    for layer in model.bert.encoder.layer:
        for name in ("query", "value"):
            setattr(layer.attention.self, name, layers.Linear(SMALL["hidden_size"], SMALL["hidden_size"], r=4))
    return model, tokenizer


def adapt_lora(model: Any, tokenizer: Any) -> Any:
    return transformer(model, tokenizer)


def logits_of_output(model: Any, batch: Batch) -> Tensor:
    logits: Tensor = model(**batch).logits
    return logits


# -- a decoder whose rows and heads are one axis, written for Transformers 4 -----------------------------------------


def _undecorated(**_settings: object) -> Callable[[Any], Any]:
    """Return a decorator that changes nothing."""
    return lambda function: function


def build_cpt(_clone: Path) -> tuple[Any, Any]:
    tokenizer = small_tokenizer("unigram")
    ends = {"eos_token_id": tokenizer.eos_token_id, "decoder_start_token_id": tokenizer.eos_token_id}
    configuration = _configuration("Bart", tokenizer, BART, **ends, num_labels=2, attn_implementation="eager")
    # Two names that Transformers 5 changed: a decorator for documentation, and the list of shared weights.
    undecorated = mock.patch("transformers.file_utils.add_code_sample_docstrings", _undecorated)
    untied = mock.patch.object(transformers.PreTrainedModel, "all_tied_weights_keys", {}, create=True)
    with undecorated, untied:
        return _module("modeling_cpt").CPTForSequenceClassification(configuration, cls_mode=3), tokenizer


def adapt_cpt(model: Any, tokenizer: Any) -> Any:
    model.model.encoder.set_attn_implementation("eager")
    return transformer(model, tokenizer)


def cpt_attention(model: Any, batch: Batch) -> dict[str, tuple[Tensor, ...]]:
    model.model.encoder.set_attn_implementation("eager")
    return _both_stacks(model(**batch, output_attentions=True))


# -- a BiLSTM as the head, over a frozen encoder ---------------------------------------------------------------------


def build_frozen(_clone: Path) -> tuple[Any, Any]:
    tokenizer = small_tokenizer("wordpiece")
    with _local_checkpoint("bert-base-multilingual-cased", tokenizer):
        return _module("bert_bilstm").BiLSTMBert(), tokenizer


def adapt_frozen(model: Any, tokenizer: Any) -> Any:
    def logits(model: Any, inputs: Batch) -> Tensor:
        return model(inputs["input_ids"], inputs["attention_mask"]).logit().reshape(-1, 1)

    return transformer(model, tokenizer, classes=["harmless", "toxic"], logits=logits)


def frozen_forward(model: Any, batch: Batch) -> Tensor:
    return model(batch["input_ids"], batch["attention_mask"]).logit().reshape(-1, 1)


# -- models that are refused -----------------------------------------------------------------------------------------


def build_over_tokens(_clone: Path) -> tuple[Any, Any]:
    tokenizer = small_tokenizer("wordpiece")
    with _local_checkpoint("bert-base-multilingual-cased", tokenizer):
        return _module("bert_bilstm").BertBiLSTM(), tokenizer


def build_sentence_pair(_clone: Path) -> tuple[Any, Any]:
    tokenizer = small_tokenizer("wordpiece")
    bert = transformers.BertModel(_configuration("Bert", tokenizer, SMALL, return_dict=False))
    settings = SimpleNamespace(dropout=0.1, bert_dim=SMALL["hidden_size"], polarities_dim=3)
    return _module("bert_spc").BERT_SPC(bert, settings), tokenizer


def adapt_sentence_pair(model: Any, tokenizer: Any) -> Any:
    def logits(model: Any, inputs: Batch) -> Tensor:
        return model([inputs["input_ids"], inputs.get("token_type_ids")])

    return transformer(model, tokenizer, classes=["negative", "neutral", "positive"], logits=logits)


def build_reviewer(_clone: Path) -> tuple[Any, Any]:
    tokenizer = small_tokenizer("unigram")
    ends = {"eos_token_id": tokenizer.eos_token_id, "decoder_start_token_id": tokenizer.pad_token_id}
    return _module("models").ReviewerModel(_configuration("T5", tokenizer, T5, **ends)), tokenizer


def adapt_reviewer(model: Any, tokenizer: Any) -> Any:
    def logits(model: Any, inputs: Batch) -> Tensor:
        return model.cls(inputs["input_ids"], None, inputs["attention_mask"])

    return transformer(model, tokenizer, classes=["keep", "change"], logits=logits)


def build_clones(_clone: Path) -> tuple[Any, Any]:
    tokenizer = small_tokenizer("bytes")
    configuration = _configuration("Roberta", tokenizer, SMALL)
    encoder, settings = transformers.RobertaModel(configuration), SimpleNamespace(block_size=0)
    return _module("model").Model(encoder, configuration, tokenizer, settings), tokenizer


def adapt_clones(model: Any, tokenizer: Any) -> Any:
    def logits(model: Any, inputs: Batch) -> Tensor:
        model.args.block_size = inputs["input_ids"].shape[1]
        return model(torch.stack([inputs["input_ids"]] * 2, dim=1))[:, None]

    return transformer(model, tokenizer, classes=["different", "same"], logits=logits)
