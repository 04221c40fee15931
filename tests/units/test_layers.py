"""The import graph: layers, no cycles, nothing heavy while cases are collected; and module names and lengths."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "attnaudit"
MODULES = sorted(PACKAGE.rglob("*.py"))
#: Folder or module -> its layer. Each imports only from its own layer and from lower ones.
LAYERS = {
    "arrays": 0,
    "errors": 0,
    "code_identity": 0,
    "disk_arrays": 0,
    "formatting": 0,
    "output_files": 0,
    "devices": 0,
    "precision": 0,
    "processes": 0,
    "progress": 0,
    "command_parser": 0,
    "records": 0,
    "registry": 0,
    "instances": 0,
    "readings": 0,
    "retraining": 0,
    "seeding": 0,
    "targets": 0,
    "unit_samples": 0,
    "verdict_text": 1,
    "input_files": 1,
    "model_families": 1,
    "metrics": 1,
    "statistics": 1,
    "adapters": 2,
    "data": 2,
    "models": 2,
    "engine": 3,
    "conformance": 3,
    "measures": 4,
    "checks": 5,
    "executors": 6,
    "report": 6,
    "run": 7,
    "release_evidence": 8,
    "research": 8,
    "plugin": 9,
    "commands": 9,
    "cli": 9,
    "__main__": 9,
}
#: The folders and modules of `adapters/huggingface`: each imports only from itself and from those before it.
LAYERS_OF_TRANSFORMERS = (
    *("logit_comparison", "forward_hooks", "half_precision", "wrapped_models", "checkpoints", "attention", "outputs"),
    *("texts", "passes", "probes", "transformer_adapter", "pictures_and_recordings", "precision_choice"),
    *("text_build", "build", "checkpoint_format", "__init__"),
)
#: Folders that the core finds through registries and never imports.
FOUND_THROUGH_REGISTRIES = {"data", "models"}


def top_level(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(dotted name, whether at module level outside TYPE_CHECKING) of every import."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    early = {id(node) for node in _run_at_import(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in early) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from ((f"{node.module}.{alias.name}", id(node) in early) for alias in node.names)


def _run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _run_at_import(child)


INNER = [path for path in MODULES if path != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", INNER, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_nothing_imports_upward(path: Path) -> None:
    here = top_level(path)
    for name, _ in imports(path):
        if not name.startswith("attnaudit"):
            continue
        other = name.split(".")[1] if "." in name else ""
        if other == "__version__":
            assert LAYERS[here] >= 7, f"{path} reads the version from the package root"
            continue
        assert other in LAYERS, f"{path} imports {name}: the package root, or a folder that has no layer"
        assert LAYERS[other] <= LAYERS[here], f"{path} (layer {LAYERS[here]}) imports {name} (layer {LAYERS[other]})"
        if other in FOUND_THROUGH_REGISTRIES and here not in FOUND_THROUGH_REGISTRIES:
            assert LAYERS[here] >= 7, f"{path} imports {name}: the core must find data and models by registry"


def test_every_folder_has_a_layer() -> None:
    assert {top_level(path) for path in INNER} == set(LAYERS)


def test_the_folders_for_transformers_are_layered() -> None:
    """Imports inside functions and under TYPE_CHECKING count as well."""
    folder, package = PACKAGE / "adapters" / "huggingface", "attnaudit.adapters.huggingface."
    paths = {path: path.relative_to(folder).with_suffix("").parts[0] for path in sorted(folder.rglob("*.py"))}
    assert set(paths.values()) == set(LAYERS_OF_TRANSFORMERS)
    for path, here in paths.items():
        below = LAYERS_OF_TRANSFORMERS[: LAYERS_OF_TRANSFORMERS.index(here) + 1]
        for name, _ in imports(path):
            if name.startswith(package):
                other = name.removeprefix(package).split(".")[0]
                other = other if other in LAYERS_OF_TRANSFORMERS else "__init__"
                assert other in below, f"{path}: {here} imports {name}"


def test_every_folder_for_transformers_says_what_belongs_there() -> None:
    for path in sorted((PACKAGE / "adapters" / "huggingface").rglob("__init__.py")):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_no_check_knows_policies() -> None:
    """Only the decorator and the public names of `attnaudit.checks` import them."""
    folder = PACKAGE / "checks"
    for path in sorted(folder.rglob("*.py")):
        if path.stem not in {"__init__", "decorator"} and path.parent.name != "policies":
            assert not [name for name, _ in imports(path) if name.startswith("attnaudit.checks.policies")], path


def test_the_core_does_not_import_research() -> None:
    for path in INNER:
        if top_level(path) not in {"research", "commands"}:
            assert not [name for name, _ in imports(path) if name.startswith("attnaudit.research")], path


def test_no_modules_import_each_other() -> None:
    """Imports inside functions and under TYPE_CHECKING count as well."""
    paths = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in MODULES}
    known = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    graph: dict[str, set[str]] = {}
    for module, path in known.items():
        targets = {name if name in known else name.rpartition(".")[0] for name, _ in imports(path)}
        graph[module] = {target for target in targets if target in known and target != module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_no_two_modules_share_a_name() -> None:
    names = Counter(path.stem for path in MODULES if path.stem != "__init__")
    names.update(path.parent.name for path in MODULES if path.stem == "__init__")
    assert [name for name, count in names.items() if count > 1] == []


def test_the_report_reads_records_only() -> None:
    allowed = {"errors", "formatting", "input_files", "instances", "model_families", "processes", "records", "report"}
    allowed |= {"verdict_text"}
    for path in (PACKAGE / "report").rglob("*.py"):
        for name, _ in imports(path):
            assert not name.startswith("torch"), path
            assert not name.startswith("attnaudit") or name.split(".")[1] in allowed, f"{path} imports {name}"


@pytest.mark.parametrize("folder", ["checks", "code_identity", "disk_arrays", "report", "run", "data"])
def test_torch_is_not_imported_when_cases_are_collected(folder: str) -> None:
    for path in (PACKAGE / folder).rglob("*.py"):
        early = [name for name, at_import in imports(path) if at_import and name.split(".")[0] == "torch"]
        assert not early, f"{path} imports {early}"


@pytest.mark.parametrize(
    "module", ["attnaudit", "attnaudit.plugin.hooks", "attnaudit.cli", "attnaudit.checks", "attnaudit.run"]
)
def test_importing_is_cheap(module: str, tmp_path: Path) -> None:
    code = f"import sys, {module}; print(sorted(set(sys.modules) & {{'torch', 'sklearn', 'scipy', 'rich', 'jinja2'}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_plugin_alone_loads_nothing_else_of_the_package(tmp_path: Path) -> None:
    code = "import sys, attnaudit.plugin.hooks; print(*sorted(m for m in sys.modules if m.startswith('attnaudit')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    modules = ("audit_plugin", "case_collection", "case_reports", "clean_reports", "closing", "command_line", "hooks")
    modules += ("interrupts", "option_actions", "planning_cases", "progress_display", "rerun", "selection", "state")
    modules += (
        "displayed_paths",
        "files_left_out",
        "ignored_configuration",
        "junit_file",
        "mistyped_names",
        "possible_gates",
        "shown_failures",
    )
    light = {"command_parser", "devices", "errors", "formatting", "plugin", "plugin.terminal_summary", "plugin.workers"}
    light |= {f"plugin.{module}" for module in modules}
    assert set(done.stdout.split()) == {"attnaudit", *(f"attnaudit.{name}" for name in light)}


def test_public_names_are_the_things_themselves() -> None:
    import attnaudit
    from attnaudit import checks, registry

    assert attnaudit.audit is checks.audit
    assert attnaudit.checks is checks
    assert attnaudit.register_model == registry.models.register
    assert attnaudit.register_dataset is registry.register_dataset
    assert set(attnaudit.__all__) <= set(dir(attnaudit))
    with pytest.raises(AttributeError, match="no attribute 'cheks'"):
        attnaudit.cheks  # noqa: B018


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_file_is_far_over_400_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 440
