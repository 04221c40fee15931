"""`attnaudit init`: create an audits/ folder in a repository."""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path

from attnaudit.errors import AuditError, require_reachable
from attnaudit.formatting import terminal_safe

#: Name of a file in audits/ -> name of its template.
TEMPLATES = {
    "test_attention_faithfulness.py": "test_attention_faithfulness.template",
    "policy.toml": "policy.toml",
    "transformer.toml": "transformer.toml",
    "attentions.toml": "attentions.toml",
    "bags.toml": "bags.toml",
    "pictures.toml": "pictures.toml",
    "sources.toml": "sources.toml",
    "conftest_example.py": "conftest.template",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `attnaudit init`."""
    parser.add_argument(
        "folder", nargs="?", default=".", metavar="DIR", help="the repository (default: the working folder)"
    )


def run(options: argparse.Namespace) -> int:
    """Write the files of the audits/ folder, and print what to do next.

    Returns:
        The exit status, 0.

    Raises:
        AuditError: One of the files already exists, and no file is written. Or a file cannot be written.
    """
    root = Path(options.folder)
    templates = files("attnaudit.run") / "templates"
    targets = {root / "audits" / name: template for name, template in TEMPLATES.items()}
    for path in targets:
        require_reachable("init", path)
        if path.exists():
            raise AuditError(
                f"{path}: this file already exists and is not overwritten. Remove it, or choose another folder."
            )
    for path, template in targets.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text((templates / template).read_text(encoding="utf-8"), encoding="utf-8", newline="\n")
        except OSError as error:
            raise AuditError(
                f"{path}: cannot be written ({error.strerror}). Choose a folder that you may write to."
            ) from error
        print(f"wrote {terminal_safe(str(path))}")
    print("next:")
    if root.resolve() != Path.cwd().resolve():
        print(f"  cd {terminal_safe(str(root))}")
    print("  pytest audits/ --model demo")
    print("to audit your own model:")
    print("  Transformers: pytest audits/ --model CHECKPOINT_FOLDER --data FILE")
    print("  pooled attention: rename audits/conftest_example.py to conftest.py and name the parts of your model in it")
    return 0
