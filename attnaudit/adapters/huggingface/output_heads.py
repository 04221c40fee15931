"""From what a model gives to the logits of the classes: a classification head, or the words of a language model.

Shapes: B rows, T tokens, C classes, V words of the vocabulary, d features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.site_discovery import hooks
from attnaudit.errors import ModelError

#: The class that stands for every other word, where one label is given.
OTHER = "other"


class Head(Protocol):
    """How class logits are read off a model."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    def logits(self, model: Any, arguments: Mapping[str, Any], mask: Tensor) -> Tensor:
        """(B, C). mask (B, T): of the stream that the model writes."""
        ...


class Classifier:
    """A classification head: the logits are the model's."""

    def __init__(self, classes: tuple[str, ...]) -> None:
        self.classes = classes

    def logits(self, model: Any, arguments: Mapping[str, Any], mask: Tensor) -> Tensor:
        logits: Tensor = model(**arguments).logits
        return logits


class NextToken:
    """The next word of a language model, after the last token.

    words: class name -> the id of its word. With one word the classes are ("other", its name): every other word
    together against it.
    """

    def __init__(self, words: Mapping[str, int]) -> None:
        self.words = dict(words)
        self.classes = (OTHER, *words) if len(words) == 1 else tuple(words)

    def logits(self, model: Any, arguments: Mapping[str, Any], mask: Tensor) -> Tensor:
        last = mask.shape[1] - 1 - mask.flip(1).int().argmax(1)

        def at_last(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            states = args[0]
            index = last[:, None, None].expand(-1, 1, states.shape[2])
            return (states.gather(1, index), *args[1:])

        output = model.get_output_embeddings()
        # The vocabulary is read at one position: at all of them it would be most of the memory.
        with hooks([] if output is None else [output.register_forward_pre_hook(at_last)]):
            every: Tensor = model(**arguments).logits
        written = every[torch.arange(len(every), device=every.device), last] if output is None else every[:, 0]
        ids = torch.tensor(list(self.words.values()), device=written.device)
        if len(ids) > 1:
            return written[:, ids]
        others = written.index_fill(1, ids, float("-inf")).logsumexp(1, keepdim=True)
        return torch.cat([others, written[:, ids]], dim=1)


def label_words(tokenizer: Any, labels: Mapping[str, str]) -> dict[str, int]:
    """class name -> the single token that stands for its word. Raises ModelError where it takes several."""
    found: dict[str, int] = {}
    for name, word in labels.items():
        ids = tokenizer(word, add_special_tokens=False)["input_ids"]
        if len(ids) != 1 and word != word.lstrip():
            # SentencePiece puts the space before a word itself, and a second one would be a token of its own.
            without = tokenizer(word.lstrip(), add_special_tokens=False)["input_ids"]
            starts = str(tokenizer.convert_ids_to_tokens(without)[0]).startswith("▁") if without else False
            ids = without if len(without) == 1 and starts else ids
        tokens = [str(t) for t in tokenizer.convert_ids_to_tokens(ids)]
        if len(ids) != 1:
            raise ModelError(
                f"labels: {name} = {word!r} is {len(ids)} tokens ({', '.join(tokens) or 'none'}), and the model is "
                "audited at one. Choose a word of one token; a space before it is part of it in many vocabularies."
            )
        if ids[0] == tokenizer.unk_token_id:
            raise ModelError(f"labels: {name} = {word!r} is not in the model's vocabulary. Choose a word that is.")
        if ids[0] in found.values():
            other = next(n for n, i in found.items() if i == ids[0])
            raise ModelError(f"labels: {name} and {other} are the same token, {tokens[0]}. Choose words that differ.")
        found[name] = int(ids[0])
    if OTHER in found and len(found) == 1:
        raise ModelError(f"labels: with one label the other class is called '{OTHER}'. Give the label another name.")
    return found
