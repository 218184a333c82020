"""The documentation site: it builds without a warning, its links work, and it loads nothing."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from html.parser import HTMLParser
from inspect import isfunction, signature
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from markdown.extensions.toc import slugify
from tools.release.description import describe
from tools.site import pages

from tests.doc_blocks import blocks_of

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
API = ROOT / "docs" / "reference" / "api"
LOADING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "srcset"}


class References(HTMLParser):
    """What a page loads, where it links to, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: set[str] = set()
        self.linked: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {it for it in (given.get("id"), given.get("name")) if it}
        if target := given.get(LOADING.get(tag, "")):
            self.loaded.add(target)
        if tag == "a" and (target := given.get("href")):
            self.linked.add(target)


def build(directory: Path) -> None:
    """The site, built as `make site` builds it. Warnings are errors."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def read(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def repository_pages() -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("docs/**/*.md"))]


def entries(navigation: Any) -> Iterator[str]:
    if isinstance(navigation, str):
        yield navigation
    else:
        for it in navigation.values() if isinstance(navigation, dict) else navigation:
            yield from entries(it)


def test_navigation_and_links_lead_to_pages_that_can_be_made() -> None:
    """What a build would refuse, as far as it can be seen without one."""
    outside = pages.outside_files(repository_pages(), read)
    files = [*repository_pages(), *outside]
    made = {pages.site_path(file) for file in files}
    assert [it for it in entries(pages.navigation(read)) if it not in made] == []
    for file in files:
        if file.endswith(".md"):
            assert pages.for_site(read(file), file)


def test_anchors_of_links_exist() -> None:
    texts = {file: FENCE.sub("", read(file)) for file in repository_pages()}
    anchors = {
        file: {slugify(heading, "-") for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
        for file, text in texts.items()
    }
    broken = []
    for file, text in texts.items():
        for target, anchor in re.findall(r"\]\((?!https?:)([^)\s#]*)#([^)\s]+)\)", text):
            named = os.path.normpath(Path(file).parent / target) if target else file
            if anchor not in anchors.get(named, {anchor}):
                broken.append(f"{file}: {target}#{anchor}")
    assert broken == []


def test_documented_names_exist() -> None:
    for name in directives():
        assert resolve_name(name) is not None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_site_builds_without_warnings_and_is_complete(tmp_path: Path) -> None:
    build(tmp_path)
    parsed = {
        path.relative_to(tmp_path).as_posix(): References(path.read_text(encoding="utf-8"))
        for path in tmp_path.rglob("*.html")
        if path.name != "404.html"  # served under any address
    }
    assert {"index.html", "CHANGELOG.html", "examples/queues.py.html"} <= parsed.keys()
    problems = []
    for name, page in parsed.items():
        problems += [f"{name} loads {it}" for it in page.loaded if urlsplit(it).netloc]
        for target in page.loaded | page.linked:
            if urlsplit(target).scheme in ("", "file") and not urlsplit(target).netloc:
                problems += broken(tmp_path, parsed, name, target)
    assert not problems, "\n".join(sorted(problems))
    described = describe((ROOT / "README.md").read_text(encoding="utf-8"), "https://example.org")
    targets = re.findall(r"https://example\.org/([^)\s]+)", described)
    assert len(targets) > 50  # links of the package's page on an index
    problems = [it for target in targets for it in broken(tmp_path, parsed, "index.html", target)]
    assert not problems, "\n".join(problems)
    index = (tmp_path / "search" / "search_index.js").read_text(encoding="utf-8")
    assert "reference/api/broker.html#millstream.Broker.start" in index
    assert "examples/queues.py.html" not in index


def broken(site: Path, parsed: dict[str, References], name: str, target: str) -> list[str]:
    path, anchor = urlsplit(target).path, urlsplit(target).fragment
    file = (site / name).parent / unquote(path) if path else site / name
    if not file.is_file():
        return [f"{name} refers to {target}, which does not exist"]
    page = parsed.get(file.resolve().relative_to(site.resolve()).as_posix())
    is_known = page is None or not anchor or unquote(anchor) in page.anchors
    return [] if is_known or anchor.startswith("only-") else [f"{name}: no anchor {target}"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_site_searches_in_a_browser_without_a_server(tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium")
    build(tmp_path)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(color_scheme=scheme)
            said: list[str] = []
            page.on("console", lambda message, said=said: said.append(message.text))
            page.on("pageerror", lambda error, said=said: said.append(str(error)))
            asked: list[str] = []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.goto((tmp_path / "index.html").as_uri())
            page.keyboard.press("s")
            page.keyboard.type("dead letter")
            hit = page.locator(".md-search-result__item a[href*='guides/queues.html']").first
            hit.wait_for(timeout=60_000)
            assert said == []
            assert [it for it in asked if not it.startswith(("file:", "data:", "blob:"))] == []
            expected = "slate" if scheme == "dark" else "default"
            assert page.locator(f"body[data-md-color-scheme={expected}]").count() == 1
        browser.close()


def directives() -> set[str]:
    """The names that the pages of the API document."""
    texts = [path.read_text(encoding="utf-8") for path in API.glob("*.md")]
    return set(re.findall(r"^::: (\S+)$", "\n".join(texts), re.MULTILINE))


def exported(package: str) -> list[str]:
    """`__all__` of a package, read without an import; empty for a module."""
    path = ROOT / "src" / Path(*package.split(".")) / "__init__.py"
    if not path.exists():
        return []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [f"{package}.{name}" for name in ast.literal_eval(node.value)]
    return []


def test_api_reference_has_every_exported_name() -> None:
    overview = (API / "README.md").read_text(encoding="utf-8")
    packages = {"millstream", *re.findall(r"`(millstream\.[a-z_.]+)`", overview)}
    documented = directives() | {"millstream.pipelines.pipeline"}  # its module has the same name
    names = [name for package in sorted(packages) for name in exported(package)]
    assert len(names) > 100
    assert [name for name in names if name not in documented] == []


def imported_names(page: Path) -> Iterator[str]:
    """What the programs of a page import from the package."""
    for block in blocks_of(page):
        if block.language == "python":
            for node in ast.walk(ast.parse(block.text)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                    "millstream"
                ):
                    yield from (f"{node.module}.{it.name}" for it in node.names)


def test_what_guides_import_is_in_the_api_reference() -> None:
    documented = directives()
    pages_ = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
    missing = {
        f"{page.name}: {name}"
        for page in pages_
        for name in imported_names(page)
        if name not in documented and not is_module(name)
    }
    assert missing == set()


def calls_in_prose(text: str) -> Iterator[ast.Call]:
    """Calls in inline code; `...` stands for any arguments."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`([^`]+)`", prose):
        with suppress(SyntaxError):
            for node in ast.walk(ast.parse(code.replace("\n", " ").lstrip("@"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    yield node


def misfit(function: Callable[..., Any], call: ast.Call) -> str | None:
    """Why a function does not take these arguments; some may be left out."""
    given = [it for it in call.args if not isinstance(it, ast.Constant) or it.value is not ...]
    try:
        signature(function).bind_partial(*given, **{it.arg: it for it in call.keywords if it.arg})
    except TypeError as error:
        return f"{ast.unparse(call)}: {error}"
    return None


def test_calls_in_prose_have_arguments_that_the_functions_take() -> None:
    found = (resolve_name(it) for it in sorted(directives()))
    functions = {it.__name__: it for it in found if isfunction(it)}
    pages_ = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
    calls = [
        (page, functions[call.func.id], call)
        for page in pages_
        for call in calls_in_prose(page.read_text(encoding="utf-8"))
        if isinstance(call.func, ast.Name) and call.func.id in functions
    ]
    assert len(calls) > 30
    wrong = [(page, misfit(function, call)) for page, function, call in calls]
    assert [f"{page.name}: {why}" for page, why in wrong if why] == []


def test_call_with_a_keyword_that_is_none_is_found() -> None:
    run_operator = resolve_name("millstream.pipelines.state.run_operator")
    (call,) = calls_in_prose("The number (`run_operator(..., bucket_count=64)`) is fixed")
    assert "unexpected keyword argument 'bucket_count'" in str(misfit(run_operator, call))


def is_module(name: str) -> bool:
    path = ROOT / "src" / Path(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_every_page_of_the_api_is_listed() -> None:
    overview = (API / "README.md").read_text(encoding="utf-8")
    files = {path.name for path in API.glob("*.md")} - {"README.md"}
    assert set(re.findall(r"^- \[[^\]]+\]\(([\w-]+\.md)\)", overview, re.MULTILINE)) == files


def test_links_out_of_docs_lead_to_pages_of_the_site() -> None:
    text = "See [it](../../examples/a.py#L3), [the log](../../CHANGELOG.md) and [b](b.md#x)."
    assert pages.for_site(text, "docs/guides/a.md") == (
        "See [it](../examples/a.py.md#L3), [the log](../CHANGELOG.md) and [b](b.md#x)."
    )
    assert pages.for_site("[a](docs/a.md)", "CHANGELOG.md") == "[a](a.md)"


def test_fenced_blocks_keep_their_text_and_show_their_file() -> None:
    text = "```python shop.py\nx = [a](../a.py)\n```\n```sh\nls\n```\n"
    assert pages.for_site(text, "docs/a.md") == (
        '```python title="shop.py"\nx = [a](../a.py)\n```\n```sh\nls\n```\n'
    )


def test_what_is_nested_in_lists_is_indented_by_four() -> None:
    text = "1. a\n   ```text\n   b\n   ```\n2. c\n  - d\n"
    assert pages.for_site(text, "docs/a.md") == (
        "1. a\n\n    ```text\n    b\n    ```\n2. c\n    - d\n"
    )


def test_pictures_follow_the_scheme_of_the_site() -> None:
    text = (
        '<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="../images/a-dark.svg">\n'
        '  <img alt="A" src="../images/a-light.svg">\n</picture>\n'
    )
    assert pages.for_site(text, "docs/guides/a.md") == (
        "![A](../images/a-light.svg#only-light)\n![A](../images/a-dark.svg#only-dark)\n"
    )


def test_files_outside_docs_are_found_through_other_files() -> None:
    texts = {
        "docs/a.md": "[x](../examples/x/README.md) [b](b.md)",
        "examples/x/README.md": "[y](y.py) [home](../../README.md)",
        "README.md": "[a](docs/a.md) [z](examples/z.py)",
    }
    found = pages.outside_files(["docs/a.md"], lambda file: texts.get(file, ""))
    expected = {"examples/x/README.md", "examples/x/y.py", "examples/z.py"}
    assert expected == set(found) - set(pages.ALWAYS)


def test_file_that_cannot_be_a_page_is_named() -> None:
    with pytest.raises(pages.SiteError, match=r"tools/data\.bin: files of this kind"):
        pages.for_site("[d](../tools/data.bin)", "docs/a.md")


def test_navigation_is_the_list_in_the_index() -> None:
    texts = {
        "docs/index.md": "# T\n\n## One\n\n- [A](a.md): about a, [not b](b.md)\n"
        "- [D](d/README.md)\n\n## Two\n\n- [Log](../CHANGELOG.md)\n",
        "docs/d/README.md": "- [2](two.md)\n- [1](one.md), [again](two.md), [a](../a.md)\n",
    }
    assert pages.navigation(texts.__getitem__) == [
        {"Home": "index.md"},
        {"One": [{"A": "a.md"}, {"D": ["d/README.md", "d/two.md", "d/one.md"]}]},
        {"Two": [{"Log": "CHANGELOG.md"}]},
    ]
