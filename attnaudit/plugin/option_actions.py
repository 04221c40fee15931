"""The action of options that may be given only once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


class Once(argparse.Action):
    """Store the value of an option that may be given only once. The default of the option must be None.

    argparse itself would keep the last value and silently drop the others. A second --policy, for example in the
    `addopts` of a configuration file, could then replace the policy that was meant. pytest parses its options several
    times, so, unlike `attnaudit.command_parser.StoreOnce`, the former value is that of the namespace.
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
            argparse.ArgumentError: The option has a value already. pytest reports this as a usage error.
        """
        former = getattr(namespace, self.dest, None)
        if former is not None:
            raise argparse.ArgumentError(
                self,
                f"this option is given twice, as {former} and as {values}. Give it once; options also come from "
                "`addopts` in the configuration file and from the environment variable PYTEST_ADDOPTS.",
            )
        setattr(namespace, self.dest, values)
