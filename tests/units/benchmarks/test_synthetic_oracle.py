"""The oracle comparison on synthetic folders, written by a plain version of the published forward pass."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import rel_entr
from scipy.stats import kendalltau
from torch import Tensor, nn

from benchmarks import oracle_comparison

WIDTH, HIDDEN, WORDS = 7, 4, 30


class Published(nn.Module):
    """The published model, one instance at a time and without padding."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.embedding = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.rnn = nn.LSTM(WIDTH, HIDDEN, bidirectional=True, batch_first=True)
        self.attn1 = nn.Linear(2 * HIDDEN, HIDDEN if kind == "additive" else 1, bias=kind == "additive")
        self.attn2 = nn.Linear(HIDDEN, 1, bias=False)
        self.linear_1 = nn.Linear(2 * HIDDEN, 1)

    def states(self, embedded: Tensor) -> Tensor:
        return self.rnn(embedded[None])[0][0]

    def attention(self, states: Tensor) -> Tensor:
        scores = self.attn1(states)
        scores = self.attn2(torch.tanh(scores)) if self.kind == "additive" else scores / (2 * HIDDEN) ** 0.5
        scores = scores[:, 0].clone()
        scores[[0, -1]] = -torch.inf
        return torch.softmax(scores, 0)

    def p(self, weights: Tensor, states: Tensor) -> Tensor:
        return torch.sigmoid(self.linear_1(weights @ states))[..., 0]

    def published_state(self) -> dict[str, Tensor]:
        names = {"embedding": "encoder.embedding", "rnn": "encoder.rnn", "linear_1": "decoder.linear_1"}
        state = {}
        for name, value in self.state_dict().items():
            part, _, rest = name.partition(".")
            if part != "attn2" or self.kind == "additive":
                state[f"{names.get(part, f'decoder.attention.{part}')}.{rest}"] = value
        return state


def jsd(p: np.ndarray, q: np.ndarray) -> float:
    middle = (p + q) / 2
    return float(rel_entr(p, middle).sum() + rel_entr(q, middle).sum()) / 2


def write_folder(folder: Path, kind: str) -> None:
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    model = Published(kind)
    rows = [[2, *rng.integers(4, WORDS, n).tolist(), 3] for n in (4, 9, 5, 17, 6, 4)]
    arrays: dict[str, list[np.ndarray]] = {}

    def keep(name: str, value: np.ndarray | float) -> None:
        arrays.setdefault(name, []).append(np.asarray(value))

    for ids in rows:
        length = len(ids)
        embedded = model.embedding(torch.tensor(ids)).detach().requires_grad_(True)
        states = model.states(embedded)
        weights = model.attention(states).detach()
        p = model.p(weights, states)
        (slope,) = torch.autograd.grad(p, embedded)
        p = p.detach()
        gradient = (slope * embedded).sum(-1).abs().detach().numpy()
        with torch.no_grad():
            gone = np.zeros(length)
            for t in range(1, length - 1):
                left = model.states(torch.cat([embedded[:t], embedded[t + 1 :]]))
                gone[t] = float(model.p(model.attention(left), left))
            orders = np.stack([np.r_[0, 1 + rng.permutation(length - 2), length - 1] for _ in range(100)])
            under = np.array([float(model.p(weights[order], states)) for order in orders])
            tried = np.zeros((5, length))
            tried[:, 1:-1] = rng.dirichlet(np.ones(length - 2), 5)
            moved = np.array([float(model.p(torch.from_numpy(a).float(), states)) for a in tried])
        keep("pred", float(p))
        keep("attn", weights.numpy())
        keep("grad_XxE[X]_norm", gradient / gradient.sum())
        keep("loo_outputs", gone)
        keep("perm_index", orders.ravel().astype(np.uint8))
        keep("perm_outputs", under)
        keep("perm_median_diff", np.median(np.abs(under - float(p))))
        keep("adv_attn", tried.ravel())
        keep("adv_jsd", np.array([jsd(a, weights.double().numpy()) for a in tried]))
        keep("adv_delta_y", np.abs(moved - float(p)))
        keep("tau_attn_grad", kendalltau(weights[1:-1], (gradient / gradient.sum())[1:-1]).statistic)
    lengths = np.array([len(ids) for ids in rows])
    ragged = {"attn", "grad_XxE[X]_norm", "loo_outputs", "perm_index", "adv_attn"}
    np.savez(
        folder / "outputs.npz",
        test_index=np.arange(len(rows)),
        lengths=lengths,
        offsets=np.r_[0, np.cumsum(lengths)],
        **{k: np.concatenate(v) if k in ragged else np.stack(v) for k, v in arrays.items()},
    )
    torch.save(model.published_state(), folder / "model.pt")
    config = {"vocab_size": WORDS, "embedding": WIDTH, "hidden": HIDDEN, "attention": kind, "data": "made"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder.parent / "data").mkdir()
    content = {"token_ids": rows, "labels": [0, 1] * 3, "vocabulary": {f"w{i}": i for i in range(WORDS)}}
    (folder.parent / "data" / "made.json").write_text(json.dumps(content))


@pytest.mark.parametrize("kind", ["additive", "dot"])
def test_a_folder_made_by_the_plain_forward_pass_agrees(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / f"made_bilstm_{kind}"
    folder.mkdir()
    write_folder(folder, kind)
    assert oracle_comparison.main([str(folder)]) == 0
    assert f"6 instances of made, {kind} attention" in capsys.readouterr().out


def test_a_changed_array_disagrees(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    write_folder(folder, "dot")
    with np.load(folder / "outputs.npz") as stored:
        arrays = dict(stored)
    arrays["loo_outputs"] = arrays["loo_outputs"] + 1e-3
    np.savez(folder / "outputs.npz", **arrays)
    assert oracle_comparison.main([str(folder)]) == 1
