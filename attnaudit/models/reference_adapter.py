"""A reference model as an adapter that can train it anew."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from torch import Tensor

from attnaudit.adapters.pooled.pooled_adapter import SITE, PooledAttentionAdapter
from attnaudit.adapters.protocol import Inputs, Intervention, Site, Trace
from attnaudit.data import load
from attnaudit.errors import AuditError, DataError, ModelError
from attnaudit.instances import Dataset
from attnaudit.models.encoders import BiLSTM
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.retrainer import context_free, train_imposed, train_twin, train_uniform
from attnaudit.models.training import Settings, Trained, train
from attnaudit.models.vocabulary import UNKNOWN, Vocabulary, open_classes
from attnaudit.progress import ProgressCallback
from attnaudit.registry import datasets
from attnaudit.retraining import Retraining


class ReferenceModel(PooledAttentionAdapter):
    """model, its vocabulary and its classes. training: how it came about, as the card of its checkpoint says: settings,
    and names and hashes of the data, by which it can be trained anew. Copies are trained on the CPU and kept in memory.
    guide: the model whose weights stand in place of this one's."""

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
            decoder=model.decoder if model.joint is None else model.decide,
            tokenize=vocabulary.encode,
            classes=classes,
            modules=(model,) if guide is None else (model, guide.model),
            query=None if model.query_encoder is None else model.ask,
            open_classes=partial(open_classes, classes) if model.architecture.form == "question" else None,
            mask_id=UNKNOWN,
            description=description,
            family=f"pooled attention, {model.architecture.encoder} encoder",
            lstm=model.encoder.layer if isinstance(model.encoder, BiLSTM) and guide is None else None,
            reach=model.encoder.reach if guide is None else None,
        )
        self._capabilities = dataclasses.replace(self._capabilities, retrains=model.architecture.planted is None)
        self.model: PooledClassifier = model
        self.vocabulary, self.guide = vocabulary, guide
        self._training = training or {}
        self._copies: dict[Retraining, ReferenceModel] = {}

    def guided_by(self, guide: ReferenceModel) -> ReferenceModel:
        """The same model with the weights of `guide`, which reads the same vocabulary, in place of its own."""
        return ReferenceModel(
            self.model, self.vocabulary, self.capabilities.classes, description=self.description, guide=guide
        )

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

        def guided(site: Site, _own: Tensor, allowed: Tensor) -> Tensor:
            replaced = None if intervene is None else intervene(site, imposed, allowed)
            return imposed if replaced is None else replaced

        return super().run(inputs, embeddings=embeddings, intervene=guided, hidden=hidden)

    def retrain(self, retraining: Retraining, progress: ProgressCallback | None = None) -> ReferenceModel:
        """The copy, trained with the model's own settings on the data that its card names, or that `retraining` does.

        Raises DataError where the card names none, they cannot be loaded by that name, or their rows have changed;
        ModelError for a model whose states are planted.
        """
        if retraining not in self._copies:
            self._copies[retraining] = self._trained(retraining, progress)
        return self._copies[retraining]

    def _trained(self, retraining: Retraining, progress: ProgressCallback | None) -> ReferenceModel:
        training, dev = (self._data(part, getattr(retraining, part)) for part in ("train", "dev"))
        settings, architecture = self._settings(retraining), self.model.architecture
        if retraining.encoder == "mlp":
            architecture = context_free(architecture)
        guide = None
        if retraining.attention == "base":
            guide = self
        elif retraining.attention == "adversary" and retraining.encoder == "mlp":
            guide = self.retrain(dataclasses.replace(retraining, encoder="own"), progress)
        if guide is not None:
            made = train_imposed(
                guide._on_cpu(),
                training,
                dev,
                architecture=architecture,
                settings=settings,
                vocabulary=self.vocabulary,
                progress=progress,
            )
        elif retraining.attention == "adversary":
            made = train_twin(
                self._on_cpu(),
                training,
                dev,
                weight=retraining.weight,
                divergence=retraining.divergence,
                frozen=retraining.frozen,
                settings=settings,
                vocabulary=self.vocabulary,
                progress=progress,
            )
        else:
            made = (train_uniform if retraining.attention == "uniform" else train)(
                training,
                dev,
                architecture=architecture,
                settings=settings,
                vocabulary=self.vocabulary,
                progress=progress,
            )
        return self._as_adapter(made, guide)

    def _as_adapter(self, made: Trained, guide: ReferenceModel | None) -> ReferenceModel:
        made.model.imposed = None  # the adapter puts the guide's weights in place itself, on any device
        return ReferenceModel(made.model, made.vocabulary, made.classes, guide=guide)

    def _on_cpu(self) -> PooledClassifier:
        return copy.deepcopy(self.model).cpu()

    def _settings(self, retraining: Retraining) -> Settings:
        try:
            own = msgspec.convert(self._training["settings"], Settings)
        except (KeyError, msgspec.ValidationError) as error:
            raise ModelError(
                "The model's card does not say with which settings it was trained, so that no copy can be. Train the "
                "model with `attnaudit train`."
            ) from error
        # What is added to the loss for the sake of the states has no place in a model without context.
        changes = {"tying": 0.0, "mlm": 0.0} if retraining.encoder == "mlp" else {}
        return msgspec.structs.replace(own, seed=own.seed + retraining.seed, **changes)

    def _data(self, part: str, given: str) -> Dataset:
        mend = f'Give the check {part}="...": a registered name, or a file with text and label.'
        found = load(given) if given else self._recorded(part, mend)
        labels = {one.label for one in found.instances}
        if part == "train" and labels != set(self.capabilities.classes):
            raise DataError(
                f"{found.source}: its labels are {', '.join(sorted(map(repr, labels)))}; expected the model's classes "
                f"{', '.join(map(repr, self.capabilities.classes))} on every row. Give other data to train on."
            )
        return found

    def _recorded(self, part: str, mend: str) -> Dataset:
        """The data that the card names. Raises DataError, with the mend."""
        said = self._training.get("data", {}).get(part)
        if not said:
            raise DataError(f"The model's card does not name the data that it was trained with ({part}). {mend}")
        name = said["name"] if said["name"] in datasets else said["source"]
        try:
            found = load(name)
        except AuditError as error:
            raise DataError(f"The data that the model was trained with ({part}): {error} {mend}") from error
        if found.sha256() != said["sha256"]:
            raise DataError(
                f"{name}: these are no longer the rows that the model was trained with ({part}; sha256 differs). {mend}"
            )
        return found
