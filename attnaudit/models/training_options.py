"""The options of `attnaudit train`. Importing this module does not import torch."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from attnaudit.command_parser import StoreOnce, decimal_number, whole_number
from attnaudit.models.base_encoders import PACKAGES

#: Names of the options that are fields of `Architecture`. The options --residual and --concat set "states".
ARCHITECTURE_OPTIONS: Final = (
    "form",
    "encoder",
    "layers",
    "alignment",
    "projection",
    "projection_parameter",
    "embedding_size",
    "hidden_size",
    "attention_size",
    "states",
)
_EQUAL_SIZES: Final = (
    "Hidden states and embeddings must have the same size: for the default encoder, add --embedding-size 256"
)
#: Name, type, default and help of the options that are fields of `Settings`.
_SETTING_OPTIONS: Final[Sequence[tuple[str, Any, float | None, str]]] = (
    ("seed", whole_number, 0, "seed of all random choices"),
    (
        "epochs",
        whole_number,
        8,
        "passes over the training data; the model of the epoch that is best on the development data is kept",
    ),
    ("batch_size", whole_number, 32, "instances per step"),
    (
        "learning_rate",
        decimal_number,
        1e-3,
        "learning rate of Adam (amsgrad); with --base, the peak learning rate of AdamW",
    ),
    ("attention_rate", decimal_number, 1.0, "factor for the learning rate of the attention parameters"),
    (
        "weight_decay",
        decimal_number,
        1e-5,
        "weight decay, applied to all parameters except those of attention; with --base, to all except biases and "
        "normalisation layers",
    ),
    ("dropout", decimal_number, 0.0, "dropout rate on the embeddings and the pooled context vector"),
    ("word_dropout", decimal_number, 0.0, "probability that a token is replaced by the unknown word in training"),
    ("min_count", whole_number, 2, "treat words that occur fewer than N times in the training data as unknown"),
    ("max_words", whole_number, None, "keep only the N most frequent words; treat all other words as unknown"),
    (
        "tying",
        decimal_number,
        0.0,
        f"weight of an additional loss: the squared distance of each hidden state from its embedding. {_EQUAL_SIZES}",
    ),
    (
        "tying_norm",
        decimal_number,
        0.0,
        f"weight of an additional loss: the distance of each hidden state from its embedding. {_EQUAL_SIZES}",
    ),
    (
        "mlm",
        decimal_number,
        0.0,
        f"weight of an additional loss: predicting masked words from their hidden states. {_EQUAL_SIZES}",
    ),
)
#: Names of the options that are fields of `Settings`, without --vectors.
SETTING_NAMES: Final = tuple(name for name, *_ in _SETTING_OPTIONS)
#: Options that `command` leaves out if they have these values, so that commands on older model cards stay the same.
_LEFT_OUT: Final = (("form", "text"), ("attention_rate", 1.0), ("tying", 0.0), ("tying_norm", 0.0), ("mlm", 0.0))
#: Names and defaults of the settings with --base, which are the fields of `FineTuningSettings`.
FINE_TUNING_DEFAULTS: Final[dict[str, float]] = {
    "seed": 0,
    "epochs": 2,
    "batch_size": 32,
    "learning_rate": 5e-5,
    "weight_decay": 0.01,
    "warm_up": 0.1,
    "max_tokens": 256,
}


class _StoreAndRecord(StoreOnce):
    """Store the value of an option, and add the name of the option to `given`.

    Options that are not in `given` have their default values, which depend on --base.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        super().__call__(parser, namespace, values, option_string)
        namespace.given = {*namespace.given, self.dest}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `attnaudit train` to a parser."""
    parser.description = (
        "Train a small reference classifier with pooled attention or, with --base, fine-tune a pretrained "
        "Transformers encoder. Write the model as a checkpoint folder for `pytest audits/ --model DIR`. The best "
        "epoch is chosen on the development data. The test data are used once, at the end. If the training of a "
        "reference classifier is stopped, run the same command again to resume it: its state is saved in DIR after "
        "each epoch, at most once a minute."
    )
    parser.set_defaults(given=frozenset(), states="plain")
    _add_architecture_options(parser)
    _add_pretrained_options(parser)
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        required=True,
        metavar="NAME|FILE",
        help="training data: a .jsonl, .csv or .parquet file with text and label, or a registered name such as "
        "movie-reviews, whose parts are NAME-train, NAME-dev and NAME (test)",
    )
    data.add_argument(
        "--dev", metavar="NAME|FILE", help="data on which the best epoch is chosen; required if --data is a file"
    )
    data.add_argument("--test", metavar="NAME|FILE", help="data on which the model is evaluated once, at the end")
    settings = parser.add_argument_group("training")
    for name, kind, default, description in _SETTING_OPTIONS:
        default_note = "" if default is None else " (default: %(default)s)"
        if default is not None and FINE_TUNING_DEFAULTS.get(name, default) != default:
            default_note = f" (default: %(default)s; with --base {FINE_TUNING_DEFAULTS[name]:g})"
        settings.add_argument(
            option_name(name),
            action=_StoreAndRecord,
            type=kind,
            default=default,
            metavar="N",
            help=description + default_note,
        )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the checkpoint folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace the checkpoint in DIR, if there is one")


def _add_architecture_options(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("model")
    for part, default, choices in (
        (
            "form",
            "text",
            "text, pair (text and query, as in NLI) or question (text and question, answered "
            "with a class that the text mentions)",
        ),
        ("encoder", "bilstm", "bilstm, gru, cnn, narrow_cnn, transformer, mlp or average"),
        ("alignment", "additive", "additive, dot, small_dot, unscaled_dot, deep or uniform"),
        (
            "projection",
            "softmax",
            "softmax, gumbel or, with the extra attnaudit[entmax], sparsemax, sparsegen or entmax",
        ),
    ):
        model.add_argument(
            f"--{part}",
            action=_StoreAndRecord,
            default=default,
            metavar="NAME",
            help=f"{choices} (default: %(default)s)",
        )
    model.add_argument(
        "--layers",
        action=_StoreAndRecord,
        type=whole_number,
        metavar="N",
        help="number of stacked layers of a bilstm (default: 1) or transformer (default: 2)",
    )
    model.add_argument(
        "--projection-parameter",
        action=_StoreAndRecord,
        type=decimal_number,
        metavar="N",
        help="λ of sparsegen (default: 0.5), α of entmax (default: 1.5) or temperature of gumbel (default: 0.8)",
    )
    for part, description in (
        ("embedding", "size of an embedding"),
        ("hidden", "size of a hidden state; for a bilstm, per direction"),
        ("attention", "size of the hidden layer of additive or deep alignment"),
    ):
        model.add_argument(
            f"--{part}-size",
            action=_StoreAndRecord,
            type=whole_number,
            default=128,
            metavar="N",
            help=f"{description} (default: %(default)s)",
        )
    model.add_argument(
        "--vectors",
        action=_StoreAndRecord,
        type=Path,
        metavar="FILE",
        help="word vectors to initialise the embedding with, in the text format of GloVe, fastText and word2vec (also "
        ".gz); they set the embedding size",
    )
    states = model.add_mutually_exclusive_group()
    states.add_argument(
        "--residual",
        dest="states",
        action="store_const",
        const="residual",
        help="add each token's embedding to its hidden state",
    )
    states.add_argument(
        "--concat",
        dest="states",
        action="store_const",
        const="concat",
        help="append each token's embedding to its hidden state",
    )


def _add_pretrained_options(parser: argparse.ArgumentParser) -> None:
    pretrained = parser.add_argument_group("pretrained encoder (instead of the model options above)")
    pretrained.add_argument(
        "--base",
        metavar="NAME|DIR",
        help="fine-tune this encoder with a new classification head: a folder with config.json, model.safetensors and "
        f"tokenizer, or the name of an installed package that contains one ({', '.join(PACKAGES)})",
    )
    pretrained.add_argument(
        "--warm-up",
        action=_StoreAndRecord,
        type=decimal_number,
        metavar="N",
        help="share of the training steps during which the learning rate rises to its peak (default: 0.1)",
    )
    pretrained.add_argument(
        "--max-tokens",
        action=_StoreAndRecord,
        type=whole_number,
        metavar="N",
        help="truncate longer texts to N tokens (default: 256)",
    )


def option_name(name: str) -> str:
    """Return the command-line option of a field, such as --batch-size for batch_size."""
    return f"--{name.replace('_', '-')}"


def setting_values(options: argparse.Namespace) -> dict[str, Any]:
    """Return the training settings by name. The defaults of settings that were not given depend on --base."""
    if options.base is None:
        return {name: getattr(options, name) for name in SETTING_NAMES}
    return {
        name: getattr(options, name) if name in options.given else default
        for name, default in FINE_TUNING_DEFAULTS.items()
    }


def command(options: argparse.Namespace) -> str:
    """Return the full command line for given options, including options that have their default value.

    Options whose value is None are left out, and so are those in `_LEFT_OUT`.
    """
    model = {name: getattr(options, name) for name in (("base",) if options.base is not None else ARCHITECTURE_OPTIONS)}
    data = {name: getattr(options, name) for name in ("vectors", "data", "dev", "test")}
    line = ["attnaudit", "train"]
    for name, value in (model | data | setting_values(options) | {"out": options.out}).items():
        if name == "states":
            line += [f"--{value}"] if value != "plain" else []
        elif value is not None and (name, value) not in _LEFT_OUT:
            line += [option_name(name), value.as_posix() if isinstance(value, Path) else str(value)]
    return shlex.join([*line, *(["--overwrite"] if options.overwrite else [])])
