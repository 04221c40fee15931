"""The options that the plugin adds to pytest's command line and configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from attnaudit.command_parser import one_of, whole_number
from attnaudit.devices import NAMES
from attnaudit.errors import EMPTY
from attnaudit.formatting import terminal_safe
from attnaudit.plugin.displayed_paths import displayed_path
from attnaudit.plugin.option_actions import Once

if TYPE_CHECKING:
    from attnaudit.run import AuditOptions

DEFAULT_DATA = "movie-reviews"
#: The options that may be given several times, those with one value, and those without a value. Each has a key in the
#: configuration file.
REPEATED = ("--model", "--data")
SINGLE = (
    "--policy",
    "--audit-device",
    "--audit-reports",
    "--audit-max-instances",
    "--audit-unit",
    "--audit-seed",
    "--audit-workers",
    "--audit-executor",
    "--audit-threads",
    "--audit-worker-timeout",
    "--audit-batch-tokens",
)
FLAGS = ("--audit-sequential",)
#: The options that have no key in the configuration file.
COMMAND_LINE_ONLY = ("--audit-resume", "--audit-allow-partial")
#: All options of the audit.
OPTIONS = (*REPEATED, *SINGLE, *FLAGS, *COMMAND_LINE_ONLY)
#: The values of --audit-executor.
EXECUTORS = ("processes", "ray")


def add_options(parser: pytest.Parser) -> None:
    """Add the options. Each has the default None, so that a value in the configuration file can take effect."""
    group = parser.getgroup("attnaudit", "attention audit")
    group.addoption(
        "--model",
        action="append",
        metavar="MODEL",
        help="model to audit: a checkpoint folder, a registered name (demo) or package.module:factory; repeatable",
    )
    group.addoption(
        "--data",
        action="append",
        metavar="DATA",
        help="data to audit on: a .jsonl, .csv or .parquet file with the columns text and label, a folder of .parquet "
        f"files, or a registered name; repeatable (default: {DEFAULT_DATA})",
    )
    group.addoption(
        "--policy", action=Once, metavar="FILE", help="TOML file whose checks replace those of every @audit function"
    )
    group.addoption(
        "--audit-device",
        action=Once,
        metavar="DEVICE",
        help=f"device to measure on: {NAMES}, or auto (default): cuda if there is a CUDA device, otherwise cpu",
    )
    group.addoption(
        "--audit-reports", action=Once, metavar="DIR", help="folder to write the runs to (default: reports)"
    )
    group.addoption(
        "--audit-max-instances",
        action=Once,
        type=whole_number,
        metavar="N",
        help="audit a random sample of N instances, drawn with the seed",
    )
    group.addoption(
        "--audit-sequential",
        action="store_const",
        const=True,
        help='measure rows in a random order until every gate has a verdict, as with sampling = "sequential" in the '
        "policy",
    )
    group.addoption(
        "--audit-unit",
        action=Once,
        type=one_of(("tokens", "words", "sources")),
        metavar="{tokens,words,sources}",
        help="compute statistics over tokens, words or the passages of a prompt (default: tokens)",
    )
    group.addoption(
        "--audit-seed",
        action=Once,
        type=whole_number,
        metavar="N",
        help="seed for samples, permutations and intervals (default: 0)",
    )
    group.addoption(
        "--audit-workers",
        action=Once,
        type=whole_number,
        metavar="N",
        help="measure in N processes; a process that dies is replaced (default: 1, the pytest process itself)",
    )
    group.addoption(
        "--audit-executor",
        action=Once,
        type=one_of(EXECUTORS),
        metavar="{processes,ray}",
        help="what runs the processes of --audit-workers: a pool on this machine, or Ray (default: processes)",
    )
    group.addoption(
        "--audit-threads",
        action=Once,
        type=whole_number,
        metavar="N",
        help="number of PyTorch threads in each process (default: 1 with --audit-workers, otherwise one per core)",
    )
    group.addoption(
        "--audit-worker-timeout",
        action=Once,
        type=whole_number,
        metavar="SECONDS",
        help="end and replace a worker that needs longer for a shard; the run fails if a shard exceeds the limit twice "
        "(default: no limit)",
    )
    group.addoption(
        "--audit-batch-tokens",
        action=Once,
        type=whole_number,
        metavar="N",
        help="tokens in one forward pass; fewer need less memory (default: depends on the device and the model)",
    )
    group.addoption(
        "--audit-resume",
        action=Once,
        metavar="RUN",
        help="continue the interrupted run in this folder, without measuring its finished rows again",
    )
    group.addoption(
        "--audit-allow-partial",
        action="store_true",
        help="let a run that leaves gates out (for example with -k) pass even in CI",
    )
    relative = "; paths are relative to the configuration file"
    parser.addini("audit_model", f"default for --model{relative}", type="args", default=[])
    parser.addini("audit_data", f"default for --data{relative}", type="args", default=[DEFAULT_DATA])
    parser.addini("audit_policy", f"default for --policy{relative}", default=None)
    parser.addini("audit_device", "default for --audit-device", default="auto")
    parser.addini("audit_reports", f"default for --audit-reports{relative}", default="reports")
    parser.addini("audit_max_instances", "default for --audit-max-instances", default="")
    parser.addini("audit_sequential", "default for --audit-sequential", type="bool", default=False)
    parser.addini("audit_unit", "default for --audit-unit", default="tokens")
    parser.addini("audit_seed", "default for --audit-seed", default="0")
    parser.addini("audit_workers", "default for --audit-workers", default="1")
    parser.addini("audit_executor", "default for --audit-executor", default="processes")
    parser.addini("audit_threads", "default for --audit-threads", default="")
    parser.addini("audit_worker_timeout", "default for --audit-worker-timeout", default="")
    parser.addini("audit_batch_tokens", "default for --audit-batch-tokens", default="")


def key_of(option: str) -> str:
    """Return the key of an option in the configuration file, such as "audit_max_instances"."""
    return f"audit_{option.removeprefix('--').removeprefix('audit-').replace('-', '_')}"


#: The keys of the audit in the configuration file.
KEYS = tuple(map(key_of, (*REPEATED, *SINGLE, *FLAGS)))


def keys_in_effect(config: pytest.Config) -> list[str]:
    """Return the keys of the audit that no option on the command line, or in `addopts`, overrides."""
    overrides = getattr(config.known_args_namespace, "override_ini", None) or ()
    given = {one.partition("=")[0] for one in overrides}
    options = (*REPEATED, *SINGLE, *FLAGS)
    return [key_of(one) for one in options if config.getoption(one) is None and key_of(one) not in given]


def option_value(config: pytest.Config, option: str) -> Any:
    """Return an option from the command line, or else from the configuration file, or else its default."""
    value = config.getoption(option)
    return value if value is not None else configured(config, key_of(option))


def configured(config: pytest.Config, key: str) -> Any:
    """Return a value of the configuration file, or its default.

    Raises:
        pytest.UsageError: The value is invalid. The message names the key, which that of pytest may leave out, and the
            file.
    """
    try:
        return config.getini(key)
    except (pytest.UsageError, ValueError) as error:
        expected = " Expected true or false." if key == "audit_sequential" else ""
        message = terminal_safe(str(error)).rstrip(".")
        raise pytest.UsageError(f"{place_of_key(config, key, key)}: {message}.{expected}") from None


def place_of_key(config: pytest.Config, key: str, shown: str) -> str:
    """Return where a key of the configuration was given, for messages: "-o KEY" or "KEY in FILE".

    Args:
        config: pytest's configuration.
        key: The key.
        shown: The key as it is shown, for example with its value.
    """
    overrides = getattr(config.known_args_namespace, "override_ini", None) or ()
    if key in {one.partition("=")[0] for one in overrides}:
        return terminal_safe(f"-o {shown}")
    file = "the configuration file" if config.inipath is None else displayed_path(config.inipath, config)
    return terminal_safe(f"{shown} in {file}")


def names_a_model(config: pytest.Config) -> bool:
    """Return whether a model is given, on the command line or in the configuration file."""
    return bool(option_value(config, "--model"))


def audit_options(config: pytest.Config) -> AuditOptions:
    """Collect the options of the audit.

    Paths on the command line are relative to the working folder. Paths in the configuration file are relative to the
    folder of that file.

    Raises:
        pytest.UsageError: A path is empty, or a number in the configuration file is not a whole number.
    """
    from attnaudit.run import AuditOptions

    working_folder = config.invocation_params.dir
    # Without a configuration file, pytest's rootdir is the common folder of all paths on the command line, including
    # the value of --data; so it is of no use here.
    ini_folder = working_folder if config.inipath is None else config.inipath.parent

    def base(option: str) -> Path:
        return ini_folder if config.getoption(option) is None else working_folder

    policy = option_value(config, "--policy")
    limit = option_value(config, "--audit-max-instances")
    threads = option_value(config, "--audit-threads")
    worker_timeout = option_value(config, "--audit-worker-timeout")
    batch_tokens = option_value(config, "--audit-batch-tokens")
    reports, resume = option_value(config, "--audit-reports"), config.getoption("--audit-resume")
    for option, path in (("--audit-reports", reports), ("--audit-resume", resume)):
        if path is not None and not str(path).strip():
            raise pytest.UsageError(EMPTY.format(option=option))
    return AuditOptions(
        models=tuple(option_value(config, "--model")),
        data=tuple(option_value(config, "--data")),
        models_base=base("--model"),
        data_base=base("--data"),
        reports=base("--audit-reports") / reports,
        policy=None if policy is None else base("--policy") / policy,
        device=str(option_value(config, "--audit-device")),
        max_instances=None if limit == "" else _whole_number(config, limit, "audit_max_instances"),
        unit=str(option_value(config, "--audit-unit")),
        workers=_whole_number(config, option_value(config, "--audit-workers"), "audit_workers"),
        executor=str(option_value(config, "--audit-executor")),
        threads=None if threads == "" else _whole_number(config, threads, "audit_threads"),
        worker_timeout=None if worker_timeout == "" else _whole_number(config, worker_timeout, "audit_worker_timeout"),
        batch_tokens=None if batch_tokens == "" else _whole_number(config, batch_tokens, "audit_batch_tokens"),
        resume=None if resume is None else (working_folder / resume).resolve(),
        sequential=bool(option_value(config, "--audit-sequential")),
        seed=_whole_number(config, option_value(config, "--audit-seed"), "audit_seed"),
    )


def _whole_number(config: pytest.Config, value: Any, key: str) -> int:
    """Convert a value of the configuration file.

    Raises:
        pytest.UsageError: The value is not a whole number.
    """
    try:
        return int(value)
    except ValueError:
        place = place_of_key(config, key, f"{key}={value}")
        raise pytest.UsageError(f"{place}: expected a whole number.") from None
