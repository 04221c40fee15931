"""Time the work of the CPU in passes on a GPU, without a GPU.

    python -m benchmarks.host_time [--repeats N]

The comparisons are those of the GPU's table: forward pass and gradient, with the user's own code. The batches are those
of a GPU, but the models have one layer with eight features and run on the CPU. Little is left but the work that a CPU
does for a GPU: encoding texts, building batches, starting operations and storing results. Prints a table. Times are CPU
milliseconds per text, on one thread and those of the tokenizer.

A second table has the wall time of forward passes that also wait, as for a GPU. All shards are encoded before the first
pass; or each shard is encoded in another thread during the passes of the one before it, as on a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from typing import Any
from unittest import mock

import torch

from attnaudit.adapters.huggingface.passes.equal_states import FirstLinears
from attnaudit.adapters.protocol import TEXT, Inputs
from attnaudit.engine import repeated_pass, shard_measuring
from attnaudit.engine.shard_measuring import ShardMeasurer
from benchmarks.speed import causal, minilm, subjects
from benchmarks.speed.pooled import audited
from benchmarks.speed.subjects import MINILM, long_texts, short_texts
from benchmarks.speed.timing import Comparison, compare

#: The sizes of the models.
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
#: Name of the texts -> how many there are, and their number of words; None for single sentences.
TEXTS = {"n≈20": (2048, None), "n≈124": (512, 124), "n≈1,024": (16, 1024)}
#: The texts of the second table, in several shards, and the microseconds that a pass waits per token.
WAITING_TEXTS, WAITS = {"n≈20": (2048, None), "n≈124": (1024, 124)}, (1, 4)
REPEATS = 5


def comparisons() -> Iterator[Comparison]:
    """Yield the comparisons of BERT and GPT-2."""
    for name, (count, words) in TEXTS.items():
        data = short_texts(count) if words is None else long_texts(count, words)
        positions = minilm.LONGEST
        bert = subjects.minilm_as_it_ships(max_position_embeddings=positions)
        subject = subjects.minilm(name, data, max_position_embeddings=positions)
        yield from minilm.passes("BERT", minilm.Rival(bert), subject)
        rival = minilm.Rival(causal.causal_as_it_ships(positions), causal=True)
        yield from minilm.passes("GPT-2", rival, causal.subject(name, data, positions))


def waiting(texts: str, wait: int, repeats: int) -> str:
    """Time forward passes of BERT that wait `wait` microseconds per token, and return the row of the table."""
    count, words = WAITING_TEXTS[texts]
    data = short_texts(count) if words is None else long_texts(count, words)
    subject = subjects.minilm(texts, data, max_position_embeddings=minilm.LONGEST)
    run = subject.adapter.run

    def slow(inputs: Inputs, *given: Any, **options: Any) -> Any:
        found = run(inputs, *given, **options)
        time.sleep(wait * 1e-6 * float(inputs.mask[TEXT].sum()))
        return found

    times: dict[bool, list[float]] = {False: [], True: []}
    with mock.patch.object(subject.adapter, "run", slow):
        for _ in range(repeats):
            for ahead, found in times.items():
                with mock.patch.object(ShardMeasurer, "encodes_ahead", property(lambda _, ahead=ahead: ahead)):
                    started = time.perf_counter()
                    audited(subject)
                    found.append((time.perf_counter() - started) * 1e3 / len(data.instances))
    before, ahead = (statistics.median(found) for found in times.values())
    ratios = [one / other for one, other in zip(*times.values(), strict=True)]
    ratio = f"**{statistics.median(ratios):.3g}×** ({min(ratios):.3g} to {max(ratios):.3g})"
    return f"| {texts} | {len(data.instances):,} | {wait} µs | {before:.3g} | {ahead:.3g} | {ratio} |"


def main(words: list[str] | None = None) -> int:
    """Time the comparisons and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host_time", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=REPEATS, metavar="N", help="how often each program is timed")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(MINILM, SMALL))
        for made in (subjects.minilm_as_it_ships, causal.causal_as_it_ships):
            made.cache_clear()
            stack.callback(made.cache_clear)
        budget = {**shard_measuring.BATCH_TOKENS_OF_HEADS, "cpu": shard_measuring.BATCH_TOKENS_OF_HEADS["cuda"]}
        stack.enter_context(mock.patch.object(shard_measuring, "BATCH_TOKENS_OF_HEADS", budget))
        for module in (shard_measuring, repeated_pass):
            stack.enter_context(mock.patch.object(module, "tokens_per_pass", return_value=None))
        # On a GPU, equal states are not joined.
        stack.enter_context(mock.patch.object(FirstLinears, "once_for_equal_states", return_value=nullcontext()))
        stack.enter_context(mock.patch.object(minilm, "batch_size", return_value=minilm.BATCH_ON_GPU))
        print("| measure | texts | ours, ms | theirs, ms | ratio (range) |\n|---|---:|---:|---:|---:|")
        for one in comparisons():
            found = compare(one, options.repeats)
            ratio = f"**{found.ratio:.3g}×** ({found.low:.3g} to {found.high:.3g})"
            row = f"| {one.name} | {one.instances:,} | {found.ours_ms:.3g} | {found.theirs_ms:.3g} | {ratio} |"
            print(row, flush=True)
        print("\n| texts | number | wait per token | encoded before, ms | encoded ahead, ms | ratio (range) |")
        print("|---|---:|---:|---:|---:|---:|")
        for texts in WAITING_TEXTS:
            for wait in WAITS:
                print(waiting(texts, wait, options.repeats), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
