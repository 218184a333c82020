"""MkDocs' hooks: files outside docs/ as pages, Markdown of the repository as that of the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from tools.site import pages

ROOT = Path(__file__).resolve().parents[2]
outside: dict[str, str] = {}  # the files outside docs/, by their pages


def read(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = pages.navigation(read)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    documented = [f"docs/{it.src_uri}" for it in files.documentation_pages()]
    for file in pages.outside_files(documented, read):
        uri, text = pages.site_path(file), read(file)
        outside[uri] = file
        content = text if file.endswith(".md") else pages.source_page(file, text)
        page = File.generated(config, uri, content=content)
        page.inclusion = InclusionLevel.NOT_IN_NAV  # it may be there, or not
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    uri = page.file.src_uri
    if page.is_homepage:
        page.meta |= {"template": "home.html", "hide": ["navigation", "toc"]}
    file = outside.get(uri, f"docs/{uri}")
    return pages.for_site(markdown, file) if file.endswith(".md") else markdown
