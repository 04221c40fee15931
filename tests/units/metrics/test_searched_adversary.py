from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnaudit.metrics import (
    exact_adversarial_attention,
    jensen_shannon,
    keyed_noise,
    searched_adversarial_attention,
    total_variation,
)
from attnaudit.metrics.searched_adversary import PRESETS


class LinearDecoder:
    """A decoder for two classes with token logits (B, T) that records the shapes of its inputs."""

    def __init__(self, token_logits: Tensor) -> None:
        self.token_logits = token_logits
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, weights: Tensor) -> Tensor:
        self.shapes.append(tuple(weights.shape))
        p = torch.sigmoid((weights * self.token_logits[:, None]).sum(-1))
        return torch.stack([1 - p, p], -1)


def batch(rows: int = 6, width: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([1, 2, 3, 5, 7, 9])[:rows]
    mask = torch.arange(width) < lengths[:, None]
    attention = torch.softmax(torch.randn(rows, width, generator=generator).masked_fill(~mask, -torch.inf), -1)
    return attention, torch.randn(rows, width, generator=generator) * 2, mask


@pytest.mark.parametrize("tvd", [0.01, 0.05])
def test_results_are_feasible_distributions_close_to_the_exact_optimum(tvd: float) -> None:
    attention, logits, mask = batch()
    decode = LinearDecoder(logits)
    adversary, jsd, moved = searched_adversarial_attention(attention, decode, tvd, mask, seeds=range(6))
    exact = exact_adversarial_attention(attention, logits, 0.0, tvd, mask)[1]
    assert (moved <= tvd).all()
    verified = total_variation(decode(adversary.float()[:, None]), decode(attention[:, None]))[:, 0]
    torch.testing.assert_close(moved, verified, atol=1e-6, rtol=0)
    torch.testing.assert_close(jsd, jensen_shannon(adversary, attention, mask), atol=1e-9, rtol=0)
    torch.testing.assert_close(adversary.sum(-1), torch.ones(6).double(), atol=1e-6, rtol=0)
    assert (adversary[~mask] == 0).all()
    assert (jsd <= exact + 1e-5).all()
    assert jsd.sum() >= 0.9 * exact.sum()


def test_all_instances_and_restarts_are_decoded_in_one_call_per_step() -> None:
    attention, logits, mask = batch()
    decode = LinearDecoder(logits)
    searched_adversarial_attention(attention, decode, 0.05, mask, seeds=range(6), restarts=3, steps=10)
    assert decode.shapes.count((6, 3, 9)) == 10 + 1 + 1 + 20 + 1  # steps, last, pulling back by bisection, its result
    assert set(decode.shapes) == {(6, 1, 9), (6, 3, 9)}


def test_an_instance_has_the_same_result_in_any_batch_and_padding() -> None:
    attention, logits, mask = batch()
    _, together, _ = searched_adversarial_attention(
        attention, LinearDecoder(logits), 0.05, mask, seeds=range(6), steps=20
    )
    for i, length in enumerate(mask.sum(-1).tolist()):
        _, alone, _ = searched_adversarial_attention(
            attention[i : i + 1, :length], LinearDecoder(logits[i : i + 1, :length]), 0.05, seeds=[i], steps=20
        )
        assert alone.item() == pytest.approx(together[i].item(), abs=1e-4)


def test_noise_is_keyed_by_instance_not_by_position_or_padding() -> None:
    mask = torch.tensor([[True, True, False, True], [True, True, True, True]])
    noise = keyed_noise([5, 6], mask, restarts=2)
    assert (noise[0, :, 2] == 0).all()
    compact = keyed_noise([6, 5], torch.tensor([[True] * 4, [True, True, True, False]]), restarts=2)
    torch.testing.assert_close(noise[1], compact[0])
    torch.testing.assert_close(noise[0][:, [0, 1, 3]], compact[1][:, :3])


def test_attention_stays_where_nothing_else_is_feasible() -> None:
    """If the class probabilities are the weights themselves, only α is feasible at tolerance 0."""
    attention = torch.tensor([[0.6, 0.3, 0.1]])
    adversary, jsd, moved = searched_adversarial_attention(attention, lambda weights: weights, 0.0, seeds=[0], steps=20)
    torch.testing.assert_close(adversary, attention.double())
    assert jsd.item() == pytest.approx(0.0, abs=1e-9)
    assert moved.item() == 0.0


def test_a_non_linear_decoder_of_three_classes_is_searched() -> None:
    attention = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    projection = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))

    def decode(weights: Tensor) -> Tensor:
        return torch.softmax(torch.tanh(weights @ projection) * 3, -1)

    adversary, jsd, moved = searched_adversarial_attention(attention, decode, 0.05, seeds=[0])
    assert jsd.item() > 0.05
    assert moved.item() <= 0.05
    assert total_variation(decode(adversary.float()), decode(attention)).item() == pytest.approx(moved.item(), abs=1e-6)


def test_sparse_attention_has_a_start_and_gradients() -> None:
    attention, logits = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[1.0, 1.0, -1.0]])
    _, jsd, _ = searched_adversarial_attention(attention, LinearDecoder(logits), 0.01, seeds=[0])
    assert jsd.item() == pytest.approx(0.693, abs=0.01)


def test_undefined_rows_are_nan_and_do_not_change_other_rows() -> None:
    attention, logits, mask = batch()
    _, expected, _ = searched_adversarial_attention(
        attention, LinearDecoder(logits), 0.05, mask, seeds=range(6), steps=20
    )
    broken_mask, broken_logits = mask.clone(), logits.clone()
    broken_mask[1] = False
    broken_logits[2] = torch.nan
    adversary, jsd, moved = searched_adversarial_attention(
        attention, LinearDecoder(broken_logits), 0.05, broken_mask, seeds=range(6), steps=20
    )
    undefined = torch.tensor([False, True, True, False, False, False])
    assert torch.equal(jsd.isnan(), undefined)
    assert torch.equal(moved.isnan(), undefined)
    assert torch.equal(adversary.isnan().all(-1), undefined)
    torch.testing.assert_close(jsd[~undefined], expected[~undefined], atol=1e-4, rtol=0)


def test_the_published_settings_are_a_preset() -> None:
    preset = PRESETS["jain_wallace"]
    assert (preset.restarts, preset.steps, preset.learning_rate) == (5, 500, 0.01)
    assert (preset.spread, preset.penalty, preset.diversity) == (3.0, 500.0, 1.0)
    assert not preset.from_attention


def test_invalid_arguments_are_refused() -> None:
    attention, logits, mask = batch()
    decode = LinearDecoder(logits)
    with pytest.raises(ValueError, match=r"tvd: expected a number in \[0, 1\] but got 2"):
        searched_adversarial_attention(attention, decode, 2, mask, seeds=range(6))
    with pytest.raises(ValueError, match="noise: expected either noise or seeds but got neither"):
        searched_adversarial_attention(attention, decode, 0.05, mask)
    with pytest.raises(ValueError, match=r"noise: expected shape \(6, 5, 9\) but got \(6, 2, 9\)"):
        searched_adversarial_attention(attention, decode, 0.05, mask, noise=torch.zeros(6, 2, 9))
    with pytest.raises(ValueError, match="seeds: expected one for each row"):
        searched_adversarial_attention(attention, decode, 0.05, mask, seeds=[1])
    with pytest.raises(ValueError, match="preset: expected one of default, brief, jain_wallace but got 'fast'"):
        searched_adversarial_attention(attention, decode, 0.05, mask, seeds=range(6), preset="fast")
    with pytest.raises(ValueError, match="decode: expected probabilities of shape"):
        searched_adversarial_attention(attention, lambda weights: weights[:, 0], 0.05, mask, seeds=range(6))
