"""The version, which only pyproject.toml has, and the changelog, which has a section for it."""

from __future__ import annotations

import re

from packaging.version import InvalidVersion, Version
from tools.release import ReleaseError

_VERSION = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)
_STATUS = re.compile(r'"Development Status :: [^"]+"')
BETA, STABLE = "4 - Beta", "5 - Production/Stable"
_UNRELEASED = "## Unreleased\n"


def version_of(project: str) -> str:
    """The version in the text of pyproject.toml."""
    found = _VERSION.findall(project)
    if len(found) != 1:
        raise ReleaseError(f"pyproject.toml: {len(found)} lines with a version, not one")
    return str(found[0])


def with_version(project: str, version: str) -> str:
    """pyproject.toml with another version, which must be a later one, and its status."""
    before = version_of(project)
    try:
        is_later = Version(version) > Version(before)
    except InvalidVersion:
        raise ReleaseError(f"not a version: {version!r}; give one like 1.0.0") from None
    if str(Version(version)) != version:
        raise ReleaseError(f"version {version!r}: write {Version(version)}")
    if not is_later:
        raise ReleaseError(f"version {version} is not later than {before}")
    status = STABLE if Version(version) >= Version("1.0") else BETA
    project = _STATUS.sub(f'"Development Status :: {status}"', project)
    return _VERSION.sub(f'version = "{version}"', project)


def with_section(changelog: str, version: str, date: str) -> str:
    """The changelog with what is unreleased as the section of a version, below an empty one."""
    if unreleased(changelog) == "":
        raise ReleaseError(f'CHANGELOG.md: nothing below "Unreleased" that {version} could bring')
    return changelog.replace(_UNRELEASED, f"{_UNRELEASED}\n## {version} - {date}\n", 1)


def unreleased(changelog: str) -> str:
    """What the next version brings."""
    if changelog.count(_UNRELEASED) != 1:
        raise ReleaseError('CHANGELOG.md has to have one section "## Unreleased"')
    return re.split(r"^## ", changelog.partition(_UNRELEASED)[2], flags=re.MULTILINE)[0].strip()


def is_released(changelog: str, version: str) -> bool:
    """Whether the changelog has a section for the version, with a date."""
    section = rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$"
    return re.search(section, changelog, re.MULTILINE) is not None
