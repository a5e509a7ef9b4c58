from __future__ import annotations

from xml.etree import ElementTree

from fullbore.timeline.scale import TimeScale
from fullbore.timeline.span import Row, Timeline
from fullbore.timeline.svg import render_svg
from tests.support.timelines import measured, of_schedule

SVG = "{http://www.w3.org/2000/svg}"


def texts(document: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(document).iter(f"{SVG}text")]


def tips(document: str) -> list[str]:
    boxes = ElementTree.fromstring(document).iter(f"{SVG}rect")
    return [title.text or "" for box in boxes for title in box.iter(f"{SVG}title")]


def test_titles_are_escaped() -> None:
    document = render_svg(of_schedule(), title="p < 5 & 'm' > 3")
    assert ElementTree.fromstring(document).find(f"{SVG}title") is not None
    assert "p < 5 & 'm' > 3" in texts(document)


def test_every_span_is_a_box_that_says_what_it_is() -> None:
    timeline = of_schedule(ranks=2, microbatches=2)
    expected = [f"{s.row.value} {s.label}: {s.duration_ns}" for s in timeline.spans]
    assert tips(render_svg(timeline, title="t")) == expected


def test_the_caption_has_the_bubble_and_the_row_ends_the_busy_share() -> None:
    found = texts(render_svg(of_schedule(), title="t"))
    assert (
        "makespan 33, busiest rank 24, bubble fraction 27.3% of wall time, bubble overhead 37.5% on top of the work"
    ) in found
    assert found.count("73% busy") == 4


def test_boxes_lie_where_and_as_long_as_their_time() -> None:
    document = ElementTree.fromstring(render_svg(of_schedule(ranks=1, microbatches=1), title="t"))
    boxes = [box for box in document.iter(f"{SVG}rect") if box.find(f"{SVG}title") is not None]
    forward, backward = ((float(box.attrib["x"]), float(box.attrib["width"])) for box in boxes)
    assert forward == (64.0, 333.33)
    assert backward == (397.33, 666.67)


def test_measured_steps_have_recomputation_hatched_a_flush_and_a_legend() -> None:
    document = render_svg(measured(), title="t", scale=TimeScale.milliseconds())
    assert document.count("url(#hatch)") == sum(span.row is Row.NESTED for span in measured().spans)
    assert {"forward", "backward", "recompute", "waiting for a message", "flush"} <= set(texts(document))
    assert any(text.endswith(" ms") for text in texts(document))


def test_an_empty_timeline_is_still_a_picture() -> None:
    ElementTree.fromstring(render_svg(Timeline(2, ()), title="empty"))
