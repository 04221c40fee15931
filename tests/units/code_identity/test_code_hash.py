"""The hash of code covers everything of the user that the code reaches, and is the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from collections import ChainMap, UserDict, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from attnaudit.code_identity.code_hash import hash_of_code

#: Modules of the user: the module that defines `check`, and its helpers. Every helper computes `{0}`.
FILES = {
    "__init__.py": "from helpers_of_hash import checks\n",
    "inherited.py": "class Base:\n    def value(self, x): return {0}\n",
    "deep/__init__.py": "",
    "deep/statistics.py": "def f(x): return {0}\n",
    "partial.py": "def f(k, x): return {0}\n",
    "dictionary.py": "def f(x): return {0}\n",
    "listed.py": "def f(x): return {0}\n",
    "tupled.py": "def f(x): return {0}\n",
    "in_set.py": "def f(x): return {0}\n",
    "nested.py": "def f(x): return {0}\nclass Holder:\n    table = {{'a': [(f, 1)]}}\n",
    "instance.py": "class Rule:\n    def __init__(self, k): self.k = k\n    def apply(self, x): return {0}\n",
    "attribute.py": "class Rule:\n    def __init__(self): self.k = {0}\n    def apply(self, x): return self.k\n",
    "slots.py": "class Rule:\n    __slots__ = ('k',)\n    def __init__(self): self.k = {0}\n",
    "call.py": "class Rule:\n    def __call__(self, x): return {0}\n",
    "decorated.py": (
        "import functools\n"
        "def twice(f):\n    @functools.wraps(f)\n    def inner(x): return f(f(x))\n    return inner\n"
        "@twice\ndef f(x): return {0}\n"
    ),
    "decorator.py": (
        "import functools\n"
        "class Cached:\n"
        "    def __init__(self, f): self.f = f; functools.update_wrapper(self, f)\n"
        "    def __call__(self, x): return self.f(x) + {0}\n"
    ),
    "methods.py": (
        "import functools\n"
        "def made(): return {0}\n"
        "class Rule:\n"
        "    @property\n    def one(self): return made()\n"
        "    @staticmethod\n    def two(x): return x\n"
    ),
    "setter.py": (
        "def made(): return {0}\n"
        "class Rule:\n    @property\n    def one(self): return 1\n    @one.setter\n    def one(self, value): made()\n"
    ),
    "cached.py": (
        "import functools\ndef made(): return {0}\n"
        "class Rule:\n    @functools.cached_property\n    def one(self): return made()\n"
    ),
    "static.py": "def made(): return {0}\nclass Rule:\n    @staticmethod\n    def f(x): return made()\n",
    "classmethods.py": "def made(): return {0}\nclass Rule:\n    @classmethod\n    def f(cls, x): return made()\n",
    "default.py": "def made(x): return {0}\ndef f(x, by=made): return by(x)\n",
    "keyword.py": "def made(x): return {0}\ndef f(x, *, by=made): return by(x)\n",
    "fields.py": (
        "import dataclasses\nLIMIT = {0}\ndef made(): return {0}\n"
        "@dataclasses.dataclass\nclass Rule:\n"
        "    limit: float = LIMIT\n    values: list = dataclasses.field(default_factory=made)\n"
    ),
    "factory.py": (
        "import dataclasses\ndef made(): return {0}\n"
        "@dataclasses.dataclass\nclass Rule:\n    values: list = dataclasses.field(default_factory=made)\n"
    ),
    "nesting.py": (
        "def made(x): return {0}\ndef outer():\n    def inner(x): return made(x)\n    return inner\nf = outer()\n"
    ),
    "cell.py": "def outer(k):\n    return lambda x: x + k\nf = outer({0})\n",
    "bound.py": "class Rule:\n    def apply(self, x): return {0}\nf = Rule().apply\n",
    "member.py": "import enum\nclass Kind(enum.Enum):\n    A = {0}\n    def f(self): return 1\n",
    "pattern.py": "import re\nWORDS = re.compile('{0}')\n",
    "alias.py": "import statistics\nmiddle = statistics.{1}\n",
    "builtin.py": "get = dict(a={0}).get\n",
    "array.py": "import numpy as np\nWEIGHTS = np.array([1, {0}], np.float32)\nLIMIT = np.float32({0})\n",
    "function_attribute.py": "def f(x): return f.limit\nf.limit = {0}\n",
    "dispatch.py": (
        "import functools\n@functools.singledispatch\ndef f(x): return 1\n@f.register(int)\ndef _(x): return {0}\n"
    ),
    "vectorized.py": "import numpy as np\ndef one(x): return {0}\nf = np.vectorize(one)\n",
    "local.py": "from helpers_of_hash.deeper import f\n",
    "deeper.py": "def f(x): return {0}\n",
    "relative.py": "LIMIT = {0}\n",
    "meta.py": "class Meta(type):\n    def f(cls): return {0}\nclass Rule(metaclass=Meta): pass\n",
    "subclass.py": "class Table(dict):\n    pass\nTABLE = Table(a={0})\n",
    "parameter.py": "class Limit(float):\n    pass\nLIMIT = Limit({0})\n",
    "../namespace_of_hash/whole.py": "def f(x): return {0}\n",
    "../namespace_of_hash/part.py": "def f(x): return {0}\n",
    "loop.py": (
        "def f(x): return TABLE['g'](x)\ndef g(x): return {0}\n"
        "TABLE = {{'f': f, 'g': g, f: g}}\nTABLE['self'] = TABLE\n"
        "class Node:\n    pass\nNODE = Node()\nNODE.self = NODE\nNODE.table = {{(TABLE['f'], 1), Node}}\n"
    ),
    "checks.py": """
import functools
import helpers_of_hash.deep.statistics
import namespace_of_hash.part
from helpers_of_hash import (
    alias, array, attribute, bound, builtin, cached, call, cell, classmethods, decorated, decorator, default,
    dictionary, dispatch, factory, fields, function_attribute, in_set, inherited, instance, keyword, listed, loop,
    member, meta, methods, nested, nesting, parameter, partial, pattern, setter, slots, static, subclass, tupled,
    vectorized,
)

class Heir(inherited.Base):
    pass

PARTIAL = functools.partial(partial.f, 2)
TABLE = {"a": dictionary.f}
LIST = [listed.f]
TUPLE = (tupled.f, 1)
SET = {in_set.f, "a", "b", ("c", 1)}
RULE = instance.Rule(1)
ATTRIBUTE = attribute.Rule()
SLOTS = slots.Rule()
CALL = call.Rule()
HOLDER = nested.Holder()

@decorator.Cached
def wrapped(x): return x

CHECKS = {
    "inherited.py": lambda x: Heir().value(x),
    "deep/statistics.py": lambda x: helpers_of_hash.deep.statistics.f(x),
    "partial.py": lambda x: PARTIAL(x),
    "dictionary.py": lambda x: TABLE["a"](x),
    "listed.py": lambda x: LIST[0](x),
    "tupled.py": lambda x: TUPLE[0](x),
    "in_set.py": lambda x: SET,
    "nested.py": lambda x: HOLDER.table,
    "instance.py": lambda x: RULE.apply(x),
    "attribute.py": lambda x: ATTRIBUTE.apply(x),
    "slots.py": lambda x: SLOTS.k,
    "call.py": lambda x: CALL(x),
    "decorated.py": lambda x: decorated.f(x),
    "decorator.py": lambda x: wrapped(x),
    "methods.py": lambda x: methods.Rule().one,
    "setter.py": lambda x: setter.Rule(),
    "cached.py": lambda x: cached.Rule().one,
    "static.py": lambda x: static.Rule.f(x),
    "classmethods.py": lambda x: classmethods.Rule.f(x),
    "default.py": lambda x: default.f(x),
    "keyword.py": lambda x: keyword.f(x),
    "fields.py": lambda x: fields.Rule(),
    "factory.py": lambda x: factory.Rule(),
    "nesting.py": lambda x: nesting.f(x),
    "cell.py": lambda x: cell.f(x),
    "bound.py": lambda x: bound.f(x),
    "member.py": lambda x: member.Kind.A.value,
    "pattern.py": lambda x: pattern.WORDS.match(x),
    "alias.py": lambda x: alias.middle(x),
    "builtin.py": lambda x: builtin.get("a"),
    "array.py": lambda x: array.WEIGHTS * array.LIMIT,
    "function_attribute.py": lambda x: function_attribute.f(x),
    "dispatch.py": lambda x: dispatch.f(x),
    "vectorized.py": lambda x: vectorized.f(x),
    "meta.py": lambda x: meta.Rule.f(),
    "subclass.py": lambda x: subclass.TABLE,
    "parameter.py": lambda x: parameter.LIMIT,
    "loop.py": lambda x: loop.f(loop.NODE),
}

def imports_a_module(x):
    from helpers_of_hash.local import f
    return f(x)

def imports_a_sibling(x):
    def inner():
        from .relative import LIMIT
        return LIMIT
    return inner()

def imports_a_package(x):
    import namespace_of_hash.whole as whole
    return whole.f(x)

CHECKS["deeper.py"] = imports_a_module
CHECKS["relative.py"] = imports_a_sibling
CHECKS["../namespace_of_hash/whole.py"] = imports_a_package
CHECKS["../namespace_of_hash/part.py"] = lambda x: namespace_of_hash.part.f(x)
""",
}
CHANGED = sorted(set(FILES) - {"__init__.py", "deep/__init__.py", "checks.py", "local.py"})


def write(folder: Path, value: int = 1, name: str = "median", *, only: str = "") -> None:
    """Write the files, or only one of them, with the number that the helpers compute and the function of `alias.py`."""
    for file, text in FILES.items():
        if only in ("", file):
            path = folder / "helpers_of_hash" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text if file == "checks.py" else text.format(value, name), encoding="utf-8")


def hashes(folder: Path, seed: str = "0") -> dict[str, str]:
    """Return the hash of every check, computed by a new process."""
    code = (
        "import helpers_of_hash as h; from attnaudit.code_identity.code_hash import hash_of_code\n"
        "for name, check in h.checks.CHECKS.items(): print(name, hash_of_code(check))\n"
    )
    return dict(line.split() for line in printed(code, folder, seed).splitlines())


def printed(code: str, folder: Path, seed: str = "0") -> str:
    """Return what a new process prints that runs some code and can import the modules in a folder."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)]),
        },
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("first")
    write(folder)
    return hashes(folder)


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("edited")
    write(folder)
    assert len(hashes(folder)) == len(CHANGED)
    write(folder, 2, "mean")
    return hashes(folder)


def test_the_hash_is_the_same_in_other_processes_and_other_folders(first: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path)
    assert hashes(tmp_path, "1") == hashes(tmp_path, "2") == first
    assert len(set(first.values())) == len(CHANGED)


@pytest.mark.parametrize("file", CHANGED)
def test_an_edit_of_code_that_a_check_reaches_changes_its_hash(
    file: str, first: dict[str, str], edited: dict[str, str]
) -> None:
    assert first[file] != edited[file]


def test_an_edit_of_code_that_a_check_does_not_reach_does_not_change_its_hash(
    first: dict[str, str], tmp_path: Path
) -> None:
    write(tmp_path)
    for file in ("inherited.py", "instance.py", "deeper.py"):
        write(tmp_path, 2, only=file)
    found = hashes(tmp_path)
    assert {name for name in found if found[name] != first[name]} == {"inherited.py", "instance.py", "deeper.py"}


def test_two_helpers_that_change_places_change_the_hash() -> None:
    def one(x: float) -> float:
        return x + 1

    def other(x: float) -> float:
        return x - 1

    def check(table: dict[str, object]) -> object:
        def check() -> object:
            return one, other, table

        return check

    first, second = check({"a": one, "b": other}), check({"a": other, "b": one})
    assert hash_of_code(first) == hash_of_code(check({"b": other, "a": one}))  # type: ignore[arg-type]
    assert hash_of_code(first) != hash_of_code(second)  # type: ignore[arg-type]


def hash_of_value(value: object) -> str:
    """Return the hash of a function that uses a value."""

    def check() -> object:
        return value

    return hash_of_code(check)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: defaultdict(lambda: 1), lambda: defaultdict(lambda: 2)),
        (lambda: SimpleNamespace(f=lambda: 1), lambda: SimpleNamespace(f=lambda: 2)),
        (lambda: UserDict(a=1), lambda: UserDict(a=2)),
        (lambda: ChainMap({"a": 1}), lambda: ChainMap({"a": 2})),
        (lambda: torch.float32, lambda: torch.float64),
        (lambda: np.dtype("f4"), lambda: np.dtype("f8")),
        (lambda: bytearray(b"a"), lambda: bytearray(b"b")),
        (lambda: array("d", [1.0]), lambda: array("d", [2.0])),
        (lambda: timedelta(days=1), lambda: timedelta(days=2)),
        (lambda: np.array([lambda: 1], dtype=object), lambda: np.array([lambda: 2], dtype=object)),
        (lambda: torch.tensor([1.0], dtype=torch.bfloat16), lambda: torch.tensor([2.0], dtype=torch.bfloat16)),
        (lambda: torch.tensor(True), lambda: torch.tensor(False)),
        (lambda: np.array([1.0, 2.0]), lambda: np.array([[1.0, 2.0]])),
    ],
    ids=lambda made: type(made()).__name__ if callable(made) else "",
)
def test_values_of_libraries_belong_to_the_hash(one: Callable[[], object], other: Callable[[], object]) -> None:
    assert hash_of_value(one()) == hash_of_value(one()) != hash_of_value(other())


def test_classes_of_the_user_that_inherit_from_values_of_libraries_belong_to_the_hash() -> None:
    def made(kind: type, factor: int, *values: object) -> object:
        own = type("Own", (kind,), {"scaled": (lambda one: 2 * one) if factor == 2 else (lambda one: 3 * one)})
        own.__module__ = __name__
        return np.arange(3).view(own) if kind is np.ndarray else own(*values)

    for kind, value, other in ((Decimal, "1.5", "2.5"), (timedelta, 1, 2), (bytearray, b"a", b"b")):
        first = hash_of_value(made(kind, 2, value))
        assert first == hash_of_value(made(kind, 2, value))
        assert first not in (hash_of_value(made(kind, 3, value)), hash_of_value(made(kind, 2, other)))
    times = [(2020, 1, 1, 5), (2020, 1, 1, 6), (2020, 1, 1, 5, 0, 0, 0, UTC)]
    assert len({hash_of_value(made(datetime, 2, *values)) for values in times}) == 3
    assert hash_of_value(made(np.ndarray, 2)) == hash_of_value(made(np.ndarray, 2))
    assert hash_of_value(made(np.ndarray, 2)) != hash_of_value(made(np.ndarray, 3))


def test_objects_that_contain_one_another_in_sets_are_hashed_in_a_short_time() -> None:
    """Without a memory for what was described, eight objects would take hours."""

    class Node:
        def __init__(self, name: str) -> None:
            self.name = name
            self.others: set[Node] = set()

    def nodes(names: str) -> list[Node]:
        made = [Node(name) for name in names]
        for one in made:
            one.others = {other for other in made if other is not one}
        return made

    assert hash_of_value(nodes("abcdefgh")) == hash_of_value(nodes("abcdefgh")) != hash_of_value(nodes("abcdefgi"))


def test_modules_that_import_one_another_are_hashed_in_a_short_time(tmp_path: Path) -> None:
    names = [f"mutual_{letter}" for letter in "abcdefghij"]
    for name in names:
        imports = "".join(f"import {other}\n" for other in names if other != name)
        (tmp_path / f"{name}.py").write_text(f"{imports}K = 1\ndef f(x): return {'.'.join(names[1:])}.K\n")
    code = (
        "import mutual_a; from attnaudit.code_identity.code_hash import hash_of_code; print(hash_of_code(mutual_a.f))"
    )
    found = printed(code, tmp_path)
    assert len(found) == 64
    (tmp_path / "mutual_j.py").write_text((tmp_path / "mutual_j.py").read_text().replace("K = 1", "K = 2"))
    assert printed(code, tmp_path) != found


def test_a_check_with_an_assert_has_the_same_hash_in_pytest(pytester: pytest.Pytester) -> None:
    """pytest rewrites assert statements of test files and of conftest.py."""
    pytester.makeconftest(
        "import pytest\nfrom attnaudit.code_identity.code_hash import hash_of_code\n"
        "def check(values):\n    assert len(values), 'no values'\n    return sum(values)\n"
        "def pytest_sessionstart(session):\n    print('hash', hash_of_code(check))\n"
    )
    found = {
        next(line for line in pytester.runpytest_subprocess("-s", *options).outlines if line.startswith("hash "))
        for options in ((), ("--assert=plain",))
    }
    outside = printed("import conftest; print('hash', conftest.hash_of_code(conftest.check))", pytester.path)
    assert found == {outside}


def test_paths_in_the_folder_of_a_module_do_not_depend_on_its_location(tmp_path: Path) -> None:
    code = (
        "import placed; from attnaudit.code_identity.code_hash import hash_of_code; print(hash_of_code(placed.check))"
    )
    text = (
        "import os\nHERE = os.path.dirname(os.path.abspath(__file__))\n"
        "class Words:\n    def __init__(self, path): self.path = path\n"
        "WORDS = Words(os.path.join(HERE, '{}'))\n"
        "def check(): return HERE, WORDS\n"
    )
    found = []
    for folder, file in (("a", "words.txt"), ("b", "words.txt"), ("c", "others.txt")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "placed.py").write_text(text.format(file))
        found.append(printed(code, tmp_path / folder))
    assert found[0] == found[1] != found[2]


def test_modules_that_only_a_finder_knows_are_found_before_they_are_imported(tmp_path: Path) -> None:
    """Packages that are installed as editable may be found in this way."""
    (tmp_path / "elsewhere").mkdir()
    file = tmp_path / "elsewhere" / "found_by_finder.py"
    code = (
        "import sys\nfrom importlib.util import spec_from_file_location\n"
        "from attnaudit.code_identity.code_hash import hash_of_code\n"
        "class Finder:\n    @staticmethod\n    def find_spec(name, path=None, target=None):\n"
        f"        return spec_from_file_location(name, {str(file)!r}) if name == 'found_by_finder' else None\n"
        "sys.meta_path.append(Finder)\n"
        "def check():\n    import found_by_finder\n    return found_by_finder.K\n"
        "first = hash_of_code(check); check(); print(first, first == hash_of_code(check))"
    )
    file.write_text("K = 1\n")
    first, same = printed(code, tmp_path).split()
    assert same == "True"
    file.write_text("K = 2\n")
    assert printed(code, tmp_path).split()[0] != first


def test_only_global_variables_that_code_uses_belong_to_the_hash(tmp_path: Path) -> None:
    """An attribute may have the name of a global variable, such as a cache that other code fills."""
    code = (
        "import named; from attnaudit.code_identity.code_hash import hash_of_code\n"
        "first = hash_of_code(named.check); named.cache['a'] = 1; print(first == hash_of_code(named.check))"
    )
    (tmp_path / "named.py").write_text("cache = {}\ndef check(one): return one.cache\n")
    assert printed(code, tmp_path) == "True"
    (tmp_path / "named.py").write_text("cache = {}\ndef check(one): return cache\n")
    assert printed(code, tmp_path) == "False"


def test_tensors_and_modules_of_torch_are_described_by_what_the_user_gave_them() -> None:
    class Layer(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor
            self.part = nn.Linear(2, 2)

    check = hash_of_value
    assert check(torch.tensor([1.0])) == check(torch.tensor([1.0])) != check(torch.tensor([2.0]))
    layer, again = Layer(1.0), Layer(1.0)
    layer.last = layer.part(torch.ones(1, 2))
    layer.register_forward_hook(lambda *_: None)
    assert check(layer) == check(again) != check(Layer(2.0))
