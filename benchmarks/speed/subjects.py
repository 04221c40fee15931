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

#: The mean number of words of the 20 Newsgroups texts in Jain & Wallace's experiments.
LONG = 124
#: The sizes of MiniLM-L6. The weights of the model are random.
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
    """A model and the instances that it is timed on.

    Attributes:
        name: The length of the texts, such as "n≈20".
        adapter: The adapter of the model.
        model: The torch module of the model.
        data: The instances.
    """

    name: str
    adapter: ModelAdapter
    model: Any
    data: Dataset


def short_texts(count: int) -> Dataset:
    """Return evenly spaced test sentences of at least two words.

    Shorter sentences are skipped, because the only word of a text cannot be left out.
    """
    data = load("movie-reviews")
    usable = [one for one in data.instances if len(words(one.text)) > 1]
    return dataclasses.replace(data, instances=tuple(usable[:: max(1, len(usable) // count)][:count]))


def long_texts(count: int, length: int = LONG) -> Dataset:
    """Return different texts of about `length` words. Each is joined from several test sentences."""
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
    """Train a model for one epoch on a part of the packaged sentences, and return it with its vocabulary.

    The model has the sizes of Jain & Wallace's models: 300-wide embeddings, a BiLSTM with 128 units per direction,
    additive attention and one sigmoid output. It is trained because the attention of random weights is not realistic.
    """
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
    """Return the trained model with these instances.

    Args:
        name: The length of the texts, such as "n≈20".
        data: The instances.
    """
    model, vocabulary = trained()
    return pooled(name, data, model, vocabulary, lstm=model.encoder.layer)


def pooled(name: str, data: Dataset, model: Any, vocabulary: Any, **facts: Any) -> Subject:
    """Return a reference model behind an adapter. Its parts are wrapped in the same way as a user's model.

    Args:
        name: The length of the texts, such as "n≈20".
        data: The instances.
        model: The reference model.
        vocabulary: The vocabulary of the model.
        facts: Other arguments of the adapter that describe the encoder, such as its LSTM.
    """
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
        **facts,
    )
    return Subject(name=name, adapter=adapter, model=model, data=data)


def missing_transformers() -> str:
    """Return why the comparisons on Transformers are left out, or "" if they can be run."""
    if find_spec("transformers") is None:
        return "transformers is not installed: pip install 'attnaudit[transformers]'"
    return ""


@cache
def minilm_as_it_ships(**settings: int) -> tuple[Any, Any]:
    """Return a BERT with random weights, and a tokenizer. Nothing is downloaded.

    The vocabulary of the tokenizer contains the words of the packaged sentences.

    Args:
        settings: Settings of the config that replace those of MiniLM.
    """
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
        model_max_length=settings.get("max_position_embeddings", MINILM["max_position_embeddings"]),
        **{f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")},
    )
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**{**MINILM, **settings}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # With gains of exactly one, every state would have the same norm, and its gradient would be a rounding
            # error.
            centre, spread = ("LayerNorm.weight" in name) * 1.0, 0.2 if "LayerNorm" in name else 0.05
            parameter.copy_(centre + torch.randn(parameter.shape) * spread)
    return model.eval().requires_grad_(False), tokenizer


def minilm(name: str, data: Dataset, **settings: int) -> Subject:
    """Return a copy of the model of `minilm_as_it_ships` behind an adapter.

    Args:
        name: The length of the texts, such as "n≈20".
        data: The instances.
        settings: Settings of the config that replace those of MiniLM.
    """
    from attnaudit.adapters.huggingface import transformer

    model, tokenizer = copy.deepcopy(minilm_as_it_ships(**settings))
    return Subject(name=name, adapter=transformer(model, tokenizer), model=model, data=data)


def in_order(data: Dataset) -> Sequence[Instance]:
    """Return the instances in the order in which the engine returns them."""
    return sorted(data.instances, key=lambda one: one.id)
