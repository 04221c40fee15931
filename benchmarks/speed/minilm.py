"""Time the engine on a BERT with the sizes of MiniLM, in comparison with plain Transformers and with Captum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnaudit.engine.shard_measuring import BATCH_TOKENS_OF_HEADS
from benchmarks.speed import device
from benchmarks.speed.pooled import audited, passes_of, rows_apart, substitutions
from benchmarks.speed.ranks import largest_difference
from benchmarks.speed.subjects import Subject, in_order, long_texts, minilm, minilm_as_it_ships, short_texts
from benchmarks.speed.timing import Comparison

#: The number of texts in a batch on a CPU and on a GPU.
BATCH, BATCH_ON_GPU = 16, 64
NAME, SHORT, GRADIENT = "MiniLM size", "n≈20", "gradient.meister.inputs"
#: The number of texts of about 124 and 1,024 tokens on a GPU, relative to that on a CPU. Several shards are measured.
MORE, MORE_LONG = 128, 384
#: The number of positions of models that read texts of about 1,024 tokens.
LONGEST = 2048
Rows = list[NDArray[np.float64]]


def batch_size() -> int:
    """Return the number of texts in a batch."""
    return BATCH_ON_GPU if device.on_gpu() else BATCH


class Rival:
    """The unmodified Transformers model with sdpa attention, and the loops that a user would write for it.

    Args:
        made: The model and its tokenizer.
        causal: Whether the logits are read from the last token. Batches are then padded on the left. Transformers finds
            the last token of a row by its id, but a gradient is taken at embeddings, which have no ids.
    """

    def __init__(self, made: tuple[Any, Any] | None = None, *, causal: bool = False) -> None:
        model, self.tokenizer = made or minilm_as_it_ships()
        self.model = model.to(device.name())
        self.causal = causal
        self.words = self.model.get_input_embeddings()
        self.passes: Counter[str] = Counter()

    def reader(self, subject: Subject) -> Callable[[], list[list[int]]]:
        """Return a function that tokenises the texts of a subject. The loops start with it, as a user's would."""
        texts = [one.text for one in in_order(subject.data)]

        def read() -> list[list[int]]:
            ids: list[list[int]] = self.tokenizer(texts)["input_ids"]
            return ids

        return read

    def probability(self, **given: Tensor) -> Tensor:
        self.passes["forward"] += 1
        self.passes["forward_rows"] += len(next(iter(given.values())))
        return torch.softmax(self.model(**given).logits, -1)

    def batches(self, texts: list[list[int]]) -> Iterator[tuple[list[int], Tensor, dict[str, Tensor]]]:
        """Yield batches of texts of similar length.

        Yields:
            The positions of the texts in `texts`, their (B, T) token ids, and the other arguments of the model.
        """
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        size = batch_size()
        for start in range(0, len(order), size):
            places = order[start : start + size]
            width = len(texts[places[-1]])
            ids, mask = torch.zeros(len(places), width, dtype=torch.long), torch.zeros(len(places), width)
            for row, i in enumerate(places):
                ids[row, self.tokens(texts[i], width)] = torch.tensor(texts[i])
                mask[row, self.tokens(texts[i], width)] = 1
            others = {"attention_mask": mask.long()}
            if self.causal:
                others["position_ids"] = (mask.long().cumsum(1) - 1).clamp_min(0)
            yield places, device.there(ids), {key: device.there(value) for key, value in others.items()}

    def tokens(self, text: list[int], width: int) -> slice:
        """Return the positions of a text in a row of the given width."""
        return slice(width - len(text), width) if self.causal else slice(0, len(text))

    @torch.no_grad()
    def forward(self, texts: list[list[int]]) -> NDArray[np.float64]:
        found = np.empty(len(texts))
        for places, ids, others in self.batches(texts):
            found[places] = self.probability(input_ids=ids, **others)[:, 1].double().cpu().numpy()
        return found

    def saliency(self, texts: list[list[int]]) -> Rows:
        from captum.attr import Saliency

        def run(embedded: Tensor, *others: Tensor) -> Tensor:
            names = ("attention_mask", "position_ids")
            return self.probability(inputs_embeds=embedded, **dict(zip(names, others, strict=False)))[:, 1]

        method, found = Saliency(run), [np.empty(0)] * len(texts)
        for places, ids, others in self.batches(texts):
            self.passes["backward"] += 1
            embedded = self.words(ids).requires_grad_()
            more = tuple(others.values())
            norms = method.attribute(embedded, abs=False, additional_forward_args=more).double().norm(dim=-1).cpu()
            for row, i in enumerate(places):
                kept = norms[row, self.tokens(texts[i], ids.shape[1])][1:-1].detach()
                found[i] = (kept / kept.sum()).numpy()
        return found

    @torch.no_grad()
    def leave_one_out(self, texts: list[list[int]]) -> Rows:
        found = []
        for ids in texts:
            full = device.there(torch.tensor([ids]))
            clean = self.probability(input_ids=full)[:, 1].double()
            changed = [
                self.probability(input_ids=torch.cat([full[:, :i], full[:, i + 1 :]], 1))[:, 1]
                for i in range(1, len(ids) - 1)
            ]
            found.append((torch.cat(changed).double() - clean).abs().cpu().numpy())
        return found

    @torch.no_grad()
    def ablation(self, texts: list[list[int]]) -> Rows:
        from captum.attr import FeatureAblation

        method = FeatureAblation(lambda ids: self.probability(input_ids=ids)[:, 1])
        found = []
        for ids in texts:
            features = device.there(torch.arange(len(ids))[None].clone())
            features[:, -1] = 0
            changed = method.attribute(
                device.there(torch.tensor([ids])),
                baselines=self.tokenizer.mask_token_id,
                feature_mask=features,
                perturbations_per_eval=batch_size(),
            )
            found.append(changed[0, 1:-1].double().cpu().numpy())
        return found

    def influence(self, texts: list[list[int]]) -> Rows:
        """Return the mean normalised entropy of the influence of tokens on hidden states, as (1,) per text.

        The mean is over the hidden states that the last layer reads. Each of them takes one backward pass.
        """
        found = []
        for ids in texts:
            self.passes["forward"] += 1
            embedded = self.words(device.there(torch.tensor([ids]))).requires_grad_()
            states = self.model(inputs_embeds=embedded, output_hidden_states=True).hidden_states[-2][0]
            rows = []
            for p in range(1, len(ids) - 1):
                self.passes["backward"] += 1
                (slope,) = torch.autograd.grad(states[p].norm(), embedded, retain_graph=True)
                rows.append(slope[0, 1:-1].norm(dim=-1))
            norms = torch.stack(rows).double()
            shares = norms / norms.sum(-1, keepdim=True)
            found.append((-torch.special.xlogy(shares, shares).sum(-1).mean(0, keepdim=True)) / np.log(len(rows)))
        return [one.cpu().numpy() for one in found]


def comparisons(quick: bool) -> Iterator[Comparison]:
    """Yield the comparisons of this module. If `quick` is True, they use fewer instances."""
    rival = Rival()
    short = short_texts(8 if quick else 64 * device.times(32))
    yield from passes(NAME, rival, minilm(SHORT, short))
    yield from _of(rival, minilm(SHORT, short_texts(3 if quick else 8 * device.times(4))))
    if not quick:
        yield from passes(NAME, rival, minilm("n≈124", long_texts(8 * device.times(MORE))))
        yield from _of(rival, minilm("n≈124", long_texts(device.times(4))))
        longer = Rival(minilm_as_it_ships(max_position_embeddings=LONGEST))
        subject = minilm("n≈1,024", long_texts(2 * device.times(MORE_LONG), 1024), max_position_embeddings=LONGEST)
        yield from passes(NAME, longer, subject)


def passes(model: str, rival: Rival, subject: Subject) -> Iterator[Comparison]:
    """Yield the comparisons of one forward pass and of one gradient.

    Args:
        model: The name of the model in the table.
        rival: The unmodified model.
        subject: The model behind an adapter, and the texts.
    """
    texts = rival.reader(subject)
    yield _comparison(
        model,
        rival,
        subject,
        "forward pass",
        f"Transformers with sdpa, batches of {batch_size()}",
        (),
        lambda: rival.forward(texts()),
        lambda ours, found: largest_difference(np.stack(ours[0].vectors["probabilities"])[:, 1], found),
    )
    yield _comparison(
        model,
        rival,
        subject,
        "gradient",
        f"Captum Saliency, batches of {batch_size()}",
        (GRADIENT,),
        lambda: rival.saliency(texts()),
        lambda ours, found: rows_apart(ours[0].vectors[GRADIENT], found),
    )


def _of(rival: Rival, subject: Subject) -> Iterator[Comparison]:
    texts, deletion = rival.reader(subject), "leave_one_out.inputs"
    yield _comparison(
        NAME,
        rival,
        subject,
        "leave-one-out by deletion",
        "Transformers with sdpa, one by one",
        (deletion,),
        lambda: rival.leave_one_out(texts()),
        lambda ours, found: rows_apart(ours[0].vectors[f"{deletion}.change"], found),
        target=1.3,
    )
    if subject.name != SHORT:  # Long texts take minutes and show the same.
        return
    yield _substitution(rival, subject, texts)
    yield _comparison(
        NAME,
        rival,
        subject,
        "input influence",
        "Transformers with sdpa, n backward passes for each text",
        ("influence.hidden",),
        lambda: rival.influence(texts()),
        lambda ours, found: largest_difference(ours[0].scalars["influence.hidden.entropy"], np.concatenate(found)),
    )


def _comparison(
    model: str,
    rival: Rival,
    subject: Subject,
    what: str,
    other: str,
    needs: tuple[str, ...],
    work: Callable[[], Any],
    difference: Callable[[Any, Any], float],
    target: float = 1.0,
) -> Comparison:
    def theirs() -> Any:
        rival.passes.clear()
        return work()

    return Comparison(
        name=f"{model}: {what}, {subject.name}",
        rival=other,
        instances=len(subject.data.instances),
        ours=lambda: audited(subject, *needs),
        theirs=theirs,
        difference=difference,
        tolerance=2e-5,
        our_passes=passes_of,
        their_passes=lambda: dict(rival.passes),
        target=target,
    )


def _substitution(rival: Rival, subject: Subject, read: Callable[[], list[list[int]]]) -> Comparison:
    texts, counts = read(), Counter[str]()
    budget = BATCH_TOKENS_OF_HEADS["cuda" if device.on_gpu() else "cpu"]

    def theirs() -> Rows:
        rival.passes.clear()
        return rival.ablation(read())

    return Comparison(
        name=f"{NAME}: leave-one-out by substitution, {subject.name}",
        rival=f"Captum FeatureAblation, perturbations_per_eval = {batch_size()}",
        instances=len(texts),
        ours=lambda: substitutions(subject, texts, counts, budget),
        theirs=theirs,
        difference=rows_apart,
        tolerance=2e-5,
        our_passes=lambda _: dict(counts),
        their_passes=lambda: dict(rival.passes),
    )
