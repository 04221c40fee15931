"""The parts of a batch that mark the target of each row.

Shapes: B rows, T tokens of the text, P tokens of an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from attnaudit.adapters.huggingface.outputs.target_heads import MARKS, WRITTEN, queries_of
from attnaudit.adapters.huggingface.texts.encoded_texts import EncodedTexts
from attnaudit.adapters.huggingface.texts.tokenization import TextEncoder
from attnaudit.adapters.padding import pad, pad_flat
from attnaudit.adapters.protocol import TARGET_QUERIES, Inputs
from attnaudit.instances import Instance

#: Key of `Inputs.extra`, inside `InputBuilder.collate` only: (B, T) True at the tokens where the target may be.
CANDIDATES = "target_candidates"


class LocatingHead(Protocol):
    """A head that finds the target in rows without marks. For example, it finds the span that the model predicts."""

    def located(self, model: Any, arguments: Mapping[str, Any], marks: Tensor, candidates: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetInputs:
    """Builds the entries of `Inputs.extra` that mark the target of each row.

    Attributes:
        task: The task of the model (see `checkpoint_files.task_of`).
        head: Finds the target of rows without marks; None if every row has marks.
    """

    task: str
    head: LocatingHead | None = None

    def entries(
        self, encoder: TextEncoder, texts: EncodedTexts, instances: Sequence[Instance], device: torch.device
    ) -> dict[str, Tensor]:
        """Return the entries for encoded instances, with padding on the right."""
        if self.task == "encoder-decoder":
            before = [0] * len(encoder.before_written)
            answers = [before + [one + 1 for one in ids] for ids in encoder.written_answers(instances)]
            written, _ = pad(answers, value=0, device=device)
            return {WRITTEN: written[:, None]}
        (marks, candidates), _ = pad_flat(texts.counts, [(texts.marks, 0), (texts.candidates, False)], device=device)
        return {MARKS: marks} if self.head is None else {MARKS: marks, CANDIDATES: candidates}

    def located(self, model: Any, arguments: Mapping[str, Any], inputs: Inputs) -> Inputs:
        """Return the batch with marks for all rows, and with a mask of the tokens whose states are read."""
        extra = dict(inputs.extra)
        candidates = extra.pop(CANDIDATES, None)
        if MARKS not in extra:
            return inputs
        if self.head is not None and candidates is not None and not bool((extra[MARKS] > 0).any(1).all()):
            with torch.no_grad():
                extra[MARKS] = self.head.located(model, arguments, extra[MARKS], candidates)
        return replace(inputs, extra={**extra, TARGET_QUERIES: queries_of(extra[MARKS], self.task)})

    def example(self, instance: Instance, encoder: TextEncoder) -> Instance:
        """Return a synthetic instance with a target. Its text consists of the words "a", "b", "c" and so on."""
        if self.task == "tagger":
            return replace(instance, position=len(instance.text.split()) % 3)
        if self.task == "extractor":
            return replace(instance, query="a", answer="b c")
        gap = encoder.masks_answer and "{answer}" not in str(encoder.template)
        text = f"{instance.text} {encoder.tokenizer.mask_token}" if gap else instance.text
        return replace(instance, text=text, answer=_known_answer(encoder.tokenizer))


def _known_answer(tokenizer: Any) -> str:
    """Return an answer that the vocabulary contains: " b" if possible, and otherwise another word."""
    unknown = tokenizer.unk_token_id
    special = set(tokenizer.all_special_ids)
    words = [token for token, token_id in sorted(tokenizer.get_vocab().items()) if token_id not in special]
    answers = (" b", *(f" {word}" for word in words if word.isalpha()))
    return next(
        (
            one
            for one in answers
            if (ids := tokenizer(one, add_special_tokens=False)["input_ids"]) and unknown not in ids
        ),
        " b",
    )
