"""The examples of docs/transformers.md, run as they stand there on small models."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnaudit.adapters.huggingface import transformer
from attnaudit.checks.policies.policy import load_policy
from attnaudit.errors import ModelError
from attnaudit.instances import Instance
from attnaudit.registry import models
from tests import architectures
from tests.slow_cases import slow_except

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "transformers.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"<!-- example: (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))


def big_bird(folder: Path) -> None:
    """Save a BigBird classifier that attends to blocks of tokens."""
    import transformers

    tokenizer = architectures.tokenizer("unigram")
    config = transformers.BigBirdConfig(
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None, sep_token_id=tokenizer.eos_token_id, hidden_size=32, num_attention_heads=4,
        num_hidden_layers=3, intermediate_size=48, block_size=4,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.BigBirdForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def gguf_file(folder: Path) -> None:
    """Write a GGUF file with a small Llama whose matrices are quantised, and with a SentencePiece tokenizer."""
    import gguf
    import numpy as np

    words = [f"▁{word}" for word in ("a", "wonderful", "film", "good", "bad")]
    letters = sorted({letter for word in words for letter in word})
    # The tokenizer merges two pieces at a time, so that the vocabulary needs every beginning of a word.
    beginnings = dict.fromkeys(word[:stop] for word in words for stop in range(2, len(word) + 1))
    pieces = ["<unk>", "<s>", "</s>", *letters, *beginnings]
    while len(pieces) % 32:
        pieces.append(f"<unused{len(pieces)}>")
    folder.mkdir()
    writer = gguf.GGUFWriter(folder / "model.Q4_1.gguf", "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(architectures.LAYERS)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(pieces))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([-float(number) for number in range(len(pieces))])
    writer.add_token_types([2, 3, 3] + [1] * (len(pieces) - 3))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    drawn = np.random.default_rng(0)
    shapes = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32)}
    shapes |= {"ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64)}
    matrices = {f"blk.{n}.{name}": shape for n in range(architectures.LAYERS) for name, shape in shapes.items()}
    kind = gguf.GGMLQuantizationType.Q4_1
    for name, shape in {"token_embd": (len(pieces), 32), "output": (len(pieces), 32), **matrices}.items():
        values = drawn.normal(0.0, 0.3, shape).astype(np.float32)
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    for name in [
        "output_norm",
        *(f"blk.{n}.{one}_norm" for n in range(architectures.LAYERS) for one in ("attn", "ffn")),
    ]:
        writer.add_tensor(f"{name}.weight", np.ones(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def saved(name: str) -> Callable[[Path], object]:
    return lambda folder: architectures.save(name, folder)


#: Example -> the name that it registers, the packages that it needs, and what saves the model in "base".
REGISTERED: dict[str, tuple[str, tuple[str, ...], Callable[[Path], object]]] = {
    "own_module.py": ("reviews", (), saved("bert")),
    "tagger.py": ("tagger", (), saved("bert")),
    "lora.py": ("lora", ("peft",), saved("bert")),
    "compiled.py": ("compiled", (), saved("bert")),
    "half_precision.py": ("half", ("accelerate",), saved("bert")),
    "gguf.py": ("gguf", ("gguf",), gguf_file),
    "quantised.py": ("unquantised", (), saved("bert")),
    "language_model.py": ("writer", (), saved("gpt2-lm")),
    "big_bird.py": ("long", (), big_bird),
}


def test_every_example_is_run() -> None:
    assert set(EXAMPLES) == {*REGISTERED, "hybrid.toml"}


@pytest.mark.parametrize("name", slow_except(REGISTERED, lambda name: name != "compiled.py"))
def test_an_example_registers_a_model_that_can_be_audited(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered, packages, save = REGISTERED[name]
    for package in packages:
        pytest.importorskip(package)
    save(tmp_path / "base")
    (tmp_path / name).write_text(EXAMPLES[name], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    before = models._known.pop(registered, None)  # other tests may have registered the same name
    try:
        torch.manual_seed(0)
        runpy.run_path(str(tmp_path / name))
        adapter = models.get(registered)()
    finally:
        models._known.pop(registered, None)
        if before is not None:
            models._known[registered] = before
    trace = adapter.run(adapter.collate([Instance(id="1", text="a wonderful film")]))
    assert trace.logits.shape == (1, 2)
    assert len(adapter.sites()) == architectures.LAYERS


def test_the_policy_for_hybrids_judges_its_gate_on_the_visible_attention(tmp_path: Path) -> None:
    path = tmp_path / "hybrid.toml"
    path.write_text(EXAMPLES["hybrid.toml"], encoding="utf-8")
    (check,) = load_policy(path)
    assert check.severity == "gate"
    assert check.not_accepted(["model.layers.0.mamba"]) == []


READINGS = re.findall(r"^\| (\w+)ForSequenceClassification \| `(.+)` \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("kind", "reading"), READINGS)
def test_the_default_reading_is_the_row_that_the_head_reads(kind: str, reading: str) -> None:
    (name,) = (
        name for name, one in architectures.ARCHITECTURES.items() if (one.kind, one.writes) == (kind, False)
    )  # fmt: skip
    assert transformer(*architectures.build(name)).capabilities.reading == reading


def test_there_are_families_with_default_readings() -> None:
    assert len(READINGS) == 5


def quantised() -> Any:
    model, _ = architectures.build("bert")
    model.config.quantization_config = {"quant_method": "gptq"}
    return model


def spread_over_devices() -> Any:
    model, _ = architectures.build("bert")
    model.hf_device_map = {"bert": 0, "classifier": 1}
    return model


def image_classifier() -> Any:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=32, num_attention_heads=4, num_hidden_layers=1, intermediate_size=48, image_size=32
    )
    return transformers.ViTForImageClassification(config)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (quantised, r"quantised \(gptq\)"),
        (spread_over_devices, "spread over several devices"),
        (image_classifier, "needs its image processor"),
    ],
)
def test_what_the_page_says_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        transformer(make(), architectures.tokenizer("wordpiece"))
