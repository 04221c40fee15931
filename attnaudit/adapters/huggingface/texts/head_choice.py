"""Choose the output head, the template and the order of the texts for the task and the target of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnaudit.adapters.huggingface.checkpoints import language_model_settings
from attnaudit.adapters.huggingface.checkpoints.names_of_classes import names_of_classes
from attnaudit.adapters.huggingface.outputs.output_heads import ClassifierHead, Head, NextTokenHead, label_token_ids
from attnaudit.adapters.huggingface.outputs.target_heads import OneLogitHead, SpanHead, StringHead, TagHead
from attnaudit.adapters.huggingface.texts.prompt_templates import check_template
from attnaudit.adapters.huggingface.wrapped_models import name_of
from attnaudit.errors import ModelError, nearest
from attnaudit.targets import FILE, PAGE, Kind, Target

#: Task -> the kinds of targets that models of this task have. The first one is the default.
TARGETS: Mapping[str, tuple[Kind, ...]] = {
    "classifier": ("class", "label", "score"),
    "tagger": ("tag",),
    "extractor": ("span",),
    "causal": ("class", "string"),
    "encoder-decoder": ("class", "string"),
    "masked": ("string",),
}


#: Task -> its name in messages, if it has another one.
TASK_NAMES = {"extractor": "model that finds the answer to a question in a text"}


def head_for(
    model: Any,
    tokenizer: Any,
    task: str,
    target: Target | None,
    *,
    labels: Mapping[str, str] | None,
    template: str | None,
    where: object,
    classes: Sequence[str] | None,
) -> Head:
    """Choose the output head for the task of a model.

    Args:
        model: A Transformers model.
        tokenizer: Its tokenizer.
        task: Its task (see `checkpoint_files.task_of`).
        target: What is explained; None for the default of the task.
        labels: As in `transformer`.
        template: As in `transformer`.
        where: The folder or the name of the model, for messages.
        classes: As in `transformer`.

    Raises:
        ModelError: The target, the labels, the template or the class names do not fit the model.
    """
    kinds, name = TARGETS[task], name_of(model)
    if target is None:
        target = Target(kind=kinds[0])
    if target.kind not in kinds:
        raise ModelError(
            f"{where}: target: {name} has no target of kind '{target.kind}'. Expected {' or '.join(map(repr, kinds))}. "
            f"See {PAGE}."
        )
    language_model = task in ("causal", "encoder-decoder", "masked")
    if not language_model and (labels is not None or template is not None):
        raise ModelError(
            f"{where}: labels and template are for language models, but {name} is a {TASK_NAMES.get(task, task)}. Its "
            "classes come from id2label in config.json. Remove labels and template."
        )
    if labels is not None and target.kind == "string":
        raise ModelError(
            f"{where}: labels are the words that stand for classes, but the target is the probability of a string. "
            "Remove either labels or the target."
        )
    if target.at_tokens and model.config.is_encoder_decoder:
        raise ModelError(
            f"{where}: {name} has an encoder and a decoder, but a target of kind '{target.kind}' can be audited only "
            "for models with a single stack of layers."
        )
    if target.kind == "string":
        return StringHead(target, task)
    if task in ("causal", "encoder-decoder"):
        if not labels:
            raise ModelError(
                f"{where}: {name} is a language model, so the audit reads its prediction from the next word. Give the "
                "word that stands for each class: pass labels if the model is in memory, or write a file "
                f"{FILE} in the checkpoint folder, such as the following. To explain the "
                f"probability of a string instead, see {PAGE}#a-string.",
                lines=language_model_settings.EXAMPLE,
            )
        return NextTokenHead(label_token_ids(tokenizer, labels))
    if target.kind == "span":
        return SpanHead(target)
    names = _names(model, classes, target, where)
    if target.kind == "tag":
        return TagHead(target, names)
    if target.kind in ("label", "score"):
        return OneLogitHead(target, names, _index(model, names, target, where))
    # A function for the logits with the names of its classes says what a module returns. The configuration describes
    # only the Transformers model inside this module.
    if classes is None or getattr(model, "read_logits", None) is None:
        _require_one_class_per_text(model, where)
    return ClassifierHead(names)


def template_for(task: str, target: Target, template: str | None) -> str | None:
    """Return the template of a language model; None for other models. The default depends on the target.

    Raises:
        ModelError: The template is invalid.
    """
    if task not in ("causal", "encoder-decoder", "masked"):
        return None
    string = target.kind == "string"
    if template is None:
        template = "{text} {answer}" if string and task == "causal" else "{text}"
    check_template(template, answer={"causal": "last", "masked": "any"}.get(task, "none") if string else "none")
    return template


def query_order(target: Target, query_first: bool | None) -> bool | None:
    """Return whether the query is the first text of a pair. For a score without `query_first`, return None."""
    if query_first is not None or target.kind == "score":
        return query_first
    return target.kind == "span"


def _names(model: Any, classes: Sequence[str] | None, target: Target, where: object) -> tuple[str, ...]:
    """Return the names of the outputs of a classifier or tagger.

    Raises:
        ModelError: The names are invalid or not unique.
    """
    if classes is not None:
        fewest = 1 if target.kind in ("label", "score") else 2
        if len(classes) < fewest or len(set(classes)) != len(classes) or not all(isinstance(c, str) for c in classes):
            expected = "at least two different names" if fewest == 2 else "different names"
            raise ModelError(f"{where}: classes is {classes!r}; expected {expected}.")
        return tuple(classes)
    return names_of_classes(model.config, where)


def _index(model: Any, names: Sequence[str], target: Target, where: object) -> int:
    """Return the index of the output that a target names.

    Raises:
        ModelError: The model has no such output, or it does not assign several labels.
    """
    if target.kind == "label" and getattr(model.config, "problem_type", None) == "single_label_classification":
        raise ModelError(
            f"{where}: target: a target of kind 'label' is for models that assign any number of labels to a text, but "
            "this model assigns one class (problem_type single_label_classification). Remove the target."
        )
    if target.name in names:
        return list(names).index(target.name)
    if target.kind == "score" and not target.name and len(names) == 1:
        return 0
    if target.kind == "score" and not target.name:
        raise ModelError(f"{where}: target: the model has the scores {', '.join(names)}. Name one, as in name = '...'.")
    raise ModelError(
        f"{where}: target: the model has no output '{target.name}'; its outputs are {', '.join(names[:12])}"
        f"{', ...' if len(names) > 12 else ''}. {nearest(target.name, names)}"
    )


def _require_one_class_per_text(model: Any, where: object) -> None:
    """Check that a classifier assigns one of at least two classes to a text.

    Raises:
        ModelError: It does not, so its target must be declared.
    """
    config = model.config
    problem = getattr(config, "problem_type", None)
    if problem not in ("multi_label_classification", "regression") and config.num_labels >= 2:
        return
    label = problem == "multi_label_classification"
    what = "assigns any number of labels to a text" if label else "gives a score"
    example = ('kind = "label"', 'labels = ["..."]') if label else ('kind = "score"', "threshold = 0.5")
    raise ModelError(
        f"{where}: the model {what} ({config.num_labels} outputs, problem_type {problem}), but an audit explains one "
        f"output. Name the output to explain in {FILE} in the checkpoint folder, or pass target to transformer(). See "
        f"{PAGE}#{'a-label' if label else 'a-score'}. For example:",
        lines=("[target]", *example),
    )
