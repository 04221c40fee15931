"""The LSTM layers of encoders, and their parameters.

Shapes: d features of an embedding, h features of one direction.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnaudit.errors import AdapterError

#: An LSTM layer of one or two directions, or a pair of a forward layer and a backward layer.
Layer = nn.LSTM | tuple[nn.LSTM, nn.LSTM]


def refuse_unsupported(layer: object) -> None:
    """Raise AdapterError unless the argument is a supported LSTM.

    An `nn.LSTM` with one layer and no projection is supported, and so is a pair of such layers with one direction each.
    """
    is_pair = isinstance(layer, tuple)
    parts = layer if isinstance(layer, tuple) else (layer,)
    if not all(isinstance(part, nn.LSTM) for part in parts) or len(parts) != 1 + is_pair:
        raise AdapterError(
            f"lstm is {type(layer).__name__}; expected an nn.LSTM, or a pair of them (forward, backward)."
        )
    for part in parts:
        if part.num_layers != 1 or part.proj_size or (is_pair and part.bidirectional):
            raise AdapterError(
                f"lstm has {part.num_layers} layers, bidirectional={part.bidirectional} and "
                f"proj_size={part.proj_size}; expected one layer without projection. In a pair, each LSTM must have "
                "one direction. If you leave lstm out, the audit gives the same numbers, but takes longer."
            )


def cells_of(layer: Layer) -> list[tuple[nn.LSTM, str, bool]]:
    """Return one entry per direction: the module, the suffix of its parameter names, and whether it reads backwards."""
    if isinstance(layer, tuple):
        return [(layer[0], "_l0", False), (layer[1], "_l0", True)]
    return [(layer, "_l0", False), (layer, "_l0_reverse", True)][: 1 + layer.bidirectional]


def gate_parameters(lstm: nn.LSTM, suffix: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the parameters of one direction of an LSTM. The order of their gates is output, input, forget, cell.

    Args:
        lstm: The LSTM.
        suffix: Suffix of the parameter names of this direction.

    Returns:
        (4h, d) weights from the input to the gates; (h, 4h) weights from a hidden state to the gates; and the (4h,) sum
        of the biases, None if there are none.
    """

    def weight(name: str) -> Tensor:
        parameter: Tensor = getattr(lstm, name + suffix).detach()
        input_gate, forget_gate, cell_gate, output_gate = parameter.chunk(4)
        return torch.cat([output_gate, input_gate, forget_gate, cell_gate])

    bias = weight("bias_ih") + weight("bias_hh") if lstm.bias else None
    return weight("weight_ih"), weight("weight_hh").T.contiguous(), bias
