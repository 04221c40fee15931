"""Planted tables: the logits follow the formula, and the models fulfil the adapter contract."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
import torch

from attnaudit.adapters.protocol import TEXT
from attnaudit.conformance import quick
from attnaudit.errors import ModelError
from attnaudit.instances import Instance
from attnaudit.models import checkpoint_folder
from attnaudit.models.architecture import BYPASSES, Architecture, Planted, PlantedTables
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.vocabulary import RESERVED, Vocabulary
from attnaudit.research.planted.compiled_model import COMPILED, WordTables
from attnaudit.research.planted.kind import Compiled

VOCABULARY = Vocabulary([*RESERVED, *"abcdefgh"])
TEXTS = ("a b c d e", "h g", "c", "f f a b", "d e z a")
INSTANCES = [Instance(id=str(index), text=text) for index, text in enumerate(TEXTS)]


def compiled(bypass: str, *, switched: bool = False, classes: int = 2) -> Compiled:
    tables = WordTables(
        vocabulary=VOCABULARY,
        classes=tuple(f"c{index}" for index in range(classes)),
        settings=PlantedTables(bypass=bypass, switched=switched, first_score=0.5),
        scale=1.5,
    )
    generator = torch.Generator().manual_seed(3)
    for table in (tables.score, tables.own, tables.bypass, tables.bias):
        table.normal_(generator=generator)
    tables.marker[VOCABULARY.entries.index("f")] = 1.0
    return tables.compiled()


@pytest.mark.parametrize("bypass", BYPASSES)
@pytest.mark.parametrize("switched", [False, True])
def test_the_logit_is_computed_by_hand(bypass: str, switched: bool) -> None:
    made = compiled(bypass, switched=switched)
    adapter = checkpoint_adapter(made)
    found = adapter.run(adapter.collate(INSTANCES)).logits[:, 0]
    for text, logit in zip(TEXTS, found.tolist(), strict=True):
        ids = [VOCABULARY.entries.index(word) if word != "z" else 1 for word in text.split()]
        score, own, carried, marker = made.model.embedding.weight[ids].detach().double().unbind(dim=1)
        weights = (score + torch.tensor([0.5, *[0.0] * (len(ids) - 1)])).softmax(dim=0)
        total = {
            "none": 0.0,
            "sum": carried.sum().item(),
            "saturating": math.tanh(carried.sum().item()),
            "first": carried[0].item(),
            "collected": (carried.sum() * (weights @ marker)).item(),
        }[bypass]
        switch = min(marker.sum().item(), 1.0) if switched else None
        attended = (weights @ own).item() * (1 - (switch or 0.0))
        expected = 1.5 * (attended + total * (1.0 if switch is None else switch)) + made.model.decoder.bias.item()
        assert logit == pytest.approx(expected, abs=1e-5)


def checkpoint_adapter(made: Compiled) -> checkpoint_folder.ReferenceModel:
    return checkpoint_folder.ReferenceModel(made.model, made.vocabulary, made.classes)


@pytest.mark.parametrize("classes", [2, 5])
def test_a_stored_model_fulfils_the_contract(classes: int, tmp_path: Path) -> None:
    made = compiled("sum", switched=True, classes=classes)
    checkpoint_folder.save(tmp_path, made.model, made.vocabulary, made.classes)
    loaded = checkpoint_folder.load(tmp_path)
    assert {one.outcome for one in quick(loaded, INSTANCES)} == {"pass"}
    inputs = loaded.collate(INSTANCES)
    ids, mask, special = inputs.ids[TEXT], inputs.mask[TEXT], inputs.special[TEXT]
    torch.testing.assert_close(loaded.run(inputs).logits, made.model(ids, mask, special))


def architecture(**changes: object) -> Architecture:
    planted = Planted(tables=PlantedTables(outputs=3))
    return msgspec.structs.replace(COMPILED, **{"embedding_size": 8, "planted": planted, **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"encoder": "bilstm"}, "need the encoder 'average'"),
        ({"embedding_size": 7}, "embedding of 8 features"),
        ({"planted": Planted(tables=PlantedTables(bypass="summ"))}, "Unknown bypass 'summ'"),
        ({"planted": Planted(tables=PlantedTables(outputs=0))}, "outputs is 0"),
    ],
)
def test_an_invalid_architecture_is_refused(changes: dict[str, object], says: str) -> None:
    PooledClassifier(architecture(), vocabulary_size=5, classes=3)
    with pytest.raises(ModelError, match=says):
        PooledClassifier(architecture(**changes), vocabulary_size=5, classes=3)
