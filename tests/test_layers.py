"""Who may import whom.  The emulator must not know the compiler, or it would test itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "opennpu"

BASE = {"errors", "hw"}
COMPILER = BASE | {"memory", "program", "ir", "ops", "passes"}
EVERYTHING = COMPILER | {"compile", "emu", "device", "runtime", "frontends"}
MAY_IMPORT = {
    "errors": set[str](),
    "hw": {"errors"},
    "memory": BASE,
    "program": BASE | {"memory"},
    # the machine: registers in, memory out
    "emu": BASE,
    "device": BASE | {"program", "emu"},
    "runtime": BASE | {"program", "emu", "device"},
    # the compiler; of emu only what a task costs
    "ir": BASE | {"program"},
    "ops": BASE | {"program", "ir", "emu.timing"},
    "passes": BASE | {"memory", "program", "ir", "ops", "emu.timing"},
    "compile": COMPILER,
    # what users see
    "frontends": COMPILER | {"compile"},
    "torch": EVERYTHING,
    "jax": EVERYTHING,
    "lm": EVERYTHING,
    "vision": EVERYTHING,
    "selftest": EVERYTHING,
    "tools": EVERYTHING | {"lm", "vision"},
    "cli": EVERYTHING | {"lm", "vision", "tools", "torch", "jax", "selftest"},
}
NOT_AT_IMPORT_TIME = {("compile", "frontends")}  # compile() opens a model file by its kind
PUBLIC = ast.parse((SRC / "__init__.py").read_text(encoding="utf-8"))
EXPORTED_BY = {  # opennpu.InferenceSession -> opennpu.runtime.session
    a.asname or a.name: f"{n.module}.{a.name}"
    for n in PUBLIC.body
    if isinstance(n, ast.ImportFrom) and n.module
    for a in n.names
}


def imports(source: str, module: str, is_package: bool = False) -> Iterator[tuple[str, bool]]:
    """Dotted names of ours that ``source`` imports in any spelling, and whether late.

    Late: inside a function, or for the type checker only.
    """
    tree = ast.parse(source)
    late = {
        n
        for f in ast.walk(tree)
        if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        or (isinstance(f, ast.If) and ast.unparse(f.test).endswith("TYPE_CHECKING"))
        for n in ast.walk(f)
    }
    package = module.split(".") if is_package else module.split(".")[:-1]
    for n in ast.walk(tree):
        for name in _named(n, package):
            if name.startswith("opennpu."):
                part = name.split(".")[1]
                yield EXPORTED_BY.get(part, name), n in late


def _named(n: ast.AST, package: list[str]) -> Iterator[str]:
    if isinstance(n, ast.Import):
        yield from (a.name for a in n.names)
    elif isinstance(n, ast.ImportFrom):
        base = package[: len(package) - n.level + 1] if n.level else []
        path = ".".join([*base, *([n.module] if n.module else [])])
        yield from (f"{path}.{a.name}" for a in n.names)
    elif isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "opennpu":
        yield f"opennpu.{n.attr}"
    elif isinstance(n, ast.Constant) and isinstance(n.value, str):
        if re.fullmatch(
            r"opennpu\.\w+(\.\w*)*", n.value
        ):  # importlib, also the head of an f-string
            yield n.value
    elif isinstance(n, ast.Call) and ast.unparse(n.func).endswith("import_module"):
        names = [
            a.value for a in n.args if isinstance(a, ast.Constant) and isinstance(a.value, str)
        ]
        if names and names[0].startswith("."):
            up = len(names[0]) - len(names[0].lstrip("."))
            base = names[1].split(".") if len(names) > 1 else package
            yield ".".join([*base[: len(base) - up + 1], names[0][up:]])


def refused(here: str, name: str, late: bool = False) -> bool:
    """Whether part ``here`` must not import the dotted ``name``."""
    parts = name.split(".")
    there = parts[1]
    if there == here or there.startswith("__"):
        return False
    if late and (here, there) in NOT_AT_IMPORT_TIME:
        return False
    return not {there, ".".join(parts[1:3])} & MAY_IMPORT[here]


def files() -> list[Path]:
    return sorted(f for f in SRC.rglob("*.py") if f != SRC / "__init__.py")


@pytest.mark.parametrize("file", files(), ids=lambda f: str(f.relative_to(SRC)))
def test_imports_point_down(file: Path) -> None:
    path = file.relative_to(SRC)
    here = path.parts[0].removesuffix(".py")
    assert here in MAY_IMPORT, f"{path}: give {here} a place in MAY_IMPORT"
    is_package = file.name == "__init__.py"
    dotted = ["opennpu", *path.with_suffix("").parts][: -1 if is_package else None]
    source = file.read_text(encoding="utf-8")
    bad = [n for n, late in imports(source, ".".join(dotted), is_package) if refused(here, n, late)]
    assert not bad, f"{path}: {here} must not import {', '.join(bad)}"


@pytest.mark.parametrize(
    "source",
    [
        "import opennpu.ops",
        "import opennpu.ops.conv as c",
        "from opennpu import ops",
        "from opennpu.ops import conv",
        "from opennpu.ops.conv import Conv",
        "from .. import ops",
        "from ..ops import conv",
        "from ..ops.conv import Conv",
        "import importlib; importlib.import_module('opennpu.ops')",
        "from importlib import import_module; import_module('..ops', 'opennpu.emu')",
        "from importlib import import_module; import_module('..ops')",
        "import importlib\ndef f(name): return importlib.import_module(f'opennpu.ops.{name}')",
        "__import__('opennpu.ops')",
        "import opennpu\nopennpu.ops.conv",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from opennpu.ops import conv",
        "def f():\n    from opennpu.ops import conv",
        "from opennpu import compile",
        "from opennpu import InferenceSession",
        "from opennpu.program import Program",
        "from opennpu.ir.graph import Graph",
        "from opennpu.passes import partition",
    ],
)
def test_every_way_for_the_emulator_to_see_the_compiler_is_caught(source: str) -> None:
    assert any(refused("emu", n, late) for n, late in imports(source, "opennpu.emu.machine"))


def test_relative_imports_of_a_package_file_are_resolved() -> None:
    found = list(imports("from ..ops import conv", "opennpu.emu", is_package=True))
    assert found == [("opennpu.ops.conv", False)]
    assert list(imports("from . import lut", "opennpu.emu.dpu")) == [("opennpu.emu.lut", False)]


@pytest.mark.parametrize("here", ["ops", "passes"])
def test_the_compiler_may_ask_the_emulator_for_time_only(here: str) -> None:
    for ok in ("from opennpu.emu import timing", "from opennpu.emu.timing import cycles"):
        assert not any(refused(here, n, late) for n, late in imports(ok, f"opennpu.{here}.x"))
    for bad in ("from opennpu.emu import machine", "import opennpu.emu", "from opennpu import emu"):
        assert any(refused(here, n, late) for n, late in imports(bad, f"opennpu.{here}.x"))


def test_the_two_halves_do_not_know_each_other() -> None:
    machine, compiler = {"emu", "device", "runtime"}, {"ir", "ops", "passes", "compile"}
    for part in machine:
        assert not MAY_IMPORT[part] & compiler
    for part in compiler:
        assert not MAY_IMPORT[part] & machine
