"""The metrics against stored outputs of Jain & Wallace's published implementation."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attnaudit.metrics import exact_adversarial_attention, jensen_shannon, kendall
from attnaudit.metrics.searched_adversary import PRESETS, search

FOLDER = Path(
    os.environ.get("ATTNAUDIT_ORACLE", Path(__file__).resolve().parents[4] / "shared" / "oracle" / "jain-wallace")
)
MODEL = FOLDER / "sst_bilstm_additive"
pytestmark = pytest.mark.skipif(
    not (MODEL / "outputs.npz").is_file(),
    reason="the stored outputs of Jain & Wallace's code are not here; ATTNAUDIT_ORACLE names their folder",
)


@dataclass(frozen=True)
class Oracle:
    """The stored arrays as padded rows; the start and end marks, which have no attention, are not real tokens."""

    stored: dict[str, np.ndarray]
    mask: Tensor
    lengths: list[int]

    def rows(self, name: str) -> Tensor:
        padded = torch.zeros(self.mask.shape, dtype=torch.float64)
        for i, length in enumerate(self.lengths):
            start = self.stored["offsets"][i]
            padded[i, :length] = torch.from_numpy(self.stored[name][start : start + length]).double()
        return padded

    def five(self, name: str) -> Tensor:
        """Return the five restarts of each instance, (B, 5, T)."""
        padded = torch.zeros(len(self.mask), 5, self.mask.shape[1], dtype=torch.float64)
        for i, length in enumerate(self.lengths):
            start = 5 * self.stored["offsets"][i]
            block = self.stored[name][start : start + 5 * length].reshape(5, length)
            padded[i, :, :length] = torch.from_numpy(block).double()
        return padded


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    with np.load(MODEL / "outputs.npz") as arrays:
        stored = {name: arrays[name] for name in arrays.files}
    lengths = stored["lengths"].tolist()
    places = torch.arange(max(lengths))
    mask = (places >= 1) & (places < torch.tensor(lengths)[:, None] - 1)
    return Oracle(stored, mask, lengths)


@pytest.fixture(scope="module")
def decoder(oracle: Oracle) -> tuple[Tensor, Tensor]:
    """Return the token logits (B, T) and the bias of the stored model, in float64 from float32 hidden states."""
    weights: dict[str, Any] = torch.load(MODEL / "model.pt", weights_only=True)
    tokens = json.loads((FOLDER / "data" / "sst.json").read_text(encoding="utf-8"))["token_ids"]
    lstm = torch.nn.LSTM(300, 128, bidirectional=True, batch_first=True)
    prefix = "encoder.rnn."
    lstm.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)})
    embedding = weights["encoder.embedding.weight"].float()
    rows = [torch.tensor(tokens[row]) for row in oracle.stored["test_index"].tolist()]
    with torch.no_grad():
        packed = torch.nn.utils.rnn.pack_sequence([embedding[row] for row in rows], enforce_sorted=False)
        hidden, _ = torch.nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
        logits = hidden.double() @ weights["decoder.linear_1.weight"][0].double()
    return logits, weights["decoder.linear_1.bias"].double()


def test_tau_of_attention_and_gradient_equals_the_stored_value(oracle: Oracle) -> None:
    result = kendall(oracle.rows("attn"), oracle.rows("grad_XxE[X]_norm"), oracle.mask)
    np.testing.assert_allclose(result.tau.numpy(), oracle.stored["tau_attn_grad"], atol=1e-9)
    np.testing.assert_allclose(result.p_value.numpy(), oracle.stored["p_attn_grad"], atol=1e-9)


def test_jsd_of_the_stored_adversarial_attention_equals_the_stored_value(oracle: Oracle) -> None:
    adversarial = oracle.five("adv_attn")
    attention = oracle.rows("attn")[:, None].expand_as(adversarial)
    result = jensen_shannon(adversarial, attention, oracle.mask[:, None])
    np.testing.assert_allclose(result.numpy(), oracle.stored["adv_jsd"], atol=1e-6)


@pytest.mark.parametrize(("tvd", "mean", "searched_mean"), [(0.01, 0.6279, 0.5449), (0.05, 0.6546, 0.5459)])
def test_the_exact_adversary_is_above_every_feasible_searched_one(
    oracle: Oracle, decoder: tuple[Tensor, Tensor], tvd: float, mean: float, searched_mean: float
) -> None:
    logits, bias = decoder
    attention = oracle.rows("attn")
    adversary, jsd = exact_adversarial_attention(attention, logits, bias, tvd, oracle.mask)
    assert jsd.mean().item() == pytest.approx(mean, abs=1e-3)
    moved = torch.sigmoid((adversary * logits).sum(-1) + bias) - torch.from_numpy(oracle.stored["pred"]).double()
    assert moved.abs().max().item() <= tvd + 1e-6
    feasible = oracle.stored["adv_delta_y"] <= tvd
    best = np.where(feasible, oracle.stored["adv_jsd"], 0.0).max(1)
    assert best.mean() == pytest.approx(searched_mean, abs=1e-3)
    assert (jsd.numpy() >= best).all()


def test_the_published_search_is_reproduced_from_its_own_starts(oracle: Oracle, decoder: tuple[Tensor, Tensor]) -> None:
    chosen = slice(0, 200, 10)
    logits, bias = decoder[0][chosen].float(), decoder[1].float()

    def decode(attention: Tensor) -> Tensor:
        p = torch.sigmoid((attention * logits[:, None]).sum(-1) + bias)
        return torch.stack([1 - p, p], -1)

    result = search(
        oracle.rows("attn")[chosen].float(),
        decode,
        0.01,
        oracle.mask[chosen],
        settings=PRESETS["jain_wallace"],
        noise=torch.where(oracle.mask[chosen, None], oracle.five("adv_init_noise")[chosen], 0.0),
    )
    expected = oracle.five("adv_attn")[chosen]
    close = (result.last.double() - expected).abs().amax(-1) < 1e-3
    assert close.double().mean().item() >= 0.95  # rounding at the hinge of the penalty may split long trajectories
