"""The evidence of words for classes, computed from labelled texts without training a model."""

from __future__ import annotations

import zlib
from functools import cache

import numpy as np
import torch
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from attnaudit.arrays import Floats
from attnaudit.instances import Dataset
from attnaudit.models.vocabulary import RESERVED, Vocabulary, words

#: Words in fewer texts than this have no evidence.
FEWEST_TEXTS = 5
#: Largest evidence of a word, so that no single rare word decides a long text.
LARGEST = 2.5
METHODS = ("naive bayes", "logistic regression")


@cache
def vocabulary_of(data: Dataset) -> Vocabulary:
    """Return the vocabulary of a data set: the words that occur at least twice."""
    return Vocabulary.build((instance.text for instance in data.instances), min_count=2)


@cache
def evidence_of_words(data: Dataset, method: str) -> Floats:
    """Return the evidence of each word for the second of two classes.

    Args:
        data: Labelled texts of two classes.
        method: "naive bayes" for the smoothed log odds of the word between the classes. "logistic regression" for its
            coefficient in a logistic regression on the words that a text contains.

    Returns:
        (V,) Evidence for the words of `vocabulary_of(data)`, clipped at ±`LARGEST`. It is 0 for special tokens and rare
        words.
    """
    vocabulary = vocabulary_of(data)
    vectorizer = CountVectorizer(analyzer=words, binary=True, vocabulary=list(vocabulary.entries[len(RESERVED) :]))
    counts = vectorizer.transform(instance.text for instance in data.instances)
    positive = np.array([instance.label == data.classes[1] for instance in data.instances])
    frequent = np.asarray(counts.sum(axis=0)).ravel() >= FEWEST_TEXTS
    if method == "naive bayes":
        per_class = [np.asarray(counts[positive == value].sum(axis=0)).ravel() + 1.0 for value in (False, True)]
        evidence = np.log(per_class[1] / positive.sum()) - np.log(per_class[0] / (~positive).sum())
    else:
        evidence = LogisticRegression(C=1.0, max_iter=300).fit(counts, positive).coef_[0]
    evidence = np.clip(np.where(frequent, evidence, 0.0), -LARGEST, LARGEST)
    return np.concatenate([np.zeros(len(RESERVED)), evidence])


def random_numbers(vocabulary: Vocabulary, seed: int, purpose: str) -> torch.Tensor:
    """Return (V,) numbers from 0 to 1 that depend on the word, the seed and the purpose only; 0 for special tokens."""
    numbers = [zlib.crc32(f"{purpose} {seed} {word}".encode()) / 2**32 for word in vocabulary.entries]
    numbers[: len(RESERVED)] = [0.0] * len(RESERVED)
    return torch.tensor(numbers)
