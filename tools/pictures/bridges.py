"""A feed with lost packets, and what a bridge writes to the topic, by the bridge's own code."""

from __future__ import annotations

from tools.pictures.layout import heading
from tools.pictures.results import Rows
from tools.pictures.svg import Canvas, Theme

from millstream.bridges.mold.gaps import GIVE_UP_SECONDS, Gap, Message, Ordered
from millstream.bridges.mold.packets import Packet

WIDTH, HEIGHT = 912, 250
LEFT, STEP = 150, 62
FEED_Y, ASKED_Y, TOPIC_Y = 52, 122, 186
SESSION = b"feed      "
LAST = 11
ANSWERED, FORGOTTEN = (4,), (7, 8)  # lost packets: the server still has these, and those not


def received() -> tuple[list[Message | Gap], list[int]]:
    """What goes to the topic, in order, and the numbers that were asked for."""
    ordered = Ordered()
    found: list[Message | Gap] = []
    asked: list[int] = []
    now = 0.0
    for sequence in range(1, LAST + 1):
        if sequence not in ANSWERED + FORGOTTEN:
            found += ordered.take(Packet(SESSION, sequence, (b"",)), now)
        now += 0.01
        for first, count in ordered.requests(now):
            asked += [it for it in range(first, first + count) if it not in asked]
            for each in range(first, first + count):
                if each in ANSWERED:
                    found += ordered.take(Packet(SESSION, each, (b"",)), now)
    found += ordered.expire(now + GIVE_UP_SECONDS)
    return found, asked


def draw(results: dict[str, Rows], theme: Theme) -> str:
    title = "Lost packets of a feed are asked for, and what does not come is a gap record"
    canvas = Canvas(WIDTH, HEIGHT, theme, title)
    found, asked = received()
    for y, name, about in (
        (FEED_Y, "feed", "packets"),
        (ASKED_Y, "asked for", "after 5 ms"),
        (TOPIC_Y, "topic", "records"),
    ):
        heading(canvas, 20, y, name)
        canvas.text(20, y + 17, about, color=theme.faint, size=11.5)
    for sequence in range(1, LAST + 1):
        x = LEFT + STEP * (sequence - 1)
        is_lost = sequence in ANSWERED + FORGOTTEN
        color = theme.late if is_lost else theme.ann
        canvas.mark(x, FEED_Y, str(sequence), color, is_hollow=is_lost)
        if is_lost:
            canvas.text(x, FEED_Y + 28, "lost", color=theme.late, size=11, anchor="middle")
    for sequence in asked:
        x = LEFT + STEP * (sequence - 1)
        came = sequence in ANSWERED
        canvas.mark(x, ASKED_Y, str(sequence), theme.good if came else theme.late, is_hollow=True)
        note, color = ("came", theme.good) if came else ("no answer", theme.late)
        canvas.text(x, ASKED_Y + 28, note, color=color, size=11, anchor="middle")
    for record in found:
        if isinstance(record, Message):
            x = LEFT + STEP * (record.sequence - 1)
            color = theme.good if record.sequence in ANSWERED else theme.ann
            canvas.mark(x, TOPIC_Y, str(record.sequence), color, is_square=True)
            continue
        x, end = (LEFT + STEP * (it - 1) for it in (record.first, record.last))
        canvas.rect(x - 12, TOPIC_Y - 12, end - x + 24, 24, stroke=theme.late)
        text = f"gap {record.first}–{record.last}"
        canvas.text((x + end) / 2, TOPIC_Y + 4, text, color=theme.late, size=11.5, anchor="middle")
    note = (
        "the gap record comes after 2 s without an answer; without one, a reader has every message"
    )
    canvas.text(LEFT - 10, TOPIC_Y + 42, note, color=theme.faint, size=11.5)
    return canvas.render()
