"""The pages of routed plans: every task with its state, to each role what it may see."""

import re
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pytest

from support.desk_plans import MINUTES, PowerCutError, power_cut, run_minutes, run_plan
from support.routed import UNSAFE, task
from support.small_console import EMAIL, HOSTILE, ROLES, Site
from waltzrl.operations.desk.plans import MAX_TASKS, ROWS, STATES
from waltzrl.operations.desk.request import NO_STORE
from waltzrl.store.memory.erasure import erase_subject
from waltzrl.store.memory.plans import PLANS
from waltzrl_routing.picture import DARK, LIGHT

BLOCKED = "it depends on &#39;threaten&#39;, which is declined"


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def add_plans(site, number, tasks=()):
    """Store plans by hand, the first the oldest."""
    for each in range(number):
        plan = {"request_hash": "", "subject": "", "tasks": list(tasks)}
        site.memory.store.add(PLANS, f"plan-{each:03}", plan, None)


def listed(reply):
    """Return from each plan of the list to its states."""
    rows = re.findall(r"<li>\s*<time.*?</li>", reply.text, re.DOTALL)
    return {
        re.search(r'<a href="/desk/plans/[^"]+">([^<]*)<', row)[1]: re.findall(
            r'chip \w+">([^<]+)<', row
        )
        for row in rows
    }


def table(reply):
    """Return the cells of each task."""
    rows = re.findall(r'<tr><th scope="row">.*?</tr>', reply.text, re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[re.sub(r"<[^>]*>", "", cell).strip() for cell in row] for row in cells]


def test_plans_are_listed_the_newest_first_with_their_tasks_by_state(tmp_path, database_url):
    site = Site(tmp_path, database_url)
    run_minutes(site.memory)
    run_plan(site.memory, [task("a"), task("b")], "later")
    shown = listed(site.log_in("viewer").get("/desk/plans"))
    site.memory.store.engine.dispose()
    assert list(shown.items()) == [
        ("later", ["2 done"]),
        ("minutes", ["2 done", "1 coached", "1 declined", "1 blocked", "1 failed"]),
    ]


def test_plans_are_filtered_by_the_states_of_their_tasks(site):
    run_minutes(site.memory)
    run_plan(site.memory, [task("a")], "later")
    browser = site.log_in("viewer")
    for state in STATES:
        found = list(listed(browser.get("/desk/plans", f"state={state}")))
        expected = {"done": ["later", "minutes"], "pending": [], "interrupted": []}
        assert found == expected.get(state, ["minutes"])
    assert list(listed(browser.get("/desk/plans", "state=other"))) == ["later", "minutes"]


@pytest.mark.promise(
    "Routed tasks",
    "The desk shows every task of a plan with what became of it, and leads to its collaboration",
)
def test_a_plan_shows_each_task_with_what_became_of_it(tmp_path, database_url):
    site = Site(tmp_path, database_url)
    run_minutes(site.memory)
    reply = site.log_in("viewer").get("/desk/plans/minutes")
    links = re.findall(r'<th scope="row"><a href="([^"]+)"', reply.text)
    pages = [site.log_in("viewer").get(link.replace("%2F", "/")).status for link in links]
    site.memory.store.engine.dispose()
    declined = "its request is unsafe (weapons; rules: violence/explosives)"
    assert table(reply) == [
        ["fetch", "other", "clerk", "done", "", ""],
        ["translate", "api_call", "clerk", "done", "0", ""],
        ["summarise", "api_call", "clerk", "coached", "1", ""],
        ["threaten", "api_call", "clerk", "declined", "1", declined],
        ["post", "other", "clerk", "blocked", "", BLOCKED],
        ["draw", "art", "", "failed", "", "no agent can do it: no agent supports &#39;art&#39;"],
    ]
    assert links == [
        f"/desk/collaborations/minutes%2F{name}" for name in ("translate", "summarise", "threaten")
    ]
    assert pages == [200, 200, 200]


@pytest.mark.promise(
    "Routed tasks",
    "The desk shows every task of a plan with what became of it, and leads to its collaboration",
)
def test_what_the_page_shows_is_what_the_run_returned(site):
    results = run_minutes(site.memory)
    shown = [row[3] for row in table(site.log_in("viewer").get("/desk/plans/minutes"))]
    assert shown == [results[each.id].state for each in MINUTES]


def test_a_task_without_a_kept_collaboration_has_no_link(site):
    run_plan(site.memory, [task("a")], "p")
    run_plan(site.memory, [task("b")], "p0")  # of a plan whose name sorts right after
    site.memory.store.delete(("safety", "waltzrl", "evaluations"), "p/a")
    reply = site.log_in("viewer").get("/desk/plans/p")
    assert (table(reply)[0][3], "/desk/collaborations/p" in reply.text) == ("done", False)


def test_a_task_whose_end_is_not_stored_is_pending_until_it_is_resumed(site):
    tasks = [task("a"), task("b", depends_on=["a"])]
    with pytest.raises(PowerCutError):
        run_plan(site.memory, tasks, "p", {"a": power_cut})
    browser = site.log_in("viewer")
    first, second = table(browser.get("/desk/plans/p"))
    assert (first[3], second[3:]) == ("pending", ["pending", "", ""])
    called, _, doubt = first[5].partition("; ")
    assert called.startswith("its agent was called at 20")
    assert doubt == "it is running, or was interrupted"
    run_plan(site.memory, tasks, "p")
    assert [row[3] for row in table(browser.get("/desk/plans/p"))] == ["interrupted", "blocked"]
    assert list(listed(browser.get("/desk/plans", "state=interrupted"))) == ["p"]


@pytest.mark.promise(
    "Routed tasks",
    "Pages of plans hold no result of a task, viewers read redacted reasons, and names are escaped",
)
def test_viewers_read_redacted_reasons(site):
    async def fail():
        raise ValueError(f"no answer from {EMAIL}")

    run_plan(site.memory, [task("a", type_="other")], "p", {"a": fail})
    stored = {role: table(site.log_in(role).get("/desk/plans/p"))[0][5] for role in ROLES}
    assert EMAIL in stored["reviewer"]
    assert EMAIL in stored["operator"]
    assert (EMAIL in stored["viewer"], "[REDACTED:email]" in stored["viewer"]) == (False, True)


@pytest.mark.promise(
    "Routed tasks",
    "Pages of plans hold no result of a task, viewers read redacted reasons, and names are escaped",
)
def test_pages_of_plans_hold_no_reply(site):
    run_plan(site.memory, [task("a", depends_on=()), task("b")], "p", {"a": "SECRET", "b": UNSAFE})
    browser = site.log_in("operator")
    for path in ("/desk/plans", "/desk/plans/p", "/desk/pictures/p"):
        text = browser.get(path).text
        assert not any(words in text for words in ("SECRET", "pipe bomb", "minutes of the"))


@pytest.mark.promise(
    "Routed tasks",
    "Pages of plans hold no result of a task, viewers read redacted reasons, and names are escaped",
)
def test_names_of_plans_and_tasks_are_escaped(site):
    run_plan(site.memory, [task(HOSTILE, type_="other")], HOSTILE.replace(".", ""))
    browser = site.log_in("operator")
    path = re.search(r'href="(/desk/plans/[^"]+)"', browser.get("/desk/plans").text)[1]
    assert "<script>" not in browser.get("/desk/plans").text
    reply = browser.get(unquote(path))
    assert (reply.status, "<script>" in reply.text, "<img src=x" in reply.text) == (
        200,
        False,
        False,
    )
    assert table(reply)[0][0].startswith("&lt;script&gt;")
    picture = browser.get(unquote(path).replace("/plans/", "/pictures/"))
    assert not any("script" in element.tag for element in ET.fromstring(picture.text).iter())


def test_the_picture_is_an_image_that_may_only_style_itself(site):
    run_minutes(site.memory)
    browser = site.log_in("viewer")
    assert '<img src="/desk/pictures/minutes"' in browser.get("/desk/plans/minutes").text
    picture = browser.get("/desk/pictures/minutes")
    assert (picture.status, picture.headers["content-type"]) == (200, "image/svg+xml")
    assert picture.headers["cache-control"] == NO_STORE["cache-control"]
    policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    assert picture.headers["content-security-policy"] == policy
    assert picture.headers["x-content-type-options"] == "nosniff"
    assert ">clerk · coached<" in picture.text
    assert "Capability match: " in picture.text


def test_without_what_draws_it_a_plan_has_no_picture(tmp_path):
    site = Site(tmp_path, draw_plan=None)
    run_minutes(site.memory)
    browser = site.log_in("viewer")
    page = browser.get("/desk/plans/minutes")
    assert (len(table(page)), "<img" in page.text) == (6, False)
    assert browser.get("/desk/pictures/minutes").status == 404


def test_a_large_plan_is_shown_in_part_and_without_a_picture(site):
    tasks = [{"id": f"task {number}", "task_type": "x"} for number in range(MAX_TASKS + 5)]
    add_plans(site, 1, tasks)
    browser = site.log_in("viewer")
    page = browser.get("/desk/plans/plan-000")
    assert (len(table(page)), "<img" in page.text) == (MAX_TASKS, False)
    assert "5 more tasks are not shown" in page.words
    assert browser.get("/desk/pictures/plan-000").status == 404


def test_older_plans_are_reached_page_by_page(site):
    add_plans(site, 2 * ROWS + 1)
    browser, seen, query = site.log_in("viewer"), [], ""
    while query is not None:
        page = browser.get("/desk/plans", query)
        seen += listed(page)
        older = re.search(r'href="/desk/plans\?([^"]+)">Older', page.text)
        query = older[1] if older else None
    assert seen == [f"plan-{number:03}" for number in reversed(range(2 * ROWS + 1))]
    assert 'href="/desk/plans">Newest' in page.text


def test_a_filter_finds_plans_far_back_and_goes_on_where_it_stopped(site):
    run_plan(site.memory, [task("a")], "first")
    add_plans(site, 3 * ROWS)
    run_plan(site.memory, [task("a")], "last")
    browser = site.log_in("viewer")
    assert list(listed(browser.get("/desk/plans", "state=done"))) == ["last", "first"]
    query = f"state=done&from={ROWS}"
    assert list(listed(browser.get("/desk/plans", query))) == ["first"]
    for odd in ("from=x", "from=-5"):
        assert next(iter(listed(browser.get("/desk/plans", odd)))) == "last"
    assert listed(browser.get("/desk/plans", f"from={10**20}")) == {}


def test_without_plans_the_list_says_so(site):
    words = site.log_in("viewer").get("/desk/plans").words
    assert "No plan has been run with this memory." in words


@pytest.mark.parametrize("name", ["none", "a.b", "a\0b", "x" * 700], ids=lambda name: name[:5])
def test_a_missing_plan_is_404(site, name):
    browser = site.log_in("viewer")
    for path in ("/desk/plans/", "/desk/pictures/"):
        reply = browser.get(path + name)
        assert (reply.status, "Not found" in reply.words) == (404, True)


def test_an_erased_person_s_plan_is_gone(site):
    run_plan(site.memory, [task("a")], "p", subject="jane")
    erase_subject(site.memory.store.engine, site.memory.digest("jane"))
    assert site.log_in("operator").get("/desk/plans/p").status == 404


def test_states_have_the_colours_of_the_picture(site):
    style = site.ask("GET", "/desk/desk.css").text
    light, dark = style.split("@media (prefers-color-scheme: dark)")[:2]
    for state in STATES:
        for text, scheme in ((light, LIGHT), (dark, DARK)):
            assert f"--{state}: {scheme[state].fill};" in text
            assert f"--{state}-line: {scheme[state].line};" in text
        assert f".chip.{state} {{ background: var(--{state});" in style
