"""No two modules of the package import each other, not even for type checking or in functions.

import-linter (`pyproject.toml`) holds the direction of imports between packages; this finds cycles
between single modules, which it does not look for.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

from tests.test_tidy import PACKAGE, ROOT, complain, statements, tracked_files

# Packages of the pipelines that users import.
FLAT = ("analytics", "joins", "patterns", "state", "times", "views", "windows")
DEEP_IMPORT = r"from (millstream\.pipelines\.\w+)\.\w+ import (\([^)]*\)|[^\n]+)"


def module_paths() -> dict[str, Path]:
    paths = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def imports_of(tree: ast.Module, known: set[str]) -> set[str]:
    """The modules of the package that a module imports, anywhere in its text."""
    found: set[str] = set()
    for node in statements(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.add(submodule if submodule in known else node.module)
    return found & known


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach each other (Tarjan's strongly connected components)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_modules: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        open_modules.append(module)
        for imported in graph[module]:
            if imported not in numbers:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in open_modules:
                lowest[module] = min(lowest[module], numbers[imported])
        if lowest[module] == numbers[module]:
            group = open_modules[open_modules.index(module) :]
            del open_modules[-len(group) :]
            if len(group) > 1:
                found.append(sorted(group))

    for module in graph:
        if module not in numbers:
            visit(module)
    return sorted(found)


def test_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str](), "e": {"a"}}
    assert cycles(graph) == [["b", "c"]]


def test_imports_are_seen_wherever_they_stand() -> None:
    source = """
import m.a
if TYPE_CHECKING:
    from m import b
def late():
    from m.c import name
"""
    assert imports_of(ast.parse(source), {"m", "m.a", "m.b", "m.c"}) == {"m.a", "m.b", "m.c"}


def test_modules_do_not_import_each_other() -> None:
    paths = module_paths()
    known = set(paths)
    graph = {
        module: imports_of(ast.parse(path.read_text(encoding="utf-8")), known) - {module}
        for module, path in paths.items()
    }
    offenders = [" <-> ".join(group) for group in cycles(graph)]
    complain("modules that import each other; see docs/decisions/0016", offenders)


FIRST_EACH = """
import sys, importlib
sys.path.insert(0, {source!r})
for name in {names!r}:
    for loaded in [it for it in sys.modules if it.startswith("millstream.pipelines")]:
        del sys.modules[loaded]
    importlib.import_module(name)
"""


def test_every_module_of_flat_packages_can_be_imported_first() -> None:
    """These packages export from their modules, which use modules of each other's packages: a
    worker that unpickles an operator imports its module first."""
    parents = tuple(f"millstream.pipelines.{it}" for it in FLAT)
    names = sorted(it for it in module_paths() if it.startswith(parents))
    script = FIRST_EACH.format(source=str(PACKAGE.parent), names=names)
    subprocess.run([sys.executable, "-c", script], check=True)


def test_users_import_from_the_flat_packages() -> None:
    """Documentation and examples use what packages export: deeper modules are private."""
    public = {
        f"millstream.pipelines.{package}": set(
            importlib.import_module(f"millstream.pipelines.{package}").__all__
        )
        for package in FLAT
    }
    offenders = []
    for path in tracked_files(".md", ".py"):
        name = str(path.relative_to(ROOT))
        if not name.startswith(("README", "docs/guides/", "examples/")):
            continue
        for package, names in re.findall(DEEP_IMPORT, path.read_text(encoding="utf-8")):
            imported = {it.strip() for it in names.strip("()").replace("\n", ",").split(",")}
            found = sorted(imported & public.get(package, set()))
            offenders += [f"{name}: from {package} import {it}" for it in found]
    complain("import from the package itself", offenders)
