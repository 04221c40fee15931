"""Parse the command line of `attnaudit`. The error for an unknown name is one line, which suggests similar names."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from attnaudit.errors import ReportError, did_you_mean, nearest
from attnaudit.formatting import one_line


class StoreOnce(argparse.Action):
    """Store the value of an argument. An option whose action this is may be given only once.

    argparse itself would keep the last value and silently drop the others. `CommandParser` has this action as its
    default action.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Store the value.

        Raises:
            argparse.ArgumentError: The option was given before on the same command line.
        """
        stored: set[str] = getattr(parser, "stored", set())
        if self.option_strings and self.dest in stored:
            former = _shown(getattr(namespace, self.dest, None))
            raise argparse.ArgumentError(
                self, f"this option is given twice, as {former} and as {_shown(values)}. Give it once."
            )
        stored.add(self.dest)
        setattr(namespace, self.dest, values)


def _shown(value: Any) -> str:
    return (" ".join(map(str, value)) or "nothing") if isinstance(value, list) else str(value)


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors suggest similar commands or options, and do not list all options.

    argparse itself looks for missing options before unknown ones. If a required option is mistyped, it would therefore
    report the option as missing, and not suggest the correct name.

    An option with one value may be given only once (see `StoreOnce`).
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self.stored: set[str] = set()
        super().__init__(*args, **options)
        for name in (None, "store"):
            self.register("action", name, StoreOnce)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse a command line. The parser of a subcommand gets the words after the name of the subcommand.

        Raises:
            SystemExit: A command or an option is unknown, or argparse refuses a word.
        """
        words = list(args or ())
        self.stored = set()
        commands = self._commands()
        if commands:
            first = next((word for word in words if not word.startswith("-")), None)
            if first is not None and first not in commands:
                self.error(f"unknown command '{first}'. {nearest(first, commands)}")
            words = words if first is None else words[: words.index(first)]
        self._refuse_unknown_options(words)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print one line, and end the program with status 2."""
        sentence = one_line(message if message.endswith((".", "?")) else f"{message}.")
        self.exit(2, f"{self.prog}: error: {sentence} `{self.prog} --help` shows what is expected.\n")

    def _commands(self) -> list[str]:
        """Return the names of the subcommands, or an empty list if there are none."""
        return [
            name
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)
            for name in action.choices
        ]

    def _refuse_unknown_options(self, words: Sequence[str]) -> None:
        """End the program if a word looks like a long option, but no option begins with it."""
        known = [option for option in self._option_string_actions if option.startswith("--")]
        for word in words:
            name = word.partition("=")[0]
            if word == "--":
                return
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                self.error(f"unknown option {name}. {did_you_mean(name, known, cutoff=0.6)}".rstrip())


def one_of(choices: Iterable[str]) -> Callable[[str], Any]:
    """Return a type for argparse that accepts only some words, and suggests similar words for all others.

    argparse's own `choices` lists all words and suggests none.

    Args:
        choices: The words that are accepted.
    """
    accepted = tuple(choices)

    def parse(text: str) -> str:
        if text not in accepted:
            words = " or ".join(filter(None, (", ".join(accepted[:-1]), accepted[-1])))
            raise argparse.ArgumentTypeError(f"expected {words}, but got '{text}'. {nearest(text, accepted)}")
        return text

    return parse


def whole_number(text: str) -> int:
    """Convert a word of the command line to an integer. Pass the function to argparse as the type of an option.

    argparse's own message for `type=int`, "invalid int value", does not say what is expected.
    """
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, but got '{text}'.") from None


def decimal_number(text: str) -> float:
    """Convert a word of the command line to a float. Pass the function to argparse as the type of an option."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, such as 0.1, but got '{text}'.") from None


def add_folder_option(
    parser: argparse.ArgumentParser, name: str, description: str, *, default: Path | None = None, required: bool = False
) -> None:
    """Add an option whose value is the path of a folder.

    Args:
        parser: The parser of the command.
        name: The name of the option, such as "--out".
        description: The help text. The default is appended to it, if there is one.
        default: The folder that is used if the option is not given.
        required: Whether the option must be given.
    """
    shown = description if default is None else f"{description} (default: {default})"
    parser.add_argument(name, type=Path, default=default, required=required, metavar="DIR", help=shown)


def require_writable_folder(option: str, folder: Path) -> None:
    """Check that files can be written to a folder, or that the folder can be created. Nothing is created.

    Commands that work for a long time call this function first, so that a mistake does not waste this time.

    Args:
        option: The option that names the folder, such as "--out".
        folder: The folder.

    Raises:
        ReportError: The path, or a part of it, is a file, or the folder cannot be written to.
    """
    remedy = "Give a folder that you may write to, or a path where a folder can be created."
    try:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        if not existing.is_dir():
            raise ReportError(f"{option} {folder}: {existing} is a file. {remedy}")
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ReportError(f"{option} {folder}: cannot be written to ({error.strerror or error}). {remedy}") from error
