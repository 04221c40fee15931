"""Tiny encoders with random weights, as folders that Transformers loads, and sentences that reveal their label."""

from __future__ import annotations

import random
from pathlib import Path

import tokenizers
import torch
import transformers

from attnaudit.instances import Dataset, Instance

WORDS = [*(f"w{i}" for i in range(20)), *(f"{label}{i}" for label in ("bad", "good", "so") for i in range(3))]
SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def sentences(n: int, *, seed: int, names: tuple[str, ...] = ("bad", "good"), query: bool = False) -> Dataset:
    """Sentences of filler words, each with one word that starts with the label."""
    draw = random.Random(seed)
    rows = []
    for index in range(n):
        label = names[index % len(names)]
        words = [f"w{draw.randrange(20)}" for _ in range(draw.randint(1, 9))]
        words.insert(draw.randint(0, len(words)), f"{label}{draw.randrange(3)}")
        rows.append(
            Instance(
                id=f"{seed}-{index}",
                text=" ".join(words),
                label=label,
                query="w1 w2" if query else None,
                where=f"made.jsonl:{index + 1}",
            )
        )
    return Dataset(name="made", source="made.jsonl", description="", instances=tuple(rows), classes=names)


def save_tokenizer(folder: Path) -> None:
    """Save a WordPiece tokenizer for `WORDS`."""
    vocabulary = {word: index for index, word in enumerate([*SPECIAL.values(), *WORDS])}
    pieces = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    pieces.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    pieces.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    special = {f"{name}_token": token for name, token in SPECIAL.items()}
    transformers.PreTrainedTokenizerFast(tokenizer_object=pieces, **special).save_pretrained(folder)


SIZES = {
    "vocab_size": len(SPECIAL) + len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
    "initializer_range": 0.1,  # wide enough to learn from in a few steps
}


def save_encoder(folder: Path, family: str = "Bert", **changes: object) -> Path:
    """Save a random encoder of this model family and the tokenizer."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES | changes)
    getattr(transformers, f"{family}Model")(config).save_pretrained(folder)
    save_tokenizer(folder)
    return folder
