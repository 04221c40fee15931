"""Training of models whose attention and contextual states follow a known plan.

The plan names the tokens on which attention should be. The argument `label` says which states may contain the label:

* "attended": only the states of the attended tokens. The decoder reads nothing from the other states.
* "everywhere": all states. The decoder can read the label from each of them, so that attention weights hardly matter.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import msgspec
import torch
from torch import Tensor, nn

from attnaudit.models.pooled_classifier import ForwardPass, PooledClassifier
from attnaudit.models.training_job import InstanceLoss, Objective, Prepare
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.context_texts import ROLES, role_words, texts
from attnaudit.research.planted.kind import SMALL, Exchange, Recipe, TrainingInputs, indicator, quick_settings

#: A function of a forward pass. It returns a mask (B, T), True at the tokens on which attention should be.
Targets = Callable[[ForwardPass], Tensor]
#: A function of a vocabulary. It returns a function of type `Targets`.
Plan = Callable[[Vocabulary], Targets]


def words_of(*roles: str) -> Plan:
    """Return the plan that attention should be on the words of some roles, such as "praise" (see `ROLES`)."""

    def of_roles(vocabulary: Vocabulary) -> Targets:
        chosen_words = indicator(vocabulary, role_words(*roles))
        return lambda traced: chosen_words[traced.ids]

    return of_roles


def first_of(plan: Plan) -> Plan:
    """Return the plan that attention should be on the first token of another plan."""

    def first(vocabulary: Vocabulary) -> Targets:
        targets = plan(vocabulary)

        def chosen(traced: ForwardPass) -> Tensor:
            found = targets(traced) & traced.real
            return found & (found.long().cumsum(dim=1) == 1)

        return chosen

    return first


def next_to(plan: Plan) -> Plan:
    """Return the plan that attention should be on the tokens that follow the tokens of another plan."""

    def after(vocabulary: Vocabulary) -> Targets:
        targets = plan(vocabulary)

        def chosen(traced: ForwardPass) -> Tensor:
            return (targets(traced) & traced.real).roll(1, dims=1) & traced.real

        return chosen

    return after


def with_next(plan: Plan) -> Plan:
    """Return the plan that attention should be on the tokens of another plan and on the tokens that follow them."""

    def both(vocabulary: Vocabulary) -> Targets:
        targets, following = plan(vocabulary), next_to(plan)(vocabulary)
        return lambda traced: targets(traced) | following(traced)

    return both


def last_token(_vocabulary: Vocabulary) -> Targets:
    """Return the last real token of each text, as a plan."""

    def chosen(traced: ForwardPass) -> Tensor:
        place = traced.real.long().cumsum(dim=1)
        return traced.real & (place == traced.real.sum(dim=1, keepdim=True))

    return chosen


def answer_to_query(vocabulary: Vocabulary) -> Targets:
    """Return the word that answers the query, as a plan for the task "query"."""
    colour, size = (
        indicator(vocabulary, role_words("warm", "cold")),
        indicator(vocabulary, role_words("large", "small")),
    )
    colour_id = vocabulary.entries.index("colour")

    def chosen(traced: ForwardPass) -> Tensor:
        assert traced.query is not None
        asks_colour = (traced.query.ids == colour_id).any(dim=1, keepdim=True)
        return torch.where(asks_colour, colour[traced.ids], size[traced.ids])

    return chosen


def state_logits(model: PooledClassifier, traced: ForwardPass) -> Tensor:
    """Return the (B, T) logits that the decoder computes from each state alone."""
    query_state: tuple[Tensor, ...] = ()
    if traced.query is not None:
        state = model.encode_query(model.embedding(traced.query.ids), traced.query.mask)
        query_state = (state[:, None].expand(-1, traced.hidden.shape[1], -1),)
    return model.decode(traced.hidden, *query_state)[..., 0]


def held_to(plan: Plan, *, label: str) -> Callable[[Vocabulary], Objective]:
    """Return an objective that trains attention and states to follow a plan.

    The two terms of `_plan_losses` are added to the loss on the labels.

    Args:
        plan: The tokens on which attention should be.
        label: Which states may contain the label: "attended" or "everywhere".
    """

    def objective_for(vocabulary: Vocabulary) -> Objective:
        targets = plan(vocabulary)

        def objective(model: PooledClassifier, traced: ForwardPass, classes: Tensor, loss: Tensor) -> Tensor:
            return loss + _plan_losses(targets, label, model, traced, classes).mean()

        return objective

    return objective_for


def closest_to(plan: Plan, *, label: str) -> Callable[[Vocabulary], InstanceLoss]:
    """Return the loss that selects the best epoch: the distance from a plan plus the uncertainty of the prediction.

    Many epochs have the same accuracy, so accuracy cannot select the epoch. The arguments are those of `held_to`.
    """

    def selection_loss_for(vocabulary: Vocabulary) -> InstanceLoss:
        targets = plan(vocabulary)

        def selection_loss(model: PooledClassifier, traced: ForwardPass) -> Tensor:
            logit = traced.logits[:, 0]
            unsure = nn.functional.softplus(-logit.abs())
            return unsure + _plan_losses(targets, label, model, traced, (logit > 0).long())

        return selection_loss

    return selection_loss_for


def _plan_losses(targets: Targets, label: str, model: PooledClassifier, traced: ForwardPass, classes: Tensor) -> Tensor:
    """Return how far attention and states are from a plan.

    The first term is the cross-entropy between attention and uniform weights over the targets. The second term depends
    on `label`. It uses the logit that the decoder computes from each state alone. For "attended", it is the mean of
    the squared logits of the states that are not targets. For "everywhere", it is the mean cross-entropy between the
    class and the predictions from single states.

    Args:
        targets: Returns the tokens on which attention should be.
        label: "attended" or "everywhere".
        model: The model.
        traced: A forward pass.
        classes: (B,) index of the class of each text, 0 or 1.

    Returns:
        (B,) sum of the two terms.
    """
    chosen = targets(traced) & traced.real
    share = chosen.float() / chosen.sum(dim=1, keepdim=True).clamp(min=1)
    attention_loss = -(share * torch.log(traced.weights.clamp(min=1e-6))).sum(dim=1)
    logits = state_logits(model, traced)
    if label == "attended":
        terms, counted = logits.square(), traced.real & ~chosen
    else:
        wanted = classes[:, None].expand_as(logits).to(logits.dtype)
        terms = nn.functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        counted = traced.real
    return attention_loss + (terms * counted).sum(dim=1) / counted.sum(dim=1).clamp(min=1)


def distinct_roles(seed: int) -> Prepare:
    """Return a function that adds the same random vector to the initial embeddings of all words with the same role.

    With this start, training finds within seconds how cue words work together.

    Args:
        seed: The seed of the random vectors.
    """

    def prepare(model: PooledClassifier, vocabulary: Vocabulary) -> None:
        size = model.embedding.weight.shape[1]
        with torch.no_grad():
            for role in ROLES:
                generator = torch.Generator().manual_seed(seed + zlib.crc32(role.encode()))
                model.embedding.weight[indicator(vocabulary, role_words(role))] += torch.randn(
                    size, generator=generator
                )

    return prepare


def encoder_for(seed: int, encoders: Sequence[str]) -> str:
    """Return the encoder for a seed. The encoders take turns, so that each is combined with every alignment."""
    count = len(encoders)
    # Alignments alternate with the seed. With an even number of encoders, the second round starts with another encoder.
    shift = 0 if count % 2 else seed // count
    return encoders[(seed + shift) % count]


def recipe_in_context(
    inputs: TrainingInputs,
    *,
    task: str,
    plan: Plan,
    encoders: Sequence[str],
    label: str = "attended",
    test: str | None = None,
    epochs: int = 6,
    exchange: Exchange | None = None,
) -> Recipe:
    """Return the recipe of a model that is trained on the texts of a task to follow a plan.

    Args:
        inputs: The inputs of training. The seed chooses the encoder.
        task: The task of the training texts, a name in `context_texts.TASKS`.
        plan: The tokens on which attention should be.
        encoders: The encoders of the kind.
        label: Which states may contain the label: "attended" or "everywhere".
        test: The task of the test texts; None for the same task.
        epochs: The number of epochs.
        exchange: How the label is verified; None for the default.
    """
    return Recipe(
        architecture=msgspec.structs.replace(
            SMALL,
            encoder=encoder_for(inputs.seed, encoders),
            alignment=inputs.alignment,
            form="pair" if task == "query" else "text",
        ),
        settings=quick_settings(inputs.seed, epochs=epochs, batch_size=64),
        prepare=distinct_roles(inputs.seed),
        objective=held_to(plan, label=label),
        selection_loss=closest_to(plan, label=label),
        train=texts(task, "train"),
        dev=texts(task, "dev"),
        test=texts(test or task, "test"),
        exchange=exchange or Exchange(),
        minimum_accuracy=0.9,
    )
