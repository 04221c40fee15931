"""Forward passes of a Transformers model that reads patches, with erased, deleted or given patches.

Shapes: B rows, T tokens, S special tokens, N patches, C classes, d features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnaudit.adapters.donors import REPLACED_BY
from attnaudit.adapters.huggingface.attention.attention_kernels import Kernel
from attnaudit.adapters.huggingface.attention.function_call import FunctionCall
from attnaudit.adapters.huggingface.attention.fused_attention import FusedObserver
from attnaudit.adapters.huggingface.attention.recorder import FunctionObserver, Observer
from attnaudit.adapters.huggingface.attention.site_discovery import discover_layout
from attnaudit.adapters.huggingface.forward_hooks import temporary_hooks
from attnaudit.adapters.huggingface.outputs.output_heads import Head
from attnaudit.adapters.huggingface.passes.runner import Runner, class_logits
from attnaudit.adapters.huggingface.pictures_and_recordings.patch_grid import PatchGrid, typical_patch
from attnaudit.adapters.huggingface.pictures_and_recordings.patch_inputs import PIXELS, PLACES, SHOWN, PatchInputBuilder
from attnaudit.adapters.protocol import TEXT, Inputs


@dataclass(frozen=True, kw_only=True)
class PictureRunner(Runner):
    """Runs one model that reads patches of pictures or spectrograms.

    Attributes:
        builder: Builds the model's inputs.
        grid: The patches of the model.
    """

    builder: PatchInputBuilder
    grid: PatchGrid

    def logits(
        self, inputs: Inputs, observer: Observer | None = None, embeddings: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        mask = inputs.mask[TEXT]
        if observer is None and self.fuses:
            observer = FusedObserver(skips_masks=self.selects_queries)
        masked = observer if bool(mask.all()) else WithoutPadding(observer, mask)
        given = None if embeddings is None else embeddings.get(TEXT)

        def run() -> Tensor:
            arguments = self.builder.arguments(inputs)
            return class_logits(self.model, self.head, self.kernel, arguments, mask, masked, inputs.extra)

        with changed_patches(self.grid, inputs, given):
            return self.shortened(mask, observer, run)

    def embed(self, inputs: Inputs) -> Tensor:
        """Return the embeddings (B, T, d) of the patches, without position embeddings; 0 for special tokens."""
        patches: Tensor = self.grid.patch_module(inputs.extra[PIXELS][:, 0])
        return tokens_of(self.grid, inputs, patches)


def prepare_picture_runner(head: Head, kernel: Kernel, builder: PatchInputBuilder) -> PictureRunner:
    """Find the layout of a model by running it on random inputs, and return a runner for it.

    Raises:
        AdapterError: Some attention of the model cannot be observed.
    """
    inputs = builder.synthetic()

    def forward() -> Tensor:
        return class_logits(builder.model, head, kernel, builder.arguments(inputs), builder.output_mask(inputs))

    layout = discover_layout(
        builder.model, inputs.ids[TEXT], forward, encoder_decoder=False, embedding=builder.grid.patch_module
    )
    return PictureRunner(head=head, kernel=kernel, builder=builder, layout=layout, grid=builder.grid)


class WithoutPadding(FunctionObserver):
    """An observer that forbids attention to padding, and passes the call to another observer.

    Models that read patches have no attention mask, because whole inputs have no padding. If patches are deleted,
    the batch has padding, and a mask is needed.

    Args:
        observer: The other observer; None to compute the architecture's own attention.
        mask: (B, T) True on tokens.
    """

    def __init__(self, observer: Observer | None, mask: Tensor) -> None:
        self.observer = observer
        self.mask = mask

    def attend(self, call: FunctionCall) -> tuple[Tensor, Tensor | None]:
        smallest = torch.finfo(call.query.dtype).min
        forbidden = torch.zeros_like(self.mask, dtype=call.query.dtype).masked_fill(~self.mask, smallest)
        mask = forbidden[:, None, None, :].expand(-1, 1, call.query.shape[2], -1)
        masked = replace(call, mask=mask if call.mask is None else call.mask + mask, causal=False)
        return masked.eager() if self.observer is None else self.observer.attend(masked)


def tokens_of(grid: PatchGrid, inputs: Inputs, patches: Tensor) -> Tensor:
    """Return the embeddings (B, T, d) of the tokens, given the embeddings (B, N, d) of all patches.

    For an erased patch, the result contains the embedding of its replacement. For special tokens and padding, it is 0.
    """
    places, ids = inputs.extra[PLACES], inputs.ids[TEXT]
    index = (places - grid.special).clamp_min(0)
    tokens = patches.gather(1, index[..., None].expand(-1, -1, patches.shape[2]))
    tokens = torch.where((ids == grid.special)[..., None], _replacements(grid, inputs, patches), tokens)
    return tokens.masked_fill(~inputs.real()[..., None], 0.0)


def _replacements(grid: PatchGrid, inputs: Inputs, patches: Tensor) -> Tensor:
    """Return the embeddings (B, T, d) or (B, 1, d) that replace erased patches."""
    donors = grid.replacement.donors
    if donors is None or REPLACED_BY not in inputs.extra:
        if grid.replacement.name == "typical":
            place = typical_patch(grid.cut(inputs.extra[PIXELS][:, 0]))
            return patches.gather(1, place[:, None, None].expand(-1, 1, patches.shape[2]))
        return grid.replacement.embedding(patches, inputs.extra.get(SHOWN))
    chosen = inputs.extra[REPLACED_BY]
    used = sorted(set(chosen.flatten().tolist()))
    number = torch.searchsorted(torch.tensor(used, device=chosen.device), chosen)
    pixels = torch.stack([donors.values[one] for one in used]).to(patches.device)
    embedded: Tensor = grid.patch_module.forward(
        pixels
    )  # not a call, which would run the hook that calls this function
    return embedded[number, (inputs.extra[PLACES] - grid.special).clamp_min(0)]


@contextmanager
def changed_patches(grid: PatchGrid, inputs: Inputs, given: Tensor | None) -> Iterator[None]:
    """Inside the context, the model reads only the patches in a batch, not all patches of its grid.

    Args:
        grid: The patches of the model.
        inputs: The batch. Deleted patches may be missing from it.
        given: (B, T, d) embeddings to use, as `PictureRunner.embed` returns them. None to use the embeddings of the
            batch.
    """
    places, real = inputs.extra[PLACES], inputs.real()
    whole = grid.special + grid.patches
    if PIXELS not in inputs.extra:
        with _skipped(grid.embeddings_module, places):
            yield
        return
    erased = bool((inputs.ids[TEXT] == grid.special).logical_and(real).any())
    complete = places.shape[1] == whole and bool((places == torch.arange(whole, device=places.device)).all())

    def replace_patches(_module: nn.Module, _args: object, output: Tensor) -> Tensor:
        tokens = tokens_of(grid, inputs, output) if given is None else given
        # All tokens that are not patches are written to one more place, which is then left out.
        index = torch.where(real, places - grid.special, grid.patches)[..., None].expand_as(tokens)
        padded = nn.functional.pad(output, (0, 0, 0, 1))
        return padded.scatter(1, index, tokens)[:, : grid.patches]

    def select_tokens(_module: nn.Module, _args: object, output: Tensor) -> Tensor:
        tokens = output
        if not complete:
            tokens = output.gather(1, places[..., None].expand(-1, -1, output.shape[2]))
        return tokens if given is None else tokens + given * inputs.special[TEXT][..., None]

    handles: list[Any] = []
    if erased or given is not None:
        handles.append(grid.patch_module.register_forward_hook(replace_patches))
    if not complete or given is not None:
        handles.append(grid.embeddings_module.register_forward_hook(select_tokens))
    with temporary_hooks(handles):
        yield


@contextmanager
def _skipped(module: nn.Module, places: Tensor) -> Iterator[None]:
    """Inside the context, the module returns zeros of the shape (B, T, d), because no later module reads them."""
    width = next(parameter.shape[-1] for name, parameter in module.named_parameters() if name.endswith("cls_token"))

    def forward(*_args: object, **_kwargs: object) -> Tensor:
        return torch.zeros((*places.shape, width), device=places.device)

    with ExitStack() as stack:
        module.__dict__["forward"] = forward
        stack.callback(module.__dict__.pop, "forward")
        yield
