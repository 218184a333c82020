"""A release: files that can be uploaded, checked and tried in clean environments.

versions.py    the version and the changelog
pythons.py     the interpreters of this machine
building.py    sdist and wheels
checks.py      what is in them
trying.py      installed without a compiler; the README's first commands
__main__.py    `make release`
"""


class ReleaseError(Exception):
    """Something has to be mended before this can be released."""
