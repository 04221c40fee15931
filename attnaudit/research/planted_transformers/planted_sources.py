"""Planted language models that answer from passages. One passage determines the answer.

The models are the compiled circuits of causal classifiers (see `compiled_circuits`), with the output layer of a
language model. Its logit for the name of a class is the logit that the classifier has for this class. In every prompt,
one passage has cue words of a class. The others have decoys and words that decide nothing. The circuit moves the
evidence of the cue words, so the answer depends on the passage with the cue words alone. A reading is faithful if its
head moves the evidence. It is unfaithful if the head looks at other words, or if it looks at the cue words but moves
nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from attnaudit.instances import Instance
from attnaudit.research.planted_transformers.circuit_parts import LabelledReading
from attnaudit.research.planted_transformers.circuit_texts import CLASS_NAMES, CLASS_WORDS, DECOYS
from attnaudit.research.planted_transformers.compile_weights import compile_model
from attnaudit.research.planted_transformers.compiled_circuits import CIRCUITS, Variant

#: The circuits that have both faithful and unfaithful readings in causal models.
MECHANISMS = ("last_layer", "middle_layer", "first_layer", "bag_of_words", "looks_without_moving")
#: The circuit reads its output from [SEP], so the prompt ends with it.
TEMPLATE = "{passages}{text} [SEP] {answer}"
LOGIT_SCALE = 8.0
#: Standard deviation of the output weights of all other words. It lets gradients reach every head.
LM_NOISE = 0.1
FILLERS = (
    "the film was shown on a rainy evening", "many people came to the theater", "there is a story about a family",
    "we saw it in the city last year", "it runs for two hours and a half", "a man and a woman meet in a town",
    "some of the actors are from other films", "the second part is set at sea",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceModel:
    """A planted language model.

    Attributes:
        name: The mechanism, the family and the seed.
        model: The model.
        tokenizer: Its tokenizer.
        rows: Rows with passages and answers.
        deciding: The index of the passage that decides, for each row.
        readings: The readings whose truth is known.
    """

    name: str
    model: Any
    tokenizer: Any
    rows: tuple[Instance, ...]
    deciding: tuple[int, ...]
    readings: tuple[LabelledReading, ...]


def source_model(
    mechanism: str, family: Literal["gpt2", "llama"], seed: int, *, count: int = 60, passages: int = 4
) -> SourceModel:
    """Build a planted language model and rows for it.

    Args:
        mechanism: One of MECHANISMS.
        family: The family.
        seed: The seed of the weights, of the rows and of the details of the circuit.
        count: The number of rows.
        passages: The number of passages of each row.
    """
    generator = random.Random(f"{mechanism} {family} {seed}")
    circuit = next(one for one in CIRCUITS if one.mechanism == mechanism)
    heads = generator.choice((2, 4))
    variant = Variant(
        family=family,
        layers=generator.randint(3, 4),
        heads=heads,
        classes=generator.choice((2, 3)),
        sharpness=generator.choice((5.0, 8.0)),
        logit_scale=LOGIT_SCALE,
        reviews=False,
        head=generator.randrange(heads),
        idle="decoy",
    )
    design = circuit.design(variant, 0.0)
    names = CLASS_NAMES[: variant.classes]
    tokenizer = _tokenizer([*design.lexicon, *names])
    classifier = compile_model(design, family, tokenizer, classes=names, seed=seed)
    rows, deciding = _rows(generator, variant.classes, count, passages)
    return SourceModel(
        name=f"{mechanism} {family} {seed}",
        model=_as_language_model(classifier, tokenizer, names),
        tokenizer=tokenizer,
        rows=rows,
        deciding=deciding,
        readings=design.readings,
    )


def _tokenizer(roles: Sequence[str]) -> Any:
    """Return a word-level tokenizer that puts [CLS] before and [SEP] after a prompt.

    Its vocabulary is small, so that random prompts contain words with a role.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = dict.fromkeys([*roles, *DECOYS, *"abcdefghi", "opinion", *" ".join(FILLERS).split()])
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


def _rows(
    generator: random.Random, classes: int, count: int, passages: int
) -> tuple[tuple[Instance, ...], tuple[int, ...]]:
    rows, deciding = [], []
    for number in range(count):
        label = number % classes
        place = generator.randrange(passages)
        texts = []
        for index, filler in enumerate(generator.sample(FILLERS, passages)):
            words = filler.split()
            inserted = [generator.choice(DECOYS)]
            if index == place:
                inserted = generator.sample(CLASS_WORDS[label], generator.randint(1, 2))
            for word in inserted:
                words.insert(generator.randint(1, len(words) - 1), word)
            texts.append(" ".join(words))
        rows.append(Instance(id=f"{number:04}", text="opinion", answer=CLASS_NAMES[label], passages=tuple(texts)))
        deciding.append(place)
    return tuple(rows), tuple(deciding)


def verify(model: SourceModel) -> str:
    """Return why the answers do not depend on the deciding passages alone; "" if they do.

    On every row, removing the deciding passage must lower the logit of the answer most. Removing any other passage must
    lower it by less than 30% of this amount. (The answer may become more probable without another passage, if the
    attention then has fewer words to look at.)
    """
    from attnaudit.adapters.huggingface import transformer
    from attnaudit.adapters.protocol import TEXT
    from attnaudit.targets import Target

    adapter = transformer(model.model, model.tokenizer, template=TEMPLATE, target=Target(kind="string"))
    inputs = adapter.collate(model.rows)
    count = len(model.rows[0].passages)
    with torch.no_grad():
        whole = adapter.run(inputs).logits[:, 0]
        everyone = torch.arange(len(model.rows))
        kept = [inputs.passages[TEXT] != i for i in range(count)]
        without = torch.stack(
            [adapter.run(adapter.keep(inputs, TEXT, everyone, keep)).logits[:, 0] for keep in kept], dim=1
        )
    loss = whole[:, None] - without
    right = loss.argmax(1) == torch.tensor(model.deciding)
    if not bool(right.all()):
        return f"on {int((~right).sum())} of {len(right)} rows, another passage has the largest effect"
    others = loss.scatter(1, torch.tensor(model.deciding)[:, None], 0.0).amax(1)
    own = loss.amax(1)
    return "" if bool((others < 0.3 * own).all()) else "another passage has more than 30% of the largest effect"
