"""Checks of style and structure. Each test lists all offenders."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.pipelines.conftest import ALWAYS_RUN

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "millstream"

FILE_LINES_MAX = 800  # 600 is the aim
FUNCTION_LINES_MAX = 70

# Modules without a test file of their own, each with the reason. Keep it short.
UNTESTED = {
    "broker/replicas/archived.py": "a protocol without behaviour; broker/archiving implements it",
    "broker/services.py": "records without behaviour; every handler's test passes them",
    "coordination/transactions/marker.py": "a record without behaviour",
    "partitions.py": "type aliases",
    "pipelines/reading/decoding/results.py": "records without behaviour",
    "pipelines/stores/spec.py": "records without behaviour; every store's test passes them",
}

LEFTOVERS = re.compile(
    r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK"]) + r")\b"
)
# Places on one person's machine, and hosts that only the lock file's maker should know.
FOREIGN = re.compile(
    "|".join(["/work" + "/", "/home" + "/", "/root" + "/", "pypi" + r"\.", "pythonhosted" + r"\."])
)
TEXT_SUFFIXES = {
    ".py", ".pyi", ".pyx", ".md", ".toml", ".yaml", ".lock", ".java", ".go", ".js", ".json", ".xml",
}  # fmt: skip
# Words that make readers stumble, with what to write instead (CONTRIBUTING.md, "How we write").
STILTED = {
    r"\banew\b": "again; reload, recreate, reset",
    r"\bmoreover\b": "also",
    r"\bsuperfluous\b": "no longer needed, superseded",
    r"\boftener\b": "more often; at most every",
    r"\bwho(so|s)?ever\b": "name the actor: the caller, the client, any process",
    r"\b(is|are|was|were|be|been) told\b": "gets, receives, is notified, is distinguished",
    r"\bmetadata (are|do|were|have)\b": "the metadata is, does, was, has",
    r"\bof (no )?use\b": "useful, unusable",
    r"\bfor who\b": "for callers that, for clients that",
    r"\bwho wants\b": "notified when",
    r"\bwithout a word\b": "silently",
    r"\bnot spoken\b": "unsupported",
}
# Of the pipelines, the rooms whose words are checked.
PLAIN = tuple(f"src/millstream/pipelines/{room}/" for room in ("joins", "state", "times"))
HANDLER_HEADER = re.compile(r"\A[A-Z]\w+\W.*?\bv\d+", re.DOTALL)


def tracked_files(*suffixes: str) -> list[Path]:
    """Every file under version control, or about to be, with one of the suffixes."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = (ROOT / name for name in listed.splitlines())
    return sorted(file for file in files if file.suffix in suffixes and file.is_file())


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Every statement, however deep; `ast.walk` also visits expressions: most of a tree."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(tree, field, ()):
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


@dataclass(frozen=True)
class PythonFile:
    """What the checks need of a file. Trees are not kept: all together, they are a million objects,
    which the garbage collector would visit again and again."""

    path: str
    text: str
    docstring: str | None
    functions: list[tuple[str, int, int]]  # name, first line, number of lines

    @classmethod
    def parse(cls, path: Path) -> PythonFile:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        functions = [
            (node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1)
            for node in statements(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        return cls(str(path.relative_to(ROOT)), text, ast.get_docstring(tree), functions)


@functools.cache
def python_files() -> tuple[PythonFile, ...]:
    """All of them, parsed once."""
    return tuple(map(PythonFile.parse, tracked_files(".py")))


def modules() -> list[str]:
    """Every module of the package, as a path below it, without the `__init__.py` files."""
    paths = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    return sorted(str(path) for path in paths if path.name != "__init__.py")


def complain(rule: str, offenders: list[str]) -> None:
    assert not offenders, f"{rule}:\n  " + "\n  ".join(offenders)


def test_files_stay_short() -> None:
    lengths = {file.path: len(file.text.splitlines()) for file in python_files()}
    long = [f"{path}: {count}" for path, count in lengths.items() if count > FILE_LINES_MAX]
    complain(f"files have at most {FILE_LINES_MAX} lines; make two rooms of one", long)


def test_functions_fit_on_a_screen() -> None:
    offenders = [
        f"{file.path}:{line}: {name} has {lines} lines"
        for file in python_files()
        for name, line, lines in file.functions
        if lines > FUNCTION_LINES_MAX
    ]
    complain(f"functions have at most {FUNCTION_LINES_MAX} lines", offenders)


def test_modules_say_what_they_are_for() -> None:
    silent = [it.path for it in python_files() if it.text.strip() and not it.docstring]
    complain("modules open with a docstring", silent)


def test_nothing_is_left_for_later() -> None:
    offenders = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in tracked_files(".py", ".pyx", ".toml", ".yaml", ".md")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if LEFTOVERS.search(line)
    ]
    complain("do it, or write an issue", offenders)


def test_files_name_no_machine_and_no_registry() -> None:
    offenders = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in tracked_files(*TEXT_SUFFIXES)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if FOREIGN.search(line)
    ]
    complain("paths of one machine and hosts of package registries have no place here", offenders)


def test_words_are_plain() -> None:
    """Outside some rooms of the pipelines, and CONTRIBUTING.md, which shows how not to write."""
    stilted = re.compile("|".join(STILTED), re.IGNORECASE)
    offenders = []
    for path in tracked_files(".py", ".pyx", ".pxi", ".md"):
        name = str(path.relative_to(ROOT))
        if not name.startswith(("src/", "docs/", "README", "CHANGELOG")):
            continue
        if name.startswith("src/millstream/pipelines/") and not name.startswith(PLAIN):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            for word in stilted.finditer(line):
                better = next(it for rule, it in STILTED.items() if re.match(rule, word[0], re.I))
                offenders.append(f"{name}:{number}: {word[0]!r}; write: {better}")
    complain("write plainly", offenders)


def test_tests_mirror_the_package() -> None:
    missing = [
        f"{module} has no tests/{mirror(module)}"
        for module in modules()
        if module not in UNTESTED and not (ROOT / "tests" / mirror(module)).exists()
    ]
    complain("every module has its test file", missing)


def mirror(module: str) -> str:
    path = Path(module)
    return str(path.with_name(f"test_{path.name.lstrip('_')}"))


def test_list_of_untested_modules_is_current() -> None:
    known = modules()
    stale = [
        module
        for module in UNTESTED
        if module not in known or (ROOT / "tests" / mirror(module)).exists()
    ]
    complain("these are gone or have tests now: take them off the list", stale)


def test_handlers_open_with_their_versions() -> None:
    offenders = []
    for path in sorted((PACKAGE / "broker" / "handlers").glob("[!_]*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if not HANDLER_HEADER.match(docstring.split("\n\n")[0]):
            offenders.append(f"{path.name}: {docstring.splitlines()[:1]}")
    complain("a handler opens with its API and versions: `Heartbeat, v0-4: ...`", offenders)


def test_what_always_runs_is_there() -> None:
    """A test that was renamed would run no more where everybody sees it."""
    tests = [file for file in python_files() if file.path.startswith("tests/")]
    there = {Path(file.path).name for file in tests}
    there |= {name for file in tests for name, _, _ in file.functions}
    complain("in ALWAYS_RUN, but not there", sorted(set(ALWAYS_RUN) - there))
