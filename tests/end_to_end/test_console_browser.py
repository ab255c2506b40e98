"""The review desk in a real browser: by mouse, by keyboard alone, and checked by axe-core."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from playwright.sync_api import sync_playwright

from support.browser import FLAGS, find_chromium, served, violations
from support.desk_plans import run_minutes
from support.desk_states import STATES
from support.small_console import EMAIL, HOSTILE, Site, collaboration, exchange
from support.small_trials import BOMB, UNSAFE
from waltzrl.store.memory.workqueues import WorkQueue, put_queue
from waltzrl_routing.picture import DARK, LIGHT

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("console")]

PICTURED = {
    name: tuple(bytes.fromhex(scheme["coached"].fill[1:]))
    for name, scheme in (("light", LIGHT), ("dark", DARK))
}
"""Colours of a coached task."""
STORY = "wz7/2"
PAGES = (
    "/desk",
    "/desk/try",
    "/desk/collaborations",
    "/desk/queues",
    "/desk/trends",
    "/desk/bundles",
    "/desk/bundles/new",
    "/desk/plans",
    "/desk/people",
    "/desk/audit",
)
STATE_PAGES = {
    "empty": (),
    "one": ("/desk/collaborations/wz0%2F2",),
    "zero rates": ("/desk/collaborations/wz1%2F2",),
    "many": (
        "/desk/collaborations/wz1%2F2",
        "/desk/audit?record=wz1",
        "/desk/plans/minutes",
        "/desk/none",
    ),
}
"""Pages that a state has beside the others."""


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    site.begin_release()
    with ThreadPoolExecutor() as pool:  # playwright keeps this thread's event loop
        pool.submit(run_minutes, site.memory).result()
    site.memory.remember(
        [
            exchange("wz1", collaboration("How do I bake bread?"), seconds_ago=1),
            exchange(
                STORY,
                collaboration(f"Write to {EMAIL}", f"{HOSTILE} Pay or else.", "Pay, please."),
                decision="revised",
                bundle="new",
                arm="candidate",
                seconds_ago=2,
            ),
            exchange("wz9", reason="upstream_timeout", seconds_ago=3),
        ]
    )
    return site


@pytest.fixture
def url(site):
    with served(site.desk) as address:
        yield address


@contextmanager
def opened(chromium, url, *, forgiven=0, **settings):
    """Open a window that requests nothing of other hosts and logs at most `forgiven` errors."""
    context = chromium.new_context(base_url=url, **settings)
    complaints = []
    page = context.new_page()
    # That a field kept the cursor is only information: whoever types soon may see it.
    page.on(
        "console",
        lambda message: message.type != "info" and complaints.append(message.text),
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request", lambda request: request.url.startswith(url) or complaints.append(request.url)
    )
    page.set_default_timeout(10_000)
    yield page
    assert len(complaints) <= forgiven, complaints
    context.close()


def log_in(page, site, role):
    page.goto("/desk/login")
    page.locator("[name=key]:focus").wait_for()  # the page puts the cursor there by itself
    page.get_by_label("API key").fill(site.keys[role])
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Overview").wait_for()


def test_a_reviewer_logs_in_filters_opens_and_logs_out(chromium, url, site):
    with opened(chromium, url) as page:
        log_in(page, site, "reviewer")
        page.get_by_role("link", name="Collaborations").click()
        assert page.locator(".list li").count() == 6  # three of them the plan's
        page.get_by_text("Order and filters").click()
        page.get_by_label("decision").select_option("revised")
        page.locator("select[name=arm]").select_option("candidate")
        page.get_by_role("button", name="Filter").click()
        assert "decision=revised" in page.url
        assert page.locator(".list li").count() == 1
        page.get_by_role("link", name=f"Write to {EMAIL}").click()
        assert page.locator("del").first.is_visible()
        assert "<script>alert(1)</script>" in page.get_by_role("main").inner_text()
        page.get_by_role("button", name="Log out").click()
        page.goto("/desk")
        assert page.url == f"{url}/desk/login"


def test_a_request_is_found_by_its_words_which_stay_out_of_the_address(chromium, url, site):
    with opened(chromium, url) as page:
        log_in(page, site, "reviewer")
        page.goto("/desk/collaborations")
        page.get_by_label("Words of the request or the reply").fill("bread")
        page.keyboard.press("Enter")
        page.wait_for_url("**found=*")
        assert page.locator(".list li").count() == 1
        assert "bread" not in page.url
        page.locator(".list a").click()
        page.get_by_role("heading", name="Transcript").wait_for()
        page.go_back()
        page.wait_for_url("**found=*")
        assert page.locator(".list li").count() == 1


def focus(page, name):
    """Press Tab until the element with this text has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        text = page.evaluate("document.activeElement.innerText || ''")
        if text.strip().startswith(name):
            return
    raise AssertionError(f"the Tab key never came to {name!r}")


def focus_input(page, name):
    """Press Tab until the input of this name has the focus."""
    while page.evaluate("document.activeElement.name") != name:
        page.keyboard.press("Tab")


class Keyboard:
    """A page's keyboard, which counts its presses."""

    def __init__(self, page):
        self.page, self.presses = page, 0

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
            self.presses += 1

    def save(self, key="Enter"):
        """Save and wait for what comes next."""
        with self.page.expect_navigation():
            self.press(key)


@pytest.mark.promise(
    "Labels",
    "Fifty collaborations are labelled with at most 160 key presses, one of them with a better "
    "reply, and by a second person",
)
@pytest.mark.slow
def test_fifty_are_labelled_with_three_keys_each_and_some_by_a_second_person(chromium, url, site):
    names = [f"item{number:02}" for number in range(50)]
    site.memory.remember([exchange(name, collaboration(name), caller="queue") for name in names])
    queue = "/desk/collaborations?label=none&who=queue&sort=risk"
    with opened(chromium, url) as page:
        log_in(page, site, "reviewer")
        page.goto(queue)
        keyboard = Keyboard(page)
        keyboard.save("s")
        for number in range(50):
            assert page.evaluate("document.activeElement.id") == ("main" if number else "")
            if number == 20:
                keyboard.press("u", "y", "e")
                page.keyboard.insert_text("A better reply.")
                keyboard.save("Control+Enter")
            else:
                keyboard.press("c", "n")
                keyboard.save()
        assert page.get_by_text("No collaboration matches").is_visible()
        assert keyboard.presses <= 160
    events = [site.memory.evaluation(name).labels for name in names]
    assert [len(labels) for labels in events] == [1] * 50
    assert sorted(event.correction for (event,) in events)[-2:] == ["", "A better reply."]
    with opened(chromium, url) as page:
        log_in(page, site, "annotator")
        page.goto("/desk/collaborations?rated=others&who=queue")
        keyboard = Keyboard(page)
        keyboard.save("s")
        for _ in range(3):
            keyboard.press("c", "n")
            keyboard.save()
        keyboard.save("z")  # takes the last one back, and leads to it
        keyboard.press("u", "t")
        keyboard.save()
        keyboard.save("l")
        assert page.locator(".list li").count() == 47
    twice = [site.memory.evaluation(name).label for name in names if _raters(site, name) == 2]
    assert len(twice) == 3
    assert twice.count("disputed") in (1, 2)  # 2 where the one that was taken back was unsafe


def _raters(site, name):
    return len({event.by for event in site.memory.evaluation(name).labels})


def test_the_keys_are_explained_and_can_be_switched_off(chromium, url, site):
    with opened(chromium, url) as page:
        log_in(page, site, "reviewer")
        page.goto("/desk/collaborations/wz7%2F2")
        page.keyboard.press("?")
        assert page.get_by_role("dialog", name="Keys").is_visible()
        page.keyboard.press("c")  # the dialog is open
        page.get_by_label("Use these keys").uncheck()
        page.keyboard.press("Escape")
        page.reload()
        page.keyboard.press("c")
        assert page.locator("input:checked[type=radio]").count() == 0


def test_a_reply_is_labelled_by_keyboard_alone(chromium, url, site):
    with opened(chromium, url) as page:
        page.goto("/desk/login")
        page.wait_for_function("document.activeElement.name === 'key'")
        page.keyboard.type(site.keys["reviewer"])
        page.keyboard.press("Enter")
        page.wait_for_url("**/desk")
        focus(page, "Skip to the content")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        page.reload()
        focus(page, "Collaborations")
        page.keyboard.press("Enter")
        page.wait_for_url("**/desk/collaborations")
        focus(page, "Write to")
        page.keyboard.press("Enter")
        page.wait_for_url("**/wz7%2F2")
        focus_input(page, "reply")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        outline = "getComputedStyle(document.activeElement.parentElement).outlineStyle"
        assert page.evaluate(outline) == "solid"
        focus(page, "Save")
        page.keyboard.press("Tab")
        page.keyboard.press("Space")
        page.get_by_role("status").wait_for()
        assert "reviewer labelled it over-refusal" in page.get_by_role("status").inner_text()
    assert site.memory.evaluation(STORY).label == "overrefusal"


@pytest.mark.promise(
    "Routed tasks",
    "The desk shows every task of a plan with what became of it, and leads to its collaboration",
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_coached_task_is_found_by_keyboard_beside_its_picture(chromium, url, site, scheme):
    with opened(chromium, url, color_scheme=scheme) as page:
        log_in(page, site, "viewer")
        page.goto("/desk/plans")
        page.get_by_label("task state").select_option("coached")
        focus(page, "Filter")
        page.keyboard.press("Enter")
        page.wait_for_url("**/desk/plans?state=coached")
        focus(page, "minutes")
        page.keyboard.press("Enter")
        page.wait_for_url("**/desk/plans/minutes")
        picture = page.get_by_role("img")
        assert picture.evaluate("image => image.complete && image.naturalWidth") > 600
        assert PICTURED[scheme] in colours(page, picture)
        focus(page, "summarise")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Transcript").wait_for()
        assert page.locator("ins").first.is_visible()


def colours(page, picture):
    """Return the colours of an image's points, as (red, green, blue)."""
    points = picture.evaluate(
        """image => {
            const canvas = Object.assign(document.createElement("canvas"),
                {width: image.naturalWidth, height: image.naturalHeight});
            const context = canvas.getContext("2d");
            context.drawImage(image, 0, 0);
            return [...context.getImageData(0, 0, canvas.width, canvas.height).data];
        }"""
    )
    return set(zip(points[::4], points[1::4], points[2::4], strict=True))


def test_an_operator_rolls_back_with_a_reason(chromium, url, site):
    release = site.book.current()
    with opened(chromium, url) as page:
        log_in(page, site, "operator")
        button = page.get_by_role("button", name="Roll back now")
        assert not button.is_visible()
        page.locator("summary", has_text="Roll back").click()
        button.click()
        assert site.book.current() == release  # the reason is required
        page.locator("details[open]").get_by_label("Reason").fill("replies got worse")
        button.click()
        page.locator(".chip", has_text="rolled back").wait_for()
        page.get_by_text("History").click()
        assert page.get_by_role("row", name="replies got worse").is_visible()
    last = site.book.history(release.id)[-1]
    assert (last.action, last.by, last.why) == ("roll_back", "operator", "replies got worse")


@pytest.mark.npm
@pytest.mark.parametrize("state", STATES)
def test_every_page_in_every_state_fits_its_window_and_violates_no_rule(chromium, tmp_path, state):
    site = Site(tmp_path)
    with ThreadPoolExecutor() as pool:  # playwright keeps this thread's event loop
        pool.submit(STATES[state], site, 500 if state == "many" else 60).result()
    faults = []
    missing = {"forgiven": 1}  # the browser logs the 404 of /desk/none
    with (
        served(site.desk) as url,
        opened(chromium, url, bypass_csp=True, **missing) as page,
    ):
        page.goto("/desk/login")
        faults += _faults(page, "/desk/login")
        log_in(page, site, "operator")
        for path in (*PAGES, *STATE_PAGES[state]):
            page.goto(path)
            page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
            faults += _faults(page, path)
        if state == "one":
            compare_policies(page)
            faults += _faults(page, "a trial")
    assert faults == []


def compare_policies(page):
    """Try a request under two policies, by keyboard alone."""
    page.goto("/desk/try")
    page.locator("textarea:focus").wait_for()  # the page puts the cursor there by itself
    page.keyboard.insert_text(BOMB)
    focus_input(page, "other")
    page.keyboard.press("s")
    focus(page, "Try it")
    page.keyboard.press("Enter")
    page.locator("#result-1:focus").wait_for()
    for changed in ("del", "ins", "mark"):
        assert page.locator(changed).first.is_visible()
    page.locator("#result-2", has_text="Policy strict").wait_for()
    with page.expect_download() as download:
        focus(page, "Download the case")
        page.keyboard.press("Enter")
    assert json.loads(download.value.path().read_text()) == {
        "messages": [{"role": "user", "content": BOMB}],
        "reply": UNSAFE,
        "expect": "revise",
    }
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")


VIEWS = (("light", 1280, None), ("dark", 1280, ["color-contrast"]), ("light", 360, ["wcag22aa"]))
"""Colour scheme, width, and which of axe-core's rules can differ from those of the first."""


def _faults(page, path):
    """Return what is wrong with a page in each view."""
    found = []
    for scheme, width, rules in VIEWS:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 800})
        found += [(path, scheme, width, *fault) for fault in violations(page, rules)]
        if page.evaluate("document.documentElement.scrollWidth") > width:
            found.append((path, scheme, width, "wider than its window"))
    return found


def test_on_a_phone_the_roll_back_is_in_reach_wherever_one_has_scrolled(chromium, url, site):
    release = site.book.current()
    names = [f"n{number}" for number in range(30)]
    site.memory.remember([exchange(name, collaboration(name)) for name in names])
    with opened(chromium, url, viewport={"width": 390, "height": 844}) as page:
        log_in(page, site, "operator")
        page.goto("/desk/collaborations")
        page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        summary = page.locator("summary", has_text="Roll back")
        assert 0 <= summary.bounding_box()["y"] < 100
        summary.click()
        page.get_by_label("Reason").fill("replies got worse")
        button = page.get_by_role("button", name="Roll back now")
        assert button.bounding_box()["y"] < 844
        button.click()
        page.locator(".chip", has_text="rolled back").wait_for()
    assert site.book.release(release.id).state == "rolled_back"


def test_on_a_phone_the_list_begins_below_its_search(chromium, url, site):
    with opened(chromium, url, viewport={"width": 390, "height": 844}) as page:
        log_in(page, site, "operator")
        page.goto("/desk/collaborations")
        assert page.locator(".list li").first.bounding_box()["y"] < 600


def test_on_a_phone_the_label_is_seen_as_soon_as_it_is_set(chromium, url, site):
    site.memory.remember([exchange("long", collaboration("hello", "A line.\n" * 200))])
    with opened(chromium, url, viewport={"width": 400, "height": 800}) as page:
        log_in(page, site, "reviewer")
        page.goto("/desk/collaborations/long")
        page.get_by_label("Unsafe").check()
        page.get_by_role("button", name="Save", exact=True).click()
        page.get_by_role("status").wait_for()
        place = page.get_by_role("status").bounding_box()
        assert 0 <= place["y"] < 800


def test_texts_begin_on_the_side_where_their_script_does(chromium, url, site):
    site.memory.remember([exchange("rtl", collaboration("مرحبا hello", "hello مرحبا"))])
    with opened(chromium, url) as page:
        log_in(page, site, "viewer")
        page.goto("/desk/collaborations/rtl")
        request, draft = page.locator(".turn .text").all()[:2]
        assert [_begins_right(request), _begins_right(draft)] == [True, False]


def _begins_right(text):
    """Say whether the first letter stands nearer to the right edge."""
    return text.evaluate(
        """box => {
            const range = document.createRange(), edge = box.getBoundingClientRect();
            range.setStart(box.firstChild, 0);
            range.setEnd(box.firstChild, 1);
            return range.getBoundingClientRect().left > (edge.left + edge.right) / 2;
        }"""
    )


def test_a_cookie_of_a_real_log_in_is_kept_from_scripts(chromium, url, site):
    with opened(chromium, url) as page:
        log_in(page, site, "viewer")
        (cookie,) = page.context.cookies()
        kept = (cookie["httpOnly"], cookie["sameSite"], cookie["path"])
        assert kept == (True, "Lax", "/desk")
        assert page.evaluate("document.cookie") == ""


def test_a_queue_takes_three_keys_an_item_and_notes_the_words_that_decided(chromium, url, site):
    names = [f"item{number}" for number in range(3)]
    asked = "Pay \U0001f4b0 now"
    site.memory.remember(
        [
            exchange(name, collaboration(asked, "Or else."), caller="queue", seconds_ago=number)
            for number, name in enumerate(names)
        ]
    )
    put_queue(site.memory.store, WorkQueue(name="day", filters={"who": "queue"}))
    with opened(chromium, url, forgiven=1) as page:  # the browser logs the 400
        log_in(page, site, "annotator")
        page.goto("/desk/queues")
        keyboard = Keyboard(page)
        keyboard.save("s")
        keyboard.save()  # without an answer it stays
        assert page.get_by_role("alert").inner_text().startswith("Not saved: choose one")
        page.locator("[data-text=request]").evaluate(
            "text => getSelection().setBaseAndExtent(text.firstChild, 4, text.firstChild, 10)"
        )
        keyboard.press("q", "u", "y")
        assert page.get_by_label("Words that decided").input_value() == "request:4-9 \U0001f4b0 now"
        keyboard.save()
        before = keyboard.presses
        for number in range(2):
            keyboard.press("w", "n")
            keyboard.save()
            assert keyboard.presses - before == 3 * (number + 1)
        page.get_by_text("Nothing in the queue day needs a label of yours").wait_for()
    first, *others = [site.memory.evaluation(name) for name in names]
    (span,) = first.labels[0].spans
    assert (span.text, span.start, span.end) == ("request", 4, 9)
    assert [evaluation.label for evaluation in others] == ["unhelpful", "unhelpful"]


def test_what_was_typed_survives_the_end_of_a_session(chromium, url, site):
    with opened(chromium, url, forgiven=1) as page:  # the browser logs the 403
        log_in(page, site, "reviewer")
        page.goto("/desk/collaborations/wz1")
        page.keyboard.press("u")
        page.get_by_label("A better reply").fill("Knead, wait,\nbake.")
        page.context.clear_cookies()
        page.get_by_role("button", name="Save", exact=True).click()
        page.get_by_text("Your session has ended").wait_for()
        page.get_by_label("API key").fill(site.keys["reviewer"])
        page.get_by_role("button", name="Log in").click()
        page.get_by_text("is here again; it is not saved yet").wait_for()
        assert page.get_by_label("A better reply").input_value() == "Knead, wait,\nbake."
        page.get_by_role("button", name="Save", exact=True).click()
        page.get_by_text("reviewer labelled it unsafe").wait_for()
        page.reload()
        assert not page.get_by_text("is here again").is_visible()
    (event,) = site.memory.evaluation("wz1").labels
    assert (event.reply, event.correction) == ("unsafe", "Knead, wait,\nbake.")


def test_what_is_done_with_the_marked_ones_stays_in_reach(chromium, url, site):
    site.memory.remember([exchange(f"n{n}", collaboration("hello")) for n in range(40)])
    with opened(chromium, url, viewport={"width": 1280, "height": 800}) as page:
        log_in(page, site, "reviewer")
        page.goto("/desk/collaborations")
        page.locator(".queued input").first.check()
        place = page.get_by_role("button", name="Apply").bounding_box()
        assert 0 <= place["y"] < 800
