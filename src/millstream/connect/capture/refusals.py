"""Records that the broker refuses for good: which table they are of, and the setting to change.

The position stays before them, so nothing is lost: after the change, the capture continues.
"""

from __future__ import annotations

from millstream.admin.settings import settings_of_topics
from millstream.client.cluster import Cluster
from millstream.client.producing import BatchRefused
from millstream.connect.capture.progress import Progress
from millstream.connect.capture.settings import CaptureSettings
from millstream.connect.capture.tables import CaptureError
from millstream.errors import ApiError, ErrorCode

LIMIT = "max.message.bytes"
POLICY = "cleanup.policy"
MIB = 1024 * 1024


def refused(
    settings: CaptureSettings, progress: Progress, error: BatchRefused
) -> CaptureError | ApiError:
    """The error that explains a refused batch; the same error if there is nothing to add."""
    found = _topic_settings(settings, error.topic)
    where = f"topic {error.topic} of {_table_of(settings, progress, error.topic)}"
    if error.code == ErrorCode.MESSAGE_TOO_LARGE:
        enough = max(MIB, 1 << error.size_bytes.bit_length())
        return CaptureError(
            f"{where} refuses rows of {error.size_bytes} bytes: its {LIMIT} is "
            f"{found.get(LIMIT, 'smaller')}. Run `{_alter(settings, error.topic, LIMIT, enough)}` "
            "and start the capture again; topic_settings are those of new topics only"
        )
    if error.code == ErrorCode.INVALID_RECORD and "compact" in found.get(POLICY, ""):
        return CaptureError(
            f"{where} refuses records without a key, such as that of a TRUNCATE: its {POLICY} is "
            f"{found[POLICY]}. Run `{_alter(settings, error.topic, POLICY, 'delete')} --config "
            "retention.ms=-1` and start the capture again"
        )
    return error


def _table_of(settings: CaptureSettings, progress: Progress, topic: str) -> str:
    names = progress.state.tables if progress.state is not None else {}
    found = [it for it in names if settings.topic_of(*it.split(".", 1)) == topic]
    return f"table {found[0]}" if found else "the capture"


def _topic_settings(settings: CaptureSettings, topic: str) -> dict[str, str]:
    """None of them if the user may not read them, or if the broker is gone."""
    cluster = Cluster(
        settings.broker, client_id=f"capture-{settings.name}", security=settings.security or None
    )
    try:
        return settings_of_topics(cluster, [topic], [LIMIT, POLICY]).get(topic, {})
    except (OSError, ApiError):
        return {}
    finally:
        cluster.close()


def _alter(settings: CaptureSettings, topic: str, name: str, value: object) -> str:
    return (
        f"millstream topic alter {topic} --config {name}={value} "
        f"--bootstrap-server {settings.broker}"
    )
