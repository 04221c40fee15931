"""The code to compare with on a BiLSTM with additive attention: plain PyTorch as a user would write it, in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnaudit.models.vocabulary import END, PAD, START
from benchmarks.speed import device

#: The number of texts in a batch on a CPU and on a GPU.
BATCH, BATCH_ON_GPU = 32, 256
#: The settings of Jain & Wallace's published search for adversarial attention.
STEPS, STARTS, RATE, PENALTY, EPSILON = 500, 5, 0.01, 500.0, 0.01
Rows = list[NDArray[np.float64]]


class Plain(nn.Module):
    """The reference BiLSTM classifier, with its weights in one bidirectional nn.LSTM, which is faster."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embedding, self.decoder = model.embedding, model.decoder
        self.alignment = model.attention.alignment
        first, second = model.encoder.forwards, model.encoder.backwards
        self.rnn = nn.LSTM(first.input_size, first.hidden_size, batch_first=True, bidirectional=True)
        weights = dict(first.state_dict())
        weights |= {f"{k}_reverse": v for k, v in second.state_dict().items()}
        self.rnn.load_state_dict(weights)
        self.eval().requires_grad_(False).to(device.name())
        # cuDNN has no backward pass in evaluation mode. Without dropout, training mode gives the same numbers.
        self.rnn.train(device.on_gpu())
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
        """Return the probabilities (..., B) for hidden states (B, T, m) and attention weights (..., B, T)."""
        return torch.sigmoid(self.decoder(torch.einsum("...bt,btm->...bm", weights, states))[..., 0])

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        return self.from_embeddings(self.embedding(ids), ids, lengths)

    def from_embeddings(self, embedded: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
        states = self.encode(embedded, lengths)
        return self.decode(states, self.attend(states, real_tokens(ids)))


def batch() -> int:
    """Return the number of texts in a batch."""
    return BATCH_ON_GPU if device.on_gpu() else BATCH


def real_tokens(ids: Tensor) -> Tensor:
    return (ids != PAD) & (ids != START) & (ids != END)


def encoded(adapter: Any, instances: Sequence[Any]) -> list[list[int]]:
    return [adapter.tokenize(one.text).ids for one in instances]


def batches(texts: Sequence[list[int]]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Yield batches of texts of similar length, as in the published code.

    Yields:
        The positions of the texts in `texts`, their (B, T) token ids and their (B,) lengths.
    """
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for start in range(0, len(order), batch()):
        places = order[start : start + batch()]
        lengths = torch.tensor([len(texts[i]) for i in places])
        ids = torch.full((len(places), int(lengths.max())), PAD)
        for row, i in enumerate(places):
            ids[row, : len(texts[i])] = torch.tensor(texts[i])
        yield places, device.there(ids), lengths


@torch.no_grad()
def states_of(plain: Plain, texts: Sequence[list[int]]) -> list[tuple[list[int], Tensor, Tensor, Tensor, Tensor]]:
    """Run the model once on all texts. The permutations and the search start from the result.

    Returns:
        For each batch: the positions of the texts, the hidden states (B, T, m), the attention weights (B, T), a mask of
        real tokens (B, T) and the probabilities (B,).
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
        found[places] = output.double().cpu().numpy()
    return found


def permutations(plain: Plain, held: Any, count: int, draw: Callable[[int, Tensor], Tensor]) -> NDArray[np.float64]:
    """Return the (n,) median changes of the output over permutations of the attention weights.

    As in the published code, each permutation decodes the whole batch once.

    Args:
        plain: The model.
        held: The batches from `states_of`.
        count: The number of permutations.
        draw: Takes the index of a batch and its weights (B, T), and returns the orders of the tokens (count, B, T).
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
    """Return a function that draws random orders of the real tokens, for a whole batch at once.

    Args:
        held: The batches from `states_of`.
        count: The number of orders.
    """

    def draw(number: int, weights: Tensor) -> Tensor:
        real = held[number][3]
        keys = torch.rand(count, *weights.shape, device=weights.device)
        places = torch.arange(weights.shape[1], device=weights.device).double()
        # Special tokens and padding keep their positions, because all real tokens lie between START and END.
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
    """Run the published search for adversarial attention.

    Args:
        plain: The model.
        held: The batches from `states_of`.
        steps: The number of steps from each start.
        starts: The number of starts.

    Returns:
        For each instance, the attention that the search finds (starts, number of tokens), and the TVD of the outputs
        (instances, starts).
    """
    ended: dict[int, Tensor] = {}
    moved: dict[int, Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    for places, states, weights, real, output in held:
        logits = device.there(torch.randn(starts, *weights.shape, generator=generator) * 3).requires_grad_()
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
            ended[i], moved[i] = tried[:, row, real[row]].cpu(), tvd[:, row].cpu()
    return [ended[i] for i in range(len(ended))], torch.stack([moved[i] for i in range(len(moved))]).double().numpy()


@torch.no_grad()
def leave_one_out(plain: Plain, texts: Sequence[list[int]]) -> Rows:
    """Return leave-one-out, computed with one forward pass per token of each text."""
    found = []
    for ids in texts:
        full = device.there(torch.tensor([ids]))
        clean = plain(full, torch.tensor([len(ids)]))
        length = torch.tensor([len(ids) - 1])
        changed = [plain(torch.cat([full[:, :i], full[:, i + 1 :]], 1), length) for i in range(1, len(ids) - 1)]
        found.append((torch.cat(changed).double() - clean.double()).abs().cpu().numpy())
    return found


@torch.no_grad()
def leave_one_out_by_place(plain: Plain, texts: Sequence[list[int]]) -> Rows:
    """Return leave-one-out, computed as in the published code.

    The published code deletes the i-th token of all texts of a batch at once.
    """
    found: Rows = [np.empty(0)] * len(texts)
    for places, ids, lengths in batches(texts):
        clean = plain(ids, lengths).double()
        changed = []
        for i in range(1, ids.shape[1] - 1):
            inside = lengths > i + 1
            kept = torch.cat([ids[:, :i], ids[:, i + 1 :]], 1)
            changed.append((plain(kept[inside], lengths[inside] - 1).double() - clean[inside]).abs())
            filled = device.there(torch.full((len(places),), torch.nan, dtype=torch.float64))
            filled[inside] = changed[-1]
            changed[-1] = filled
        table = torch.stack(changed, 1).cpu()
        for row, i in enumerate(places):
            found[i] = table[row, : lengths[row] - 2].numpy()
    return found


def gradient(plain: Plain, texts: Sequence[list[int]]) -> Rows:
    """Return the importance of each token by its gradient.

    This is the norm of the gradient of the predicted class's probability at the embedding of the token. The norms of a
    text are divided by their sum.
    """
    found: Rows = [np.empty(0)] * len(texts)
    for places, ids, lengths in batches(texts):
        embedded = plain.embedding(ids).requires_grad_()
        output = plain.from_embeddings(embedded, ids, lengths)
        plain.passes["backward"] += 1
        # The gradients of the two probabilities are opposite and have the same norm.
        (slope,) = torch.autograd.grad(output.sum(), embedded)
        norms = slope.double().norm(dim=-1).cpu()
        for row, i in enumerate(places):
            kept = norms[row, 1 : lengths[row] - 1]
            found[i] = (kept / kept.sum()).numpy()
    return found


def influence(plain: Plain, texts: Sequence[list[int]]) -> Rows:
    """Return the normalised entropy of the influence of tokens on hidden states, as the mean over hidden states.

    Each hidden state takes one backward pass.
    """
    found = []
    for ids in texts:
        embedded = plain.embedding(device.there(torch.tensor([ids]))).requires_grad_()
        states = plain.encode(embedded, torch.tensor([len(ids)]))[0]
        rows = []
        for p in range(1, len(ids) - 1):
            plain.passes["backward"] += 1
            (slope,) = torch.autograd.grad(states[p].norm(), embedded, retain_graph=True)
            rows.append(slope[0, 1:-1].norm(dim=-1))
        found.append(np.array([_entropy(torch.stack(rows)).mean()]))
    return found


def influence_by_place(plain: Plain, texts: Sequence[list[int]]) -> Rows:
    """Return the same numbers as `influence`, with one backward pass for the p-th states of all texts of a batch."""
    found: Rows = [np.empty(0)] * len(texts)
    for places, ids, lengths in batches(texts):
        embedded = plain.embedding(ids).requires_grad_()
        states = plain.encode(embedded, lengths)
        norms = []
        for p in range(1, ids.shape[1] - 1):
            plain.passes["backward"] += 1
            (slope,) = torch.autograd.grad(states[:, p].norm(dim=-1).sum(), embedded, retain_graph=True)
            norms.append(slope.norm(dim=-1))
        table = torch.stack(norms, 1).cpu()
        for row, i in enumerate(places):
            n = int(lengths[row]) - 2
            found[i] = np.array([_entropy(table[row, :n, 1 : n + 1]).mean()])
    return found


def _entropy(norms: Tensor) -> NDArray[np.float64]:
    shares = norms.double() / norms.double().sum(-1, keepdim=True)
    return (-torch.special.xlogy(shares, shares).sum(-1) / np.log(norms.shape[-1])).cpu().numpy()
