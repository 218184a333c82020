"""`make release`: builds sdist and wheels in dist/, checks them, and installs each wheel.

    python -m tools.release                    the version in pyproject.toml
    python -m tools.release --version 1.0.0    first sets it, there and in the changelog

Uploads nothing; prints what to upload.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

from tools.release import ReleaseError
from tools.release.building import build_sdist, build_wheel, copy_tree
from tools.release.checks import check_sdist, check_wheel, tracked_files
from tools.release.description import site_in, write_description
from tools.release.pythons import find_pythons
from tools.release.trying import install, try_readme, try_servers
from tools.release.versions import is_released, version_of, with_section, with_version

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("bridges", "console", "query", "testing")  # which the README's first commands need


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools.release", description=__doc__)
    parser.add_argument("--version", help="set this version first")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    parser.add_argument("--only", help="build for this Python only, such as 3.11")
    given = parser.parse_args(arguments)
    try:
        if given.version:
            prepare(given.version)
        release(given.dist, given.only)
    except ReleaseError as problem:
        print(f"release: {problem}", file=sys.stderr)
        return 1
    return 0


def prepare(version: str) -> None:
    """Set the version, and give what is unreleased its section in the changelog."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    project, changelog = ROOT / "pyproject.toml", ROOT / "CHANGELOG.md"
    texts = {
        project: with_version(project.read_text(encoding="utf-8"), version),
        changelog: with_section(changelog.read_text(encoding="utf-8"), version, today),
    }
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    say(f"{version} is in pyproject.toml and CHANGELOG.md: look at the difference and commit it")


def release(dist: Path, only: str | None) -> None:
    version = version_of((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    pythons = {name: it for name, it in find_pythons().items() if only in (None, name)}
    if not pythons:
        raise ReleaseError(f"no Python {only} on this machine")
    tracked = tracked_files(ROOT)
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="millstream-release-") as directory:
        copy_tree(ROOT, tracked, Path(directory))
        write_description(Path(directory))
        sdist = build_sdist(Path(directory), dist)
    check_sdist(sdist, tracked)
    say(f"built {sdist.name}")
    for name, python in pythons.items():
        with tempfile.TemporaryDirectory(prefix="millstream-release-") as directory:
            scratch = Path(directory)
            wheel = build_wheel(sdist, python, dist, scratch)
            check_wheel(wheel, tracked, version)
            say(f"built {wheel.name} for Python {name}")
            own = install(wheel, python, scratch / "environment", EXTRAS)
            count = try_readme(own, scratch / "readme")
            say(f"installed with Python {name}: {count} blocks of the README work")
            try_servers(own, scratch / "servers")
            say(f"Python {name}: the console and a bridge answer")
    report(dist, version)


def report(dist: Path, version: str) -> None:
    """What to do next, with the files and their hashes."""
    print(f"\nmillstream {version} in {dist}:\n")
    for file in sorted(dist.iterdir()):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        print(f"  {digest}  {file.name}  {file.stat().st_size / 1e6:.1f} MB")
    if not is_released((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version):
        print(f"\nA rehearsal: {version} has no section in CHANGELOG.md. For a release:")
        print("  make release VERSION=1.0.0")
        return
    if site_in((ROOT / "pyproject.toml").read_text(encoding="utf-8")) is None:
        print(
            "\nThe package's page will have no links and pictures: publish build/site (make site)"
        )
        print("and name its address: [project.urls] Documentation in pyproject.toml.")
    print("\nNothing was uploaded. To do so:\n")
    print(f"  git commit -am 'Release {version}' && git tag -a v{version} -m {version}")
    print(f"  git push --follow-tags && twine upload {dist}/*")


def say(message: str) -> None:
    print(f"release: {message}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
