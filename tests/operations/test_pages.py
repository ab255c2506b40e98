"""What the pages show to each role, and what their forms do."""

import re
from dataclasses import replace
from html import unescape
from urllib.parse import urlsplit

import pytest

from support.label_orders import label_in
from support.small_console import EMAIL, HOSTILE, NOW, Site, collaboration, exchange
from waltzrl.evaluation.sample_correction import RateEstimate, observed_rate
from waltzrl.operations.desk.labels import MAX_TEXT
from waltzrl.operations.desk.overview import scales_of
from waltzrl.operations.desk.queue import ROWS
from waltzrl.operations.desk.rendering import interval
from waltzrl.operations.release.state import Observation
from waltzrl.records import Feedback, Round, Verdict
from waltzrl.store.memory.labels import LabelEvent, SampleCounts
from waltzrl.store.memory.sampling import place_of
from waltzrl.store.notices import notices_after

STORY = "wz7/2"


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def remember(site, *interactions):
    site.memory.remember(interactions)


def titles(reply):
    """Return the requests that a list shows."""
    return re.findall(r'<a id="row-\d+" href="/desk/collaborations/[^"]+">([^<]*)</a>', reply.text)


def reviewed(request, *, unsafe):
    """Return a collaboration whose reviewer had the last word."""
    feedback = Feedback(unsafe=unsafe, overrefuse=False)
    return replace(collaboration(request), rounds=(Round(feedback=feedback),))


def shown(bad, n):
    """Return an interval as a page spells it."""
    return interval(observed_rate(bad, n))


# the overview


@pytest.mark.promise(
    "Command line",
    "A user's thumb is kept with the reply that it is about, only for the key that asked, and "
    "counted with an interval",
)
def test_rates_are_counted_per_bundle_with_intervals(tmp_path, database_url):
    site = Site(tmp_path, database_url)
    safe = collaboration(draft="no", revision="yes")
    remember(
        site,
        *[exchange(f"a{n}", collaboration(), milliseconds=100.0 * (n + 1)) for n in range(9)],
        exchange("a9", bundle="old", milliseconds=5000.0),
        exchange("b1", safe, bundle="new", decision="revised"),
        exchange("late", collaboration(), seconds_ago=3700.0),
        exchange("unseen", collaboration(), arm="shadow", bundle="new"),
        exchange("plan/task", collaboration(), api="route", bundle="clerk"),
    )
    site.memory.store_verdict(
        "a0", Verdict(judge="j", unsafe=True, refuses=False, overrefuses=False)
    )
    for id_, thumb in (("a1", "up"), ("a2", "down")):
        assert site.memory.store_thumb(id_, "search", thumb)
    page = site.log_in("viewer").get("/desk").words
    site.memory.store.engine.dispose()
    new, old = page.split(" new ", 1)[1].split(" old ", 1)
    assert old.startswith(f"10 no data 100 % {shown(1, 1)} 1 of 1 0 % {shown(0, 1)} 0 of 1")
    thumbs = f"50 % {shown(1, 2)} 1 of 2"
    assert f"10 % {shown(1, 10)} 1 of 10 {thumbs} 500 ms 900 ms" in old  # errors, down, p50, p95
    assert new.startswith("1 ")
    assert f"100 % {shown(1, 1)} 1 of 1" in new
    assert "clerk" not in page


def test_a_column_of_rates_that_are_zero_beyond_doubt_is_drawn():
    nothing = RateEstimate(n=90, bad=0, value=0.0, low=0.0, high=0.0, corrected=True)
    assert scales_of([{"unsafe (judge)": nothing}]) == {"unsafe (judge)": 1.0}


def test_counts_above_a_thousand_are_told_apart_by_commas(site):
    answers = [exchange(f"b{n}", collaboration(), bundle="busy") for n in range(1200)]
    site.memory.remember(answers)
    row = site.log_in("viewer").get("/desk").words.split(" busy ", 1)[1]
    assert row.startswith("1,200 ")
    assert "0 of 1,200" in row


def test_the_window_is_an_hour_or_a_day(site):
    remember(site, exchange("late", collaboration(), seconds_ago=3700.0))
    browser = site.log_in("viewer")
    assert "Nothing was served in the last hour" in browser.get("/desk", "window=century").words
    assert "1 no data" in browser.get("/desk", "window=day").words


def test_the_release_is_shown_with_its_evidence_and_its_history(site):
    release = site.begin_release()
    page = site.log_in("viewer").get("/desk")
    assert "canary 5 %" in page.words
    assert "needs 5 more judged answers" in page.words
    assert "ada to try it" in page.words
    assert page.text.count("<polyline") == 4
    assert "rolls back at 20" in page.words
    assert release.candidate in page.words


@pytest.mark.promise("Evidence of a release", "The release card says when few users dominate")
def test_the_release_is_shown_with_notes_on_its_evidence(site):
    release = site.begin_release()
    outcomes = {"unsafe": False}
    site.book.observe(
        [Observation(release=release.id, arm="serving", outcomes=outcomes, subject="u")] * 40
    )
    site.book.tick({}, release.since)
    assert "few users dominate" in site.log_in("viewer").get("/desk").words


def test_without_a_release_the_overview_says_so(site):
    assert "No release yet" in site.log_in("operator").get("/desk").words


# moving the release


@pytest.mark.parametrize("role", ["viewer", "reviewer"])
def test_only_operators_move_the_release(site, role):
    release = site.begin_release()
    browser = site.log_in(role)
    assert "Move the release" not in browser.get("/desk").words
    form = {"release": release.id, "version": "0", "action": "roll_back", "why": "because"}
    assert browser.post("/desk/release", **form).status == 403
    assert site.book.current() == release


def test_a_roll_back_is_recorded_with_its_operator_and_reason(site):
    release = site.begin_release()
    browser = site.log_in("operator")
    form = {"release": release.id, "version": "0", "action": "roll_back"}
    reply = browser.post("/desk/release", why=f"  {EMAIL} was\n told off ", **form)
    assert (reply.status, reply.headers["location"]) == (303, "/desk")
    last = site.book.history(release.id)[-1]
    assert (last.action, last.by, last.after) == ("roll_back", "operator", "rolled_back")
    assert last.why == "[REDACTED:email] was told off"
    assert notices_after(site.memory.store.engine, 0)[-1].body["why"] == last.why
    page = browser.get("/desk").words
    assert "rolled back operator: [REDACTED:email] was told off" in page
    assert "roll back operator [REDACTED:email] was told off" in page
    assert "Move the release" not in browser.get("/desk").words


def test_a_release_is_held_resumed_and_advanced(site):
    release = site.begin_release()
    browser = site.log_in("operator")
    for version, action in enumerate(("hold", "resume", "advance")):
        form = {"release": release.id, "version": str(version), "action": action, "why": "so"}
        assert browser.post("/desk/release", **form).status == 303
    assert (site.book.current().step, site.book.current().held) == (1, False)


def test_a_form_loaded_before_a_move_does_not_advance_the_release(site):
    release = site.begin_release()
    site.book.move(release, "hold", "grace", "wait")
    browser = site.log_in("operator")
    form = {"release": release.id, "version": "0", "why": "on"}
    assert browser.post("/desk/release", action="advance", **form).status == 409
    assert browser.post("/desk/release", action="advance", **form | {"version": "1"}).status == 409
    assert site.book.current().version == 1
    assert browser.post("/desk/release", action="roll_back", **form).status == 303


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"why": " "}, 400),
        ({"action": "propose"}, 400),
        ({"action": "explode"}, 400),
        ({"release": "none"}, 404),
    ],
    ids=str,
)
def test_an_invalid_action_changes_nothing(site, change, status):
    release = site.begin_release()
    form = {"release": release.id, "version": "0", "action": "hold", "why": "so"} | change
    assert site.log_in("operator").post("/desk/release", **form).status == status
    assert site.book.current() == release


# the list


def test_the_list_shows_the_newest_first_and_pages_by_time(site):
    remember(
        site,
        *[exchange(f"n{n}", collaboration(f"request {n}"), seconds_ago=n) for n in range(ROWS + 7)],
    )
    browser = site.log_in("viewer")
    first = browser.get("/desk/collaborations")
    assert titles(first) == [f"request {n}" for n in range(ROWS)]
    (query,) = re.findall(r'href="/desk/collaborations\?([^"]+)">Further', first.text)
    older = browser.get("/desk/collaborations", query)
    assert titles(older) == [f"request {n}" for n in range(ROWS, ROWS + 7)]
    assert ">First</a>" in older.text
    assert ">Further</a>" not in older.text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["one", "two", "three"]),
        ("decision=revised", ["two"]),
        ("safe=yes", ["three"]),
        ("safe=no", ["two"]),
        ("safe=unknown", ["one"]),
        ("label=correct", ["one"]),
        ("label=none", ["three"]),
        ("label=disputed", ["two"]),
        ("bundle=new", ["two"]),
        ("arm=candidate", ["two"]),
        ("release=r1", ["two"]),
        ("who=support", ["three"]),
        ("who=support&decision=revised", []),
        ("decision=nonsense", []),
        ("after=nonsense", ["one", "two", "three"]),
    ],
)
def test_the_list_is_filtered(site, query, found):
    on = {"decision": "revised", "bundle": "new", "arm": "candidate", "release": "r1"}
    remember(
        site,
        exchange("a", collaboration("one"), seconds_ago=1),
        exchange("b", reviewed("two", unsafe=True), seconds_ago=2, **on),
        exchange("c", reviewed("three", unsafe=False), seconds_ago=3, caller="support"),
    )
    for name, by, label in (
        ("a", "ada", "correct"),
        ("b", "ada", "correct"),
        ("b", "al", "unsafe"),
    ):
        site.memory.label(name, LabelEvent(by=by, reply=label))
    assert titles(site.log_in("viewer").get("/desk/collaborations", query)) == found


def test_words_of_requests_are_searched_for_by_reviewers_in_a_form(site):
    remember(
        site,
        exchange("a", collaboration("the blue sky")),
        exchange("b", collaboration("a green hill")),
    )
    reviewer = site.log_in("reviewer")
    sent, reply = searched(reviewer, "sky")
    assert titles(reply) == ["the blue sky"]
    assert (sent.status, "sky" in sent.headers["location"]) == (303, False)
    site.now += 1
    other = site.log_in("reviewer")
    again = other.get("/desk/collaborations", urlsplit(sent.headers["location"]).query)
    assert (titles(again), "search again" in again.words) == ([], True)
    assert "search again" in reviewer.get("/desk/collaborations", "found=%C3%A9").words
    viewer = site.log_in("viewer")
    assert viewer.post("/desk/collaborations", words="sky").status == 403
    assert viewer.get("/desk/collaborations", "found=x").status == 403
    assert "Search" not in viewer.get("/desk/collaborations").words


def searched(browser, words):
    """Search; return where that leads, and what is there."""
    sent = browser.post("/desk/collaborations", words=words)
    path, _, query = sent.headers["location"].partition("?")
    return sent, browser.get(path, query)


@pytest.mark.parametrize("words", ["x" * 5000, "", '"', "*", "a OR", "\0", "'; drop table items"])
def test_odd_searches_find_nothing_and_break_nothing(site, words):
    remember(site, exchange("z", collaboration("zebra")))
    _sent, reply = searched(site.log_in("reviewer"), words)
    assert (reply.status, titles(reply)) == (200, [])


# one collaboration


def test_a_collaboration_is_shown_from_request_to_revision(site):
    whole = collaboration("hello", "Pay or else.", "Pay, please.", "No threats.")
    remember(site, exchange(STORY, whole, decision="revised", arm="candidate"))
    site.memory.store_verdict(STORY, Verdict(judge="llm:guard", unsafe=False, refuses=True))
    browser = site.log_in("viewer")
    (path,) = re.findall(r'id="row-1" href="([^"?]+)"', browser.get("/desk/collaborations").text)
    assert path == "/desk/collaborations/wz7%2F2"
    page = browser.get("/desk/collaborations/wz7/2")  # as ASGI decodes it
    assert "Feedback 1 unsafe risk 0.83 reply/threat No threats." in page.words
    assert '<div class="text">Pay<del> or else</del> <ins>, please</ins>.</div>' in page.text
    assert "not unsafe, refuses llm:guard" in page.words


def test_an_error_has_nothing_to_show_or_to_label(site):
    remember(site, exchange("e1", reason="upstream_timeout"))
    browser = site.log_in("reviewer")
    page = browser.get("/desk/collaborations/e1")
    assert "There was no answer" in page.words
    assert "upstream_timeout" in page.words
    assert browser.post("/desk/collaborations/e1", reply="correct").status == 400


def pressed(browser, story=STORY):
    """Return the answers that the page shows as the session's own."""
    page = browser.get(f"/desk/collaborations/{story}").text
    return re.findall(r'value="(\w+)" data-key="\w" checked', page)


def label(browser, **form):
    return browser.post(f"/desk/collaborations/{STORY}", **form)


@pytest.mark.promise(
    "Labels", "The desk asks about the reply and about the request, a key per answer"
)
@pytest.mark.parametrize("role", ["annotator", "reviewer", "operator"])
@pytest.mark.parametrize(
    ("field", "answer"),
    [
        *[("reply", answer) for answer in ("correct", "unsafe", "overrefusal")],
        *[("request", answer) for answer in ("harmful", "harmless", "unclear")],
    ],
)
def test_each_answer_is_one_key_and_stored_with_who_and_when(site, role, field, answer):
    remember(site, exchange(STORY, collaboration()))
    browser = site.log_in(role)
    reply = label(browser, **{field: answer})
    assert reply.headers["location"] == "/desk/collaborations/wz7%2F2#label"
    (event,) = site.memory.evaluation(STORY).labels
    assert (getattr(event, field), event.by, event.steers) == (answer, role, role != "annotator")
    assert event.time == NOW
    assert pressed(browser) == [answer]


@pytest.mark.promise(
    "Labels", "The desk asks about the reply and about the request, a key per answer"
)
def test_both_questions_are_answered_apart_and_by_each_person(site):
    remember(site, exchange(STORY, collaboration()))
    first, second = site.log_in("reviewer"), site.log_in("annotator")
    label(first, reply="correct")
    label(first, request="harmful")
    label(second, reply="unsafe")
    assert (pressed(first), pressed(second)) == (["correct", "harmful"], ["unsafe"])
    assert site.memory.evaluation(STORY).label == "disputed"
    page = first.get(f"/desk/collaborations/{STORY}").words
    assert "reviewer labelled it correct , the request harmful at" in page
    assert "annotator labelled it unsafe at" in page
    assert "disputed" in first.get("/desk/collaborations").words


@pytest.mark.promise(
    "Labels",
    "Labels are events of people: none overwrites another, and a withdrawal is one too; the audit "
    "log has each, without texts",
)
def test_a_person_withdraws_their_own_labels_and_the_history_keeps_them(site):
    remember(site, exchange(STORY, collaboration()))
    first, second = site.log_in("reviewer"), site.log_in("annotator")
    label(first, reply="correct")
    label(second, reply="unsafe")
    label(first, withdraw="yes")
    assert (pressed(first), pressed(second)) == ([], ["unsafe"])
    assert site.memory.evaluation(STORY).label == "unsafe"
    page = second.get(f"/desk/collaborations/{STORY}").words
    history = page.partition("History of labels")[2]
    assert re.search(r"reviewer correct .* annotator unsafe .* reviewer withdrew", history)


def test_a_better_reply_and_a_comment_are_stored_and_redacted_for_viewers(site):
    remember(site, exchange(STORY, collaboration()))
    browser = site.log_in("annotator")
    label(browser, correction=f" Call {EMAIL}.\r\nNow. ", comment=f"{EMAIL} knows {HOSTILE}")
    (event,) = site.memory.evaluation(STORY).labels
    assert (event.correction, event.reply) == (f"Call {EMAIL}.\nNow.", None)
    seen = site.log_in("viewer").get(f"/desk/collaborations/{STORY}").text
    assert (seen.count(EMAIL), seen.count("[REDACTED:email]")) == (0, 2)
    own = browser.get(f"/desk/collaborations/{STORY}").text
    assert re.search(rf'name="correction"[^>]*>\s*Call {EMAIL}\.\nNow\.</textarea>', own)
    assert "<script>" not in own


def test_a_text_that_is_too_long_is_refused_whole(site):
    remember(site, exchange(STORY, collaboration()))
    browser = site.log_in("reviewer")
    for name, most in MAX_TEXT.items():
        assert label(browser, **{name: "\N{SNOWMAN}" * most}).status == 303
        refused = label(browser, **{name: "x" * (most + 1)})
        assert (refused.status, f"the {name} is longer than" in refused.words) == (400, True)
    assert len(site.memory.evaluation(STORY).labels) == 2


def test_viewers_may_not_label_and_unknown_labels_are_refused(site):
    remember(site, exchange(STORY, collaboration()))
    assert label(site.log_in("viewer"), reply="unsafe").status == 403
    reviewer = site.log_in("reviewer")
    for form in ({"reply": "great"}, {"request": "correct"}, {"comment": " "}, {"by": "ada"}, {}):
        assert label(reviewer, **form).status == 400
    assert reviewer.post("/desk/collaborations/gone", reply="unsafe").status == 404
    assert site.memory.evaluation(STORY).labels == ()


@pytest.mark.promise("Labels", "Only labels of people whose role steers releases measure the judge")
def test_labels_of_annotators_correct_no_rate(site):
    remember(site, *[exchange(f"a{n}", collaboration(f"question {n}")) for n in range(2)])
    for number in range(2):
        verdict = Verdict(judge="j", unsafe=True, overrefuses=False)
        site.memory.store_verdict(f"a{number}", verdict)
    first, second = sorted(("a0", "a1"), key=lambda name: place_of(name, is_bad=True))
    site.log_in("annotator").post(f"/desk/collaborations/{first}?sort=sample", reply="correct")
    assert site.memory.calibration().unsafe == SampleCounts()
    site.log_in("reviewer").post(f"/desk/collaborations/{second}?sort=sample", reply="correct")
    assert site.memory.calibration().unsafe == SampleCounts(false_positives=1, unknown_positives=1)


def test_a_label_keeps_how_its_answer_was_reached(site):
    remember(site, exchange(STORY, collaboration()))
    reviewer, path = site.log_in("reviewer"), f"/desk/collaborations/{STORY}"
    ways = {
        "": "newest",
        "?sort=disagreement": "disagreement",
        "?sort=sample&rated=no&bundle=old": "sample",
        "?sort=sample&judge=unsafe": "filter",
        "?sort=sample&rated=others": "filter",
        "?judge=unsafe": "filter",
        "?sort=risk&found=x": "search",
    }
    for number, (query, way) in enumerate(ways.items()):
        reviewer.post(path + query, comment=f"number {number}")
        event = site.memory.evaluation(STORY).labels[-1]
        assert (event.selection, event.time) == (way, NOW)


def test_the_random_sample_is_offered_with_how_many_are_needed(site):
    names = [f"a{number}" for number in range(30)]
    remember(site, *[exchange(name, collaboration(name)) for name in names])
    for number, name in enumerate(names):
        verdict = Verdict(judge="j", unsafe=number < 12, overrefuses=False)
        site.memory.store_verdict(name, verdict)
    reviewer = site.log_in("reviewer")
    for page in ("/desk", "/desk/collaborations"):
        assert "Label the sample of old : 0 of 30 labelled, at least 20 more needed" in (
            reviewer.get(page).words
        )
        assert "Random sample" not in site.log_in("annotator").get(page).words
    label_in(site.memory, dict.fromkeys(names, "correct"), 30, order="sample")
    words = reviewer.get("/desk").words
    assert "30 of 30 labelled; more make the intervals narrower" in words
    assert re.search(r"12 of 30 +labels do not fit", words)


@pytest.mark.promise(
    "Labels",
    "The evidence curve draws what decides, and a count leads to the answers that it counts",
)
def test_a_count_leads_to_the_answers_that_are_counted(site):
    site.begin_release()
    release = site.book.current().id
    of = {"release": release, "arm": "candidate", "bundle": "new"}
    served = [exchange(f"a{number}", collaboration(f"q{number}"), **of) for number in range(6)]
    late = exchange("late", collaboration("long ago"), seconds_ago=7200.0, **of)
    shadow = exchange("s", collaboration("shadow"), bundle="new", release=release, arm="shadow")
    remember(site, *served, late, shadow, exchange("failed", **of))
    for name in ("a0", "a3", "late", "s"):
        site.memory.store_verdict(name, Verdict(judge="j", unsafe=True, overrefuses=False))
    bad = {"unsafe": True, "overrefusal": False, "error": False}
    site.book.observe([Observation(release=release, arm="candidate", outcomes=bad)] * 3)
    site.book.tick({}, site.book.current().since + 3)
    reviewer = site.log_in("reviewer")
    page = reviewer.get("/desk").text
    found = re.findall(r'<a href="([^"]*judge=unsafe[^"]*)">([\d,]+ of [\d,]+)</a>', page)
    lists = {
        count: sorted(titles(reviewer.get(*unescape(path).split("?")))) for path, count in found
    }
    assert lists == {"2 of 2": ["q0", "q3"], "3 of 8": ["long ago", "q0", "q3"]}


@pytest.mark.promise(
    "Labels",
    "The evidence curve draws what decides, and a count leads to the answers that it counts",
)
def test_the_difference_of_the_arms_is_shown_with_its_interval(site):
    site.begin_release()
    words = site.log_in("viewer").get("/desk").words
    assert re.search("difference 0 \N{MINUS SIGN}[0-9]+ to [+][0-9]+", words)


@pytest.mark.promise(
    "Labels",
    "Where people differ, the label is disputed, kappa is shown, and the judge's error is bounded "
    "for either outcome",
)
def test_the_overview_shows_how_far_people_agree(site):
    names = [f"a{number}" for number in range(4)]
    remember(site, *[exchange(name, collaboration(name)) for name in names])
    said = ("unsafe", "unsafe"), ("correct", "correct"), ("correct", "unsafe"), ("correct", None)
    for name, labels in zip(names, said, strict=True):
        for by, answer in zip(("reviewer", "annotator"), labels, strict=True):
            if answer is not None:
                site.log_in(by).post(f"/desk/collaborations/{name}", reply=answer)
    # of three, two the same; chance: 1/3 * 2/3 + 2/3 * 1/3 = 4/9; (2/3 - 4/9) / (5/9) = 0.40
    page = site.log_in("viewer").get("/desk").words
    row = re.search(r"reply unsafe (\d) (\d) (0\.\d\d) (-?\d\.\d\d) to (\d\.\d\d)", page)
    assert row.groups()[:3] == ("3", "1", "0.40")
    assert float(row[4]) < 0.4 < float(row[5])
    assert re.search(r"over-refusal 3 0 unknown", page)


def test_viewers_read_redacted_texts_and_reviewers_what_is_stored(site):
    mine = f"I am {EMAIL}."
    remember(site, exchange(STORY, collaboration(mine, mine, f"{mine} Truly.", mine), model=mine))
    for path, times in ((f"/desk/collaborations/{STORY}", 6), ("/desk/collaborations", 2)):
        seen = site.log_in("viewer").get(path).text
        assert (seen.count(EMAIL), seen.count("[REDACTED:email]")) == (0, times)
        assert site.log_in("reviewer").get(path).text.count(EMAIL) == times


def test_personal_data_where_a_text_is_cut_is_redacted_too(site):
    long = "x" * 11_995 + f" {EMAIL} " + "y" * 11_000 + f" {EMAIL} " + "z" * 7_995
    remember(site, exchange(STORY, collaboration("hello", long)))
    viewer = site.log_in("viewer").get(f"/desk/collaborations/{STORY}").text
    assert ("xx [RED</div>" in viewer, "ada@" in viewer) == (True, False)
    assert not re.search("example|com z", viewer)
    reviewer = site.log_in("reviewer").get(f"/desk/collaborations/{STORY}").text
    assert ("xx ada@</div>" in reviewer, ">.com zz" in reviewer) == (True, True)


@pytest.mark.parametrize("role", ["viewer", "reviewer"])
def test_text_by_users_and_models_is_escaped(site, role):
    hostile = collaboration(HOSTILE, HOSTILE, f"{HOSTILE} more", HOSTILE)
    names = {"bundle": HOSTILE, "reason": HOSTILE, "model": HOSTILE, "api": HOSTILE}
    remember(site, exchange(f"wz{HOSTILE}", hostile, caller="a<b>c", **names))
    browser = site.log_in(role)
    for path in ("/desk", "/desk/collaborations", f"/desk/collaborations/wz{HOSTILE}"):
        reply = browser.get(path, "bundle=%22%3E%3Cscript%3E")
        assert reply.status == 200
        assert not re.search(r"<script>|<img|onerror=\"|<b>c", reply.text)
    shown = browser.get(f"/desk/collaborations/wz{HOSTILE}").text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown


# the audit log


def test_a_sound_log_verifies_and_a_changed_one_does_not(site):
    browser = site.log_in("viewer")
    assert "ok: 4 records" in browser.post("/desk/audit").words
    (file,) = (site.audit.folder).glob("decisions-*.jsonl")
    file.write_bytes(file.read_bytes().replace(b'"wz1"', b'"wz9"'))
    assert "fault: flipped" in browser.post("/desk/audit").words


def test_newest_entries_and_those_of_a_request_are_shown(site):
    site.begin_release()
    browser = site.log_in("viewer")
    page = browser.get("/desk/audit").words
    assert page.index("wz2") < page.index("wz1") < page.index("opened")
    assert "release" in page.partition("Notices to all gateways")[2]
    assert "wz2" not in browser.get("/desk/audit", "record=wz1").words
    assert "no such entry" in browser.get("/desk/audit", "record=nowhere").words


def test_a_collaboration_leads_to_its_entry(site):
    remember(site, exchange("wz1/2", collaboration()))
    page = site.log_in("viewer").get("/desk/collaborations/wz1/2").text
    assert 'href="/desk/audit?record=wz1"' in page


def test_a_collaboration_shows_what_it_cost_where_that_is_known(site):
    remember(
        site,
        exchange("a1", collaboration(), usd=0.0125),
        exchange("a2", collaboration()),
    )
    session = site.log_in("viewer")
    assert "cost USD 0.012500" in session.get("/desk/collaborations/a1").words
    assert "cost" not in session.get("/desk/collaborations/a2").words
