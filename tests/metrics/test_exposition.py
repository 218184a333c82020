"""The text that Prometheus reads, checked by its own tool where that is installed."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from millstream.metrics.distribution import Distribution, Histogram
from millstream.metrics.exposition import (
    LINES_PER_PIECE,
    Family,
    counter,
    format_value,
    gauge,
    histogram_samples,
    labels,
    render,
    summary_samples,
)


def families() -> list[Family]:
    seconds = Distribution()
    seconds.note(0.25, now=1.0)
    sizes = Histogram((1.0, 8.0))
    sizes.note(3.0)
    return [
        counter("test_orders_total", "Orders.", 3),
        gauge("test_size_bytes", 'A "size"\nof \\ things.', [(labels(topic='a"\\\n'), 1.5)]),
        Family("test_seconds", "summary", "Time.", summary_samples(labels(api="x"), seconds, 2.0)),
        Family("test_group_size", "histogram", "Sizes.", histogram_samples("", sizes)),
    ]


def test_values_labels_and_comments_are_written_as_prometheus_reads_them() -> None:
    text = "".join(render(families()))
    assert "# TYPE test_orders_total counter\ntest_orders_total 3\n" in text
    assert '# HELP test_size_bytes A "size"\\nof \\\\ things.\n' in text
    assert 'test_size_bytes{topic="a\\"\\\\\\n"} 1.5\n' in text
    assert 'test_seconds{api="x",quantile="0.99"} 0.25\n' in text
    assert 'test_seconds_count{api="x"} 1\n' in text
    assert 'test_group_size_bucket{le="1"} 0\n' in text
    assert 'test_group_size_bucket{le="8"} 1\ntest_group_size_bucket{le="+Inf"} 1\n' in text


def test_promtool_accepts_the_text() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    text = "".join(render(families()))
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_a_long_text_comes_in_pieces_that_read_values_when_they_are_written() -> None:
    value = [0]
    samples = ((labels(number=number), value[0]) for number in range(2 * LINES_PER_PIECE))
    pieces = render([gauge("test_numbers", "Numbers.", samples)])
    assert next(pieces).count("} 0\n") == LINES_PER_PIECE - 1
    value[0] = 7
    assert next(pieces).endswith("} 7\n")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "NaN"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
        (True, "1"),
        (2.0, "2"),
        (0.1, "0.1"),
        (1e20, "1e+20"),
        (2**62, str(2**62)),
    ],
)
def test_numbers_are_written_exactly(value: float, text: str) -> None:
    assert format_value(value) == text
