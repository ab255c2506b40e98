"""Pictures show every task once, with agent and state, and no arrow behind a box."""

import re
from itertools import product
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.errors import InputError
from waltzrl_routing import (
    AgentCapability,
    AgentRegistry,
    Router,
    Task,
    TaskGraph,
    plan_as_mermaid,
    plan_as_svg,
)
from waltzrl_routing.picture import BOX_HEIGHT, BOX_WIDTH, DARK, INK, INK_DARK, LIGHT

NO_OVERLAP = pytest.mark.promise(
    "Routing",
    "In a picture no boxes overlap, no arrow crosses one, and names are text and nothing else",
)

SVG = "{http://www.w3.org/2000/svg}"
AGENT = AgentCapability(agent_name="builder", supported_task_types=("code",))
ROUTER = Router(AgentRegistry(agents=(AGENT,)))


def task(name, *depends_on, kind="code"):
    return Task(id=name, type=kind, description="x", depends_on=depends_on)


GRAPH = TaskGraph([task("a"), task("b", "a"), task("c", "b", "a"), task("d", "a", kind="art")])
PLAN = ROUTER.route(GRAPH, completed=["a"])


def boxes(svg):
    """Return from state to the lines of each box, and the corners of the boxes."""
    groups = [g for g in ET.fromstring(svg).iter(f"{SVG}g") if g.find(f"{SVG}title") is not None]
    corner = re.compile(r"translate\((\S+) (\S+)\)")
    return (
        [(g.get("class"), *(text.text for text in g.iter(f"{SVG}text"))) for g in groups],
        [tuple(map(float, corner.match(g.get("transform")).groups())) for g in groups],
    )


def test_every_task_has_a_box_with_its_agent_and_state():
    shown, _ = boxes(plan_as_svg(GRAPH, PLAN, {"b": "coached"}))
    assert sorted(shown) == [
        ("coached", "b", "builder · coached"),
        ("done", "a", "done"),
        ("pending", "c", "builder"),
        ("unassigned", "d", "unassigned"),
    ]


def test_the_legend_names_the_states_that_occur():
    svg = plan_as_svg(GRAPH, PLAN, {"b": "blocked"})
    legend = [g for g in ET.fromstring(svg).iter(f"{SVG}g") if g.find(f"{SVG}title") is None]
    assert [g.find(f"{SVG}text").text for g in legend] == [
        "pending",
        "done",
        "blocked",
        "unassigned",
    ]


def test_mermaid_shows_the_same():
    assert plan_as_mermaid(GRAPH, PLAN, {"b": "failed"}) == (
        "flowchart LR\n"
        '  t0["a<br/>done"]:::done\n'
        '  t1["b<br/>builder · failed"]:::failed\n'
        '  t2["c<br/>builder"]:::pending\n'
        '  t3["d<br/>unassigned"]:::unassigned\n'
        "  t0 --> t1\n  t1 --> t2\n  t0 --> t2\n  t0 --> t3\n"
        "  classDef pending fill:#f3f4f6,stroke:#6b7280,color:#18181b\n"
        "  classDef done fill:#dcfce7,stroke:#15803d,color:#18181b\n"
        "  classDef failed fill:#fee2e2,stroke:#b91c1c,color:#18181b\n"
        "  classDef unassigned fill:#ffffff,stroke:#6b7280,color:#18181b\n"
    )


@NO_OVERLAP
def test_names_of_tasks_are_text_and_nothing_else():
    name = '"]<script>&'
    graph = TaskGraph([task(name)])
    plan = ROUTER.route(graph)
    shown, _ = boxes(plan_as_svg(graph, plan))
    assert shown == [("pending", '"]<script>&', "builder")]
    line = plan_as_mermaid(graph, plan).splitlines()[1]
    assert line == '  t0["#34;#93;#60;script#62;#38;<br/>builder"]:::pending'


@NO_OVERLAP
@given(st.data())
def test_no_boxes_overlap_and_no_arrow_crosses_one(data):
    tasks = [
        task(str(n), *map(str, data.draw(st.sets(st.integers(0, n - 1), max_size=3)) if n else ()))
        for n in range(data.draw(st.integers(1, 12)))
    ]
    graph = TaskGraph(tasks)
    svg = plan_as_svg(graph, ROUTER.route(graph))
    _, corners = boxes(svg)
    for (x, y), (other_x, other_y) in product(corners, repeat=2):
        assert (
            (x, y) == (other_x, other_y)
            or abs(x - other_x) >= BOX_WIDTH
            or (abs(y - other_y) > BOX_HEIGHT)
        )
    # Across the width of a box an arrow goes straight, in a lane of its own.
    for left, lane, right in re.findall(r"(\S+) (\S+)H([\d.]+)", svg):
        assert float(right) - float(left) == BOX_WIDTH
        assert all(x != float(left) or not y <= float(lane) <= y + BOX_HEIGHT for x, y in corners)


@pytest.mark.promise("Bad input", "A picture of more than 1,000 tasks: both numbers")
def test_a_picture_of_too_many_tasks_is_refused():
    graph = TaskGraph([task(str(number)) for number in range(1001)])
    with pytest.raises(InputError, match="a picture shows at most 1,000 tasks, got 1,001; draw a"):
        plan_as_svg(graph, ROUTER.route(graph))


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("scheme", "ink"), [(LIGHT, INK), (DARK, INK_DARK)])
def test_text_is_readable_in_light_and_dark(scheme, ink):
    # WCAG 2.1: 4.5 to 1 for text, 3 to 1 for borders.
    for colours in scheme.values():
        for colour, least in ((ink, 4.5), (colours.line, 3)):
            bright, dim = sorted([luminance(colour), luminance(colours.fill)], reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= least
