"""Planted language models that answer from passages.

The models are compiled circuits (see `source_circuits`) with the output layer of a language model. The logit of the
name of a class is the logit that a classifier with this circuit has for the class. The answer of a row is such a name.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.huggingface.transformer_adapter import HuggingFaceAdapter
from attnaudit.instances import Dataset, Instance
from attnaudit.research.planted_transformers.circuit_parts import CircuitPlan, LabelledReading
from attnaudit.research.planted_transformers.circuit_texts import CLASS_NAMES, DECOYS
from attnaudit.research.planted_transformers.compile_weights import compile_model
from attnaudit.research.planted_transformers.compiled_circuits import Variant
from attnaudit.research.planted_transformers.source_circuits import (
    CIRCUITS_OF_SOURCES,
    FILLERS,
    QUESTION,
    SourceFamily,
    SourceRow,
    source_rows,
)
from attnaudit.research.validation.population_schema import Half
from attnaudit.targets import Target

#: The circuit reads its output from [SEP], so the prompt ends with it.
TEMPLATE = "{passages}{text} [SEP] {answer}"
#: The number of rows of each model.
ROWS = 40
#: Standard deviation of the output weights of all other words. It lets gradients reach every head.
LM_NOISE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan(CircuitPlan):
    """One language model to build."""

    family: SourceFamily


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedSources:
    """A planted language model with its rows.

    Attributes:
        plan: The plan.
        model: The model.
        tokenizer: Its tokenizer.
        classes: The names of the classes, which are the possible answers.
        rows: The rows.
        readings: The readings whose truth is known by construction.
    """

    plan: SourcePlan
    model: Any
    tokenizer: Any
    classes: tuple[str, ...]
    rows: tuple[SourceRow, ...]
    readings: tuple[LabelledReading, ...]

    @property
    def dataset(self) -> Dataset:
        """The rows, as a data set to audit."""
        instances = tuple(
            Instance(
                id=f"{number:04}", text=row.question, answer=self.classes[row.label], passages=row.passages
            )
            for number, row in enumerate(self.rows)
        )  # fmt: skip
        return Dataset(name=self.plan.name, source="planted", description="", instances=instances)

    def adapter(self) -> HuggingFaceAdapter:
        """Return the adapter of the model."""
        adapter = transformer(self.model, self.tokenizer, template=TEMPLATE, target=Target(kind="string"))
        assert isinstance(adapter, HuggingFaceAdapter)
        return adapter


def source_plans(half: Half, seeds: Sequence[int]) -> list[SourcePlan]:
    """Return the models of one half. The held-out half has the mechanisms of the tuning half, too, with other seeds."""
    return [
        SourcePlan(mechanism=circuit.mechanism, family=family, seed=seed, parameter=float(parameter))
        for circuit in CIRCUITS_OF_SOURCES
        if half == "held_out" or circuit.half == "tuning"
        for seed in seeds
        for family in circuit.families
        for parameter in circuit.parameters
    ]


def build_sources(plan: SourcePlan) -> PlantedSources:
    """Build the model of a plan, and its rows."""
    generator = random.Random(f"{plan.mechanism} {plan.family} {plan.seed} sources")
    circuit = next(one for one in CIRCUITS_OF_SOURCES if one.mechanism == plan.mechanism)
    heads = circuit.heads or generator.choice((2, 4))
    variant = Variant(
        family=plan.family,
        layers=generator.randint(circuit.least_layers, 4),
        heads=heads,
        classes=generator.choice((2, 3)),
        sharpness=generator.choice((5.0, 8.0, 12.0)),
        logit_scale=generator.choice((4.0, 8.0)),
        reviews=False,
        head=generator.randrange(heads),
        idle=generator.choice(("decoy", "sink", "uniform")),
    )
    design = circuit.design(variant, plan.parameter)
    classes = CLASS_NAMES[: variant.classes]
    tokenizer = _tokenizer([*design.lexicon, *classes])
    classifier = compile_model(design, plan.family, tokenizer, classes=classes, seed=plan.seed)
    rows = source_rows(
        circuit.rows,
        classes=variant.classes,
        count=ROWS,
        passages=generator.choice((4, 5)),
        marked=design.marker_share,
        generator=generator,
    )
    return PlantedSources(
        plan=plan,
        model=_as_language_model(classifier, tokenizer, classes),
        tokenizer=tokenizer,
        classes=classes,
        rows=tuple(rows),
        readings=design.readings,
    )


def reading_text(reading: LabelledReading) -> str:
    """Return the text form of a reading: the attention from which the answer is predicted."""
    return f"target@layer={reading.layer},heads={reading.heads}"


def _tokenizer(roles: Sequence[str]) -> Any:
    """Return a word-level tokenizer that puts [CLS] before and [SEP] after a prompt.

    Its vocabulary is small, so that random prompts contain words with a role.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = dict.fromkeys([*roles, *DECOYS, *"abcdefghi", QUESTION, *" ".join(FILLERS).split()])
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words]
    ids = {word: number for number, word in enumerate(entries)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=64,
        pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
    )  # fmt: skip


def _as_language_model(classifier: Any, tokenizer: Any, names: Sequence[str]) -> Any:
    """Return a language model. The logit of a class name is that of the class. All other logits are small."""
    import transformers

    config = classifier.config
    config.tie_word_embeddings = False
    is_gpt2 = config.model_type == "gpt2"
    model = (transformers.GPT2LMHeadModel if is_gpt2 else transformers.LlamaForCausalLM)(config)
    model.base_model.load_state_dict(classifier.base_model.state_dict())
    ids = tokenizer.convert_tokens_to_ids(list(names))
    with torch.no_grad():
        model.lm_head.weight.normal_(std=LM_NOISE)
        model.lm_head.weight[ids] = classifier.score.weight
    return model.eval()
