"""Audit a language model with 1.1 billion parameters in bfloat16. It has the sizes of TinyLlama and random weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from attnaudit.adapters.huggingface import transformer
from attnaudit.conformance import quick as quick_conformance
from attnaudit.engine.measuring import measure
from benchmarks.speed import device
from benchmarks.speed.subjects import long_texts, minilm_as_it_ships, short_texts

#: The sizes of TinyLlama.
SIZES = {
    "hidden_size": 2048,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "intermediate_size": 5632,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
#: With --quick, to test the command.
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}
POLICIES = {
    "prediction and attention": ("prediction", "attention"),
    "gradient": ("gradient.meister.inputs",),
    "100 permutations": ("permutation",),
    "leave-one-out": ("leave_one_out.inputs",),
}


def built(quick: bool) -> tuple[Any, Any]:
    """Return the model with random weights, made on the device, and a tokenizer."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    _, tokenizer = minilm_as_it_ships(max_position_embeddings=SIZES["max_position_embeddings"])
    config = LlamaConfig(
        **{**SIZES, **(SMALL if quick else {})},
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
        dtype=torch.bfloat16,
    )
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device.name()):
            model = LlamaForSequenceClassification(config)
    finally:
        torch.set_default_dtype(before)
    return model.eval().requires_grad_(False), tokenizer


def measured(quick: bool) -> Iterator[dict[str, Any]]:
    """Audit the model, and yield the numbers.

    Yields:
        First "parameters", "gib" (the memory of the model), "building" and "conformance" (seconds), and "sentence",
        what the conformance check of half precision reports. Then, for each policy and length of texts: "policy",
        "texts", "instances", "rate" (instances per second), "checks" (seconds of hashing and of running rows again are
        included in the rate) and "peak" (largest memory of all tensors, in GiB).
    """
    started = device.now()
    model, tokenizer = built(quick)
    adapter: Any = transformer(model, tokenizer)
    building, started = device.now() - started, device.now()
    data = {"n≈20": short_texts(16 if quick else 128), "n≈124": long_texts(2 if quick else 32)}
    results = {one.check: one.detail for one in quick_conformance(adapter, data["n≈20"].instances[:4])}
    yield {
        "parameters": sum(one.numel() for one in model.parameters()),
        "gib": sum(one.numel() * one.element_size() for one in model.parameters()) / 2**30,
        "building": building,
        "conformance": device.now() - started,
        "sentence": results["half_precision"],
    }
    for texts, rows in data.items():
        for policy, needs in POLICIES.items():
            if policy == "leave-one-out":
                rows = dataclasses.replace(rows, instances=rows.instances[: 32 if texts == "n≈20" else 4])
            if device.on_gpu():
                torch.cuda.reset_peak_memory_stats()
            started = device.now()
            measure(adapter, rows, needs, model="model", seed=0, device=device.name())
            taken = device.now() - started
            yield {
                "policy": policy,
                "texts": texts,
                "instances": len(rows.instances),
                "rate": len(rows.instances) / taken,
                "peak": torch.cuda.max_memory_allocated() / 2**30 if device.on_gpu() else 0.0,
            }
