"""A hybrid of attention and state-space layers whose decision goes through the layers without attention weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests import architectures

MIXERS = ("model.layers.0.mamba (JambaMambaMixer)", "model.layers.2.mamba (JambaMambaMixer)")


def planted_hybrid(mixer: float = 4.0, attention: float = 0.5) -> tuple[Any, Any]:
    """Return a Jamba classifier with the layers Mamba, attention, Mamba, attention, and its tokenizer.

    Args:
        mixer: Factor of what the Mamba layers add to the states.
        attention: Factor of what the attention layers add.
    """
    import transformers

    tokenizer = architectures.tokenizer("unigram")
    config = transformers.JambaConfig(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=2,
        mamba_d_state=4,
        mamba_dt_rank=4,
        id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1},
    )
    torch.manual_seed(0)
    model = transformers.JambaForSequenceClassification(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "A_log" not in name:
                parameter.normal_(std=0.2)
            if name.endswith("mamba.out_proj.weight"):
                parameter *= mixer
            if name.endswith("self_attn.o_proj.weight"):
                parameter *= attention
    return model.eval(), tokenizer


def save_planted_hybrid(folder: Path) -> Path:
    """Write the model and its tokenizer as a checkpoint folder."""
    for one in planted_hybrid():
        one.save_pretrained(folder)
    return folder
