"""Encode texts with a model's own tokenizer: ids, special tokens, words, token types and truncation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from attnaudit.adapters.huggingface.passage_tokens import passage_of_tokens
from attnaudit.adapters.huggingface.prompt_templates import PLACEHOLDERS
from attnaudit.adapters.huggingface.target_marks import (
    answer_of,
    answer_tokens,
    first_tokens,
    mark_span,
    mark_word,
)
from attnaudit.errors import DataError, ModelError
from attnaudit.formatting import plural
from attnaudit.instances import Instance
from attnaudit.targets import CLASS, Target

#: A tokenizer without a limit reports a limit of at least this many tokens.
UNLIMITED = 10**6
#: The characters that mark the first token of a word, in byte-level BPE and in SentencePiece.
_WORD_MARKS = ("Ġ", "▁")


@dataclass(frozen=True, slots=True)
class EncodedText:
    """One encoded instance, with one entry per token in every list.

    Attributes:
        ids: Token ids.
        special: True for special tokens, such as [CLS], for all tokens of a template outside the text, and for the
            tokens of an answer.
        tokens: The tokens as readable strings.
        words: Index of the word that each token belongs to; -1 for special tokens.
        types: Index of the text (0 or 1) that each token belongs to; empty if the tokenizer returns no token types.
        truncated: Whether the text was truncated.
        marks: Marks of the tokens of the target (see `target_marks`); all 0 if the row does not mark its target.
        candidates: True for the tokens that may be the target of a row without marks. For a tag, these are the first
            tokens of words. For a span, these are all tokens of the text. False for all tokens of other targets.
        passages: Index of the passage that each token belongs to, -1 for other tokens; empty if the model reads none.
    """

    ids: list[int]
    special: list[bool]
    tokens: list[str]
    words: list[int]
    types: list[int]
    truncated: bool
    marks: list[int]
    candidates: list[bool]
    passages: list[int] = field(default_factory=list)


class TextEncoder:
    """Encodes instances with a Transformers tokenizer.

    Attributes:
        tokenizer: The tokenizer.
        limit: Longest input in tokens, including special tokens. Longer texts are truncated. None if unlimited.
        template: The prompt, with the placeholder {text} and optionally {query}, {answer} and {passages}. Only tokens
            of the text count as real. If the template contains {passages}, only tokens of the passages do. If there is
            no template (None), the tokenizer encodes the text alone, or the text and the query as a pair.
        target: What is explained. Its tokens are marked.
        query_first: Whether the query is the first text of a pair; None if it is unknown, as for a score.
        masks_answer: Whether the answer is replaced by mask tokens, as for a masked language model.
        is_fast: Whether the tokenizer reports which characters each token stands for.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        limit: int | None,
        template: str | None = None,
        target: Target = CLASS,
        query_first: bool | None = False,
        masks_answer: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self.limit = limit
        self.template = template
        self.target = target
        self.query_first = query_first
        self.masks_answer = masks_answer
        self.is_fast = bool(getattr(tokenizer, "is_fast", False))
        if template is not None and not self.is_fast:
            raise ModelError(
                f"template: {type(tokenizer).__name__} does not report which characters a token stands for, so the "
                "tokens of the text cannot be separated from those of the template. Use a fast tokenizer (one with a "
                "tokenizer.json)."
            )
        if target.at_tokens and not self.is_fast:
            raise ModelError(
                f"target: {type(tokenizer).__name__} does not report which characters a token stands for, so the "
                "tokens of the target cannot be found. Use a fast tokenizer (one with a tokenizer.json)."
            )
        self._splits_words = self._tokenizer_splits_words()
        self._strings: dict[int, str] = {}  # The results of `readable` so far.

    @property
    def takes_query(self) -> bool:
        """Whether the query of an instance is encoded."""
        if self.target.kind == "tag":
            return False
        return self.template is None or "{query}" in self.template

    @property
    def takes_passages(self) -> bool:
        """Whether the passages of an instance are encoded."""
        return self.template is not None and "{passages}" in self.template

    def _tokenizer_splits_words(self) -> bool:
        """Return whether the tokenizer splits a text into words before it splits words into tokens."""
        if not self.is_fast:
            return False
        word_ids = self.tokenizer("of the end", add_special_tokens=False).word_ids()
        return len({word for word in word_ids if word is not None}) == 3

    def encode(self, instances: Sequence[Instance]) -> list[EncodedText]:
        """Encode instances, and truncate those that are too long.

        Raises:
            DataError: An instance is too long for the model and cannot be truncated.
        """
        if self.template is None:
            return [self._encode_texts(instance) for instance in instances]
        return [self._encode_template(instance, self.template) for instance in instances]

    def _encode_texts(self, instance: Instance) -> EncodedText:
        """Encode a text, or a text and a query as a pair."""
        texts = self.pair(instance)
        encoded = self._tokenize(texts)
        truncated = self.limit is not None and len(encoded["input_ids"]) > self.limit
        if truncated:
            try:
                encoded = self._tokenize(texts, truncation=True, max_length=self.limit)
            except Exception as error:
                raise DataError(
                    f"{instance.where or instance.id}: the text and its query cannot be truncated to {self.limit} "
                    f"tokens ({error}). Shorten them."
                ) from error
        ids = list(encoded["input_ids"])
        special = self._special_tokens(encoded)
        return EncodedText(
            ids=ids,
            special=special,
            tokens=self.readable(ids),
            words=self._word_numbers(encoded, ids, special, texts),
            types=list(encoded.get("token_type_ids", [])),
            truncated=truncated,
            **self._target(instance, encoded),
        )

    def pair(self, instance: Instance) -> list[str]:
        """Return the text alone, or the text and its query in the order in which the model reads them.

        Raises:
            DataError: The order is unknown, or the model reads no query.
        """
        if instance.query is None:
            return [instance.text]
        if self.target.kind == "tag":
            raise DataError(
                f"{instance.where or instance.id}: the row has a query, but a tagger reads a single text. Remove the "
                "column 'query'."
            )
        if self.query_first is None:
            raise DataError(
                f"{instance.where or instance.id}: the row has a query, but it is unknown whether the model reads it "
                "before or after the text. Rerankers usually read the query first. Write query_first = true or false "
                "in attnaudit.toml, or pass query_first to transformer()."
            )
        return [instance.query, instance.text] if self.query_first else [instance.text, instance.query]

    def _target(self, instance: Instance, encoded: Any) -> dict[str, Any]:
        """Return the fields `marks` and `candidates` of an encoded text."""
        count = len(encoded["input_ids"])
        if not self.target.at_tokens:
            return {"marks": [0] * count, "candidates": [False] * count}
        own = 1 if instance.query is not None and self.query_first else 0
        in_text, offsets = [text == own for text in encoded.sequence_ids()], encoded["offset_mapping"]
        if self.target.kind == "span":
            return {"marks": mark_span(instance, offsets, in_text), "candidates": in_text}
        first = set(first_tokens(instance, offsets, in_text).values())
        candidates = [position in first for position in range(count)]
        return {"marks": mark_word(instance, offsets, in_text), "candidates": candidates}

    def _special_tokens(self, encoded: Any) -> list[bool]:
        """Mark tokens such as "[SEP]", both where the tokenizer adds them and where the text itself contains them."""
        roles = ("cls", "sep", "pad", "bos", "eos")
        special_ids = {getattr(self.tokenizer, f"{role}_token_id", None) for role in roles}
        special_ids -= {None, getattr(self.tokenizer, "unk_token_id", None)}
        return [
            bool(added) or token_id in special_ids
            for added, token_id in zip(encoded["special_tokens_mask"], encoded["input_ids"], strict=True)
        ]

    def _tokenize(self, texts: Sequence[str], **settings: Any) -> Any:
        return self.tokenizer(
            *texts,
            return_special_tokens_mask=True,
            return_offsets_mapping=self.is_fast,
            return_attention_mask=False,
            verbose=False,
            **settings,
        )

    def _encode_template(self, instance: Instance, template: str) -> EncodedText:
        """Encode the filled template. If it is too long, the last tokens of the text are left out.

        Raises:
            DataError: No token of the text would be left.
        """
        prompt, spans = self._filled(instance, template)
        encoded = self._tokenize([prompt])
        ids, offsets = list(encoded["input_ids"]), encoded["offset_mapping"]
        marks = [0] * len(ids)
        special = []
        start, end = spans["text"]
        added_by_tokenizer = self._special_tokens(encoded)
        excess = len(ids) - self.limit if self.limit is not None else 0
        if excess > 0 and self.takes_passages:
            raise DataError(
                f"{instance.where or instance.id}: the prompt with its {plural(len(instance.passages), 'passage')} "
                f"is {len(ids)} tokens long, but the model takes at most {self.limit}. Passages are never "
                "truncated, because the report would then show text that the model did not read. Give the row "
                "fewer or shorter passages."
            )
        passages: list[int] = []
        if self.takes_passages:
            start_of_passages = spans["passages"][0]
            passages = passage_of_tokens(instance, prompt, offsets, added_by_tokenizer, start_of_passages)
        for (a, b), added in zip(offsets, added_by_tokenizer, strict=True):
            inside = prompt[max(a, start) : min(b, end)] if max(a, start) < min(b, end) else ""
            # If a token shares only white space with the text, it belongs to the template. If the token is
            # nothing but white space, it belongs to the text.
            special.append(added or not inside or (not inside.strip() and bool(prompt[a:b].strip())))
        if passages:
            special = [passage < 0 for passage in passages]
        if "answer" in spans:
            for position, is_answer in enumerate(answer_tokens(instance, prompt, offsets, *spans["answer"])):
                if is_answer:
                    if ids[position] == self.tokenizer.unk_token_id:
                        raise DataError(
                            f"{instance.where or instance.id}: the model's vocabulary does not contain the answer "
                            f"{answer_of(instance, self.target)!r}. Choose an answer that it contains."
                        )
                    special[position] = True
                    marks[position] = ids[position] + 1
                    ids[position] = self.tokenizer.mask_token_id if self.masks_answer else ids[position]
        words = self._word_numbers(encoded, ids, special, [prompt])
        kept = list(range(len(ids)))
        if excess > 0:
            real = [p for p, is_special in enumerate(special) if not is_special]
            if excess >= len(real):
                raise DataError(
                    f"{instance.where or instance.id}: the template alone is {len(ids) - len(real)} tokens long, but "
                    f"the model takes at most {self.limit}, so no token of the text would be left. Shorten the "
                    "template or the query."
                )
            removed = set(real[-excess:])
            kept = [p for p in kept if p not in removed]
        types = list(encoded.get("token_type_ids", []))
        return EncodedText(
            ids=[ids[p] for p in kept],
            special=[special[p] for p in kept],
            tokens=self.readable([ids[p] for p in kept]),
            words=[words[p] for p in kept],
            types=[types[p] for p in kept] if types else [],
            truncated=excess > 0,
            marks=[marks[p] for p in kept],
            candidates=[False] * len(kept),
            passages=passages,
        )

    def written_answers(self, instances: Sequence[Instance]) -> list[list[int]]:
        """Return the token ids of the answer of each instance, as a decoder writes it, without special tokens."""
        encoded: list[list[int]] = []
        for instance in instances:
            answer = answer_of(instance, self.target)
            ids = list(self.tokenizer(text_target=answer, add_special_tokens=False)["input_ids"])
            if not ids or self.tokenizer.unk_token_id in ids:
                raise DataError(
                    f"{instance.where or instance.id}: the model's vocabulary does not contain the answer {answer!r}. "
                    "Choose an answer that it contains."
                )
            encoded.append(ids)
        return encoded

    def _filled(self, instance: Instance, template: str) -> tuple[str, dict[str, tuple[int, int]]]:
        """Fill a template.

        If the template has no {answer}, but the answer is to be masked, the answer replaces the mask token in the text.

        Returns:
            The prompt; and the placeholders in it, each with the positions of the first character of its filling and of
            the character after the last one.

        Raises:
            DataError: The row has no answer, or its text does not contain exactly one mask token.
        """
        fillings = {"text": instance.text, "query": instance.query or ""}
        if self.takes_passages:
            if not instance.passages:
                raise DataError(
                    f"{instance.where or instance.id}: the row has no passages, but the template of the model has "
                    "{passages}. Fill the column 'passages' with a list of texts."
                )
            # Each passage ends with a line break. If a passage is removed from the prompt, the result is therefore the
            # same as a prompt that was built from the other passages.
            fillings["passages"] = "".join(f"{passage}\n" for passage in instance.passages)
        spans: dict[str, tuple[int, int]] = {}
        gap = ""
        if "{answer}" in template:
            fillings["answer"] = answer_of(instance, self.target)
        elif self.masks_answer:
            gap = str(self.tokenizer.mask_token)
            if instance.text.count(gap) != 1:
                raise DataError(
                    f"{instance.where or instance.id}: the text contains {gap} {instance.text.count(gap)} times. Write "
                    "it once, where the answer belongs; or give a template with {answer}, such as '{text} {answer}'."
                )
            fillings["text"] = instance.text.replace(gap, answer_of(instance, self.target))
        prompt, position = "", 0
        for placeholder in PLACEHOLDERS.finditer(template):
            prompt += template[position : placeholder.start()]
            filling = fillings[placeholder.group(1)]
            spans[placeholder.group(1)] = len(prompt), len(prompt) + len(filling)
            prompt += filling
            position = placeholder.end()
        if gap:
            start = spans["text"][0] + instance.text.index(gap)
            spans["answer"] = start, start + len(answer_of(instance, self.target))
        return prompt + template[position:], spans

    # -- words ----------------------------------------------------------------------------------------------------

    def _word_numbers(
        self, encoded: Any, ids: Sequence[int], special: Sequence[bool], texts: Sequence[str]
    ) -> list[int]:
        """Return the index of the word that each token belongs to; -1 for special tokens.

        Words are counted from 0. If there are two texts, the count continues in the second text.
        """
        keys: list[tuple[int, int] | None]
        if self.is_fast and self._splits_words:
            keys = [
                None if word is None or text is None else (text, word)
                for text, word in zip(encoded.sequence_ids(), encoded.word_ids(), strict=True)
            ]
        elif self.is_fast:
            keys = self._words_by_space(encoded, texts)
        else:
            keys = self._words_by_mark(ids)
        numbers: dict[tuple[int, int], int] = {}
        words = []
        for key, is_special in zip(keys, special, strict=True):
            if is_special or key is None:
                words.append(-1)
            else:
                words.append(numbers.setdefault(key, len(numbers)))
        return words

    @staticmethod
    def _words_by_space(encoded: Any, texts: Sequence[str]) -> list[tuple[int, int] | None]:
        """Find the word of each token from white space, for tokenizers that treat the whole text as one word.

        Returns:
            One pair (index of the text, index of the word) per token; None for tokens that belong to no text.
        """
        keys: list[tuple[int, int] | None] = []
        word, previous = 0, (-1, 0)
        for text, (start, end) in zip(encoded.sequence_ids(), encoded["offset_mapping"], strict=True):
            if text is None:
                keys.append(None)
                continue
            characters = texts[text]
            gap = characters[previous[1] : end] if previous[0] == text else " "
            # White space anywhere before the token's first letter begins a new word.
            if gap[: len(gap) - len(gap.lstrip())] or characters[start : start + 1].isspace():
                word += 1
            keys.append((text, word))
            previous = (text, max(end, previous[1]))
        return keys

    def _words_by_mark(self, ids: Sequence[int]) -> list[tuple[int, int] | None]:
        """Find the word of each token from marks such as "##", for tokenizers that do not report characters."""
        tokens = [str(token) for token in self.tokenizer.convert_ids_to_tokens(list(ids))]
        marks_starts = any(token.startswith(_WORD_MARKS) for token in tokens)
        keys: list[tuple[int, int] | None] = []
        word = 0
        for token in tokens:
            continues = not token.startswith(_WORD_MARKS) if marks_starts else token.startswith("##")
            word += not continues
            keys.append((0, word))
        return keys

    def readable(self, ids: Sequence[int]) -> list[str]:
        """Return one string per id, without the marks that tokenizers put on tokens."""
        new = [number for number in dict.fromkeys(ids) if number not in self._strings]
        raw = [str(token) for token in self.tokenizer.convert_ids_to_tokens(new)]
        decoder = getattr(getattr(self.tokenizer, "backend_tokenizer", None), "decoder", None)
        for number, token in zip(new, raw, strict=True):
            text = token
            if decoder is not None:
                text = decoder.decode([token])
            text = text.removeprefix("##").lstrip("".join(_WORD_MARKS)).strip()
            # White space and parts of a letter have no readable form. The token itself is shown instead.
            self._strings[number] = text if text and "\N{REPLACEMENT CHARACTER}" not in text else token
        return [self._strings[number] for number in ids]


def longest_input(tokenizer: Any, config: Any, position_offset: int) -> int | None:
    """Return the longest input that the model and the tokenizer take, in tokens, including special tokens.

    The result is None if neither has a limit.

    Args:
        tokenizer: The tokenizer.
        config: The config of the model.
        position_offset: Number of position ids that the model reserves for padding.
    """
    limits = []
    model_max_length = getattr(tokenizer, "model_max_length", None)
    if isinstance(model_max_length, int) and 0 < model_max_length < UNLIMITED:
        limits.append(model_max_length)
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > position_offset:
        limits.append(positions - position_offset)
    return min(limits, default=None)
