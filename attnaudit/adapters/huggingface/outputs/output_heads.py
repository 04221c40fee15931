"""Output heads, which read the logits of the classes from the output of a model.

Shapes: B rows, T tokens, C classes, d features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.forward_hooks import temporary_hooks
from attnaudit.adapters.huggingface.half_precision import widened
from attnaudit.adapters.huggingface.outputs.target_heads import of_every_token
from attnaudit.adapters.huggingface.wrapped_models import logits_of, name_of
from attnaudit.errors import ModelError
from attnaudit.targets import CLASS, Target

#: Name of the class for all other tokens, if there is only one label.
OTHER = "other"


class Head(Protocol):
    """Interface of an output head, which computes the class logits with a model.

    Attributes:
        classes: Class names in the order of the logits.
        target: What is explained.
    """

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def target(self) -> Target: ...

    def logits(self, model: Any, arguments: Mapping[str, Any], mask: Tensor, extra: Mapping[str, Tensor]) -> Tensor:
        """Run the model and return the class logits.

        Args:
            model: A Transformers model.
            arguments: The arguments of its forward().
            mask: (B, T) mask of the stream that the logits are read from, True on tokens.
            extra: The entries of `Inputs.extra`. They mark the target of each row, if it differs by row.

        Returns:
            (B, C) logits.
        """
        ...


class ClassifierHead:
    """The output head of a classifier. The class logits are the model's own logits.

    A model with two classes may have a single logit, whose sigmoid is the probability of the second class.
    """

    target = CLASS

    def __init__(self, classes: tuple[str, ...]) -> None:
        self.classes = classes

    def logits(self, model: Any, arguments: Mapping[str, Any], mask: Tensor, extra: Mapping[str, Tensor]) -> Tensor:
        return logits_of(model(**arguments), len(self.classes), name_of(model))


class NextTokenHead:
    """The output head of a language model. Each class is a word that may follow the text as the next token.

    If there is only one word, another class, "other", stands for all other tokens. Its logit is the log-sum-exp of
    the logits of these tokens.

    Attributes:
        token_ids: Class name -> id of the class's token.
        classes: Class names in the order of the logits.
    """

    target = CLASS

    def __init__(self, token_ids: Mapping[str, int]) -> None:
        self.token_ids = dict(token_ids)
        self.classes = (OTHER, *token_ids) if len(token_ids) == 1 else tuple(token_ids)

    def logits(self, model: Any, arguments: Mapping[str, Any], mask: Tensor, extra: Mapping[str, Tensor]) -> Tensor:
        last = mask.shape[1] - 1 - mask.flip(1).int().argmax(1)

        def keep_last(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            states = args[0]
            if states.dim() != 3:  # a model that predicts several tokens at each position
                return args
            index = last[:, None, None].to(states.device).expand(-1, 1, states.shape[2])
            return (states.gather(1, index), *args[1:])

        output_layer = model.get_output_embeddings()
        # Only the last position is needed. The logits over the vocabulary at all positions might not fit in memory.
        with temporary_hooks([] if output_layer is None else [output_layer.register_forward_pre_hook(keep_last)]):
            all_logits = of_every_token(model(**arguments), "logits", model)
        if all_logits.shape[1] == 1:
            vocabulary = all_logits[:, 0]
        else:
            vocabulary = all_logits[torch.arange(len(all_logits), device=all_logits.device), last]
        vocabulary = widened(vocabulary)
        ids = torch.tensor(list(self.token_ids.values()), device=vocabulary.device)
        if len(ids) > 1:
            return vocabulary[:, ids]
        others = vocabulary.index_fill(1, ids, float("-inf")).logsumexp(1, keepdim=True)
        return torch.cat([others, vocabulary[:, ids]], dim=1)


def label_token_ids(tokenizer: Any, labels: Mapping[str, str]) -> dict[str, int]:
    """Look up the token of each label.

    Args:
        tokenizer: A Transformers tokenizer.
        labels: Class name -> word. Each word must be a single token.

    Returns:
        Class name -> token id.

    Raises:
        ModelError: A word is not exactly one token, is not in the vocabulary, or has the same token as another word.
            The error is also raised if there is only one label, named "other".
    """
    token_ids: dict[str, int] = {}
    for name, word in labels.items():
        ids = tokenizer(word, add_special_tokens=False)["input_ids"]
        if len(ids) != 1 and word != word.lstrip():
            # SentencePiece itself adds a space before a word. A second space would be a separate token.
            stripped = tokenizer(word.lstrip(), add_special_tokens=False)["input_ids"]
            starts_word = str(tokenizer.convert_ids_to_tokens(stripped)[0]).startswith("▁") if stripped else False
            ids = stripped if len(stripped) == 1 and starts_word else ids
        tokens = [str(t) for t in tokenizer.convert_ids_to_tokens(ids)]
        if len(ids) != 1:
            raise ModelError(
                f"labels: {name} = {word!r} is {len(ids)} tokens ({', '.join(tokens) or 'none'}). The audit reads one "
                "token for each class: choose a word that is one token. In many vocabularies the space before a word "
                "is part of its token."
            )
        if ids[0] == tokenizer.unk_token_id:
            raise ModelError(
                f"labels: {name} = {word!r} is not in the model's vocabulary. Choose a word that the vocabulary "
                "contains."
            )
        if ids[0] in token_ids.values():
            same = next(n for n, i in token_ids.items() if i == ids[0])
            raise ModelError(
                f"labels: {name} and {same} stand for the same token, {tokens[0]}. Choose words that are different "
                "tokens."
            )
        token_ids[name] = int(ids[0])
    if OTHER in token_ids and len(token_ids) == 1:
        raise ModelError(
            f"labels: the name '{OTHER}' is taken. If only one label is given, the class of all other words is called "
            f"'{OTHER}'. Give the label another name."
        )
    return token_ids
