"""The patches of a model that reads pictures or spectrograms: which module embeds them, and where they are.

Shapes: B rows, N patches, S special tokens, C channels, h and w pixels, d features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attnaudit.adapters.donors import Donors
from attnaudit.adapters.huggingface.forward_hooks import temporary_hooks
from attnaudit.adapters.huggingface.wrapped_models import name_of
from attnaudit.errors import AdapterError, ModelError

#: What replaces an erased patch.
Erased = Literal["typical", "mean", "mask"]
_DESCRIPTIONS: dict[Erased, str] = {
    "typical": "the typical patch of its {whole}, which is the patch closest to the mean of all patches",
    "mean": "the mean patch of its {whole}",
    "mask": "the mask token of the model",
}
#: Names of the special tokens, in their order.
_SPECIAL_NAMES = ("CLS", "DISTILLATION")
#: Largest difference that rounding in float32 explains, relative to the largest absolute value.
ROUNDING = 1e-4


@dataclass(frozen=True, kw_only=True)
class PatchGrid:
    """How a model divides a picture into patches.

    Attributes:
        argument: The argument of forward() that takes the pixels.
        size: Channels, height and width of the pixels that the model reads; for a spectrogram, frames and features.
        special: S, the number of special tokens. They come before the patches.
        rows: The number of rows of patches.
        columns: The number of columns of patches.
        patch: Height and width of a patch in pixels.
        stride: Distance in pixels between the tops, and between the left sides, of neighbouring patches.
        patch_module: The module that returns the embeddings (B, N, d) of the patches.
        embeddings_module: The module that returns the embeddings (B, S + N, d) of all tokens, with their positions.
        replacement: What replaces an erased patch.
    """

    argument: str
    size: tuple[int, ...]
    special: int
    rows: int
    columns: int
    patch: tuple[int, int]
    stride: tuple[int, int]
    patch_module: nn.Module
    embeddings_module: nn.Module
    replacement: Replacement

    @property
    def patches(self) -> int:
        """N, the number of patches."""
        return self.rows * self.columns

    @property
    def special_names(self) -> list[str]:
        """The names of the special tokens."""
        others = (f"REGISTER {number}" for number in range(1, self.special))
        return [*_SPECIAL_NAMES] if self.special == 2 else ["CLS", *others][: self.special]

    @property
    def patch_names(self) -> list[str]:
        """The names of the patches, row by row."""
        return [f"row {r + 1}, column {c + 1}" for r in range(self.rows) for c in range(self.columns)]

    def cut(self, pixels: Tensor) -> Tensor:
        """Return the patches (B, N, C · height · width) of pixels (B, C, h, w)."""
        return nn.functional.unfold(pixels, self.patch, stride=self.stride).transpose(1, 2)


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """What replaces an erased patch.

    Attributes:
        name: "typical" for the typical patch of the picture, "mean" for its mean patch, "mask" for the mask token of
            the model.
        token: (1, 1, d) mask token; None if something else replaces an erased patch.
        donors: The donors whose patches at the same place replace an erased patch; None if something else replaces it.
    """

    name: Erased
    token: Tensor | None = None
    donors: Donors | None = None

    def description(self, whole: str) -> str:
        """Return the replacement in words. `whole` is what is divided into patches, such as "picture"."""
        return _DESCRIPTIONS[self.name].format(whole=whole)

    def embedding(self, patches: Tensor, shown: Tensor | None) -> Tensor:
        """Return the embedding (B, 1, d) of the mean patch or of the mask token.

        Because a patch embedding is a linear function of the pixels, the mean of the embeddings is the embedding of the
        mean patch.

        Args:
            patches: (B, N, d) embeddings of all patches.
            shown: (B, 1, N) False at patches of padding, which the mean leaves out; None if there is no padding.
        """
        if self.token is not None:
            return self.token.expand(len(patches), -1, -1)
        if shown is None:
            return patches.mean(1, keepdim=True)
        weights = shown.to(patches)
        return (weights / weights.sum(-1, keepdim=True)) @ patches


def typical_patch(values: Tensor) -> Tensor:
    """Return the place (B,) of the typical patch of each picture: the patch that is closest to the mean of all patches.

    Distances are Euclidean. Unlike the mean of all patches, the typical patch contains nothing of the other patches.

    Args:
        values: (B, N, p) values of the patches, such as their pixels.

    Examples:
        >>> typical_patch(torch.tensor([[[0.0], [1.0], [9.0], [2.0]]]))
        tensor([3])
    """
    wide = values.double()
    return (wide - wide.mean(1, keepdim=True)).square().sum(-1).argmin(1)


@dataclass(slots=True)
class _Seen:
    """The modules seen in a pass over random pictures, with their outputs, in the order in which they returned."""

    tokens: list[tuple[str, nn.Module, Tensor]]
    maps: list[tuple[nn.Conv2d, Tensor]]


def find_patches(model: Any, argument: str, pixels: Tensor, erased: Erased) -> PatchGrid:
    """Find the patches of a model by running it on random pictures.

    Args:
        model: The model.
        argument: The argument of forward() that takes the pixels.
        pixels: (B, C, h, w) pixels, or (B, t, f) spectrograms, with B different from the number of channels.
        erased: What replaces an erased patch.

    Raises:
        AdapterError: The model does not read its picture as a sequence of patches that are embedded one by one.
        ModelError: The model has no mask token, but `erased` is "mask".
    """
    seen = _observed(model, argument, pixels)
    name = name_of(model)
    if not seen.tokens or not seen.maps:
        raise AdapterError(
            f"{name}: no module turns the pixels into a sequence of patches, so no part of the picture can be erased. "
            "This architecture cannot be audited."
        )
    path, patch_module, embedded = seen.tokens[0]
    grids = [(conv, out) for conv, out in seen.maps if out.shape[2] * out.shape[3] == embedded.shape[1]]
    parent = path.rpartition(".")[0]
    outer = next(((module, out) for other, module, out in seen.tokens if other == parent), None)
    if not grids or outer is None or outer[1].shape[1] < embedded.shape[1]:
        raise AdapterError(
            f"{name}: its patches do not become tokens one by one ({type(patch_module).__name__} returns the shape "
            f"{tuple(embedded.shape)}). Attention over windows, or over pooled or merged patches, cannot be audited."
        )
    conv, output = grids[0]
    if len(seen.maps) > 1 or conv.padding not in ((0, 0), "valid") or conv.dilation != (1, 1):
        raise AdapterError(
            f"{name}: its patch embedding consists of several convolutions, or pads the picture, so the places of the "
            "patches in the picture are unknown. This architecture cannot be audited."
        )
    grid = PatchGrid(
        argument=argument,
        size=tuple(int(size) for size in pixels.shape[1:]),
        special=outer[1].shape[1] - embedded.shape[1],
        rows=int(output.shape[2]),
        columns=int(output.shape[3]),
        patch=(int(conv.kernel_size[0]), int(conv.kernel_size[1])),
        stride=(int(conv.stride[0]), int(conv.stride[1])),
        patch_module=patch_module,
        embeddings_module=outer[0],
        replacement=_replacement(outer[0], erased, name),
    )
    _require_one_by_one(model, grid, pixels, outer[1])
    return grid


def _observed(model: Any, argument: str, pixels: Tensor) -> _Seen:
    """Run the model, and return the modules that return tokens, and the convolutions."""
    seen, names = _Seen([], []), {module: name for name, module in model.named_modules()}

    def record(module: nn.Module, _args: object, output: Any) -> None:
        if isinstance(module, nn.Conv2d):
            seen.maps.append((module, output.detach()))
        elif isinstance(output, Tensor) and output.dim() == 3 and len(output) == len(pixels):
            seen.tokens.append((names[module], module, output.detach()))

    with temporary_hooks([m.register_forward_hook(record) for m in model.modules()]), torch.no_grad():
        model(**{argument: pixels})
    return seen


def _replacement(embeddings: nn.Module, erased: Erased, name: str) -> Replacement:
    token = getattr(embeddings, "mask_token", None)
    if erased == "mask" and not isinstance(token, Tensor):
        raise ModelError(
            f"{name}: erased is 'mask', but the model has no mask token. Leave erased out: the typical patch of a "
            "picture, or the mean patch of a recording, then replaces an erased patch."
        )
    return Replacement(name=erased, token=token if erased == "mask" else None)


def _require_one_by_one(model: Any, grid: PatchGrid, pixels: Tensor, expected: Tensor) -> None:
    """Check that each patch embedding reaches one token, and that the patches follow the special tokens.

    Raises:
        AdapterError: Replacing the embedding of a patch changes another token of `embeddings_module`.
    """
    outputs: list[Tensor] = []

    def record(_module: nn.Module, _args: object, output: Tensor) -> None:
        outputs.append(output.detach())

    for place in {0, grid.patches // 2, grid.patches - 1}:

        def replace(_module: nn.Module, _args: object, output: Tensor, place: int = place) -> Tensor:
            changed = output.clone()
            changed[:, place] += 1.0
            return changed

        handles = [
            grid.patch_module.register_forward_hook(replace),
            grid.embeddings_module.register_forward_hook(record),
        ]
        with temporary_hooks(handles), torch.no_grad():
            model(**{grid.argument: pixels})
        differs = (outputs[-1] - expected).abs().amax((0, 2)) > ROUNDING * float(expected.abs().max())
        if differs.nonzero()[:, 0].tolist() != [grid.special + place]:
            raise AdapterError(
                f"{name_of(model)}: the embedding of one patch reaches the tokens {differs.nonzero()[:, 0].tolist()} "
                f"of {type(grid.embeddings_module).__name__}; expected only token {grid.special + place}. A model that "
                "mixes patches before its first layer cannot be audited."
            )


# -- places in a picture -------------------------------------------------------------------------------------------

Box = tuple[float, float, float, float]
#: (pictures) -> the pixels (B, C, h, w) that the model reads.
ToPixels = Callable[[list[Any]], Tensor]
#: The map from places in the pixels that the model reads to places in the picture must be a straight line. This is the
#: largest accepted distance from the line, as a fraction of the picture.
STRAIGHT = 0.02
#: If the pixels that the model reads end at most this far from the edges of the picture, they show the whole picture.
WHOLE = 0.005


def axis_map(to_pixels: ToPixels, size: tuple[int, int], axis: Literal["x", "y"], where: str) -> tuple[float, float]:
    """Find how an image processor places a picture in the pixels that the model reads.

    Pictures in which the brightness grows along the axis are processed. The brightness of a pixel that the model reads
    then shows where it is in the picture.

    Args:
        to_pixels: The image processor.
        size: Width and height of the picture.
        axis: The axis.
        where: The name of the model, for messages.

    Returns:
        The slope a and the offset b of a linear map. A pixel at the coordinate u of the model's input comes from the
        coordinate a · u + b of the picture. Coordinates are fractions of the width or the height.

    Raises:
        AdapterError: The image processor does more than resize and crop.
    """
    import numpy as np
    from PIL import Image

    width, height = size
    steps = np.arange(width if axis == "x" else height)
    ramp = np.rint((steps + 0.5) / len(steps) * 255).astype(np.uint8)
    plane = np.broadcast_to(ramp[None, :] if axis == "x" else ramp[:, None], (height, width))
    levels = [np.zeros_like(plane), np.full_like(plane, 255), plane]
    black, white, ramped = (
        to_pixels([Image.fromarray(np.ascontiguousarray(level)).convert("RGB")])[0, 0].double() for level in levels
    )
    shown = ((ramped - black) / (white - black)).mean(0 if axis == "x" else 1).numpy()
    at = (np.arange(len(shown)) + 0.5) / len(shown)
    inner = slice(len(shown) // 8, len(shown) - len(shown) // 8)
    if len(shown) < 4 or not np.isfinite(shown).all():
        inner = slice(0, len(shown))
    slope, offset = np.polyfit(at[inner], shown[inner], 1) if len(at[inner]) > 1 else (1.0, 0.0)
    deviation = np.abs(slope * at[inner] + offset - shown[inner]).max()
    if not deviation <= STRAIGHT + 1 / len(steps):
        raise AdapterError(
            f"{where}: its image processor pads or otherwise changes a picture of {width} × {height} pixels, so the "
            "places of the patches in the picture are unknown. Turn off everything except resizing and cropping."
        )
    is_whole = abs(offset) <= WHOLE and abs(slope + offset - 1) <= WHOLE
    return (1.0, 0.0) if is_whole else (float(slope), float(offset))


def boxes_in_picture(grid: PatchGrid, across: tuple[float, float], down: tuple[float, float]) -> list[Box]:
    """Return the box of each patch, as fractions of the width and the height of the picture.

    Args:
        grid: The patches.
        across: The slope and the offset of `axis_map` along the width.
        down: The slope and the offset along the height.
    """

    def span(first: int, size: int, whole: int, line: tuple[float, float]) -> tuple[float, float]:
        start, end = (min(1.0, max(0.0, line[0] * one / whole + line[1])) for one in (first, first + size))
        return start, end - start

    columns = [span(c * grid.stride[1], grid.patch[1], grid.size[-1], across) for c in range(grid.columns)]
    lines = [span(r * grid.stride[0], grid.patch[0], grid.size[-2], down) for r in range(grid.rows)]
    return [(round(x, 4), round(y, 4), round(w, 4), round(h, 4)) for y, h in lines for x, w in columns]
