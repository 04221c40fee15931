"""The frames of a model that reads waveforms: which modules compute them, and where they are in a recording.

In Wav2Vec2 and similar models, convolutions turn a waveform into feature vectors, one for each frame of about 25
milliseconds. A projection turns each feature vector into an embedding. Attention then mixes the frames.

Shapes: B rows, n samples, T frames, f features of a frame, d features of an embedding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.forward_hooks import temporary_hooks
from attnaudit.adapters.huggingface.wrapped_models import name_of
from attnaudit.errors import AdapterError, ModelError

#: What replaces an erased frame.
ErasedFrame = Literal["mean", "mask"]
#: Names of the two modules, in all models of this kind in Transformers.
_ENCODER, _PROJECTION = "feature_extractor", "feature_projection"
#: Largest number of samples that a single frame may have.
_LONGEST_FRAME = 2**16
#: Number of frames of the recordings with which the modules are tested.
_TESTED = 32
#: Differences up to this share of the largest value of a tensor count as rounding.
ROUNDING = 1e-5


@dataclass(frozen=True, kw_only=True)
class FrameModules:
    """How a model divides a waveform into frames.

    Attributes:
        encoder: The module that turns waveforms (B, n) into features (B, f, T).
        projection: The module that turns features (B, T, f) into embeddings (B, T, d).
        length: The number of samples from which the features of one frame are computed.
        step: The number of samples from the start of a frame to the start of the next.
        features: f, the number of features of a frame.
        mixers: The modules of the encoder that let every frame depend on the whole recording, such as a normalisation
            over time.
        token: (d,) mask embedding of the model; None if it has none.
        erased: What replaces an erased frame.
    """

    encoder: nn.Module
    projection: nn.Module
    length: int
    step: int
    features: int
    mixers: tuple[str, ...]
    token: Tensor | None
    erased: ErasedFrame

    def frames(self, samples: int) -> int:
        """Return the number of frames of a recording."""
        return 0 if samples < self.length else (samples - self.length) // self.step + 1

    def samples(self, frames: int) -> int:
        """Return the smallest number of samples of a recording with this number of frames."""
        return self.length + (frames - 1) * self.step

    def features_of(self, waveform: Tensor) -> Tensor:
        """Return the features (T, f) of a waveform (n,), without gradients."""
        with torch.no_grad():
            features: Tensor = self.encoder(waveform[None])[0].T
        return features.contiguous()

    def embed(self, features: Tensor) -> Tensor:
        """Return the embeddings (B, T, d) of features (B, T, f)."""
        return first_tensor(self.projection.forward(features))

    @contextmanager
    def given(self, embeddings: Tensor) -> Iterator[None]:
        """Inside the context, the model reads embeddings (B, T, d) instead of a waveform.

        The convolutions do not run.
        """

        def skip(_waveforms: Tensor) -> Tensor:
            return embeddings.new_zeros((len(embeddings), self.features, embeddings.shape[1]))

        def replace(_module: nn.Module, _args: object, output: Any) -> Any:
            # Some architectures write to the embeddings in place, so the hook returns a copy.
            changed = embeddings.clone()
            return changed if isinstance(output, Tensor) else (changed, *output[1:])

        self.encoder.__dict__["forward"] = skip
        try:
            with temporary_hooks([self.projection.register_forward_hook(replace)]):
                yield
        finally:
            del self.encoder.__dict__["forward"]


def first_tensor(output: Any) -> Tensor:
    """Return the output of a module, or the first element if it is a tuple."""
    found: Tensor = output if isinstance(output, Tensor) else output[0]
    return found


def find_frames(model: Any, erased: ErasedFrame) -> FrameModules:
    """Find the frames of a model by running its convolutions on random waveforms.

    Args:
        model: The model.
        erased: What replaces an erased frame.

    Raises:
        AdapterError: The model does not turn the waveform into frames that are embedded one by one.
        ModelError: The model has no mask embedding, but `erased` is "mask".
    """
    name = name_of(model)
    owner = next((m for m in model.modules() if {_ENCODER, _PROJECTION} <= dict(m.named_children()).keys()), None)
    if owner is None:
        raise AdapterError(
            f"{name}: it has no modules '{_ENCODER}' and '{_PROJECTION}', which turn the waveform into one embedding "
            "per frame, so it is unknown which part of the recording its attention reads. This architecture cannot be "
            "audited."
        )
    encoder, projection = owner.get_submodule(_ENCODER), owner.get_submodule(_PROJECTION)
    padded = [m for m in encoder.modules() if isinstance(m, nn.Conv1d) and m.padding not in ((0,), "valid")]
    if padded:
        raise AdapterError(
            f"{name}: the convolutions of '{_ENCODER}' pad the waveform, so the times of the frames are unknown. This "
            "architecture cannot be audited."
        )
    length, step, features = _geometry(encoder, name)
    token = getattr(owner, "masked_spec_embed", None)
    if erased == "mask" and not isinstance(token, Tensor):
        raise ModelError(
            f"{name}: erased is 'mask', but the model has no mask embedding. Use erased = 'mean', which replaces an "
            "erased frame by the mean frame of its recording."
        )
    _require_one_by_one(projection, features, name)
    return FrameModules(
        encoder=encoder,
        projection=projection,
        length=length,
        step=step,
        features=features,
        mixers=_mixers(model, encoder, length + (_TESTED - 1) * step),
        token=token if erased == "mask" else None,
        erased=erased,
    )


def _geometry(encoder: nn.Module, name: str) -> tuple[int, int, int]:
    """Return the length and the step of the frames in samples, and the number of features of a frame.

    Raises:
        AdapterError: The number of frames is not a linear function of the number of samples.
    """

    device = next(encoder.parameters()).device

    def shape(samples: int) -> tuple[int, int]:
        try:
            with torch.no_grad():
                output = encoder(torch.zeros((1, samples), device=device))
        except (RuntimeError, ValueError):  # the waveform is too short for a convolution or a normalisation
            return 0, 0
        return int(output.shape[2]), int(output.shape[1])

    def fewest(frames: int) -> int:
        """Return the smallest number of samples that gives a number of frames."""
        low, high = 0, 1
        while shape(high)[0] < frames:
            low, high = high, 2 * high
            if high > _LONGEST_FRAME:
                raise _unknown_times(name)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if shape(middle)[0] >= frames else (middle, high)
        return high

    length = fewest(1)
    step = fewest(2) - length
    for frames in (4, 11):
        samples = length + (frames - 1) * step
        if shape(samples)[0] != frames or shape(samples - 1)[0] != frames - 1:
            raise _unknown_times(name)
    return length, step, shape(length)[1]


def _unknown_times(name: str) -> AdapterError:
    return AdapterError(
        f"{name}: its convolutions do not give one frame per fixed number of samples, so the times of the frames are "
        "unknown. This architecture cannot be audited."
    )


def _require_one_by_one(projection: nn.Module, features: int, name: str) -> None:
    """Check that the embedding of a frame depends on the features of this frame alone.

    Raises:
        AdapterError: It depends on another frame, or there is not one embedding per frame.
    """
    values = torch.randn((1, 9, features), generator=torch.Generator().manual_seed(0))
    values = values.to(next(projection.parameters()).device)
    changed = values.clone()
    changed[:, 4] = -2 * changed[:, 4] ** 3  # not a shift, which a normalisation would remove
    with torch.no_grad():
        one, other = first_tensor(projection(values)), first_tensor(projection(changed))
    differs = (one - other).abs().amax((0, 2)) > ROUNDING * float(one.abs().max()) if one.dim() == 3 else None
    if differs is None or one.shape[1] != 9 or differs.nonzero()[:, 0].tolist() != [4]:
        raise AdapterError(
            f"{name}: '{_PROJECTION}' does not embed the frames one by one. A model that merges or mixes frames in "
            "this module cannot be audited."
        )


@dataclass(slots=True)
class _Comparison:
    """The outputs of the modules of an encoder, compared with those for a waveform with another end.

    Attributes:
        clean: The outputs for the first waveform, by module and index of the call; None while they are recorded.
        outputs: The same outputs of this run.
        found: The modules that carry information from the end of the waveform to its start.
        calls: The number of calls of each module.
    """

    clean: _Comparison | None = None
    inputs: dict[tuple[nn.Module, int], Tensor] = field(default_factory=dict)
    outputs: dict[tuple[nn.Module, int], Tensor] = field(default_factory=dict)
    found: dict[nn.Module, None] = field(default_factory=dict)
    calls: Counter[nn.Module] = field(default_factory=Counter)

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Record the input of a module. This is a forward pre-hook."""
        self.inputs[module, self.calls[module]] = args[0].detach().clone()

    def leave(self, module: nn.Module, _args: object, output: Tensor) -> Tensor | None:
        """Record the output of a module, and compare its start with that of the clean run. This is a forward hook."""
        key = (module, self.calls[module])
        self.calls[module] += 1
        self.outputs[key] = output.detach().clone()
        if self.clean is None or _starts_differ(self.inputs[key], self.clean.inputs[key], 2):
            return None
        # A convolution reads some positions after its own, so a shorter start of its output is compared.
        if not _starts_differ(output, self.clean.outputs[key], 4):
            return None
        # The modules after this one are tested as if this module did not mix frames.
        self.found[module] = None
        restored = output.clone()
        start = output.shape[-1] // 2
        restored[..., :start] = self.clean.outputs[key][..., :start]
        return restored


def _starts_differ(value: Tensor, clean: Tensor, part: int) -> bool:
    """Return whether two tensors differ by more than rounding explains in the first 1/`part` of their last axis."""
    start = max(1, clean.shape[-1] // part)
    differences = (value - clean)[..., :start].abs()
    return bool((differences > ROUNDING * float(clean.abs().max())).any())


def _mixers(model: nn.Module, encoder: nn.Module, samples: int) -> tuple[str, ...]:
    """Return the modules of the encoder that carry information from the end of a recording to its start.

    The encoder runs on two waveforms that differ only in the last eighth. A module mixes frames if the start of its
    output differs although the start of its input does not.
    """
    one = torch.randn((1, samples), generator=torch.Generator().manual_seed(0))
    one = one.to(next(encoder.parameters()).device)
    other = one.clone()
    other[:, -samples // 8 :] *= 2.0
    modules = [module for module in encoder.modules() if len(list(module.parameters())) or module is encoder]
    runs: list[_Comparison] = []
    for waveform in (one, other):
        run = _Comparison(clean=runs[0] if runs else None)
        handles: list[Any] = [module.register_forward_pre_hook(run.enter) for module in modules]
        handles += [module.register_forward_hook(run.leave) for module in modules]
        with temporary_hooks(handles), torch.no_grad():
            encoder(waveform)
        runs.append(run)
    names = {module: name for name, module in model.named_modules()}
    return tuple(f"{names[module]} ({type(module).__name__})" for module in names if module in runs[1].found)
