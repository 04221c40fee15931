"""The command `attnaudit`: everything but the audit itself, which is `pytest audits/ --model ...`."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from attnaudit import __version__
from attnaudit.errors import AuditError, ReportError, require_reachable

COMMANDS = "init, train, conformance, plant, validate, reproduce, report, schema, list"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 0, 1 for an AuditError, 130 when interrupted; argparse exits with 2.
    `conformance` says 1 for a broken contract, 2 for what cannot be tried."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of papers and data need not fit a terminal's character set
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser(training=words[:1] == ["train"], planting=words[:1] == ["plant"])
    options = parser.parse_args(words)
    if options.run is None:
        parser.print_help()
        return 0
    try:
        status: int | None = options.run(options)
    except AuditError as error:
        print(f"attnaudit: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        on = "train (without --base), plant, validate and reproduce go on from what is finished"
        print(f"attnaudit: interrupted. {on}.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read the output has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status or 0


def _parser(*, training: bool, planting: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attnaudit",
        description="Audits whether attention explains the predictions of a text classifier. "
        "The audit itself is run by pytest: pytest audits/ --model demo",
    )
    parser.add_argument("--version", action="version", version=f"attnaudit {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar=f"{{{COMMANDS}}}")

    init = commands.add_parser("init", help="write an audits/ folder into a repository of your own")
    init.add_argument("folder", nargs="?", default=".", metavar="DIR", help="the repository (default: this folder)")
    init.set_defaults(run=_init)

    train = commands.add_parser("train", help="train a reference model and write a checkpoint folder")
    if training:  # only then: the options of the trainer are those of the zoo
        from attnaudit.models import train_command

        train_command.add_arguments(train)
        train.set_defaults(run=train_command.run)

    from attnaudit.commands.conformance_command import add_arguments as conformance_arguments

    conformance_arguments(
        commands.add_parser("conformance", help="check that a model's adapter keeps the contract that audits rely on")
    )

    plant = commands.add_parser("plant", help="build models whose attention is known to be right or wrong")
    if planting:
        from attnaudit.research.planted import plant_command as planted

        planted.add_arguments(plant)
        plant.set_defaults(run=planted.run)

    from attnaudit.research.validation.validate_command import add_arguments as validation_arguments

    validation_arguments(
        commands.add_parser("validate", help="try the checks on models whose attention is known to be right or wrong")
    )

    from attnaudit.research.reproduction.reproduce_command import add_arguments as reproduction_arguments

    reproduction_arguments(
        commands.add_parser("reproduce", help="do a paper's tables again: train, audit, compare with its numbers")
    )

    report = commands.add_parser("report", help="build report.html and summary.md of a run anew")
    report.add_argument("folder", metavar="RUN_DIR", help="a run's folder, such as reports/<run>, or reports itself")
    report.set_defaults(run=_report)

    schema = commands.add_parser("schema", help="print the JSON Schema of audit.json")
    schema.set_defaults(run=_schema)

    listing = commands.add_parser("list", help="models, data sets, checks, measures and papers by name")
    listing.set_defaults(run=_list)
    return parser


def _init(options: argparse.Namespace) -> None:
    root = Path(options.folder)
    templates = files("attnaudit.run") / "templates"
    wanted = {
        root / "audits" / "test_attention_faithfulness.py": "test_attention_faithfulness.template",
        root / "audits" / "policy.toml": "policy.toml",
        root / "audits" / "transformer.toml": "transformer.toml",
        root / "audits" / "conftest_example.py": "conftest.template",
    }
    for path in wanted:
        if path.exists():
            raise AuditError(f"{path}: exists already and is not overwritten. Remove it, or choose another folder.")
    for path, template in wanted.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text((templates / template).read_text(encoding="utf-8"), encoding="utf-8", newline="\n")
        except OSError as error:
            raise AuditError(
                f"{path}: cannot be written ({error.strerror}). Give a folder that you may write to."
            ) from error
        print(f"wrote {path}")
    print("next:")
    if root.resolve() != Path.cwd().resolve():
        print(f"  cd {root}")
    print("  pytest audits/ --model demo")


def _report(options: argparse.Namespace) -> None:
    from attnaudit.report import build

    folder = Path(options.folder)
    newest = folder / "latest.txt"
    if not (folder / "audit.json").is_file() and newest.is_file():
        folder = folder / newest.read_text(encoding="utf-8", errors="replace").strip()
    require_reachable("report", folder)
    if not folder.is_dir():
        raise ReportError(f"{folder}: no such folder. Expected the folder of a run, such as reports/<run>.")
    build(folder)
    print(folder / "report.html")


def _schema(options: argparse.Namespace) -> None:
    import json

    from attnaudit.report import audit_schema

    print(json.dumps(audit_schema(), indent=2))


def _list(options: argparse.Namespace) -> None:
    from attnaudit import registry
    from attnaudit.commands.conformance_command import read_conftests

    read_conftests()
    for title, known in (
        ("models (--model)", registry.models),
        ("data sets (--data)", registry.datasets),
        ("checks", registry.checks),
        ("measures", registry.measures),
    ):
        print(f"{title}:")
        for name in known.names():
            print(f"  {name}")
    from attnaudit.research.reproduction.papers import PAPERS

    print("papers (attnaudit reproduce):")
    for name, (_, words) in PAPERS.items():
        print(f"  {name}: {words}")


if __name__ == "__main__":
    sys.exit(main())
