"""Planted vision transformers: the compiled circuits of `compiled_circuits`, with the patches of a picture as tokens.

A patch is a picture of 8 × 8 pixels: grey noise, to which a pattern is added for each feature of the patch. The pattern
of the evidence for a class is the mean picture of one of scikit-learn's handwritten digits, made orthogonal to all
other patterns. The patch embedding, which is linear, reads the patterns and writes the features of the patch. The words
of a text from `circuit_texts` become a grid of patches, one patch per word.

The truth of a reading is decided as for all planted Transformers: by the interchange interventions of `interchange`.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.huggingface.checkpoints.checkpoint_files import quiet
from attnaudit.adapters.huggingface.transformer_adapter import HuggingFaceAdapter
from attnaudit.instances import Dataset, Instance
from attnaudit.research.planted_transformers.circuit_parts import CircuitPlan, Design, LabelledReading
from attnaudit.research.planted_transformers.circuit_texts import CLASS_NAMES, make_rows
from attnaudit.research.planted_transformers.compile_weights import (
    MIDDLE,
    NOISE,
    WIDTH,
    add_to_projections,
    layer_matrices,
    readout,
)
from attnaudit.research.planted_transformers.compiled_circuits import CIRCUITS, variant
from attnaudit.research.planted_transformers.feature_space import Features, FeatureSpace

PictureFamily = Literal["vit", "deit"]
FAMILIES: tuple[PictureFamily, ...] = ("vit", "deit")
#: The width of a patch in pixels, and the number of patches in each row and column of a picture.
PATCH, GRID = 8, 5
#: The amplitude of a pattern, and the standard deviation of the noise in each pixel. Pixels are from -1 to 1.
AMPLITUDE, PIXEL_NOISE = 1.4, 0.12
#: The number of pictures of each model.
PICTURES = 60
MOST_LAYERS = 3
#: The norm of the part of an embedding that only identifies the patch.
IDENTITY = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchPlan(CircuitPlan):
    """One vision transformer to build. Its family is "vit", or "deit" with a distillation token."""

    family: PictureFamily


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedPatches:
    """A planted model with its pictures.

    Attributes:
        plan: The plan.
        adapter: The adapter.
        dataset: The pictures.
        readings: The readings whose truth is known by construction.
    """

    plan: PatchPlan
    adapter: HuggingFaceAdapter
    dataset: Dataset
    readings: tuple[LabelledReading, ...]


def patch_plans(half: str, seeds: Sequence[int]) -> list[PatchPlan]:
    """Return the models of one half of the population, "tuning" or "held_out"."""
    return [
        PatchPlan(mechanism=circuit.mechanism, family=family, seed=seed, parameter=float(parameter))
        for circuit in CIRCUITS
        if circuit.half == half and circuit.pictures
        for seed in seeds
        for family in FAMILIES
        for parameter in circuit.parameters
    ]


def build_patches(plan: PatchPlan, folder: Path) -> PlantedPatches:
    """Build the model of a plan, and write its pictures.

    Args:
        plan: The plan.
        folder: The folder for the pictures.

    Raises:
        OSError: A picture cannot be written.
    """
    circuit = next(one for one in CIRCUITS if one.mechanism == plan.mechanism)
    drawn = variant(circuit, plan.family, plan.seed)
    layers = max(circuit.least_layers, min(MOST_LAYERS, drawn.layers))
    design = circuit.design(replace(drawn, layers=layers, reviews=False), plan.parameter)
    space = FeatureSpace(WIDTH, design.classes, plan.seed)
    patterns = _patterns(space)
    with quiet():
        model = compile_vision(design, plan.family, patterns, seed=plan.seed)
        adapter = transformer(model, _processor())
    assert isinstance(adapter, HuggingFaceAdapter)
    rows = make_rows(
        design.texts, classes=design.classes, count=PICTURES, seed=1000 + plan.seed, marker_share=design.marker_share
    )
    instances = []
    folder.mkdir(parents=True, exist_ok=True)
    generator = random.Random(f"{plan.mechanism} {plan.family} {plan.seed} {plan.parameter}")
    for number, (text, label) in enumerate(rows):
        words = _shortened(text.split(), design.lexicon, generator)
        path = folder / f"{plan.name}-{number}.png"
        _write_picture(path, words, design.lexicon, space, patterns, generator)
        instances.append(
            Instance(
                id=f"{number:04}",
                text=path.name,
                label=label,
                file=str(path.resolve()),
                file_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            )
        )
    dataset = Dataset(
        name=plan.name,
        source="planted",
        description="",
        instances=tuple(instances),
        classes=tuple(sorted({label for _, label in rows})),
    )
    return PlantedPatches(plan=plan, adapter=adapter, dataset=dataset, readings=design.readings)


def compile_vision(design: Design, family: PictureFamily, patterns: Tensor, *, seed: int) -> Any:
    """Return the compiled vision transformer of a design, in evaluation mode.

    The output is read from [CLS]. The sink is the distillation token in DeiT, and [CLS] itself in ViT.

    Args:
        design: The design.
        family: The family.
        patterns: (F + e, 64) orthonormal patterns: one per feature, and e others, whose values identify the patch.
        seed: The seed of the rotation of the residual stream, and of the noise on the weights.
    """
    import transformers

    torch.manual_seed(seed)
    space = FeatureSpace(WIDTH, design.classes, seed)
    names = CLASS_NAMES[: design.classes]
    settings: dict[str, Any] = {
        "image_size": PATCH * GRID, "patch_size": PATCH, "num_channels": 1, "hidden_size": WIDTH,
        "num_hidden_layers": len(design.layers), "num_attention_heads": len(design.layers[0]),
        "intermediate_size": MIDDLE, "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
    }  # fmt: skip
    if family == "vit":
        model = transformers.ViTForImageClassification(transformers.ViTConfig(**settings))
    else:
        model = transformers.DeiTForImageClassification(transformers.DeiTConfig(**settings))
    base = model.base_model
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(std=NOISE)
        _fill_embeddings(base.embeddings, family, space, patterns, seed)
        for layer, heads in zip(base.layers, design.layers, strict=True):
            add_to_projections(layer.attention, layer_matrices(heads, space, family))
        model.classifier.weight.add_(design.logit_scale * readout(design, space))
    return model.eval()


def _fill_embeddings(embeddings: Any, family: PictureFamily, space: FeatureSpace, patterns: Tensor, seed: int) -> None:
    """Write the embeddings of the special tokens, of the positions and of the patches."""
    special: list[Features] = [{"read": 1.0}, {"sink": 1.0}] if family == "deit" else [{"read": 1.0, "sink": 1.0}]
    tokens = space.embed([*special, {"cue": 1.0, "evidence.0": 1.0}], with_positions=True, seed=seed)
    embeddings.cls_token.copy_(tokens[0])
    if family == "deit":
        embeddings.distillation_token.copy_(tokens[1])
    positions = space.embed_positions()
    # The first patch has the position that follows [CLS] in a text. The distillation token has the last position.
    order = [0, *([63] * (family == "deit")), *range(1, GRID * GRID + 1)]
    embeddings.position_embeddings.copy_(positions[order][None])
    # The features of a patch, and the directions that identify it. Both are linear in the pixels.
    features = len(space.names)
    spread = PIXEL_NOISE * math.sqrt(len(patterns) - features)
    scales = torch.cat(
        [torch.full((features,), 1 / AMPLITUDE), torch.full((len(patterns) - features,), IDENTITY / spread)]
    )
    matrix = space.basis[:, : len(patterns)] @ (scales[:, None] * patterns)
    projection = embeddings.patch_embeddings.projection
    projection.weight.copy_(matrix.view(WIDTH, 1, PATCH, PATCH))
    # The bias is the constant feature of the embedding of a typical patch.
    constant = space.names.index("constant")
    projection.bias.copy_((tokens[-1] @ space.basis[:, constant]) * space.basis[:, constant])


def _patterns(space: FeatureSpace) -> Tensor:
    """Return orthonormal patterns (F + e, 64) of pixels: one per feature, and others. The pixels of each sum to 0."""
    from sklearn.datasets import load_digits

    pictures, digits = load_digits(return_X_y=True)
    generator = np.random.default_rng(0)
    wanted = [np.ones(PATCH * PATCH)]
    for name in space.names:
        kind, _, number = name.partition(".")
        if kind == "evidence":
            wanted.append(pictures[digits == int(number)].mean(0))
        else:
            wanted.append(generator.standard_normal(PATCH * PATCH))
    size = min(PATCH * PATCH, space.basis.shape[1] + 1)
    wanted += [generator.standard_normal(PATCH * PATCH) for _ in range(size - len(wanted))]
    # Patterns of digits come first, so that the other patterns are made orthogonal to them.
    order = [
        0,
        *(i for i in range(1, size) if _is_digit(space, i)),
        *(i for i in range(1, size) if not _is_digit(space, i)),
    ]
    basis, triangle = np.linalg.qr(np.stack([wanted[i] for i in order], axis=1))
    basis = basis * np.sign(np.diag(triangle))
    result = np.empty_like(basis.T)
    result[order] = basis.T
    return torch.from_numpy(result[1:].astype("float32"))


def _is_digit(space: FeatureSpace, place: int) -> bool:
    return place - 1 < len(space.names) and space.names[place - 1].startswith("evidence.")


def _shortened(words: list[str], lexicon: Mapping[str, Features], generator: random.Random) -> list[str]:
    """Return the words that fit into a picture. If there are too many, words without a role are left out."""
    kept = list(words)
    while len(kept) > GRID * GRID:
        plain = [i for i, word in enumerate(kept) if i and word not in lexicon]
        del kept[generator.choice(plain)]
    return kept


def _write_picture(
    path: Path,
    words: Sequence[str],
    lexicon: Mapping[str, Features],
    space: FeatureSpace,
    patterns: Tensor,
    generator: random.Random,
) -> None:
    """Write a picture with one patch for each word, row by row. The patches after the last word have no role."""
    from PIL import Image

    noise = torch.Generator().manual_seed(generator.getrandbits(40))
    count, features = GRID * GRID, len(space.names)
    values = torch.zeros(count, len(patterns))
    for place, word in enumerate(words):
        values[place, :features] = AMPLITUDE * space.row(lexicon.get(word, {}))
    values[:, features:] = PIXEL_NOISE * torch.randn(count, len(patterns) - features, generator=noise)
    patches = (values @ patterns).view(GRID, GRID, PATCH, PATCH).clamp(-1, 1)
    pixels = ((patches.transpose(1, 2).reshape(GRID * PATCH, GRID * PATCH) + 1) * 127.5).round()
    Image.fromarray(pixels.numpy().astype("uint8")).save(path)


def _processor() -> Any:
    import transformers

    size = {"height": PATCH * GRID, "width": PATCH * GRID}
    return transformers.ViTImageProcessorPil(size=size, resample=0, image_mean=[0.5], image_std=[0.5])
