"""Build a small model of a Transformers class, load it as an audit does, and run the full conformance suite on it.

Each class is measured in its own process, with limits on its CPU time and its memory.
"""

from __future__ import annotations

import multiprocessing
import re
import resource
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import transformers

from attnaudit.adapters.huggingface.checkpoints.checkpoint_files import quiet
from attnaudit.adapters.loading import load_model
from attnaudit.conformance import full
from attnaudit.errors import AuditError
from attnaudit.instances import Instance
from benchmarks.small_configurations import spread_weights, tiny_config
from tests import architectures

INSTANCES = [Instance(id=str(i), text=text) for i, text in enumerate(architectures.SENTENCES)]
#: The largest number of parameters of a small model.
LARGEST = 5_000_000
#: The memory of a process that measures a class, in bytes.
MEMORY = 6 * 2**30
#: A process may wait for a busy CPU, so the limit of the elapsed time is this many times that of the CPU time.
PATIENCE = 6
#: Classes whose checkpoints are loaded with a byte-level tokenizer, whatever was saved.
BYTES = ("Qwen2ForCausalLM", "Qwen3_5MoeForCausalLM")
LABELS = "".join(f'{label} = "{word}"\n' for label, word in architectures.LABELS.items())
SETTINGS_FILE = f'template = "{architectures.TEMPLATE}"\n\n[labels]\n{LABELS}'


@dataclass(frozen=True, slots=True)
class Row:
    """What was found for one class.

    Attributes:
        family: The family of the class, a key of `model_classes.FAMILIES`.
        name: The class.
        state: "audited" if it passes the full conformance suite, "failing" if it is loaded but does not pass the suite,
            "refused" if it is not loaded, "not built" if no small model of it could be made, and "timed out" if the
            suite took too long.
        reason: Why the class is not audited; "" if it is.
        passed: Number of conformance checks that passed.
        skipped: Number of conformance checks that do not apply.
        unseen: Class of a module that mixes tokens without visible weights -> number of such modules.
        seconds: CPU time of the process.
        versions: The versions of Transformers and torch.
    """

    family: str
    name: str
    state: str
    reason: str = ""
    passed: int = 0
    skipped: int = 0
    unseen: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    versions: str = ""


def measured(family: str, name: str, limit: int) -> Row:
    """Measure a class in its own process.

    Args:
        family: The family of the class.
        name: The class.
        limit: Limit on the CPU time, in seconds.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(sender, family, name, limit), daemon=True)
    process.start()
    sender.close()
    state, reason = "not built", f"no small model within {limit} s"
    try:
        while receiver.poll(PATIENCE * limit):
            sent: Row | str = receiver.recv()
            if isinstance(sent, Row):
                return sent
            state, reason = "timed out", f"the conformance suite did not end within {limit} s"
    except EOFError:  # the process ended without a row, because it reached a limit
        pass
    finally:
        process.kill()
        process.join()
    return _complete(Row(family, name, state, reason), float(limit))


def _measure(sender: Connection, family: str, name: str, limit: int) -> None:
    """Send "built" when the model of a class is built, and then its row."""
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory(prefix="attnaudit-") as folder:
        try:
            _save(family, name, Path(folder))
        # The table shows every error that a class raises.
        except Exception as error:
            found = Row(family, name, "not built", one_line(f"{type(error).__name__}: {error}"))
        else:
            sender.send("built")
            found = _audited(family, name, folder)
    used = resource.getrusage(resource.RUSAGE_SELF)
    sender.send(_complete(found, used.ru_utime + used.ru_stime))


def _complete(row: Row, seconds: float) -> Row:
    """Add the CPU time and the versions of the libraries to a row."""
    versions = f"transformers {version('transformers')}, torch {version('torch').partition('+')[0]}"
    return replace(row, seconds=round(seconds, 1), versions=versions)


def _save(family: str, name: str, folder: Path) -> None:
    """Save a small model of a class, its tokenizer and, for a language model, the words of its classes.

    Raises:
        RuntimeError: The smallest configuration found is that of a large model.
    """
    tokenizer = architectures.tokenizer("bytes" if name in BYTES else "unigram")
    model_class = getattr(transformers, name)
    config = tiny_config(model_class, tokenizer, classifies=family == "classifiers")
    try:
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in model_class(config).parameters())
    except (NotImplementedError, RuntimeError):  # the class computes with its weights when it is built
        size = 0
    if size > LARGEST:
        raise RuntimeError(f"the smallest configuration found has {size / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    model = model_class(config).eval()
    spread_weights(model)
    with quiet():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if family != "classifiers":
        (folder / "attnaudit.toml").write_text(SETTINGS_FILE, encoding="utf-8")


def _audited(family: str, name: str, folder: str) -> Row:
    """Load a checkpoint folder as an audit does, and run the full conformance suite."""
    try:
        adapter: Any = load_model(folder).adapter
        results = full(adapter, INSTANCES)
    except AuditError as error:
        return Row(family, name, "refused", one_line(str(error).replace(folder, "the folder")))
    # An error of another kind is a defect of attnaudit, and the table shows it.
    except Exception as error:
        return Row(family, name, "failing", one_line(f"{type(error).__name__}: {error}".replace(folder, "the folder")))
    counts = Counter(one.outcome for one in results)
    failed = [f"{one.check}: {one.detail}" for one in results if one.outcome == "fail"]
    unseen = Counter(re.findall(r"\((\w+)\)", " ".join(adapter.capabilities.unseen_mixers)))
    return Row(
        family,
        name,
        "failing" if failed else "audited",
        one_line("; ".join(failed)),
        counts["pass"],
        counts["skip"],
        dict(sorted(unseen.items())),
    )


def one_line(text: str) -> str:
    """Return a text in one line, with at most 300 characters. A longer text ends after a whole word."""
    words = " ".join(text.split())
    return words if len(words) <= 300 else words[:300].rpartition(" ")[0] + " ..."
