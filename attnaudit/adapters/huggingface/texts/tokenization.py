"""Encode texts with a model's own tokenizer: ids, special tokens, words, token types and truncation."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from attnaudit.adapters.huggingface.outputs.target_marks import (
    answer_of,
    answer_tokens,
    first_tokens,
    mark_span,
    mark_word,
)
from attnaudit.adapters.huggingface.texts.encoded_texts import (
    EncodedText,
    EncodedTexts,
    Flags,
    TokenizedText,
    flat,
    split,
)
from attnaudit.adapters.huggingface.texts.passage_tokens import passage_of_tokens
from attnaudit.adapters.huggingface.texts.prompt_templates import PLACEHOLDERS
from attnaudit.adapters.huggingface.texts.readable_tokens import ReadableTokens
from attnaudit.adapters.huggingface.texts.token_words import (
    is_white_space,
    numbered,
    numbered_words,
    words_by_mark,
    words_by_space,
    words_of,
    words_of_characters,
)
from attnaudit.arrays import Integers
from attnaudit.errors import DataError, ModelError
from attnaudit.formatting import plural
from attnaudit.instances import Instance
from attnaudit.targets import CLASS, PAGE, Target

#: Held while a tokenizer runs. Two threads may call it, and some versions of fast tokenizers refuse that.
_TOKENIZING = threading.Lock()


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
        self._strings = ReadableTokens(tokenizer)

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

    def encode(self, instances: Sequence[Instance]) -> EncodedTexts:
        """Encode instances, and truncate those that are too long.

        A fast tokenizer is called once for all texts, and once for all pairs of a text and a query. Texts that are too
        long are encoded again.

        Raises:
            DataError: An instance is too long for the model and cannot be truncated.
        """
        if self.template is not None:
            prompts = [self._filled(instance, self.template) for instance in instances]
            encoded = self._tokenize_all([[prompt] for prompt, _ in prompts])
            return EncodedTexts.joined(
                [
                    self._encode_template(instance, *filled, one)
                    for instance, filled, one in zip(instances, prompts, encoded, strict=True)
                ]
            )
        texts = [self.pair(instance) for instance in instances]
        encoded = self._tokenize_all(texts)
        counts = np.array([len(one.ids) for one in encoded], dtype=np.int64)
        truncated = np.zeros(len(counts), dtype=np.bool_) if self.limit is None else counts > self.limit
        for row in np.flatnonzero(truncated).tolist():
            encoded[row] = self._truncated(instances[row], texts[row])
            counts[row] = len(encoded[row].ids)
        ids = flat((one.ids for one in encoded), np.int64)
        special = flat((one.added for one in encoded), np.bool_)
        for special_id in self._special_ids():
            special |= ids == special_id
        types = flat((one.types or [0] * len(one.ids) for one in encoded), np.int64)
        marks, candidates = np.zeros(len(ids), dtype=np.int64), np.zeros(len(ids), dtype=np.bool_)
        if self.target.at_tokens:
            marked = [self._mark(instance, one) for instance, one in zip(instances, encoded, strict=True)]
            marks = flat((of_text for of_text, _ in marked), np.int64)
            candidates = flat((of_text for _, of_text in marked), np.bool_)
        return EncodedTexts(
            counts=counts,
            ids=ids,
            special=special,
            tokens=[self.readable(one.ids) for one in encoded],
            words=self._word_numbers(encoded, special, texts),
            types=types if any(one.types for one in encoded) else types[:0],
            truncated=truncated,
            marks=marks,
            candidates=candidates,
        )

    def _truncated(self, instance: Instance, texts: Sequence[str]) -> TokenizedText:
        """Encode a text, or a text and a query as a pair, with truncation."""
        try:
            return self._tokenize(texts, truncation=True, max_length=self.limit)
        except Exception as error:
            raise DataError(
                f"{instance.where or instance.id}: the text and its query cannot be truncated to {self.limit} "
                f"tokens ({error}). Shorten them."
            ) from error

    def pair(self, instance: Instance) -> list[str]:
        """Return the text alone, or the text and its query in the order in which the model reads them.

        Raises:
            DataError: The order is unknown, the model reads no query, or it answers questions and the row has none.
        """
        if instance.query is None:
            if self.target.kind == "span":
                raise DataError(
                    f"{instance.where or instance.id}: the row has no query, but the model answers a question about "
                    "the text. Write the question in the column 'query'."
                )
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

    def _mark(self, instance: Instance, encoded: TokenizedText) -> tuple[list[int], list[bool]]:
        """Return the `marks` and `candidates` of an encoded text. The target must be at tokens."""
        own = 1 if instance.query is not None and self.query_first else 0
        in_text = [text == own for text in encoded.texts]
        if self.target.kind == "span":
            return mark_span(instance, encoded.offsets, in_text), in_text
        first = set(first_tokens(instance, encoded.offsets, in_text).values())
        candidates = [position in first for position in range(len(encoded.ids))]
        return mark_word(instance, encoded.offsets, in_text), candidates

    def _special_ids(self) -> list[int]:
        """Return the ids of tokens such as "[SEP]", which are special even if the text itself contains them."""
        ids = {getattr(self.tokenizer, f"{role}_token_id", None) for role in ("cls", "sep", "pad", "bos", "eos")}
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        return [one for one in ids if one is not None and one != unknown]

    @cached_property
    def _keeps_white_space(self) -> bool:
        """Whether white space is a token of its own, as in a tokenizer that splits texts into characters or bytes."""
        return any(map(is_white_space, self._raw(self._call(["the end"], add_special_tokens=False)["input_ids"])))

    @property
    def _needs_offsets(self) -> bool:
        """Whether the positions of the tokens in their text are needed."""
        return self.is_fast and (self.template is not None or self.target.at_tokens or not self._splits_words)

    def _tokenize_all(self, texts: Sequence[Sequence[str]]) -> list[TokenizedText]:
        """Encode texts and pairs of texts, without truncation.

        A tokenizer that is not fast is called for each text alone. So is one whose pairs have an empty second text,
        which Transformers ignores in single pairs, but not in lists of pairs.
        """
        found: dict[int, TokenizedText] = {}
        for size in (1, 2) if self.is_fast else ():
            rows = [row for row, pair in enumerate(texts) if len(pair) == size and all(pair[1:])]
            if rows:
                encoded = self._call([[texts[row][part] for row in rows] for part in range(size)])
                in_text = size == 2 or self._needs_offsets
                parts = TokenizedText.rows(encoded, texts=in_text, batched=True)
                found.update(zip(rows, parts, strict=True))
        return [found[row] if row in found else self._tokenize(pair) for row, pair in enumerate(texts)]

    def _tokenize(self, texts: Sequence[str], **settings: Any) -> TokenizedText:
        """Encode a single text, or a single pair."""
        encoded = self._call(texts, **settings)
        (found,) = TokenizedText.rows(encoded, texts=True, batched=False)
        return found

    def _call(self, texts: Sequence[str] | Sequence[Sequence[str]], **settings: Any) -> Any:
        with _TOKENIZING:
            return self.tokenizer(
                *texts,
                return_special_tokens_mask=True,
                return_offsets_mapping=self._needs_offsets,
                return_attention_mask=False,
                verbose=False,
                **settings,
            )

    def _encode_template(
        self, instance: Instance, prompt: str, spans: dict[str, tuple[int, int]], encoded: TokenizedText
    ) -> EncodedText:
        """Return the encoded instance of a template. If it is too long, the last tokens of the text are left out.

        Args:
            instance: The instance.
            prompt: The filled template.
            spans: The placeholders (see `_filled`).
            encoded: The encoded prompt.

        Raises:
            DataError: No token of the text would be left.
        """
        ids, offsets = encoded.ids, encoded.offsets
        marks = [0] * len(ids)
        special: list[bool] = []
        start, end = spans["text"]
        special_ids = set(self._special_ids())
        added_by_tokenizer = [bool(a) or i in special_ids for a, i in zip(encoded.added, ids, strict=True)]
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
        words = self._words_of_row(encoded, special, [prompt])
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
        types = encoded.types
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

    @cached_property
    def before_written(self) -> list[int]:
        """The ids of the special tokens that the tokenizer puts before a text that a decoder writes.

        The decoder of BART, for example, learns to write <s> before its first word.
        """
        bare = list(self.tokenizer(text_target="a", add_special_tokens=False)["input_ids"])
        whole = list(self.tokenizer(text_target="a")["input_ids"])
        starts = (start for start in range(len(whole)) if bare and whole[start : start + len(bare)] == bare)
        return whole[: next(starts, 0)]

    def _filled(self, instance: Instance, template: str) -> tuple[str, dict[str, tuple[int, int]]]:
        """Fill a template.

        If the template has no {answer}, but the answer is to be masked, the answer replaces the mask token in the text.

        Returns:
            The prompt; and the placeholders in it, each with the positions of the first character of its filling and of
            the character after the last one.

        Raises:
            DataError: The row has no answer, query or passages although the model needs them, or its text does not
                contain exactly one mask token.
        """
        if instance.query is None and self.takes_query:
            raise DataError(
                f"{instance.where or instance.id}: the row has no query, but the template of the model has {{query}}. "
                "Fill the column 'query', or remove {query} from the template."
            )
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
                    "it once, where the answer belongs; or give a template with {answer}, such as '{text} {answer}'. "
                    f"See {PAGE}#a-string."
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
        self, encoded: Sequence[TokenizedText], special: Flags, texts: Sequence[Sequence[str]]
    ) -> Integers:
        """Return the index (N,) of the word that each token of some texts belongs to; -1 for special tokens.

        Words are counted from 0. If there are two texts in a row, the count continues in the second text.
        """
        if self.is_fast and self._splits_words:
            return numbered_words(encoded, special)
        rows = zip(encoded, split(special.tolist(), [len(one.ids) for one in encoded]), texts, strict=True)
        return flat((self._words_of_row(*row) for row in rows), np.int64)

    def _words_of_row(self, encoded: TokenizedText, special: Sequence[bool], texts: Sequence[str]) -> list[int]:
        """Return the index of the word that each token of a row belongs to; -1 for special tokens."""
        if not self.is_fast:
            find = words_of_characters if self._keeps_white_space else words_by_mark
            return numbered(find(self._raw(encoded.ids)), special)
        return numbered(words_of(encoded) if self._splits_words else words_by_space(encoded, texts), special)

    def _raw(self, ids: Sequence[int]) -> list[str]:
        """Return one string per id, as the tokenizer writes tokens."""
        return [str(token) for token in self.tokenizer.convert_ids_to_tokens(list(ids))]

    def readable(self, ids: Sequence[int]) -> list[str]:
        """Return one string per id, without the marks that tokenizers put on tokens."""
        return list(map(self._strings.__getitem__, ids))
