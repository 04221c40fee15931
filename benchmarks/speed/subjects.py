"""The models and texts that are timed."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from attnaudit.adapters.protocol import ModelAdapter
from attnaudit.data import load
from attnaudit.instances import Dataset, Instance
from attnaudit.models.vocabulary import words

#: Words of a text as long as those of 20 Newsgroups in Jain & Wallace's experiments.
LONG = 124
#: MiniLM-L6: its shape, not its weights.
MINILM = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model and the instances it is timed on. model: the module itself. name: "n≈20" and the like."""

    name: str
    adapter: ModelAdapter
    model: Any
    data: Dataset


def short_texts(count: int) -> Dataset:
    """Every k-th of the embedded test sentences of two words or more: one word alone cannot be left out."""
    data = load("movie-reviews")
    usable = [one for one in data.instances if len(words(one.text)) > 1]
    return dataclasses.replace(data, instances=tuple(usable[:: max(1, len(usable) // count)][:count]))


def long_texts(count: int, length: int = LONG) -> Dataset:
    """Embedded test sentences one after another, as many as make about `length` words; all differ."""
    data = load("movie-reviews")
    made: list[Instance] = []
    held: list[str] = []
    place = 0
    while len(made) < count:
        held.append(data.instances[place * 7 % len(data.instances)].text)
        place += 1
        text = " ".join(held)
        if len(words(text)) >= length - 10:
            made.append(Instance(id=f"{len(made):06d}", text=text, label=data.instances[0].label))
            held = []
    return dataclasses.replace(data, name=f"joined-{length}", instances=tuple(made))


@cache
def trained() -> tuple[Any, Any]:
    """The oracle's shape (300-wide embeddings, BiLSTM of 128 per direction, additive attention, one sigmoid), trained
    for one epoch on a part of the embedded sentences, so that attention is not that of random weights."""
    from attnaudit.models.architecture import Architecture
    from attnaudit.models.training import train
    from attnaudit.models.training_job import Settings, TrainingData, TrainingJob

    training, dev = load("movie-reviews-train"), load("movie-reviews-dev")
    data = TrainingData(
        train=dataclasses.replace(training, instances=training.instances[::4]),
        dev=dataclasses.replace(dev, instances=dev.instances[::5]),
    )
    result = train(TrainingJob(data=data, architecture=Architecture(embedding_size=300), settings=Settings(epochs=1)))
    return result.model.requires_grad_(False), result.vocabulary


def bilstm(name: str, data: Dataset) -> Subject:
    model, vocabulary = trained()
    return pooled(name, data, model, vocabulary, lstm=model.encoder.layer)


def pooled(name: str, data: Dataset, model: Any, vocabulary: Any, **told: Any) -> Subject:
    """A reference model by the names of its parts, as a user gives theirs. told: what is known of its encoder."""
    from attnaudit.adapters import PooledAttentionAdapter
    from attnaudit.models.vocabulary import UNKNOWN

    adapter = PooledAttentionAdapter(
        embedding=model.embedding,
        encoder=model.encoder,
        attention=model.attention,
        decoder=model.decoder,
        tokenize=vocabulary.encode,
        classes=("negative", "positive"),
        modules=(model,),
        mask_id=UNKNOWN,
        **told,
    )
    return Subject(name=name, adapter=adapter, model=model, data=data)


def missing_transformers() -> str:
    """Why the Transformer is left out, "" where it is not."""
    if find_spec("transformers") is None:
        return "transformers is not installed: pip install 'attnaudit[transformers]'"
    return ""


@cache
def minilm_as_it_ships(**settings: int) -> tuple[Any, Any]:
    """A BERT of MiniLM's size with random weights, and a tokenizer of the embedded sentences' words; nothing is
    downloaded. settings: of its config, in place of MiniLM's."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    seen = sorted({word for one in load("movie-reviews").instances for word in words(one.text)})
    entries = {word: place for place, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *seen])}
    made = Tokenizer(models.WordLevel(entries, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(name, entries[name]) for name in ("[CLS]", "[SEP]")]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=512,
        **{f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")},
    )
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**{**MINILM, **settings}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Gains of exactly one would make every state's norm a constant, and its gradient rounding.
            centre, spread = ("LayerNorm.weight" in name) * 1.0, 0.2 if "LayerNorm" in name else 0.05
            parameter.copy_(centre + torch.randn(parameter.shape) * spread)
    return model.eval().requires_grad_(False), tokenizer


def minilm(name: str, data: Dataset, **settings: int) -> Subject:
    """A copy of the same model, as an adapter. settings: of its config, in place of MiniLM's."""
    from attnaudit.adapters.huggingface import transformer

    model, tokenizer = copy.deepcopy(minilm_as_it_ships(**settings))
    return Subject(name=name, adapter=transformer(model, tokenizer), model=model, data=data)


def in_order(data: Dataset) -> Sequence[Instance]:
    """As the engine returns them."""
    return sorted(data.instances, key=lambda one: one.id)
