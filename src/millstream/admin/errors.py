"""Errors of administration: messages for the user, of a command line or of a page."""

from __future__ import annotations

from millstream.errors import MillstreamError


class OperationFailed(MillstreamError):
    """The operation failed; the message says why, and what to do."""


class InvalidArgument(OperationFailed):
    """What the user wrote makes no sense; nothing was done."""


class NotFound(OperationFailed):
    """There is no such group, topic or transactional id."""
