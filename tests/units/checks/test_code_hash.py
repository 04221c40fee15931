"""The hash of code covers everything of the user that the code reaches, and is the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from attnaudit.checks.code_hash import hash_of_code

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
        "import helpers_of_hash as h; from attnaudit.checks.code_hash import hash_of_code\n"
        "for name, check in h.checks.CHECKS.items(): print(name, hash_of_code(check))\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)]),
        },
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())


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


def test_tensors_and_modules_of_torch_are_described_by_what_the_user_gave_them() -> None:
    class Layer(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor
            self.part = nn.Linear(2, 2)

    def check(value: object) -> str:
        def check() -> object:
            return value

        return hash_of_code(check)

    assert check(torch.tensor([1.0])) == check(torch.tensor([1.0])) != check(torch.tensor([2.0]))
    layer, again = Layer(1.0), Layer(1.0)
    layer.last = layer.part(torch.ones(1, 2))
    layer.register_forward_hook(lambda *_: None)
    assert check(layer) == check(again) != check(Layer(2.0))
