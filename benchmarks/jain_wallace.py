"""Load models that were stored in the layout of Jain & Wallace's published code.

The folder of a model contains three files:

* `config.json` has the keys vocab_size, embedding, hidden, attention and data.
* `model.pt` is a state dict, which is read with weights_only=True. If its embedding is pruned, it also has
  `embedding_rows` and `vocab_size`.
* `outputs.npz` contains the stored outputs.

The encoder is a BiLSTM over embeddings. It reads the tokens SOS and EOS, but attention gives them no weight. The
decoder is linear with one sigmoid output.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from attnaudit.adapters import Encoding, PooledAttentionAdapter
from attnaudit.instances import Dataset, Instance


class PackedBiLSTM(nn.Module):
    """A BiLSTM over packed sequences, as in the published code."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            embeddings, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = self.rnn(packed)
        return nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=mask.shape[1])[0]


class PublishedAttention(nn.Module):
    """Attention with the scores v·tanh(W h + b) ("additive") or v·h / √m ("dot"), normalised by softmax.

    h is a hidden state and m is its width.
    """

    def __init__(self, kind: str, size: int) -> None:
        super().__init__()
        self.kind, self.size = kind, size
        if kind == "additive":
            self.attn1 = nn.Linear(size, size // 2)
            self.attn2 = nn.Linear(size // 2, 1, bias=False)
        else:
            self.attn1 = nn.Linear(size, 1, bias=False)

    def forward(self, states: Tensor, allowed: Tensor) -> Tensor:
        if self.kind == "additive":
            scores = self.attn2(torch.tanh(self.attn1(states)))[..., 0]
        else:
            scores = self.attn1(states)[..., 0] / self.size**0.5
        return torch.softmax(scores.masked_fill(~allowed, -torch.inf), dim=-1)


def load_adapter(folder: Path, vocabulary: dict[str, int]) -> PooledAttentionAdapter:
    """Return the adapter of a stored model.

    The text of an instance consists of token ids that are separated by spaces. It includes SOS and EOS.

    Args:
        folder: The folder of the model.
        vocabulary: Token -> id, as `load_data` returns it.
    """
    config = json.loads((folder / "config.json").read_text())
    kind = config["attention"]
    if kind not in ("additive", "dot"):
        raise SystemExit(f"{folder / 'config.json'}: attention is {kind!r}; expected 'additive' or 'dot'.")
    state = torch.load(folder / "model.pt", weights_only=True, map_location="cpu")
    weights = state["encoder.embedding.weight"].float()
    if "embedding_rows" in state:
        full = torch.zeros(int(state["vocab_size"]), weights.shape[1])
        full[torch.as_tensor(state["embedding_rows"]).long()] = weights
        weights = full
    embedding = nn.Embedding.from_pretrained(weights)
    width, hidden = config["embedding"], config["hidden"]
    encoder, attention, decoder = (
        PackedBiLSTM(width, hidden),
        PublishedAttention(kind, 2 * hidden),
        nn.Linear(2 * hidden, 1),
    )

    def part(prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): v.float() for k, v in state.items() if k.startswith(prefix)}

    encoder.rnn.load_state_dict(part("encoder.rnn."))
    attention.load_state_dict(part("decoder.attention."))
    decoder.load_state_dict(part("decoder.linear_1."))
    words = {number: word for word, number in vocabulary.items()}

    def tokenize(text: str) -> Encoding:
        ids = [int(x) for x in text.split()]
        return Encoding(ids, [words.get(i, str(i)) for i in ids], [t in (0, len(ids) - 1) for t in range(len(ids))])

    return PooledAttentionAdapter(
        embedding=embedding,
        encoder=encoder,
        attention=attention,
        decoder=decoder,
        tokenize=tokenize,
        classes=("negative", "positive"),
        description=f"BiLSTM + {kind}, as published by Jain & Wallace",
        lstm=encoder.rnn,
    )


def load_data(path: Path, chosen: list[int] | None = None) -> tuple[Dataset, dict[str, int]]:
    """Read a file of token ids.

    Args:
        path: The JSON file.
        chosen: The numbers of the rows to read, in this order. None for all rows.

    Returns:
        The instances, with the ids "000000", "000001", ..., and the vocabulary.
    """
    content = json.loads(path.read_text())
    rows = range(len(content["token_ids"])) if chosen is None else chosen
    instances = tuple(
        Instance(
            id=f"{place:06d}",
            text=" ".join(map(str, content["token_ids"][row])),
            label=("negative", "positive")[int(content["labels"][row])],
        )
        for place, row in enumerate(rows)
    )
    dataset = Dataset(
        name=path.stem,
        source=path.name,
        description="",
        instances=instances,
        classes=("negative", "positive"),
        rows=len(instances),
    )
    return dataset, content["vocabulary"]
