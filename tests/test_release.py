"""Releases: versions, contents of sdist and wheel, and what an installed package does."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from tools.release import ReleaseError
from tools.release.building import build_sdist, copy_tree
from tools.release.checks import (
    NOT_IN_SDIST,
    check_sdist,
    check_wheel,
    is_licence,
    library_problem,
    tracked_files,
)
from tools.release.description import describe, relative_links, site_in, write_description
from tools.release.pythons import find_pythons, version_of
from tools.release.trying import try_readme, try_servers
from tools.release.versions import is_released, unreleased, with_section, with_version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
VERSION = tomllib.loads(PROJECT)["project"]["version"]
CHANGELOG = "# Changelog\n\n## Unreleased\n\n- Something.\n\n## 0.9.0 - 2026-01-01\n\n- Else.\n"
COMPILED = re.compile(r"\[\[tool\.setuptools\.ext-modules\]\]\n.*?\n(?=\n)", re.DOTALL)


def test_every_file_has_its_place_in_sdist_and_wheel() -> None:
    """By what pyproject.toml and MANIFEST.in say; the slow test below builds both."""
    tracked = tracked_files(ROOT)
    manifest = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    words = [line.split() for line in manifest if not line.startswith("#")]
    grafted = tuple(f"{it[1]}/" for it in words if it[0] == "graft")
    included = {name for it in words if it[0] == "include" for name in it[1:]}
    included |= {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml"}
    apart = grafted + NOT_IN_SDIST
    assert [it for it in tracked if not it.startswith(apart) and it not in included] == []

    package = ROOT / "src" / "millstream"
    patterns = tomllib.loads(PROJECT)["tool"]["setuptools"]["package-data"]["millstream"]
    listed = {
        it for one in patterns for it in package.glob(f"{one}/*" if one.endswith("**") else one)
    }
    inside = [ROOT / it for it in tracked if it.startswith("src/millstream/")]
    data = [it for it in inside if it.suffix != ".py" and not is_licence(it.name)]
    assert [it for it in data if it not in listed] == []
    modules = [it for it in inside if it.suffix == ".py"]
    assert [it for it in modules if not (it.parent / "__init__.py").exists()] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sdist_and_wheel_are_complete_and_the_installed_package_works(tmp_path: Path) -> None:
    """The wheel takes the extensions that the development environment has compiled, and finds its
    dependencies there. The slow test below compiles and installs all of it."""
    tracked = tracked_files(ROOT)
    tree = tmp_path / "tree"
    copy_tree(ROOT, tracked, tree)
    write_description(tree)
    check_sdist(build_sdist(tree, tmp_path), tracked)
    wheel = wheel_of_compiled(tree, tmp_path / "wheel")
    check_wheel(wheel, tracked, VERSION)
    check_that_a_missing_file_is_noticed(wheel, "millstream/py.typed", tracked)
    python = environment_with(wheel, tmp_path / "environment")
    shown = [python, "-c", "import millstream; print(millstream.__file__)"]
    done = subprocess.run(shown, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(tmp_path))
    assert try_readme(python, tmp_path / "readme") >= 8
    try_servers(python, tmp_path / "servers")


def wheel_of_compiled(tree: Path, directory: Path) -> Path:
    project, count = COMPILED.subn("", PROJECT)
    extensions = [
        str(it) for it in (ROOT / "src").rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}")
    ]
    assert len(extensions) == count
    (tree / "pyproject.toml").write_text(project, encoding="utf-8")
    (tree / "MANIFEST.in").write_text("graft src\n")
    copy_tree(ROOT, [str(Path(it).relative_to(ROOT)) for it in extensions], tree)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", directory, tree]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = directory.glob("*.whl")
    return wheel


def environment_with(wheel: Path, directory: Path) -> Path:
    """An environment with the wheel. What it depends on is on its path, without the editable
    installation that the directory has as well: files of paths are not read there."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    python = directory / "bin" / "python"
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    (Path(done.stdout.strip()) / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    installer = Path(sysconfig.get_path("scripts")) / "uv"
    options = ["--quiet", "--offline", "--no-deps", "--python"]
    subprocess.run([installer, "pip", "install", *options, python, wheel], check=True)
    return python


def check_that_a_missing_file_is_noticed(wheel: Path, name: str, tracked: list[str]) -> None:
    copy = wheel.parent / "damaged" / wheel.name
    copy.parent.mkdir()
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(copy, "w") as target:
        for item in source.infolist():
            if item.filename != name:
                target.writestr(item, source.read(item))
    with pytest.raises(ReleaseError, match=f"lacks {re.escape(name)}"):
        check_wheel(copy, tracked, VERSION)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_release_installs_with_every_python_without_a_compiler(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.release", "--dist", str(tmp_path / "dist")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    wheels = list((tmp_path / "dist").glob("*.whl"))
    assert len(wheels) == len(find_pythons())
    for name in find_pythons():
        assert f"installed with Python {name}: " in done.stdout


def test_every_python_that_is_found_runs_and_is_supported() -> None:
    found = find_pythons()
    assert f"3.{sys.version_info.minor}" in found
    for name, python in found.items():
        version = version_of(python)
        assert version is not None
        assert f"3.{version[1]}" == name
        assert version >= (3, 11, 0)


def test_python_that_does_not_run_is_left_out(tmp_path: Path) -> None:
    broken = tmp_path / "python3.12"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    assert version_of(broken) is None
    assert version_of(tmp_path / "python3.13") is None


def test_supported_pythons_are_declared() -> None:
    project = tomllib.loads(PROJECT)["project"]
    declared = {it.rpartition(" ")[2] for it in project["classifiers"] if ":: 3." in it}
    assert {"3.11", "3.12", "3.13"} <= declared


def test_new_version_is_set_in_one_place() -> None:
    changed = with_version(PROJECT, "1.2.3").splitlines()
    before = PROJECT.splitlines()
    assert [new for old, new in zip(before, changed, strict=True) if old != new] == [
        'version = "1.2.3"',
        '    "Development Status :: 5 - Production/Stable",',
    ]
    assert '"Development Status :: 4 - Beta"' in with_version(PROJECT, "0.99")


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("one", "not a version: 'one'"),
        ("0.0.1", "is not later than"),
        ("01.2", "write 1.2"),
    ],
)
def test_wrong_version_is_refused(version: str, problem: str) -> None:
    with pytest.raises(ReleaseError, match=problem):
        with_version(PROJECT, version)


def test_changelog_gets_a_section_for_the_version() -> None:
    changed = with_section(CHANGELOG, "1.0.0", "2026-11-17")
    assert "## Unreleased\n\n## 1.0.0 - 2026-11-17\n\n- Something.\n\n## 0.9.0" in changed
    assert is_released(changed, "1.0.0")
    assert not is_released(CHANGELOG, "1.0.0")
    assert unreleased(changed) == ""
    with pytest.raises(ReleaseError, match=r"nothing below .Unreleased. that 1\.1\.0"):
        with_section(changed, "1.1.0", "2026-11-18")


def test_our_changelog_is_ready_for_the_next_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert is_released(text, VERSION) or unreleased(text)
    titles = re.findall(r"^### (.+)$", unreleased(text), re.MULTILINE)
    assert len(titles) == len(set(titles)), f"sections of the changelog come twice: {titles}"


def test_links_of_the_description_lead_to_the_site_or_nowhere() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(relative_links(readme)) > 50
    assert relative_links(describe(readme, None)) == []
    described = describe(readme, "https://example.org/millstream/")
    assert relative_links(described) == []
    site = "https://example.org/millstream"
    for link in (
        f"[Queries]({site}/guides/queries.html)",
        f"[Examples]({site}/examples/index.html)",
        f"[CONTRIBUTING]({site}/CONTRIBUTING.html)",
        f"[Pipelines]({site}/src/millstream/cli/shop/pipelines.py.html)",
        f"({site}/images/console-overview-light.png)",
    ):
        assert link in described
    assert "[live demo](#see-it-live)" in described
    text = "A [link](docs/a.md#x), ![picture](docs/a.png).\n```sh\n[x](y.md)\n```\n"
    assert describe(text, None) == "A link, .\n```sh\n[x](y.md)\n```\n"


def test_address_of_the_site_is_one_setting() -> None:
    urls = '[project]\n[project.urls]\nDocumentation = "{}"\n'
    assert site_in("[project]\n") is None
    assert site_in(urls.format("https://example.org/x")) == "https://example.org/x"
    with pytest.raises(ReleaseError, match="not an https address"):
        site_in(urls.format("example.org"))


def test_libraries_that_not_every_linux_has_are_named() -> None:
    usual = "0x01 (NEEDED)   Shared library: [libc.so.6]\n 0x10: Name: GLIBC_2.14  Flags: none\n"
    assert library_problem(usual, (2, 17)) is None
    assert library_problem(usual + "Name: GLIBC_2.34", (2, 17)) == "needs glibc 2.34, not 2.17"
    other = "(NEEDED)  Shared library: [libstdc++.so.6]"
    assert library_problem(usual + other, (2, 17)) == "needs libstdc++.so.6"
