"""Measures of Transformers through the engine, against the model itself run one input at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.loading import load_model
from attnaudit.adapters.protocol import TEXT
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.errors import DataError
from attnaudit.instances import Dataset, Instance
from tests import architectures

LoadAdapter = Callable[[str], Any]
NEEDS = [
    *("agreement.gradient.meister.inputs", "permutation", "uniform", "uniform.everywhere.live", "flip", "top_token"),
    *(
        "leave_one_out.hidden",
        "comprehensiveness.deletion",
        "influence.hidden",
        "adversarial.0.05",
        "token_probability",
    ),
]


def rows(instances: list[Instance]) -> Dataset:
    return Dataset(name="films", source="synthetic", description="", instances=tuple(instances))


def measured(adapter: Any, instances: list[Instance], *needs: str, **options: Any) -> Measurements:
    return measure(adapter, rows(instances), needs, model="small", seed=0, **options)[0]


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_leave_one_out_equals_a_loop_over_shorter_inputs(
    name: str, load_adapter: LoadAdapter, instances: list[Instance]
) -> None:
    found = measured(load_adapter(name), instances, "leave_one_out.inputs")
    plain, _ = architectures.build(name)

    def decided(ids: torch.Tensor) -> np.ndarray:
        with torch.no_grad():
            return torch.softmax(plain(input_ids=ids[None]).logits[0].double(), -1).numpy()

    for i, one in enumerate(found.instances):
        inputs = load_adapter(name).collate([one])
        ids, real = inputs.ids[TEXT][0], inputs.real()[0].nonzero()[:, 0].tolist()
        if len(real) > 1:
            whole = decided(ids)
            changes = [0.5 * np.abs(decided(torch.cat([ids[:p], ids[p + 1 :]])) - whole).sum() for p in real]
            np.testing.assert_allclose(found.vector("leave_one_out.inputs.change")[i], changes, atol=1e-5)


def test_gradients_equal_captums_saliency(load_adapter: LoadAdapter, instances: list[Instance]) -> None:
    captum = pytest.importorskip("captum.attr", reason="needs captum")
    bert = load_adapter("bert")
    found = measured(bert, instances, "gradient.meister.inputs")
    plain, _ = architectures.build("bert")
    for i, one in enumerate(found.instances):
        inputs = bert.collate([one])
        ids, real = inputs.ids[TEXT], inputs.real()[0]
        embedded = plain.get_input_embeddings()(ids).detach().requires_grad_()
        saliency = captum.Saliency(lambda e: torch.softmax(plain(inputs_embeds=e).logits, -1))
        slopes = saliency.attribute(embedded, target=int(found.predicted[i]), abs=False)
        norms = slopes[0].norm(dim=-1)[real]
        np.testing.assert_allclose(found.vector("gradient.meister.inputs")[i], norms / norms.sum(), atol=1e-5)


@pytest.mark.parametrize(
    "name",
    ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bert", "gpt-oss", "t5", "bart-lm"))],
)
def test_every_measure_is_the_same_in_any_batch(
    name: str, load_adapter: LoadAdapter, instances: list[Instance]
) -> None:
    masks = ["pointing.held", "pointing.live"] if load_adapter(name).capabilities.mask else []
    alone, together = (measured(load_adapter(name), instances[:4], *NEEDS, *masks, batch_tokens=b) for b in (1, 4096))
    for column in alone.scalars:
        near = 2e-2 if column.startswith("adversarial") else 5e-5
        np.testing.assert_allclose(alone.scalars[column], together.scalars[column], atol=near, err_msg=column)
    assert np.isfinite(alone.scalar("permutation.tvd")).any()


def test_influence_on_states_of_equal_length_is_undefined(
    folder: Callable[[str], Path], instances: list[Instance]
) -> None:
    """After a normalisation without learnt weights, the gradient of a state's length is a rounding error."""
    adapter = cast(Any, load_model(str(folder("llama"))).adapter)
    with torch.no_grad():
        for layer in adapter.model.model.layers:
            layer.input_layernorm.weight.fill_(1.0)
    found = measured(adapter, instances[:2], "influence.hidden")
    assert np.isnan(found.scalar("influence.hidden.entropy")).all()


def test_effects_with_held_attention_equal_a_loop_over_masked_inputs(
    load_adapter: LoadAdapter, instances: list[Instance]
) -> None:
    adapter = load_adapter("bert")
    found = measured(adapter, instances, "pointing.held", "pointing.live")
    layer = len(adapter.sites()) - 1
    plain, _ = architectures.build("bert")
    plain.set_attn_implementation("eager")

    def decided(ids: torch.Tensor, held: torch.Tensor | None = None) -> tuple[np.ndarray, torch.Tensor]:
        """Return the probabilities and the last layer's weights; with `held`, these weights replace its first row."""

        def replace_first_row(_module: Any, _args: Any, kwargs: Any, output: Any) -> Any:
            attention = plain.base_model.encoder.layer[layer].attention
            value = attention.self.value(kwargs.get("hidden_states", _args[0] if _args else None))
            value = value.unflatten(-1, (held.shape[1], -1)).transpose(1, 2)
            context = output[0].clone()
            context[:, 0] = (held[:, :, :1] @ value).transpose(1, 2).flatten(2)[:, 0]
            return (context, *output[1:])

        module = plain.base_model.encoder.layer[layer].attention.self
        hooks = [] if held is None else [module.register_forward_hook(replace_first_row, with_kwargs=True)]
        with torch.no_grad():
            output = plain(input_ids=ids[None], output_attentions=True)
        for hook in hooks:
            hook.remove()
        return torch.softmax(output.logits[0].double(), -1).numpy(), output.attentions[layer]

    differences = []
    for i in range(len(found)):
        inputs = adapter.collate([found.instances[i]])
        ids, real = inputs.ids[TEXT][0], inputs.real()[0].nonzero()[:, 0].tolist()
        if len(real) < 2:
            continue
        _, weights = decided(ids)

        def support(kept: list[int], i: int = i, ids: Any = ids, real: Any = real, weights: Any = weights) -> float:
            masked = ids.clone()
            masked[[p for p in real if p not in kept]] = adapter.runner.builder.tokenizer.mask_token_id
            return float(decided(masked, weights)[0][found.predicted[i]])

        effects = [
            (support(real) - support([q for q in real if q != p])) / 2 + (support([p]) - support([])) / 2 for p in real
        ]
        np.testing.assert_allclose(found.vector("token_effect.held")[i], effects, atol=1e-5)
        differences.append(np.abs(found.vector("token_effect.live")[i] - effects).max())
    assert max(differences) > 1e-5


@pytest.mark.parametrize("name", ["bert", "roberta", "albert"])
def test_words_of_every_kind_of_tokenizer_are_deleted_whole(
    name: str, load_adapter: LoadAdapter, instances: list[Instance]
) -> None:
    found = measured(load_adapter(name), instances, "leave_one_out.inputs", unit="words")
    pieces = measured(load_adapter(name), instances, "attention")
    assert sum(map(len, found.tokens)) < sum(map(len, pieces.tokens))
    for i, one in enumerate(found.instances):
        letters = "".join(found.tokens[i]).lower()
        assert letters == "".join(pieces.tokens[i]).lower()
        assert found.vector("attention")[i].sum() == pytest.approx(1)
        assert len(found.tokens[i]) >= len(one.text.split())


def test_a_text_of_nothing_but_special_tokens_is_named(load_adapter: LoadAdapter) -> None:
    rows_of_marks = [Instance(id="a", text="[CLS] [SEP]", where="marks.csv:2")]
    with pytest.raises(DataError, match=r"marks.csv:2: the text '\[CLS\] \[SEP\]' has no real tokens"):
        measured(load_adapter("bert"), rows_of_marks, "uniform")
