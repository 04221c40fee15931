"""Compile a design into the weights of a Hugging Face classifier, without training (Lindner et al. 2023, "Tracr")."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attnaudit.research.planted_transformers.circuit_parts import Design, Family, Head
from attnaudit.research.planted_transformers.feature_space import POSITIONS, Features, FeatureSpace

WIDTH, MIDDLE = 64, 16
#: Standard deviation of the noise on every weight. It lets a gradient reach every head, as the adapter requires.
NOISE = 1e-3
#: The slope of the linear map in BERT's pooler, which is followed by a tanh.
POOLER = 0.7
#: The base of the rotations of Llama. With this base, only the first dimensions of a head rotate noticeably.
ROTARY_BASE = 1e16


def compile_model(design: Design, family: Family, tokenizer: Any, *, classes: Sequence[str], seed: int) -> Any:
    """Return the compiled model in evaluation mode.

    Args:
        design: The design.
        family: "bert" (post-norm encoder), "gpt2" or "llama" (pre-norm causal models).
        tokenizer: The tokenizer, which knows the words of the lexicon.
        classes: The names of the classes.
        seed: The seed of the rotation of the residual stream, and of the noise on the weights.
    """
    torch.manual_seed(seed)
    space = FeatureSpace(WIDTH, design.classes, seed)
    model = new_model(
        family, tokenizer, classes=classes, layers=len(design.layers), heads=len(design.layers[0]), width=WIDTH
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name.lower() and ".ln_" not in name:
                parameter.normal_(std=NOISE)
        embeddings = space.embed(
            _token_features(design.lexicon, tokenizer, family), with_positions=family != "llama", seed=seed
        )
        {"bert": _fill_bert, "gpt2": _fill_gpt2, "llama": _fill_llama}[family](model, design, space, embeddings)
    return model.eval()


def new_model(family: Family, tokenizer: Any, *, classes: Sequence[str], layers: int, heads: int, width: int) -> Any:
    """Return a classifier of a family with random weights.

    Args:
        family: The family.
        tokenizer: The tokenizer.
        classes: The names of the classes.
        layers: The number of layers.
        heads: The number of heads of each layer.
        width: The width of the residual stream.
    """
    import transformers

    common: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "id2label": dict(enumerate(classes)),
        "label2id": {name: number for number, name in enumerate(classes)},
    }
    if family == "gpt2":
        return transformers.GPT2ForSequenceClassification(
            transformers.GPT2Config(
                n_embd=width, n_layer=layers, n_head=heads, n_positions=POSITIONS, n_inner=MIDDLE,
                bos_token_id=tokenizer.cls_token_id, eos_token_id=tokenizer.sep_token_id, **common,
            )
        )  # fmt: skip
    common |= {
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": MIDDLE,
        "max_position_embeddings": POSITIONS,
    }  # fmt: skip
    if family == "bert":
        return transformers.BertForSequenceClassification(transformers.BertConfig(**common))
    return transformers.LlamaForSequenceClassification(
        transformers.LlamaConfig(
            bos_token_id=tokenizer.cls_token_id,
            eos_token_id=tokenizer.sep_token_id,
            rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
            **common,
        )
    )


def _token_features(lexicon: Mapping[str, Features], tokenizer: Any, family: Family) -> list[Features]:
    """Return the features of every token. The output is read from [CLS] in BERT, and from [SEP] in causal models."""
    read, sink = ("[CLS]", "[SEP]") if family == "bert" else ("[SEP]", "[CLS]")
    special: dict[str, Features] = {read: {"read": 1.0}, sink: {"sink": 1.0}}
    return [
        special.get(token) or lexicon.get(token, {})
        for token in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    ]


def _head_matrices(head: Head, space: FeatureSpace, size: int, family: Family) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the query, key and value rows (size, d) and the output columns (d, size) of a head."""
    queries, keys = _score_rows(head, space)
    # In Llama, the pairs of dimensions (i, i + size / 2) rotate, the first ones fast.
    order = [d for i in reversed(range(size // 2)) for d in (i, i + size // 2)] if family == "llama" else range(size)
    query, key = torch.zeros(2, size, len(space.names))
    for dimension, q, k in zip(order, queries, keys, strict=False):
        query[dimension], key[dimension] = q * math.sqrt(size), k
    value, output = torch.zeros(size, len(space.names)), torch.zeros(len(space.names), size)
    pairs = [
        (source, target, gain)
        for many_sources, many_targets, gain in head.moves
        for source, target in zip(space.each(many_sources), space.each(many_targets), strict=True)
    ]
    if len(pairs) > size or len(queries) > size - 4 * (family == "llama"):
        raise ValueError(f"a head of size {size} is too small for {len(queries)} scores and {len(pairs)} moves")
    for dimension, (source, target, gain) in enumerate(pairs):
        value[dimension], output[space.names.index(target), dimension] = space.row({source: 1.0}), gain
    return space.read(query), space.read(key), space.read(value), space.write(output)


def _score_rows(head: Head, space: FeatureSpace) -> tuple[list[Tensor], list[Tensor]]:
    """Return pairs of query and key rows (F,). The sum of their products is the attention score of the head."""
    one = {"constant": 1 / space.constant}
    if head.previous:
        queries, keys = space.previous_token()
        return [12 * query for query in queries], list(keys)
    if head.rows == "all":
        return [space.row(one)], [space.row(head.looks)]
    sink = {"sink": max((abs(v) for v in head.looks.values()), default=0.0) + 10.0}
    if head.if_flagged is None:
        chosen, others = space.row({head.rows: 1.0}), space.row(one | {head.rows: -1.0})
        return [chosen, others], [space.row(head.looks), space.row(sink)]
    return (
        [space.row({"read": 1.0, "flag": -1.0}), space.row({"flag": 1.0}), space.row(one | {"read": -1.0})],
        [space.row(head.looks), space.row(head.if_flagged), space.row(sink)],
    )


def layer_matrices(heads: Sequence[Head], space: FeatureSpace, family: Family) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the query, key and value matrices and the output matrix of a layer, each (d, d)."""
    each = [_head_matrices(head, space, space.width // len(heads), family) for head in heads]
    query, key, value = (torch.cat([matrices[i] for matrices in each]) for i in range(3))
    return query, key, value, torch.cat([matrices[3] for matrices in each], dim=1)


def add_to_projections(attention: Any, matrices: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    """Add the matrices of a layer, as `layer_matrices` returns them, to the weights of its attention module."""
    modules = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    for module, matrix in zip(modules, matrices, strict=True):
        module.weight.add_(matrix)


def readout(design: Design, space: FeatureSpace) -> Tensor:
    """Return a (C, d) matrix that reads the feature "moved" of every class from the residual stream.

    For each class, this feature of a token is the evidence that attention heads have moved to the token. For the
    default class, the matrix adds a constant of about ½.
    """
    rows = torch.stack([space.row({f"moved.{c}": 1.0}) for c in range(design.classes)])
    if design.default_class is not None:
        rows[design.default_class] += 0.5 * space.row({"constant": 1 / space.constant})
    return space.read(rows)


def _fill_bert(model: Any, design: Design, space: FeatureSpace, embeddings: Tensor) -> None:
    bert = model.bert
    bert.embeddings.word_embeddings.weight.copy_(embeddings)
    bert.embeddings.position_embeddings.weight.copy_(space.embed_positions())
    for layer, heads in zip(bert.encoder.layer, design.layers, strict=True):
        query, key, value, output = layer_matrices(heads, space, "bert")
        attention = layer.attention
        for module, matrix in (
            (attention.self.query, query),
            (attention.self.key, key),
            (attention.self.value, value),
            (attention.output.dense, output),
        ):
            module.weight.add_(matrix)
    bert.pooler.dense.weight[: design.classes] += POOLER * readout(design, space)
    model.classifier.weight[:, : design.classes] += design.logit_scale / POOLER * torch.eye(design.classes)


def _fill_gpt2(model: Any, design: Design, space: FeatureSpace, embeddings: Tensor) -> None:
    model.transformer.wte.weight.copy_(embeddings)
    model.transformer.wpe.weight.copy_(space.embed_positions())
    for block, heads in zip(model.transformer.h, design.layers, strict=True):
        query, key, value, output = layer_matrices(heads, space, "gpt2")
        # These modules store their weights transposed.
        block.attn.c_attn.weight.add_(torch.cat([query, key, value]).T)
        block.attn.c_proj.weight.add_(output.T)
    model.score.weight.add_(design.logit_scale * readout(design, space))


def _fill_llama(model: Any, design: Design, space: FeatureSpace, embeddings: Tensor) -> None:
    model.model.embed_tokens.weight.copy_(embeddings)
    for layer, heads in zip(model.model.layers, design.layers, strict=True):
        add_to_projections(layer.self_attn, layer_matrices(heads, space, "llama"))
    model.score.weight.add_(design.logit_scale * readout(design, space))
