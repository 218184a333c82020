"""Templates that a child compiles are those that would be compiled here."""

from __future__ import annotations

import io
import marshal
import zlib
from typing import Any

import pytest

from millstream.console import compiling
from millstream.console.compiling import FIRST, TEMPLATES, CompiledTemplates, compiled_templates
from millstream.console.rendering import Renderer, environment

MODEL = {"status": 404, "title": "T", "message": "<m>", "error": "E"}


def render(compiled: CompiledTemplates | None) -> str:
    return Renderer(compiled).whole("live_problem.html", MODEL, {})


def test_child_compiles_every_template() -> None:
    compiled = compiled_templates()
    found = environment(compiled)
    assert found.loader is not None
    for path in TEMPLATES.iterdir():
        source, name, _ = found.loader.get_source(found, path.name)
        bucket = compiled.get_bucket(found, path.name, name, source)
        assert bucket.code is not None, path.name
        assert bucket.code.co_filename == str(path)
    assert {*FIRST} <= {it.name for it in TEMPLATES.iterdir()}
    assert render(compiled) == render(None)


def test_template_that_changed_meanwhile_is_compiled_here() -> None:
    compiled = compiled_templates()
    bucket = compiled.get_bucket(environment(), "error.html", "error.html", "{{ changed }}")
    assert bucket.code is None


@pytest.mark.parametrize("command", ["no-such-python", "false"])
def test_without_a_child_templates_are_compiled_here(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling.sys, "executable", command)
    assert "&lt;m&gt;" in render(CompiledTemplates())


def test_child_writes_the_first_ones_first() -> None:
    out = io.BytesIO()
    compiling.compile_all(out)
    out.seek(0)
    made: list[Any] = [marshal.load(out) for _ in FIRST]
    names = [marshal.loads(zlib.decompress(code)).co_filename for _, code in made]
    assert names == [str(TEMPLATES / it) for it in FIRST]
