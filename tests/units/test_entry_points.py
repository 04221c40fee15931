"""Entry points of installed packages: each leads to a usable object, under the name that its decorator gave."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attnaudit import registry
from attnaudit.adapters.loading import load_model
from attnaudit.checks import load_policy
from attnaudit.commands import list_command, plan_command
from attnaudit.engine.planning import resolve
from attnaudit.errors import AuditError, CheckError, UnknownCheckError
from attnaudit.registry import Registry
from attnaudit.run.verification.declared_checks import built_in_check
from tests.forking_interpreter import run_module

#: A package with objects that can be used, and with some that cannot.
MODULE = """
from attnaudit import checks, register_dataset, register_model
from attnaudit.measures import Columns, measure

@measure("spread_of_plugin")
def _spread(view, request):
    return Columns(scalars={request.name: view.attention.std(1)})

@checks.check(title="Spread", question="Is the attention spread?", needs=["spread_of_plugin"])
def spread_check(measurements):
    return measurements.scalar("spread_of_plugin")

@register_dataset("plugin-stream", order="random")
def stream():
    yield {"text": "good", "label": "a"}

def raw(measurements):
    return measurements.scalar("attention.max")

class Plain:
    pass

number = 3
"""
#: Writes a package, whose module has a new name, and its entry points. It returns the name of the module.
Install = Callable[..., str]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    for one in (registry.models, registry.datasets, registry.checkpoint_formats, registry.measures, registry.checks):
        one.names()  # the built-in objects must be registered before the copy is made
        for attribute in ("_known", "_origin", "_decorated", "_file"):
            monkeypatch.setattr(one, attribute, getattr(one, attribute).copy())
    modules = set(sys.modules)

    def write(module: str, text: str = MODULE, **groups: str) -> str:
        (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
        lines = [f"[attnaudit.{group}]\n{entries.format(m=module)}\n" for group, entries in groups.items()]
        (info / "entry_points.txt").write_text("".join(lines), encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        registry._installed.cache_clear()
        return module

    yield write
    registry._installed.cache_clear()
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def policy(folder: Path, name: str) -> Path:
    path = folder / "policy.toml"
    path.write_text(f'[[check]]\nname = "{name}"\nat_least = 0.2\n', encoding="utf-8")
    return path


def test_objects_are_found_by_the_names_of_their_decorators(install: Install, tmp_path: Path) -> None:
    install(
        "plugin_a",
        checks="spread_check = {m}:spread_check",
        measures="spread_of_plugin = {m}:_spread",
        datasets="plugin-stream = {m}:stream\nplugin-rows = {m}:raw",
        models="plugin-one = {m}:Plain\nplugin-two = {m}:Plain",
    )
    (check,) = load_policy(policy(tmp_path, "spread_check"))
    assert check.id == "spread_check"
    assert "spread_of_plugin" in [one.name for one in resolve(check.needs()).measures]
    assert registry.has_random_order(registry.datasets.get("plugin-stream"))
    assert registry.datasets.get("plugin-rows").__name__ == "raw"
    # A function without a decorator has only the names of its entry points, and may have several.
    assert registry.models.get("plugin-one") is registry.models.get("plugin-two")


@pytest.mark.parametrize(
    ("item", "found"),
    [
        ("{m}:raw", r"is a function; decorate it with @checks\.check\."),
        ("{m}:Plain", r"is a class; decorate it with @checks\.registered\."),
        ("{m}:number", r"is an object of type int; expected a function decorated with @checks\.check\."),
        ("{m}", r"is a module; expected a function decorated with @checks\.check\."),
    ],
)
def test_a_check_without_its_decorator_is_refused(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str], item: str, found: str
) -> None:
    module = install("plugin_b", checks=f"raw = {item}")
    place = rf"check 'raw' \({item.format(m=module)}\) {found}$"
    with pytest.raises(AuditError, match=f"^{place}"):
        registry.checks.get("raw")
    path = policy(tmp_path, "raw")
    with pytest.raises(CheckError, match=rf"policy\.toml: \[\[check\]\] number 1 \(raw\): {place}"):
        load_policy(path)
    parser = argparse.ArgumentParser()
    plan_command.add_arguments(parser)
    assert plan_command.run(parser.parse_args(["--policy", str(path)])) == 2
    assert "check 'raw'" in capsys.readouterr().err


def test_a_policy_with_such_a_check_is_a_usage_error_of_pytest(install: Install, tmp_path: Path) -> None:
    install("plugin_c", checks="raw = {m}:raw")
    policy(tmp_path, "raw")
    test = (
        "from attnaudit import audit, checks\n\n"
        "@audit(checks.UniformFragility(at_least=0.1))\ndef test_it(check):\n    check.enforce()\n"
    )
    (tmp_path / "test_it.py").write_text(test, encoding="utf-8")
    done = run_module("pytest", "-p", "no:cacheprovider", "--model", "demo", "--policy", "policy.toml", cwd=tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    (error,) = done.stderr.strip().splitlines()
    assert "check 'raw' (plugin_c:raw) is a function; decorate it with @checks.check." in error


@pytest.mark.parametrize(
    ("group", "item", "found"),
    [
        ("measures", "{m}:raw", r'is a function; decorate it with @measure\("name"\)\.'),
        (
            "measures",
            "{m}:number",
            r'is an object of type int; expected a function decorated with @measure\("name"\)\.',
        ),
        (
            "models",
            "{m}:number",
            "is an object of type int; expected a function without arguments that returns a model",
        ),
        ("models", "{m}", "is a module; expected a function without arguments that returns a model adapter"),
        ("datasets", "{m}", "is a module; expected a function that returns or yields rows"),
        ("checkpoints", "{m}", r"is a module; expected a module with .*recognises\(folder\) and load\(folder\), but "),
        ("checkpoints", "{m}:Plain", "is a class; expected a module .* but recognises and load are missing"),
    ],
)
def test_other_objects_are_refused_in_the_same_way(
    install: Install, tmp_path: Path, group: str, item: str, found: str
) -> None:
    module = install("plugin_d", **{group: f"one = {item}"})
    one = {
        "measures": registry.measures,
        "models": registry.models,
        "datasets": registry.datasets,
        "checkpoints": registry.checkpoint_formats,
    }[group]
    message = rf"{one.kind} 'one' \({item.format(m=module)}\) {found}"
    with pytest.raises(AuditError, match=message):
        one.get("one")
    if group == "measures":
        with pytest.raises(CheckError, match=f"Required measure 'one': {message}"):
            resolve(["one"])
    if group == "checkpoints":
        with pytest.raises(AuditError, match=message):
            load_model(str(tmp_path))


@pytest.mark.parametrize("imported", [False, True], ids=["not imported", "imported"])
def test_an_entry_point_has_the_name_of_its_object(install: Install, tmp_path: Path, imported: bool) -> None:
    module = install(
        "plugin_e",
        checks="key = {m}:spread_check",
        measures="other = {m}:_spread",
        datasets="other-stream = {m}:stream",
    )
    if imported:
        importlib.import_module(module)
    message = (
        r"check 'spread_check': its entry point is named 'key'; expected the same name\. In the group "
        r'attnaudit\.checks of the package that provides it, write spread_check = "plugin_e:spread_check", and '
        r"reinstall the package\."
    )
    with pytest.raises(UnknownCheckError if not imported else CheckError, match=message):
        load_policy(policy(tmp_path, "spread_check"))
    for name in ("key", "spread_check"):
        with pytest.raises(CheckError, match=message):
            load_policy(policy(tmp_path, name))
    with pytest.raises(CheckError, match=r"measure 'spread_of_plugin': its entry point is named 'other'"):
        resolve(["other"])
    with pytest.raises(AuditError, match=r"data set 'plugin-stream': its entry point is named 'other-stream'"):
        registry.datasets.get("other-stream")


def test_names_that_are_no_keys_get_suggestions(install: Install, tmp_path: Path) -> None:
    install("plugin_f", checks="spread_check = {m}:spread_check", measures="spread_of_plugin = {m}:_spread")
    with pytest.raises(UnknownCheckError, match=r"unknown check name 'sprad_check'\. Did you mean 'spread_check'\?"):
        load_policy(policy(tmp_path, "sprad_check"))
    with pytest.raises(CheckError, match=r"Unknown measure '_spread'\. Did you mean 'spread_of_plugin'\?"):
        resolve(["_spread"])


def test_a_package_may_import_an_object_from_one_of_its_modules(install: Install, tmp_path: Path) -> None:
    install("plugin_g_core")
    (tmp_path / "plugin_g").mkdir()
    (tmp_path / "plugin_g_core.py").rename(tmp_path / "plugin_g" / "core.py")
    (tmp_path / "plugin_g" / "__init__.py").write_text("from plugin_g.core import spread_check\n", encoding="utf-8")
    info = tmp_path / "plugin_g_core-1.0.dist-info" / "entry_points.txt"
    info.write_text("[attnaudit.checks]\nspread_check = plugin_g:spread_check\n", encoding="utf-8")
    registry._installed.cache_clear()
    assert registry.checks.get("spread_check")(at_least=0.1).id == "spread_check"


def test_another_object_under_the_name_of_an_entry_point_is_refused(install: Install) -> None:
    text = "from attnaudit.registry import models\n\n@models.register('mine')\ndef one(): ...\n\ndef two(): ...\n"
    install("plugin_h", text.replace("models", "measures"), measures="mine = {m}:two")
    with pytest.raises(AuditError, match=r"'mine'.* is registered twice, by plugin_h:two .* and by plugin_h\.one"):
        registry.measures.get("mine")


def test_the_list_shows_names_that_cannot_be_used(
    install: Install, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    options = argparse.Namespace()
    assert list_command.run(options) == 0
    assert "cannot be used" not in capsys.readouterr().out
    install(
        "plugin_i",
        checks="spread_check = {m}:spread_check\nbroken-check = nomodule:x",
        measures="raw-measure = {m}:raw",
        models="broken-model = {m}:nothing",
        datasets="broken-data = {m}",
    )
    assert list_command.run(options) == 1
    shown = capsys.readouterr()
    lines = {line.split()[0]: line for line in shown.out.splitlines() if line.startswith("  ")}
    assert (
        "cannot be used: check 'broken-check' (nomodule:x) cannot be imported: ModuleNotFoundError"
        in (lines["broken-check"])
    )
    assert "decorate it with @measure" in lines["raw-measure"]
    assert "cannot be used" in lines["broken-model"]
    assert "cannot be used" in lines["broken-data"]
    assert "Is the attention spread?" in lines["spread_check"]
    assert {"demo", "movie-reviews", "UniformFragility", "gradient", "jain-wallace:"} <= set(lines)
    assert "attnaudit: 4 names cannot be used; see the list for the reasons." in shown.err


def test_a_check_that_cannot_be_used_is_no_built_in_one(install: Install) -> None:
    install("plugin_j", checks="raw = {m}:raw")
    assert built_in_check({"name": "raw", "at_least": 0.1}) is None


def test_a_registry_without_requirements_takes_every_object(install: Install) -> None:
    install("plugin_k", others="number = {m}:number")
    assert Registry("thing", "attnaudit.others").get("number") == 3
