"""The forward and backward passes of one batch, each run at most once and shared by every measure.

Shapes: B instances, T tokens (padded), V alternative attentions, C classes, d and m features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from attnaudit.adapters.protocol import TEXT, Inputs, ModelAdapter, Site, Trace
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance

#: How tokens are taken away: their ids are removed and the rest encoded again, or become the model's mask id.
Operator = Literal["deletion", "mask"]

#: Largest difference between a pass and its faster form that rounding in float32 explains.
TOLERANCE = 1e-4


def probabilities(logits: Tensor) -> Tensor:
    """(..., C) logits -> (..., max(C, 2)) class probabilities in float64; one logit is a sigmoid for class 1."""
    wide = logits.double()
    if wide.shape[-1] == 1:
        return torch.cat([torch.sigmoid(-wide), torch.sigmoid(wide)], dim=-1)
    return torch.softmax(wide, dim=-1)


@contextmanager
def _differentiable(device: torch.device) -> Iterator[None]:
    # cuDNN refuses the backward pass of a recurrent network in evaluation mode.
    if device.type == "cuda":
        with torch.backends.cudnn.flags(enabled=False), torch.enable_grad():
            yield
    else:
        with torch.enable_grad():
            yield


class Passes:
    """One batch and everything the measures share about it.

    adapter: has exactly one pooled site. seed: of the audit. gradients: keep the graph of the clean pass.
    budget: most tokens (rows × length) in one forward pass of variants. counts: what was run, by kind.
    """

    def __init__(
        self,
        adapter: ModelAdapter,
        instances: Sequence[Instance],
        positions: Sequence[int],
        *,
        seed: int,
        gradients: bool,
        budget: int,
        counts: Counter[str],
    ) -> None:
        self.adapter = adapter
        self.instances = instances
        self.positions = positions
        self.seed = seed
        self.gradients = gradients
        self.budget = budget
        self.counts = counts
        self.site: Site = adapter.sites()[0]

    # -- the clean pass -------------------------------------------------------------------------------------------

    @cached_property
    def inputs(self) -> Inputs:
        return self.adapter.collate(self.instances)

    @cached_property
    def real(self) -> Tensor:
        """(B, T) True on tokens that statistics are taken over."""
        return self.inputs.real()

    @cached_property
    def lengths(self) -> Tensor:
        """(B,) number of real tokens."""
        return self.real.sum(1)

    @property
    def device(self) -> torch.device:
        return self.inputs.ids[TEXT].device

    @cached_property
    def embeddings(self) -> dict[str, Tensor]:
        """stream -> (B, T, d) leaves."""
        with torch.no_grad():
            embedded = self.adapter.embed(self.inputs)
        return {name: value.detach().requires_grad_(self.gradients) for name, value in embedded.items()}

    @cached_property
    def trace(self) -> Trace:
        """The clean pass, with its graph when a measure differentiates."""
        self.counts["forward"] += 1
        self.counts["forward_rows"] += len(self.instances)
        if not self.gradients:
            with torch.no_grad():
                return self.adapter.run(self.inputs, embeddings=self.embeddings, hidden=True)
        with _differentiable(self.device):
            return self.adapter.run(self.inputs, embeddings=self.embeddings, hidden=True)

    @cached_property
    def logits(self) -> Tensor:
        """(B, C) float64, detached."""
        return self.trace.logits.detach().double()

    @cached_property
    def probabilities(self) -> Tensor:
        """(B, C) float64; a sigmoid output is expanded to two classes."""
        return probabilities(self.logits)

    @cached_property
    def predicted(self) -> Tensor:
        """(B,) index of the predicted class."""
        return self.probabilities.argmax(-1)

    @cached_property
    def hidden(self) -> Tensor:
        """(B, T, m) states that attention pools, with their graph when a measure differentiates."""
        return self.trace.hidden[self.site.key]

    @cached_property
    def weights(self) -> Tensor:
        """(B, T) float64 attention as the model used it, special tokens included."""
        return self.trace.attention[self.site.key].detach()[:, 0, 0, :].double()

    @cached_property
    def special_mass(self) -> Tensor:
        """(B,) attention on special tokens."""
        return (self.weights * ~self.real).sum(1)

    @cached_property
    def reading(self) -> Tensor:
        """(B, T) float64 attention over the real tokens, renormalised: what is shown as the explanation. NaN where
        no attention is on real tokens."""
        kept = self.weights * self.real
        total = kept.sum(1, keepdim=True)
        return torch.where(total > 0, kept / total, torch.full_like(kept, torch.nan))

    # -- gradients ------------------------------------------------------------------------------------------------

    def _target(self, logits: Tensor) -> Tensor:
        """Sum over the batch of the predicted class's probability (PROTOCOL: the default target f)."""
        target: Tensor = probabilities(logits).gather(1, self.predicted[:, None]).sum()
        return target

    def _gradients(self, target: Tensor, hidden: Tensor, leaf: Tensor) -> tuple[Tensor, Tensor]:
        self.counts["backward"] += 1
        at_inputs, at_hidden = torch.autograd.grad(target, (leaf, hidden), retain_graph=True)
        return at_inputs.double(), at_hidden.double()

    @cached_property
    def gradient(self) -> tuple[Tensor, Tensor]:
        """∂f/∂E (B, T, d) and ∂f/∂h (B, T, m), attention part of the graph; float64."""
        with _differentiable(self.device):
            return self._gradients(self._target(self.trace.logits), self.hidden, self.embeddings[TEXT])

    @cached_property
    def gradient_detached(self) -> tuple[Tensor, Tensor]:
        """The same with attention held constant."""
        with _differentiable(self.device):
            if self.adapter.capabilities.decodes:
                self.counts["decode"] += 1
                held = self.trace.attention[self.site.key].detach()[:, 0, 0, :]
                logits = self.adapter.decode(self.hidden, held[:, None, :])[:, 0, :]
                return self._gradients(self._target(logits), self.hidden, self.embeddings[TEXT])
            self.counts["forward"] += 1
            self.counts["forward_rows"] += len(self.instances)
            trace = self.adapter.run(
                self.inputs, embeddings=self.embeddings, intervene=lambda _s, w, _a: w.detach(), hidden=True
            )
            return self._gradients(self._target(trace.logits), trace.hidden[self.site.key], self.embeddings[TEXT])

    def influence(self, position: int) -> Tensor:
        """(B, T) ‖∂‖h_p‖₂/∂E_i‖₂ for the state at one padded position p, all instances in one backward pass (M eq. 5).

        `.norm()` has gradient 0 at 0, where the root of a sum of squares has NaN."""
        self.counts["backward"] += 1
        with _differentiable(self.device):
            norms = self.hidden[:, position, :].norm(dim=-1)
            (gradient,) = torch.autograd.grad(norms.sum(), self.embeddings[TEXT], retain_graph=True)
        found: Tensor = gradient.double().norm(dim=-1)
        return found

    # -- other attentions, states fixed ---------------------------------------------------------------------------

    @cached_property
    def token_logits(self) -> tuple[Tensor, Tensor] | None:
        """For a linear decoder: (B, T, C) logits of each state alone without bias, and the bias (C,), in float64.

        Raises AdapterError when Σ α·w + b is not the model's own logit: the decoder is not what it was said to be."""
        if not self.adapter.capabilities.linear_decoder:
            return None
        weight, bias = (t.detach().double() for t in self.adapter.decoder_weights())
        token_logits = self.hidden.detach().double() @ weight.T
        again = (self.weights[:, None, :] @ token_logits)[:, 0, :] + bias
        gap = (probabilities(again) - self.probabilities).abs().max().item()
        if not gap <= TOLERANCE:
            raise AdapterError(
                f"decoder_weights: weights·states through (W, b) differ from the model's own output by {gap:.2g} in "
                f"probability, expected at most {TOLERANCE:g}. Declare linear_decoder=False, or return the "
                "decoder's own weight and bias."
            )
        return token_logits, bias

    def full_weights(self, reading: Tensor) -> Tensor:
        """(B, V, T) distributions over real tokens -> weights for the model: special tokens keep their mass."""
        kept = (1 - self.special_mass)[:, None, None]
        return reading * kept + (self.weights * ~self.real)[:, None, :]

    def decode(self, weights: Tensor) -> Tensor:
        """(B, V, T) weights -> (B, V, C) logits in float64, states fixed, by the fastest form that the adapter has."""
        if self.token_logits is not None:
            token_logits, bias = self.token_logits
            return weights @ token_logits + bias
        return self.decode_by_model(weights)

    def decode_by_model(self, weights: Tensor) -> Tensor:
        """(B, V, T) weights -> (B, V, C) logits in float64, by the model's own decoder."""
        with torch.no_grad():
            return self._decode(weights)

    def decode_differentiably(self, weights: Tensor) -> Tensor:
        """(B, V, T) weights that require a gradient -> (B, V, C) logits in float64, states fixed."""
        if self.token_logits is not None:
            return self.decode(weights)
        with _differentiable(self.device):
            return self._decode(weights)

    def _decode(self, weights: Tensor) -> Tensor:
        states = self.hidden.detach()
        narrow = weights.to(states.dtype)
        if self.adapter.capabilities.decodes:
            self.counts["decode"] += 1
            return self.adapter.decode(states, narrow).double()
        embeddings = {name: value.detach() for name, value in self.embeddings.items()}

        def run(one: Tensor) -> Tensor:
            self.counts["forward"] += 1
            self.counts["forward_rows"] += len(self.instances)
            return self.adapter.run(
                self.inputs, embeddings=embeddings, intervene=lambda _s, _w, _a: one[:, None, None, :]
            ).logits.double()

        return torch.stack([run(narrow[:, v]) for v in range(narrow.shape[1])], dim=1)

    # -- erasure --------------------------------------------------------------------------------------------------

    @cached_property
    def deleted(self) -> Tensor:
        """(B, T, C) class probabilities with the token at each real position deleted and the rest encoded again.

        NaN at other positions, and for instances with a single real token: there would be nothing left to read."""
        classes = self.probabilities.shape[-1]
        found = torch.full((*self.real.shape, classes), torch.nan, dtype=torch.float64, device=self.device)
        eligible = self.real & (self.lengths > 1)[:, None]
        drop = [(int(r), int(p)) for r, p in eligible.nonzero().tolist()]
        longest = max(1, int(self.inputs.mask[TEXT].sum(1).max()) - 1)
        step = max(1, self.budget // longest)
        with torch.no_grad():
            for start in range(0, len(drop), step):
                part = drop[start : start + step]
                self.counts["forward"] += 1
                self.counts["forward_rows"] += len(part)
                logits = self.adapter.run(self.adapter.delete(self.inputs, TEXT, part)).logits
                rows, columns = zip(*part, strict=True)
                found[list(rows), list(columns)] = probabilities(logits)
        return found

    def can_erase(self, operator: Operator) -> bool:
        """Whether the adapter declares what the operator takes."""
        capabilities = self.adapter.capabilities
        return capabilities.mask if operator == "mask" else capabilities.deletion

    @cached_property
    def substituted(self) -> Tensor:
        """(B, T, C) as `deleted`, with the mask id put in place of the token."""
        found = torch.full((*self.real.shape, self.probabilities.shape[-1]), torch.nan, dtype=torch.float64)
        found = found.to(self.device)
        rows, gone = (self.real & (self.lengths > 1)[:, None]).nonzero(as_tuple=True)
        keep = self.real[rows]
        keep[torch.arange(len(rows), device=self.device), gone] = False
        found[rows, gone] = self._run_erased(rows, keep, "mask")
        return found

    def erased(self, rows: Tensor, keep: Tensor, operator: Operator) -> Tensor:
        """(V,) rows of the batch, (V, T) which real tokens stay -> (V, C) float64 class probabilities without the rest.

        Special tokens always stay. Equal variants run once, and those that lack a single token are read from `deleted`
        or `substituted`. NaN where no real token stays: there is nothing left to decide from."""
        found = torch.full((len(rows), self.probabilities.shape[-1]), torch.nan, dtype=torch.float64)
        found = found.to(self.device)
        keep = keep & self.real[rows]
        gone = self.real[rows] & ~keep
        single = (gone.sum(1) == 1) & keep.any(1)
        if bool(single.any()):
            alone = self.substituted if operator == "mask" else self.deleted
            found[single] = alone[rows[single], gone[single].int().argmax(1)]
        left = (keep.any(1) & ~single).nonzero()[:, 0]
        if len(left):
            table = torch.cat([rows[left, None], keep[left].long()], dim=1).cpu().numpy()
            unique, where = np.unique(table, axis=0, return_inverse=True)
            variants = torch.from_numpy(unique).to(self.device)
            output = self._run_erased(variants[:, 0], variants[:, 1:].bool(), operator)
            found[left] = output[torch.from_numpy(where.reshape(-1)).to(self.device)]
        return found

    def _run_erased(self, rows: Tensor, keep: Tensor, operator: Operator) -> Tensor:
        """As `erased`, every variant run, long ones first so that a pass holds variants of about one length."""
        found = torch.full((len(rows), self.probabilities.shape[-1]), torch.nan, dtype=torch.float64)
        found = found.to(self.device)
        mask, special = self.inputs.mask[TEXT][rows], self.inputs.special[TEXT][rows]
        stays = (keep | special) & mask
        widths, order = (stays if operator == "deletion" else mask).sum(1).sort(descending=True, stable=True)
        start = 0
        with torch.no_grad():
            while start < len(rows):
                part = order[start : start + max(1, self.budget // max(1, int(widths[start])))]
                self.counts["forward"] += 1
                self.counts["forward_rows"] += len(part)
                if operator == "deletion":
                    variants = self.adapter.keep(self.inputs, TEXT, rows[part], stays[part])
                else:
                    variants = self.adapter.substitute(self.inputs, TEXT, rows[part], mask[part] & ~stays[part])
                found[part] = probabilities(self.adapter.run(variants).logits)
                start += len(part)
        return found
