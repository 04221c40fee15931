"""Measure how far recomputed attention rows and logits are from those of eager attention, in float32.

The model runs with its shipped kernel. The rows of the first, the middle and the last token are recomputed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.protocol import TEXT
from attnaudit.adapters.site_selection import run_for
from attnaudit.devices import full_precision
from benchmarks.attention_rows import MODELS
from benchmarks.speed import device
from benchmarks.speed.subjects import long_texts, short_texts


def measured(quick: bool) -> Iterator[dict[str, Any]]:
    """Compare the audited model with its eager form, and yield the differences.

    Yields:
        model: the name of the model. texts: the lengths of the texts. weights: the largest difference between attention
        weights of the same query and key, in any layer and head. logits: the largest difference between logits, divided
        by the largest logit, but at least by 1.
    """
    batches = {"n≈20": short_texts(8), "n≈124": long_texts(2 if quick else 8)}
    for name, build in MODELS.items():
        original, tokenizer = copy.deepcopy(build())
        eager = copy.deepcopy(original).to(device.name())
        eager.set_attn_implementation("eager")
        adapter = transformer(original.to(device.name()), tokenizer)
        for texts, data in batches.items():
            inputs = adapter.collate(data.instances)
            mask = inputs.mask[TEXT]
            last = mask.sum(1) - 1
            queries = torch.stack([torch.zeros_like(last), last // 2, last], dim=1)
            keys = {site.key for site in adapter.sites()}
            with torch.no_grad(), full_precision():
                trace = run_for(adapter, inputs, keys, queries=dict.fromkeys(keys, queries))
                positions = {"position_ids": (mask.long().cumsum(1) - 1).clamp_min(0)} if name == "GPT-2" else {}
                expected = eager(
                    input_ids=inputs.ids[TEXT], attention_mask=mask.long(), output_attentions=True, **positions
                )
            weights = 0.0
            for site, theirs in zip(adapter.sites(), expected.attentions, strict=True):
                index = trace.queries[site.key][:, None, :, None].expand(-1, theirs.shape[1], -1, theirs.shape[3])
                apart = (trace.attention[site.key] - theirs.gather(2, index)).abs() * mask[:, None, None, :]
                weights = max(weights, float(apart.max()))
            size = max(1.0, float(expected.logits.abs().max()))
            logits = float((trace.logits - expected.logits).abs().max()) / size
            yield {"model": name, "texts": texts, "weights": weights, "logits": logits}
