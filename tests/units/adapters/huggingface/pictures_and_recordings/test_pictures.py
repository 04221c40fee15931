"""Image classifiers: their patches are units with a box, which are erased, deleted and differentiated exactly."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.loading import load_model
from attnaudit.adapters.protocol import TEXT
from attnaudit.conformance.suite import Subject, cases
from attnaudit.engine.measuring import measure
from attnaudit.errors import AdapterError, DataError, ModelError
from attnaudit.instances import Dataset, Instance
from tests.slow_cases import slow_except
from tests.small_pictures import KINDS, PATCH, SIDE, pictures, small_image_classifier


def _adapter(kind: str = "vit", **settings: Any) -> Any:
    return transformer(*small_image_classifier(kind), **settings)


def _pixels(processor: Any, instance: Instance) -> Tensor:
    with Image.open(str(instance.file)) as picture:
        pixels: Tensor = processor(images=[picture.convert("RGB")], return_tensors="pt")["pixel_values"]
    return pixels


@pytest.mark.parametrize("kind", slow_except(KINDS, ["vit", "beit_with_mask_token"]))
def test_the_adapter_keeps_the_contract(kind: str, tmp_path: Path) -> None:
    erased = {"erased": "mask"} if kind == "beit_with_mask_token" else {}
    subject = Subject(kind, lambda: _adapter(kind, **erased), pictures(tmp_path))
    failures = [result for result in (case.result() for case in cases(subject)) if result.outcome == "fail"]
    assert failures == []


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_attention_are_those_of_the_model(kind: str, tmp_path: Path) -> None:
    model, processor = small_image_classifier(kind)
    model.set_attn_implementation("eager")
    instances = pictures(tmp_path)
    with torch.no_grad():
        outputs = [model(pixel_values=_pixels(processor, one), output_attentions=True) for one in instances]
    adapter = _adapter(kind)
    trace = adapter.run(adapter.collate(instances))
    assert torch.allclose(trace.logits, torch.cat([one.logits for one in outputs]), atol=1e-5)
    for site in adapter.sites():
        expected = torch.cat([one.attentions[site.layer] for one in outputs])
        assert torch.allclose(trace.attention[site.key], expected, atol=1e-6)


def _vit_logits(model: Any, tokens: Tensor) -> Tensor:
    """Return the logits of a ViT for embeddings (1, T, d), computed layer by layer from its parameters."""
    for layer in model.vit.layers:
        normed = layer.layernorm_before(tokens)
        attention = layer.attention
        heads = [
            projection(normed).unflatten(-1, (attention.num_attention_heads, -1)).transpose(1, 2)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        ]
        weights = torch.softmax(heads[0] @ heads[1].transpose(2, 3) / heads[0].shape[-1] ** 0.5, dim=-1)
        tokens = tokens + attention.o_proj((weights @ heads[2]).transpose(1, 2).flatten(2))
        hidden = layer.mlp.fc1(layer.layernorm_after(tokens))
        tokens = tokens + layer.mlp.fc2(torch.nn.functional.gelu(hidden))
    logits: Tensor = model.classifier(model.vit.layernorm(tokens)[:, 0])
    return logits


@pytest.mark.parametrize("erased_by", ["typical", "mean"])
def test_erased_and_deleted_patches_by_hand(erased_by: str, tmp_path: Path) -> None:
    model, processor = small_image_classifier()
    instance = pictures(tmp_path)[1]
    embeddings = model.vit.embeddings
    pixels = _pixels(processor, instance)
    needs = ["leave_one_out.inputs", "token_effect.live", "gradient.meister.inputs"]
    with torch.no_grad():
        patches = pixels.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH).permute(0, 2, 3, 1, 4, 5).flatten(1, 2)
        flat = patches.flatten(2) @ embeddings.patch_embeddings.projection.weight.flatten(1).T
        flat = flat + embeddings.patch_embeddings.projection.bias
    if erased_by == "mean":
        replacement = flat.mean(1)
    else:
        mean = sum(patches[0]) / len(patches[0])
        distances = [float((patch - mean).square().sum()) for patch in patches[0]]
        replacement = flat[:, distances.index(min(distances))]
    positions = embeddings.position_embeddings

    def probabilities(chosen: Tensor, kept: list[int]) -> Tensor:
        tokens = torch.cat([embeddings.cls_token, chosen], dim=1) + positions
        return torch.softmax(_vit_logits(model, tokens[:, [0, *(1 + k for k in kept)]]).double(), dim=-1)[0]

    def without(place: int) -> list[int]:
        return [other for other in everything if other != place]

    everything = list(range(16))
    with torch.no_grad():
        predicted = int(model(pixel_values=pixels).logits.argmax())
        whole = probabilities(flat, everything)
        deleted = [float((whole - probabilities(flat, without(i))).abs().sum() / 2) for i in everything]

        def erased(places: list[int]) -> Tensor:
            changed = flat.clone()
            changed[:, places] = replacement
            return probabilities(changed, everything)

        changes = [whole - erased([i]) + erased(without(i)) - erased(everything) for i in everything]
        effects = [float(change[predicted]) / 2 for change in changes]
    leaf = flat.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(probabilities(leaf, everything)[predicted], leaf)
    data = Dataset(name="pictures", source="test", description="", instances=(instance,))
    found, _ = measure(transformer(model, processor, erased=erased_by), data, needs, model="vit", seed=0)
    assert np.allclose(found.vector("leave_one_out.inputs.change")[0], deleted, atol=1e-5)
    assert np.allclose(found.vector("token_effect.live")[0], effects, atol=1e-5)
    norms = gradient[0].norm(dim=-1).numpy()
    assert np.allclose(found.vector("gradient.meister.inputs")[0], norms / norms.sum(), atol=1e-5)


def test_boxes_follow_the_resizing_and_the_crop(tmp_path: Path) -> None:
    instances = pictures(tmp_path)
    boxes = _adapter("vit").collate(instances).boxes[TEXT]
    assert all(len(row) == 17 and row[0] == (0.0, 0.0, 0.0, 0.0) for row in boxes)
    assert all(np.allclose(row[6], (0.25, 0.25, 0.25, 0.25), atol=0.02) for row in boxes)
    cropped = _adapter("deit").collate(instances).boxes[TEXT]
    assert all(np.allclose(row[2], (0.1, 0.1, 0.2, 0.2), atol=0.03) for row in cropped[:5])
    assert all(np.allclose(row[-1], (0.7, 0.7, 0.2, 0.2), atol=0.03) for row in cropped[:5])


def test_special_tokens_and_names(tmp_path: Path) -> None:
    inputs = _adapter("deit_with_teacher").collate(pictures(tmp_path)[:2])
    assert inputs.special[TEXT].sum(1).tolist() == [2, 2]
    assert inputs.tokens[TEXT][0][:4] == ["[CLS]", "[DISTILLATION]", "row 1, column 1", "row 1, column 2"]


def test_equal_pictures_have_equal_ids_and_other_pictures_do_not(tmp_path: Path) -> None:
    one, other = pictures(tmp_path)[:2]
    ids = _adapter().collate([one, replace(one, id="again"), other]).ids[TEXT]
    assert torch.equal(ids[0], ids[1])
    assert not torch.equal(ids[0], ids[2])


def test_what_replaces_a_patch_is_declared() -> None:
    assert "the typical patch of its picture" in _adapter().capabilities.erasure
    assert "the mean patch of its picture" in _adapter(erased="mean").capabilities.erasure
    assert "mask token" in _adapter("beit_with_mask_token", erased="mask").capabilities.erasure
    assert not _adapter("beit").capabilities.deletion
    assert _adapter("beit").capabilities.reading == "mean@layer=-1,heads=mean"
    with pytest.raises(ModelError, match=r"the model has no mask token\. Leave erased out: the typical patch"):
        _adapter("vit", erased="mask")
    with pytest.raises(ModelError, match="erased is 'blur'; expected 'typical'"):
        _adapter("vit", erased="blur")


def test_the_replacement_is_part_of_the_configuration() -> None:
    every = ("typical", "mean", "mask")
    assert len({_adapter("beit_with_mask_token", erased=erased).configuration for erased in every}) == 3
    assert _adapter().configuration == _adapter(erased="typical").configuration


def test_another_replacement_gives_another_family() -> None:
    assert _adapter().family == "transformer, vit, pictures"
    assert _adapter(erased="mean").family == "transformer, vit, pictures with another erasure"


def test_the_typical_patch_does_not_depend_on_the_other_pictures(tmp_path: Path) -> None:
    adapter, instances = _adapter(), pictures(tmp_path)

    def effects(chosen: list[Instance]) -> list[Any]:
        data = Dataset(name="pictures", source="test", description="", instances=tuple(chosen))
        found, _ = measure(adapter, data, ["token_effect.live"], model="vit", seed=0)
        return list(found.vector("token_effect.live"))

    for together, instance in zip(effects(instances), instances, strict=True):
        assert np.allclose(together, effects([instance])[0], atol=1e-6)


def test_a_folder(tmp_path: Path) -> None:
    model, processor = small_image_classifier()
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ModelError, match=r"no image processor .*image_processor\.save_pretrained"):
        load_model(str(tmp_path / "model"))
    processor.save_pretrained(tmp_path / "model")
    loaded = load_model(str(tmp_path / "model"))
    assert loaded.family == "transformer, vit, pictures"
    rows = pictures(tmp_path)
    expected = transformer(model, processor)
    assert torch.equal(
        loaded.adapter.run(loaded.adapter.collate(rows)).logits, expected.run(expected.collate(rows)).logits
    )


def test_a_changed_picture_is_refused(tmp_path: Path) -> None:
    instance = pictures(tmp_path)[0]
    content = Path(str(instance.file)).read_bytes()
    instance = replace(instance, file_sha256=hashlib.sha256(content).hexdigest())
    adapter = _adapter()
    adapter.collate([instance])
    Image.new("RGB", (SIDE, SIDE)).save(str(instance.file))
    with pytest.raises(DataError, match="changed after the data were loaded"):
        adapter.collate([instance])


def test_an_image_processor_of_another_model_is_refused() -> None:
    import transformers

    model, _ = small_image_classifier()
    with pytest.raises(ModelError, match=r"gives pixels of the shape \(3, 32, 32\), but the model reads \(3, 16, 16\)"):
        transformer(model, transformers.ViTImageProcessorPil(size={"height": 32, "width": 32}))


class Around(nn.Module):
    """A user's module around a vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_image_classifier()[0].vit
        self.head = nn.Linear(self.inner.config.hidden_size, 3)

    def forward(self, pixel_values: Tensor) -> Tensor:
        logits: Tensor = self.head(self.inner(pixel_values=pixel_values).last_hidden_state[:, 0])
        return logits


def test_a_module_around_a_vision_transformer(tmp_path: Path) -> None:
    instances, processor = pictures(tmp_path), small_image_classifier()[1]
    module = Around().eval()
    with torch.no_grad():
        expected = torch.cat([module(_pixels(processor, one)) for one in instances])
    adapter = transformer(module, processor, classes=["a", "b", "c"])
    trace = adapter.run(adapter.collate(instances))
    torch.testing.assert_close(trace.logits, expected, atol=1e-5, rtol=0)
    assert adapter.capabilities.deletion


def test_a_module_that_reads_pictures_needs_an_image_processor() -> None:
    from tests import architectures

    with pytest.raises(
        ModelError, match=r"Around: .*needs its image processor, but a \w+ was given\. Pass .*instead of the"
    ):
        transformer(Around(), architectures.tokenizer("wordpiece"), classes=["a", "b", "c"])


def test_attention_over_windows_is_refused() -> None:
    import transformers

    config = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4, num_labels=3
    )
    processor = transformers.ViTImageProcessorPil(size={"height": 16, "width": 16})
    with pytest.raises(AdapterError, match=r"SwinForImageClassification.*cannot be audited"):
        transformer(transformers.SwinForImageClassification(config), processor)


def test_a_text_is_refused() -> None:
    with pytest.raises(DataError, match="the row names no file, but the model reads files"):
        _adapter().collate([Instance(id="a", text="a text")])
