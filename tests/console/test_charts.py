"""Charts have data of their series for a range of time."""

from __future__ import annotations

from millstream.console.charts import Chart, draw, latest, of_cluster, of_group, of_topic
from millstream.console.history import History

NOW = 10_000.0


def history() -> History:
    made = History()
    for step in range(10):
        at = NOW - 3000 + step * 300
        made.add(
            at, {("records", ""): step + 1.23456, ("records", "orders"): 1, ("lag", "g"): step}
        )
    return made


def test_charts_have_the_chosen_range() -> None:
    charts = of_cluster()
    whole = draw(history(), charts, "1h", NOW)["records"]
    assert len(whole.times) == 10
    quarter = draw(history(), charts, "15m", NOW)["records"]
    assert quarter.times == [NOW - 900, NOW - 600, NOW - 300]
    assert draw(history(), charts, "nonsense", NOW)["records"] == whole


def test_values_are_short_and_series_are_labelled() -> None:
    (line,) = draw(history(), of_cluster(), "15m", NOW)["records"].series
    assert (line.label, line.values) == ("written", [8.235, 9.235, 10.23])


def test_topics_and_groups_have_charts_of_their_own() -> None:
    assert draw(history(), of_topic("orders"), "1h", NOW)["records"].series[0].values == [1.0] * 10
    lag = draw(history(), of_group("g"), "1h", NOW)["lag"].series[0].values
    assert lag == [float(it) for it in range(10)]


def test_lines_are_as_long_as_the_times() -> None:
    both = Chart("x", "X", "", (("a", ("records", "")), ("b", ("never", "seen"))))
    data = draw(history(), [both], "1h", NOW)["x"]
    assert [len(it.values) for it in data.series] == [len(data.times)] * 2


def test_newest_sample_has_the_latest_time() -> None:
    assert latest(draw(history(), of_cluster(), "1h", NOW)) == NOW - 300
    assert latest(draw(History(), of_cluster(), "1h", NOW)) is None
