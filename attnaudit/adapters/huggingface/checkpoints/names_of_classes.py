"""Read the names of the classes from the configuration of a model."""

from __future__ import annotations

from typing import Any

from attnaudit.errors import ModelError


def names_of_classes(config: Any, where: object) -> tuple[str, ...]:
    """Return the name of each output of a model, from `id2label` in its configuration.

    Args:
        config: The configuration, with `num_labels` and `id2label`.
        where: The model, for messages.

    Raises:
        ModelError: `id2label` does not number the outputs from 0, gives two of them the same name, or contradicts
            `label2id`.
    """
    given = {int(number): str(name) for number, name in config.id2label.items()}
    if sorted(given) != list(range(config.num_labels)):
        raise ModelError(
            f"{where}: id2label in config.json has the numbers {', '.join(map(str, sorted(given)))}. Number the "
            f"{config.num_labels} classes from 0 to {config.num_labels - 1}, in the order of the outputs."
        )
    names = [given[number] for number in range(config.num_labels)]
    if len(set(names)) != len(names):
        raise ModelError(f"{where}: id2label in config.json is {names}. Give every class a different name.")
    numbers = getattr(config, "label2id", None) or {}
    for number, name in enumerate(names):
        other = numbers.get(name, number)
        if str(other) != str(number):
            raise ModelError(
                f"{where}: config.json contradicts itself: '{name}' is class {number} in id2label, and class {other} "
                "in label2id. Correct the wrong one."
            )
    return tuple(names)
