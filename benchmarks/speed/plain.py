"""What a user would write in plain PyTorch for a BiLSTM with additive attention, in batches of 32 texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnaudit.models.vocabulary import END, PAD, START

BATCH = 32
#: The settings of Jain & Wallace's published search for adversarial attention.
STEPS, STARTS, RATE, PENALTY, EPSILON = 500, 5, 0.01, 500.0, 0.01
Rows = list[NDArray[np.float64]]


class Plain(nn.Module):
    """The reference BiLSTM classifier with its weights in one bidirectional nn.LSTM, PyTorch's fused form."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embedding, self.decoder = model.embedding, model.decoder
        self.alignment = model.attention.alignment
        first, second = model.encoder.forwards, model.encoder.backwards
        self.rnn = nn.LSTM(first.input_size, first.hidden_size, batch_first=True, bidirectional=True)
        weights = dict(first.state_dict())
        weights |= {f"{k}_reverse": v for k, v in second.state_dict().items()}
        self.rnn.load_state_dict(weights)
        self.eval().requires_grad_(False)
        self.passes: Counter[str] = Counter()

    def encode(self, embedded: Tensor, lengths: Tensor) -> Tensor:
        self.passes["forward"] += 1
        self.passes["forward_rows"] += len(embedded)
        if int(lengths.min()) == embedded.shape[1]:
            return self.rnn(embedded)[0]
        packed = nn.utils.rnn.pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]

    def attend(self, states: Tensor, real: Tensor) -> Tensor:
        return torch.softmax(self.alignment(states).masked_fill(~real, -torch.inf), -1)

    def decode(self, states: Tensor, weights: Tensor) -> Tensor:
        """Return probabilities (..., B) from states (B, T, m) and weights (..., B, T)."""
        return torch.sigmoid(self.decoder(torch.einsum("...bt,btm->...bm", weights, states))[..., 0])

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        return self.from_embeddings(self.embedding(ids), ids, lengths)

    def from_embeddings(self, embedded: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
        states = self.encode(embedded, lengths)
        return self.decode(states, self.attend(states, real_tokens(ids)))


def real_tokens(ids: Tensor) -> Tensor:
    return (ids != PAD) & (ids != START) & (ids != END)


def encoded(adapter: Any, instances: Sequence[Any]) -> list[list[int]]:
    return [list(adapter.tokenize(one.text).ids) for one in instances]


def batches(texts: Sequence[list[int]], size: int = BATCH) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Yield (positions, ids, lengths) of batches sorted by length, as the published code does."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for start in range(0, len(order), size):
        places = order[start : start + size]
        lengths = torch.tensor([len(texts[i]) for i in places])
        ids = torch.full((len(places), int(lengths.max())), PAD)
        for row, i in enumerate(places):
            ids[row, : len(texts[i])] = torch.tensor(texts[i])
        yield places, ids, lengths


@torch.no_grad()
def states_of(plain: Plain, texts: Sequence[list[int]]) -> list[tuple[list[int], Tensor, Tensor, Tensor, Tensor]]:
    """Return (positions, states, attention, real, probability) of each batch.

    Permutations and the search start from these.
    """
    found = []
    for places, ids, lengths in batches(texts):
        states, real = plain.encode(plain.embedding(ids), lengths), real_tokens(ids)
        weights = plain.attend(states, real)
        found.append((places, states, weights, real, plain.decode(states, weights)))
    return found


def forward(plain: Plain, texts: Sequence[list[int]]) -> NDArray[np.float64]:
    found = np.empty(len(texts))
    for places, *_, output in states_of(plain, texts):
        found[places] = output.double().numpy()
    return found


def permutations(plain: Plain, held: Any, count: int, draw: Callable[[int, Tensor], Tensor]) -> NDArray[np.float64]:
    """Return the median change of the output over permutations, with one decode of the batch each, as published.

    Args:
        plain: The model.
        held: The batches from `states_of`.
        count: How many permutations there are.
        draw: (index of the batch, weights) -> orders (count, B, T).
    """
    found = {}
    with torch.no_grad():
        for number, (places, states, weights, _real, output) in enumerate(held):
            moved = []
            for order in draw(number, weights):
                plain.passes["decode"] += 1
                moved.append((plain.decode(states, weights.gather(1, order)) - output).abs())
            median = torch.stack(moved).double().quantile(0.5, dim=0)
            found.update(zip(places, median.tolist(), strict=True))
    return np.array([found[i] for i in range(len(found))])


def shuffles(held: Any, count: int) -> Callable[[int, Tensor], Tensor]:
    """Return a function that draws orders of the real tokens for a whole batch at once."""

    def draw(number: int, weights: Tensor) -> Tensor:
        real = held[number][3]
        keys = torch.rand(count, *weights.shape)
        places = torch.arange(weights.shape[1]).double()
        # Special tokens and padding keep their positions: real tokens all lie between the first and the last token.
        keys = torch.where(real, 1 + keys, torch.where(places < 1, 0.0, 2 + places).to(keys.dtype))
        return keys.argsort(-1)

    return draw


def _jsd(p: Tensor, q: Tensor) -> Tensor:
    middle = 0.5 * (p + q)
    logged = (middle + 1e-10).log()
    return 0.5 * (p * ((p + 1e-10).log() - logged)).sum(-1) + 0.5 * (q * ((q + 1e-10).log() - logged)).sum(-1)


def search(
    plain: Plain, held: Any, steps: int = STEPS, starts: int = STARTS
) -> tuple[list[Tensor], NDArray[np.float64]]:
    """Return the final attention (starts, n) of the published search, and its TVD (instances, starts)."""
    ended: dict[int, Tensor] = {}
    moved: dict[int, Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    for places, states, weights, real, output in held:
        logits = (torch.randn(starts, *weights.shape, generator=generator) * 3).requires_grad_()
        optimiser = torch.optim.Adam([logits], lr=RATE, amsgrad=True)
        for _ in range(steps):
            plain.passes["decode"] += 1
            plain.passes["backward"] += 1
            tried = torch.softmax(logits.masked_fill(~real, -torch.inf), -1)
            tvd = (plain.decode(states, tried) - output).abs()
            away = _jsd(tried, weights)
            apart = _jsd(tried[:, None], tried[None]).mean((0, 1))
            loss = (-away + PENALTY * torch.relu(tvd - EPSILON)).sum(0) - apart
            optimiser.zero_grad()
            loss.sum().backward()
            optimiser.step()
        with torch.no_grad():
            tried = torch.softmax(logits.masked_fill(~real, -torch.inf), -1)
            tvd = (plain.decode(states, tried) - output).abs()
        for row, i in enumerate(places):
            ended[i], moved[i] = tried[:, row, real[row]], tvd[:, row]
    return [ended[i] for i in range(len(ended))], torch.stack([moved[i] for i in range(len(moved))]).double().numpy()


@torch.no_grad()
def leave_one_out(plain: Plain, texts: Sequence[list[int]]) -> Rows:
    """Return leave-one-out from one forward pass per token of each text."""
    found = []
    for ids in texts:
        full = torch.tensor([ids])
        clean = plain(full, torch.tensor([len(ids)]))
        length = torch.tensor([len(ids) - 1])
        changed = [plain(torch.cat([full[:, :i], full[:, i + 1 :]], 1), length) for i in range(1, len(ids) - 1)]
        found.append((torch.cat(changed).double() - clean.double()).abs().numpy())
    return found


@torch.no_grad()
def leave_one_out_by_place(plain: Plain, texts: Sequence[list[int]]) -> Rows:
    """Return leave-one-out as in the published code, which deletes the i-th token of all texts of a batch at once."""
    found: Rows = [np.empty(0)] * len(texts)
    for places, ids, lengths in batches(texts):
        clean = plain(ids, lengths).double()
        changed = []
        for i in range(1, ids.shape[1] - 1):
            inside = lengths > i + 1
            kept = torch.cat([ids[:, :i], ids[:, i + 1 :]], 1)
            changed.append((plain(kept[inside], lengths[inside] - 1).double() - clean[inside]).abs())
            filled = torch.full((len(places),), torch.nan, dtype=torch.float64)
            filled[inside] = changed[-1]
            changed[-1] = filled
        table = torch.stack(changed, 1)
        for row, i in enumerate(places):
            found[i] = table[row, : lengths[row] - 2].numpy()
    return found


def gradient(plain: Plain, texts: Sequence[list[int]]) -> Rows:
    """Return the norms of the gradient of the predicted class's probability at the embeddings, divided by their sum."""
    found: Rows = [np.empty(0)] * len(texts)
    for places, ids, lengths in batches(texts):
        embedded = plain.embedding(ids).requires_grad_()
        output = plain.from_embeddings(embedded, ids, lengths)
        plain.passes["backward"] += 1
        # The gradients of the two probabilities are opposite and have the same norm.
        (slope,) = torch.autograd.grad(output.sum(), embedded)
        norms = slope.double().norm(dim=-1)
        for row, i in enumerate(places):
            kept = norms[row, 1 : lengths[row] - 1]
            found[i] = (kept / kept.sum()).numpy()
    return found


def influence(plain: Plain, texts: Sequence[list[int]]) -> Rows:
    """Return the mean, over hidden states, of the normalised entropy of influence: n backward passes per text."""
    found = []
    for ids in texts:
        embedded = plain.embedding(torch.tensor([ids])).requires_grad_()
        states = plain.encode(embedded, torch.tensor([len(ids)]))[0]
        rows = []
        for p in range(1, len(ids) - 1):
            plain.passes["backward"] += 1
            (slope,) = torch.autograd.grad(states[p].norm(), embedded, retain_graph=True)
            rows.append(slope[0, 1:-1].norm(dim=-1))
        found.append(np.array([_entropy(torch.stack(rows)).mean()]))
    return found


def influence_by_place(plain: Plain, texts: Sequence[list[int]]) -> Rows:
    """Return the same, with one backward pass for the p-th state of all texts of a batch."""
    found: Rows = [np.empty(0)] * len(texts)
    for places, ids, lengths in batches(texts):
        embedded = plain.embedding(ids).requires_grad_()
        states = plain.encode(embedded, lengths)
        norms = []
        for p in range(1, ids.shape[1] - 1):
            plain.passes["backward"] += 1
            (slope,) = torch.autograd.grad(states[:, p].norm(dim=-1).sum(), embedded, retain_graph=True)
            norms.append(slope.norm(dim=-1))
        table = torch.stack(norms, 1)
        for row, i in enumerate(places):
            n = int(lengths[row]) - 2
            found[i] = np.array([_entropy(table[row, :n, 1 : n + 1]).mean()])
    return found


def _entropy(norms: Tensor) -> NDArray[np.float64]:
    shares = norms.double() / norms.double().sum(-1, keepdim=True)
    return (-torch.special.xlogy(shares, shares).sum(-1) / np.log(norms.shape[-1])).numpy()
