"""The adapter of a reference model, which can also train copies of the model."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
import torch
from torch import Tensor

from attnaudit.adapters.pooled.pooled_adapter import SITE, PooledAttentionAdapter
from attnaudit.adapters.protocol import OPEN_CLASSES, TEXT, Inputs, Intervention, Site, Trace
from attnaudit.data import load
from attnaudit.errors import AuditError, DataError, ModelError
from attnaudit.instances import Dataset
from attnaudit.models.encoders import BiLSTM, Transformer
from attnaudit.models.pooled_classifier import PooledClassifier, Query
from attnaudit.models.training import Trained, train
from attnaudit.models.training_job import Settings, TrainingData, TrainingJob
from attnaudit.models.training_variants import (
    as_adversary,
    context_free,
    with_imposed_attention,
    with_uniform_attention,
)
from attnaudit.models.vocabulary import UNKNOWN, Vocabulary, mentioned_classes
from attnaudit.progress import ProgressCallback
from attnaudit.registry import datasets
from attnaudit.retraining import Retraining


class ReferenceModel(PooledAttentionAdapter):
    """The adapter of a reference model.

    It can also train copies of the model, because some checks compare a model with retrained copies. Copies are trained
    on the CPU and stay in memory.

    Args:
        model: The model.
        vocabulary: The vocabulary of the model.
        classes: Class names, in the order of the logits.
        description: A description of the model for reports.
        training: How the model was trained, from the card of its checkpoint: the settings, and the names and hashes of
            the data. None if this is unknown; no copies can then be trained.
        guide: Another model whose attention weights replace the weights of this model; None for no replacement.
    """

    def __init__(
        self,
        model: PooledClassifier,
        vocabulary: Vocabulary,
        classes: tuple[str, ...],
        *,
        description: str = "",
        training: Mapping[str, Any] | None = None,
        guide: ReferenceModel | None = None,
    ) -> None:
        super().__init__(
            embedding=model.embedding,
            encoder=model.encoder,
            attention=model.attention,
            decoder=model.decoder if model.joint is None else model.decode,
            tokenize=vocabulary.encode,
            classes=classes,
            modules=(model,) if guide is None else (model, guide.model),
            query=None if model.query_encoder is None else model.encode_query,
            open_classes=partial(mentioned_classes, classes) if model.architecture.form == "question" else None,
            mask_id=UNKNOWN,
            description=description,
            family=f"pooled attention, {model.architecture.encoder} encoder",
            configuration=_configuration(model, vocabulary, guide),
            lstm=model.encoder.layer if isinstance(model.encoder, BiLSTM) and guide is None else None,
            reach=model.encoder.reach if guide is None else None,
            original=self._forward if guide is None else None,
        )
        self._capabilities = dataclasses.replace(self._capabilities, retrains=model.architecture.planted is None)
        self.model: PooledClassifier = model
        self.vocabulary, self.guide = vocabulary, guide
        self._training = training or {}
        self._copies: dict[Retraining, ReferenceModel] = {}

    def guided_by(self, guide: ReferenceModel) -> ReferenceModel:
        """Return an adapter of this model with the attention weights of `guide`. Both must have the same vocabulary."""
        return ReferenceModel(
            self.model, self.vocabulary, self.capabilities.classes, description=self.description, guide=guide
        )

    def _encode_text(self, embedded: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        if isinstance(self.model.encoder, Transformer):
            return self.model.encoder.with_unnormalised(embedded, mask)
        return super()._encode_text(embedded, mask)

    def run(
        self,
        inputs: Inputs,
        *,
        embeddings: Mapping[str, Tensor] | None = None,
        intervene: Intervention | None = None,
        hidden: bool = False,
    ) -> Trace:
        if self.guide is None:
            return super().run(inputs, embeddings=embeddings, intervene=intervene, hidden=hidden)
        imposed = self.guide.run(inputs).attention[SITE.key].detach()

        def impose(site: Site, _own_weights: Tensor, allowed: Tensor) -> Tensor:
            replaced = None if intervene is None else intervene(site, imposed, allowed)
            return imposed if replaced is None else replaced

        return super().run(inputs, embeddings=embeddings, intervene=impose, hidden=hidden)

    def _original_arguments(self, inputs: Inputs, row: int) -> tuple[Tensor, ...]:
        ids, *of_query = super()._original_arguments(inputs, row)
        special = inputs.special[TEXT][row : row + 1, inputs.mask[TEXT][row]]
        is_open = [inputs.extra[OPEN_CLASSES][row]] if OPEN_CLASSES in inputs.extra else []
        return (ids, special, *of_query, *is_open)

    def _forward(self, ids: Tensor, special: Tensor | None = None, *of_query: Tensor) -> Tensor:
        """Return the logits (1, C) of the model's forward pass, given the result of `_original_arguments`."""
        assert special is not None
        real = [torch.ones_like(one, dtype=torch.bool) for one in (ids, *of_query[:1])]
        is_open = of_query[1] if len(of_query) > 1 else None
        query = Query(ids=of_query[0], mask=real[1], open_classes=is_open) if of_query else None
        logits: Tensor = self.model(ids, real[0], special, query)
        return logits

    def retrain(self, retraining: Retraining, progress: ProgressCallback | None = None) -> ReferenceModel:
        """Train a copy of the model with the settings that the model was trained with.

        Args:
            retraining: How the training of the copy differs from the training of the model. If `retraining` names no
                data, the copy is trained on the data that the model's card names.
            progress: Called while the copy is trained; None for no calls.

        Returns:
            The copy. A second call with an equal `retraining` returns the same object.

        Raises:
            DataError: Neither `retraining` nor the card names the data, the data cannot be loaded or have changed since
                the model was trained, or the labels of the training data are not the model's classes.
            ModelError: The card does not contain the training settings, or the model cannot be retrained in this way,
                for example because its states are planted.
        """
        if retraining not in self._copies:
            self._copies[retraining] = self._train_copy(retraining, progress)
        return self._copies[retraining]

    def _train_copy(self, retraining: Retraining, progress: ProgressCallback | None) -> ReferenceModel:
        job = self._training_job(retraining, progress)
        guide = None
        if retraining.attention == "base":
            guide = self
        elif retraining.attention == "adversary" and retraining.encoder == "mlp":
            guide = self.retrain(dataclasses.replace(retraining, encoder="own"), progress)
        if guide is not None:
            job = with_imposed_attention(job, guide._model_on_cpu())
        elif retraining.attention == "adversary":
            job = as_adversary(
                job,
                self._model_on_cpu(),
                weight=retraining.weight,
                divergence=retraining.divergence,
                frozen=retraining.frozen,
            )
        elif retraining.attention == "uniform":
            job = with_uniform_attention(job)
        return self._as_adapter(train(job), guide)

    def _training_job(self, retraining: Retraining, progress: ProgressCallback | None) -> TrainingJob:
        """Return a job that trains the model again, with the seed, the encoder and the data of the retraining."""
        train_data, dev_data = (self._load_data(part, getattr(retraining, part)) for part in ("train", "dev"))
        architecture = self.model.architecture
        return TrainingJob(
            data=TrainingData(train=train_data, dev=dev_data),
            settings=self._settings(retraining),
            architecture=context_free(architecture) if retraining.encoder == "mlp" else architecture,
            vocabulary=self.vocabulary,
            progress=progress,
        )

    def _as_adapter(self, trained: Trained, guide: ReferenceModel | None) -> ReferenceModel:
        trained.model.imposed_attention = None  # the adapter imposes the guide's weights itself, on any device
        return ReferenceModel(trained.model, trained.vocabulary, trained.classes, guide=guide)

    def _model_on_cpu(self) -> PooledClassifier:
        return copy.deepcopy(self.model).cpu()

    def _settings(self, retraining: Retraining) -> Settings:
        try:
            settings = msgspec.convert(self._training["settings"], Settings)
        except (KeyError, msgspec.ValidationError) as error:
            raise ModelError(
                "The model's attnaudit.json does not contain the settings that it was trained with, so no copy of the "
                "model can be trained. Train the model with `attnaudit train`."
            ) from error
        if retraining.encoder == "mlp":
            settings = settings.without_context_losses
        return msgspec.structs.replace(settings, seed=settings.seed + retraining.seed)

    def _load_data(self, part: str, name: str) -> Dataset:
        """Load the "train" or "dev" data by name or path. If the name is "", load the data that the card names."""
        remedy = f'Pass {part}="..." to the check: a registered name, or a file with text and label.'
        data = load(name) if name else self._load_from_card(part, remedy)
        labels = {instance.label for instance in data.instances}
        if part == "train" and labels != set(self.capabilities.classes):
            raise DataError(
                f"{data.source}: its labels are {', '.join(sorted(map(repr, labels)))}; expected all of the model's "
                f"classes, {', '.join(map(repr, self.capabilities.classes))}, and a label on every row. Give other "
                "data to train on."
            )
        return data

    def _load_from_card(self, part: str, remedy: str) -> Dataset:
        """Load the data that the card names.

        Raises:
            DataError: The card names no data, or the data cannot be loaded or have changed. The message ends with
                `remedy`.
        """
        record = self._training.get("data", {}).get(part)
        if not record:
            raise DataError(f"The model's attnaudit.json does not name its {part} data. {remedy}")
        name = record["name"] if record["name"] in datasets else record["source"]
        try:
            data = load(name)
        except AuditError as error:
            raise DataError(
                f"The {part} data that the model was trained with cannot be loaded. {error} {remedy}"
            ) from error
        if data.sha256() != record["sha256"]:
            raise DataError(
                f"{name}: these are no longer the {part} rows that the model was trained with (their sha256 differs). "
                + remedy
            )
        return data


def _configuration(model: PooledClassifier, vocabulary: Vocabulary, guide: ReferenceModel | None) -> str:
    """Return the architectures and the vocabularies of a model and its guide as JSON."""
    content = {
        "architecture": model.architecture,
        "vocabulary": list(vocabulary.entries),
        "guide": None if guide is None else guide.configuration,
    }
    return msgspec.json.encode(content, order="sorted").decode()
