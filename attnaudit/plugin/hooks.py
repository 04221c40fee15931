"""The hooks and fixtures that pytest finds through the entry point. Everything about one run is in `AuditPlugin`."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from attnaudit.devices import let_waiting_threads_sleep
from attnaudit.errors import AuditError, shown_error
from attnaudit.plugin.audit_plugin import AuditPlugin
from attnaudit.plugin.command_line import OPTIONS, add_options, audit_options, configured, names_a_model
from attnaudit.plugin.junit_file import refuse_inputs_as_outputs
from attnaudit.plugin.mistyped_names import refuse_mistyped_options
from attnaudit.plugin.state import MeasurementsRequest

if TYPE_CHECKING:
    from attnaudit.engine.measurements import Measurements

#: The name under which the plugin object of a run is registered.
PLUGIN_NAME = "attnaudit-run"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the audit."""
    add_options(parser)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, None, None]:
    """Prepare torch before a conftest.py can import it, and refuse unknown options that resemble one of the audit.

    Raises:
        pytest.UsageError: A conftest ended the program, or an unknown option resembles one of the audit. (If a conftest
            could end the program with status 0, the audit would seem to have passed.)
    """
    registry = sys.modules.get("attnaudit.registry")  # imported if this process ran another session, or another plugin
    if registry is not None:
        registry.begin_project()
    audits = bool(early_config.known_args_namespace.model or configured(early_config, "audit_model"))
    if audits:
        let_waiting_threads_sleep()
    try:
        yield
    except SystemExit as ended:
        if audits:
            raise pytest.UsageError(_ended_early("A conftest.py", ended)) from ended
        raise
    refuse_mistyped_options(parser, args, OPTIONS)


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin object of this run."""
    if names_a_model(config):
        options = audit_options(config)  # an invalid value stops pytest here and not in the middle of the collection
        try:
            refuse_inputs_as_outputs(config, options)
        except AuditError as error:
            raise pytest.UsageError(shown_error(error)) from error
    config.addinivalue_line(
        "markers",
        "attnaudit(needs=[...]): a case of the attention audit; needs lists what the fixture `measurements` measures",
    )
    registered = config.pluginmanager.register(AuditPlugin(config), PLUGIN_NAME)
    missing = PLUGIN_NAME if registered is None else "python" if not config.pluginmanager.has_plugin("python") else ""
    if missing and names_a_model(config):
        raise pytest.UsageError(
            f"-p no:{missing}: without this plugin, the audit cannot run. Remove the option from the command line, "
            "`addopts` or PYTEST_ADDOPTS; or leave out --model to run only the other tests."
        )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, int | pytest.ExitCode, int | pytest.ExitCode]:
    """Return a failing exit status if the audit did not pass, even if another plugin has changed the status."""
    try:
        status = yield
    except SystemExit as ended:
        if not names_a_model(config):
            raise
        print(f"attnaudit: {_ended_early('A plugin or a conftest.py', ended)}", file=sys.stderr)
        return _plugin_of(config).final_status(int(pytest.ExitCode.INTERNAL_ERROR))
    except BaseException:  # such as an error in `pytest_unconfigure`
        _plugin_of(config).record_late_error()
        raise
    return _plugin_of(config).final_status(int(status))


def _plugin_of(config: pytest.Config) -> AuditPlugin:
    """Return the plugin object of a run.

    If a conftest.py ended pytest before the object was registered, return a new object.
    """
    plugin: AuditPlugin | None = config.pluginmanager.getplugin(PLUGIN_NAME)
    return AuditPlugin(config) if plugin is None else plugin


def _ended_early(what: str, ended: SystemExit) -> str:
    """Return a message about code that ended the program before pytest had finished."""
    return f"{what} ended pytest with sys.exit({ended.code!r}). Remove this call: the audit did not run to its end."


@pytest.fixture
def attnaudit_case(request: pytest.FixtureRequest) -> MeasurementsRequest:
    """The model, the data set and the needed measures of a test that uses the fixture `measurements`."""
    measurements_request: MeasurementsRequest = request.param
    return measurements_request


@pytest.fixture
def measurements(attnaudit_case: MeasurementsRequest) -> Measurements:
    """The measurements of one model on one data set, as checks get them. The test runs once per --model and --data."""
    return attnaudit_case.session.measurements(attnaudit_case.model, attnaudit_case.data, attnaudit_case.needs)
