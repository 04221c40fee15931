"""Public models with pooled attention, and the code that makes each of them auditable.

Nothing of these repositories is copied: the files are imported from clones. `build` makes a small model whose weights
are drawn at random; in a real audit, the user's own loading code takes its place. `adapt` is the code that an audit
needs, and its lines are counted. `plain` calls the model as its repository does, without attnaudit.

Shapes: T units of an instance, C classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attnaudit.adapters import (
    BagAdapter,
    Encoding,
    HierarchicalAttentionAdapter,
    PairAttentionAdapter,
    PooledAttentionAdapter,
)
from attnaudit.instances import Instance

#: Words of the models that read texts, and features of the vectors in bags: digits of 8 × 8 pixels.
WORDS, FEATURES = 500, 64
HOPS = 4
SENTIMENT = ("negative", "positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledModel:
    """A public model with pooled attention.

    Attributes:
        name: The class of the model.
        repository: Owner and name of the repository on GitHub.
        commit: The commit that was audited.
        licence: The licence of the repository.
        file: The file that defines the class.
        what: The kind of model.
        build: Given the module of the file -> the model. The caller draws its weights.
        adapt: Given the model -> the adapter.
        plain: Given the model, an instance, and the unit that is left out, or None -> the probabilities (C,) of the
            classes, and the attention (T,) of the units.
        reads: What the instances are: "text", "sentences" (three reviews, one per line), "pair", "bag", or "bag of
            pictures" (digits of 28 × 28 pixels).
        packages: Packages that the file imports, and that attnaudit does not need.
    """

    name: str
    repository: str
    commit: str
    licence: str
    file: str
    what: str
    build: Callable[[ModuleType], Any]
    adapt: Callable[[Any], Any]
    plain: Callable[[Any, Instance, int | None], tuple[Tensor, Tensor]]
    reads: str
    packages: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The name of the folder that `git clone` makes."""
        return self.repository.partition("/")[2]


def number(word: str) -> int:
    """Return the id of a word: 0 stands for padding, and 1 for unknown words."""
    return 2 + sum(word.encode()) % (WORDS - 2)


def ids_of(text: str, left_out: int | None) -> list[int]:
    ids = [number(word) for word in text.lower().split()]
    return ids if left_out is None else ids[:left_out] + ids[left_out + 1 :]


def bag_of(instance: Instance, left_out: int | None) -> Tensor:
    bag = torch.from_numpy(np.load(str(instance.file)))
    return bag if left_out is None else torch.cat([bag[:left_out], bag[left_out + 1 :]])


# -- attention MIL ---------------------------------------------------------------------------------------------------


def build_mil(module: ModuleType) -> Any:
    return module.GatedAttention()


def adapt_mil(model: Any) -> BagAdapter:
    def encode(vectors: Tensor, _mask: Tensor) -> Tensor:
        pictures = model.feature_extractor_part1(vectors.reshape(-1, 1, 28, 28))
        states: Tensor = model.feature_extractor_part2(pictures.flatten(1))
        return states.unflatten(0, vectors.shape[:2])

    def attend(states: Tensor, allowed: Tensor) -> Tensor:
        scores = model.attention_w(model.attention_V(states) * model.attention_U(states)).squeeze(-1)
        return scores.masked_fill(~allowed, -torch.inf).softmax(-1)

    return BagAdapter(
        encoder=encode,
        attention=attend,
        decoder=model.classifier[0],
        classes=SENTIMENT,
        modules=(model,),
        features=28 * 28,
    )


def plain_mil(model: Any, instance: Instance, left_out: int | None) -> tuple[Tensor, Tensor]:
    probability, _, weights = model(bag_of(instance, left_out).reshape(1, -1, 1, 28, 28))
    return torch.cat([1 - probability[0], probability[0]]), weights[0]


# -- CLAM ------------------------------------------------------------------------------------------------------------


def build_clam_sb(module: ModuleType) -> Any:
    return module.CLAM_SB(embed_dim=FEATURES)


def adapt_clam_sb(model: Any) -> BagAdapter:
    *layers, scorer = model.attention_net

    def attend(states: Tensor, allowed: Tensor) -> Tensor:
        return scorer(states)[0].squeeze(-1).masked_fill(~allowed, -torch.inf).softmax(-1)

    return BagAdapter(
        encoder=lambda vectors, _mask: nn.Sequential(*layers)(vectors),
        attention=attend,
        decoder=model.classifiers,
        classes=("normal", "tumour"),
        modules=(model,),
        features=FEATURES,
    )


def build_clam_mb(module: ModuleType) -> Any:
    return module.CLAM_MB(embed_dim=FEATURES, n_classes=3)


def adapt_clam_mb(model: Any) -> BagAdapter:
    *layers, scorer = model.attention_net

    def attend(states: Tensor, allowed: Tensor) -> Tensor:
        return scorer(states)[0].transpose(1, 2).masked_fill(~allowed[:, None], -torch.inf).softmax(-1)

    def decide(contexts: Tensor) -> Tensor:
        return torch.cat([layer(contexts[..., c, :]) for c, layer in enumerate(model.classifiers)], dim=-1)

    return BagAdapter(
        encoder=lambda vectors, _mask: nn.Sequential(*layers)(vectors),
        attention=attend,
        contexts=lambda contexts: contexts,
        decoder=decide,
        classes=("normal", "adenoma", "carcinoma"),
        modules=(model,),
        features=FEATURES,
        heads=3,
        reading="own@heads=predicted",
    )


def plain_clam(model: Any, instance: Instance, left_out: int | None) -> tuple[Tensor, Tensor]:
    logits, _, predicted, scores, _ = model(bag_of(instance, left_out))  # the scores are those before the softmax
    branch = int(predicted) if len(scores) > 1 else 0
    return logits[0].double().softmax(-1), scores[branch].double().softmax(-1)


# -- several hops ----------------------------------------------------------------------------------------------------


def build_hops(module: ModuleType) -> Any:
    return module.StructuredSelfAttention(1, 50, 30, HOPS, 1, 50, WORDS)


def adapt_hops(model: Any) -> PooledAttentionAdapter:
    def tokenize(text: str) -> Encoding:
        words = text.lower().split()
        return Encoding([number(word) for word in words], words)

    def attend(states: Tensor, allowed: Tensor) -> Tensor:
        scores = model.linear_second(torch.tanh(model.linear_first(states))).transpose(1, 2)
        return scores.masked_fill(~allowed[:, None], -torch.inf).softmax(-1)

    return PooledAttentionAdapter(
        embedding=model.embeddings,
        encoder=lambda embedded, _mask: model.lstm(embedded)[0],
        attention=attend,
        contexts=lambda contexts: contexts.mean(-2),
        decoder=model.linear_final,
        tokenize=tokenize,
        classes=SENTIMENT,
        modules=(model,),
        mask_id=1,
        heads=HOPS,
        reading="own@heads=mean",
    )


def plain_hops(model: Any, instance: Instance, left_out: int | None) -> tuple[Tensor, Tensor]:
    ids = ids_of(instance.text, left_out)
    model.max_len, model.hidden_state = len(ids), model.init_hidden()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the model calls softmax without a dimension, which is deprecated
        probability, weights = model(torch.tensor([ids]))
    p = probability.double().flatten()
    return torch.cat([1 - p, p]), weights[0].mean(0)


# -- two levels ------------------------------------------------------------------------------------------------------


def build_levels(module: ModuleType) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dropout between the layers of a GRU with a single layer
        return module.HierarchialAttentionNetwork(
            n_classes=3, vocab_size=WORDS, emb_size=24, word_rnn_size=16, sentence_rnn_size=16, word_rnn_layers=1,
            sentence_rnn_layers=1, word_att_size=16, sentence_att_size=16,
        )  # fmt: skip


def adapt_levels(model: Any) -> HierarchicalAttentionAdapter:
    upper, lower = model.sentence_attention, model.sentence_attention.word_attention

    def tokenize(text: str) -> list[Encoding]:
        sentences = [line.lower().split() for line in text.splitlines()]
        return [Encoding([number(word) for word in words], words) for words in sentences]

    def run(rnn: Any, vectors: Tensor, mask: Tensor) -> Tensor:
        packed = pack_padded_sequence(vectors, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(rnn(packed)[0], batch_first=True, total_length=mask.shape[1])[0]

    def attend(hidden: Any, context: Any, states: Tensor, allowed: Tensor) -> Tensor:
        scores = context(torch.tanh(hidden(states))).squeeze(-1)
        return scores.masked_fill(~allowed, -torch.inf).softmax(-1)

    return HierarchicalAttentionAdapter(
        embedding=lower.embeddings,
        word_encoder=lambda vectors, mask: run(lower.word_rnn, vectors, mask),
        word_attention=lambda *given: attend(lower.word_attention, lower.word_context_vector, *given),
        sentence_encoder=lambda vectors, mask: run(upper.sentence_rnn, vectors, mask),
        sentence_attention=lambda *given: attend(upper.sentence_attention, upper.sentence_context_vector, *given),
        decoder=model.fc,
        tokenize=tokenize,
        classes=("negative", "neutral", "positive"),
        modules=(model,),
        mask_id=1,
    )


def plain_levels(model: Any, instance: Instance, left_out: int | None) -> tuple[Tensor, Tensor]:
    lines = instance.text.lower().splitlines()
    words = [(line, number(word)) for line, text in enumerate(lines) for word in text.split()]
    kept = [one for place, one in enumerate(words) if place != left_out]
    sentences = [[word for its_line, word in kept if its_line == line] for line in dict(kept)]
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    rows = [sentence + [0] * (int(lengths.max()) - len(sentence)) for sentence in sentences]
    scores, of_words, of_sentences = model(torch.tensor([rows]), torch.tensor([len(rows)]), lengths[None])
    product = of_words[0] * of_sentences[0][:, None]
    weights = torch.cat([row[:length] for row, length in zip(product, lengths.tolist(), strict=True)])
    return scores[0].double().softmax(-1), weights


# -- two texts -------------------------------------------------------------------------------------------------------


def build_pair(module: ModuleType) -> Any:
    return nn.ModuleList([module.encoder(WORDS, 24, 16, 0.1), module.atten(16, 3, 0.1)])


def adapt_pair(model: Any) -> PairAttentionAdapter:
    encoder, compared = model

    def tokenize(text: str) -> Encoding:
        words = text.lower().split()
        return Encoding([number(word) for word in words], words)

    def attend(text: Tensor, query: Tensor, of_text: Tensor, of_query: Tensor) -> tuple[Tensor, Tensor]:
        scores = compared.mlp_f(text) @ compared.mlp_f(query).transpose(1, 2)
        to_query = scores.masked_fill(~of_query[:, None], -torch.inf).softmax(-1)
        to_text = scores.transpose(1, 2).masked_fill(~of_text[:, None], -torch.inf).softmax(-1)
        return to_query, to_text

    def decide(text: Tensor, query: Tensor, for_text: Tensor, for_query: Tensor, *masks: Tensor) -> Tensor:
        pairs = (torch.cat([text, for_text], -1), torch.cat([query, for_query], -1))
        sums = [(compared.mlp_g(pair) * mask[..., None]).sum(1) for pair, mask in zip(pairs, masks, strict=True)]
        return compared.final_linear(compared.mlp_h(torch.cat(sums, -1)))

    return PairAttentionAdapter(
        embedding=encoder.embedding,
        encoder=lambda embedded, _mask: encoder.input_linear(embedded),
        attention=attend,
        decoder=decide,
        tokenize=tokenize,
        classes=("entailment", "neutral", "contradiction"),
        modules=(model,),
        mask_id=1,
    )


def plain_pair(model: Any, instance: Instance, left_out: int | None) -> tuple[Tensor, Tensor]:
    text, query = ids_of(instance.text, left_out), ids_of(str(instance.query), None)
    softmax, seen = torch.nn.functional.softmax, []

    def recorded(*given: Any, **settings: Any) -> Tensor:
        seen.append(softmax(*given, **settings))
        return seen[-1]

    with warnings.catch_warnings(), mock.patch("torch.nn.functional.softmax", recorded):
        warnings.simplefilter("ignore")  # the model calls softmax without a dimension, which is deprecated
        logs = model[1](*model[0](torch.tensor([text]), torch.tensor([query])))
    return logs[0].double().exp(), seen[1].mean(0)  # the second softmax is that of the query's words over the text


_CLAM: Mapping[str, str] = {
    "repository": "mahmoodlab/CLAM",
    "commit": "53e2409d4a8189c682c173382964a85f114f923c",
    "licence": "GPL-3.0",
    "file": "models/model_clam.py",
    "reads": "bag",
}
MODELS = (
    PooledModel(
        name="GatedAttention",
        repository="AMLab-Amsterdam/AttentionDeepMIL",
        commit="eb0434ba2795711a45d693d60120ae53532b1b93",
        licence="MIT",
        file="model.py",
        what="attention over a bag of pictures (Ilse et al. 2018)",
        build=build_mil,
        adapt=adapt_mil,
        plain=plain_mil,
        reads="bag of pictures",
    ),
    PooledModel(
        name="CLAM_SB",
        **_CLAM,
        what="attention over a bag of patches, with a single branch (Lu et al. 2021)",
        build=build_clam_sb,
        adapt=adapt_clam_sb,
        plain=plain_clam,
    ),
    PooledModel(
        name="CLAM_MB",
        **_CLAM,
        what="one branch of attention per class, over a bag of patches (Lu et al. 2021)",
        build=build_clam_mb,
        adapt=adapt_clam_mb,
        plain=plain_clam,
    ),
    PooledModel(
        name="StructuredSelfAttention",
        repository="kaushalshetty/Structured-Self-Attention",
        commit="84ed64f9cee75f84a5d871a46508a308182e4a6d",
        licence="MIT",
        file="attention/model.py",
        what="four hops over the words of a text (Lin et al. 2017)",
        build=build_hops,
        adapt=adapt_hops,
        plain=plain_hops,
        reads="text",
    ),
    PooledModel(
        name="HierarchialAttentionNetwork",
        repository="sgrvinod/a-PyTorch-Tutorial-to-Text-Classification",
        commit="ec11e234bbbae2adcd7d665489999410911a9fb4",
        licence="MIT",
        file="model.py",
        what="attention over the words of each sentence, and over the sentences (Yang et al. 2016)",
        build=build_levels,
        adapt=adapt_levels,
        plain=plain_levels,
        reads="sentences",
    ),
    PooledModel(
        name="atten",
        repository="libowen2121/SNLI-decomposable-attention",
        commit="5ac3eacf7862ffebe480b3dd1d2dd29671c8a18f",
        licence="none stated",
        file="models/baseline_snli.py",
        what="decomposable attention between two texts (Parikh et al. 2016)",
        build=build_pair,
        adapt=adapt_pair,
        plain=plain_pair,
        reads="pair",
    ),
)
