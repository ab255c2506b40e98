"""The list as a queue: what comes next, orders, filters, search, many at once, and export."""

import csv
import html
import io
import re
from dataclasses import replace
from html import unescape
from urllib.parse import parse_qs, urlsplit

import pytest

from support.small_console import EMAIL, Site, collaboration, exchange
from waltzrl.records import CANNED_REFUSAL, Feedback, Reply, Round, Verdict
from waltzrl.store.memory.labels import LabelEvent

LIST = "/desk/collaborations"


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def with_risk(name, risk, **fields):
    """Return an exchange whose only review gave this risk."""
    review = Feedback(unsafe=risk > 0.5, overrefuse=False, risk=risk, rules=("reply/threat",))
    reviewed = replace(collaboration(name), rounds=(Round(feedback=review),))
    return exchange(name, reviewed, **fields)


def listed(browser, query=""):
    """Return the ids in a list, in order."""
    text = browser.get(LIST, query).text
    return [path.split("/")[-1] for path in re.findall(r'id="row-\d+" href="([^"?]+)', text)]


def link(page, key):
    """Return where the link or button of a key leads; None without one."""
    found = re.search(rf'href="([^"]+)"[^>]*data-key="{key}"', page.text)
    return None if found is None else unescape(found[1])


def followed(browser, address):
    parts = urlsplit(address)
    return browser.get(parts.path, parts.query)


# from one to the next


@pytest.mark.promise("Labels", "Next and previous stay in the filtered list, and saving leads on")
def test_next_and_previous_stay_in_the_filtered_list_and_lead_back_to_it(site):
    site.memory.remember(
        [with_risk(name, risk) for name, risk in (("a", 0.2), ("b", 0.9), ("c", 0.5))]
        + [with_risk("other", 0.6, bundle="new")]
    )
    browser, query = site.log_in("viewer"), "bundle=old&sort=risk"
    assert listed(browser, query) == ["b", "c", "a"]
    page = followed(browser, link(browser.get(LIST, query), "s"))
    visited = [link(page, "k")]
    while (after := link(page, "j")) is not None:
        visited.append(after)
        page = followed(browser, after)
    assert visited == [None, f"{LIST}/c?{query}#main", f"{LIST}/a?{query}#main"]
    assert link(page, "k") == f"{LIST}/c?{query}#main"
    assert link(page, "l") == f"{LIST}?{query}"
    assert "Back to the list of 3" in page.words


@pytest.mark.promise("Labels", "Next and previous stay in the filtered list, and saving leads on")
def test_saving_leads_to_the_next_one_also_where_the_label_empties_the_list(site):
    site.memory.remember(
        [exchange(name, collaboration(name), seconds_ago=ord(name)) for name in "abc"]
    )
    browser, here = site.log_in("reviewer"), f"{LIST}/a?label=none"
    for name, following in (("a", "b"), ("b", "c"), ("c", "")):
        reply = posted(browser, here, reply="correct", request="harmless", go="next")
        address = urlsplit(reply.headers["location"])
        assert address.path == (f"{LIST}/{following}" if following else LIST)
        assert parse_qs(address.query) == {"label": ["none"], "done": [name]}
        assert address.fragment == ("main" if following else "")
        here = f"{address.path}?{address.query}"
    assert "0, the newest first" in followed(browser, here).words


def posted(browser, address, **form):
    """Send a form to an address with a query."""
    path, _, query = address.partition("?")
    form = {"token": browser.token, **form}
    return browser.site.ask("POST", path, form, cookie=browser.cookie, query=query)


def test_a_form_sent_twice_is_one_label(site):
    site.memory.remember([exchange("a", collaboration())])
    browser = site.log_in("reviewer")
    for comment in ("so", "so", "because"):
        form = {"reply": "correct", "comment": comment, "go": "next"}
        assert posted(browser, f"{LIST}/a", **form).status == 303
    comments = [event.comment for event in site.memory.evaluation("a").labels]
    assert comments == ["so", "because"]


@pytest.mark.promise("Labels", "A label, also one of many, is undone by further events")
def test_a_label_is_undone_to_what_was_said_before(site):
    site.memory.remember([exchange("a", collaboration())])
    browser, other = site.log_in("reviewer"), site.log_in("annotator")
    for who, reply in ((browser, "correct"), (other, "correct"), (browser, "unsafe")):
        posted(who, f"{LIST}/a", reply=reply)
    undo = {"undo": "yes", "all": "yes", "shown": "a"}
    assert posted(browser, "/desk/labels", **undo).headers["location"] == f"{LIST}/a#main"
    assert site.memory.evaluation("a").label == "correct"
    assert len(site.memory.evaluation("a").labels) == 5  # nothing is deleted
    posted(browser, "/desk/labels", **undo)
    posted(other, "/desk/labels", **undo)
    assert site.memory.evaluation("a").label is None
    assert posted(site.log_in("viewer"), "/desk/labels", **undo).status == 403


# rows, orders, filters


def test_a_row_says_why_it_is_worth_a_look(site):
    site.memory.remember([with_risk("a", 0.6)])
    site.memory.store_verdict("a", Verdict(judge="j", unsafe=False, overrefuses=False))
    site.memory.label("a", LabelEvent(by="ada", reply="unsafe"))
    row = site.log_in("viewer").get(LIST).words.partition("Results")[2]
    assert "You said hello. risk 0.60 reply/threat judge: safe" in row
    assert (
        "judge and people differ judge and reviewer differ returned although unsafe "
        "risk is uncertain" in row
    )


@pytest.mark.promise(
    "Labels",
    "Lists are ordered by risk, uncertainty and disagreement, and filtered by user, model, span, "
    "judge and assignee",
)
def test_the_list_is_ordered_by_risk_by_uncertainty_and_by_disagreement(tmp_path, database_url):
    site = Site(tmp_path, database_url)
    risks = {"high": 0.95, "middle": 0.55, "low": 0.1}
    site.memory.remember(
        [
            *[with_risk(name, risk, seconds_ago=1) for name, risk in risks.items()],
            exchange("unknown", collaboration(), seconds_ago=0),
        ]
    )
    # the reviewer calls `high` unsafe, the judge does not; people contradict the judge on `low`
    site.memory.store_verdict("high", Verdict(judge="j", unsafe=False, overrefuses=False))
    site.memory.store_verdict("low", Verdict(judge="j", unsafe=True, overrefuses=False))
    site.memory.label("low", LabelEvent(by="ada", reply="correct"))
    browser = site.log_in("viewer")
    orders = {
        order: listed(browser, f"sort={order}") for order in ("risk", "uncertainty", "disagreement")
    }
    seen = {
        rated: listed(site.log_in("reviewer"), f"rated={rated}")
        for rated in ("no", "others", "yes")
    }
    site.memory.store.engine.dispose()
    assert orders["risk"] == ["high", "middle", "low", "unknown"]
    assert orders["uncertainty"] == ["middle", "low", "high", "unknown"]
    assert orders["disagreement"][:2] == ["low", "high"]
    assert (sorted(seen["no"]), seen["others"], seen["yes"]) == (
        ["high", "low", "middle", "unknown"],
        ["low"],
        [],
    )


@pytest.mark.promise(
    "Labels",
    "Lists are ordered by risk, uncertainty and disagreement, and filtered by user, model, span, "
    "judge and assignee",
)
@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("subject=7f3a", ["a"]),
        ("model=large", ["b"]),
        ("judge=unsafe", ["a"]),
        ("judge=overrefusal", ["b"]),
        ("judge=good", []),
        ("judge=unscored", ["c"]),
        ("judge=none", ["d"]),
        ("since=2027-01-15&until=2027-01-15", ["a", "b", "c"]),
        ("until=2027-01-14", ["d"]),
        ("since=yesterday", ["a", "b", "c", "d"]),
        ("assigned=me", ["a"]),
        ("assigned=nobody", ["c", "d"]),
        ("assigned=annotator", ["b"]),
        ("category=weapons", []),
        ("rated=no&judge=none", ["d"]),
    ],
)
def test_the_list_is_filtered_by_user_model_span_judge_and_assignee(site, query, found):
    site.memory.remember(
        [
            exchange("a", collaboration(), seconds_ago=1, subject="7f3a"),
            exchange("b", collaboration(), seconds_ago=2, model="large"),
            exchange("c", collaboration(), seconds_ago=3),
            exchange("d", collaboration(), seconds_ago=86_400),  # NOW is 2027-01-15, 8 o'clock
        ]
    )
    for name, labels in (("a", (True, False)), ("b", (False, True)), ("c", (None, None))):
        verdict = Verdict(judge="j", unsafe=labels[0], overrefuses=labels[1])
        site.memory.store_verdict(name, verdict)
    for name, person in (("a", "reviewer"), ("b", "annotator")):
        assert site.memory.assign(name, person)
    browser = site.log_in("reviewer")
    assert listed(browser, query) == found
    assert f"Collaborations {len(found)}, the newest first" in browser.get(LIST, query).words


# search


@pytest.mark.promise("Labels", "Replies are searched by stems, phrases and Han")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("baking", ["bread"]),
        ("bread stories", ["bread"]),
        ("bread sky", []),
        ('"the oven"', ["bread"]),
        ('"oven the"', []),
        ("\N{CJK UNIFIED IDEOGRAPH-5929}\N{CJK UNIFIED IDEOGRAPH-6C17}", ["weather"]),
    ],
)
def test_replies_are_searched_by_stems_phrases_and_han(tmp_path, database_url, words, found):
    site = Site(tmp_path, database_url)
    weather = "\u4eca\u65e5\u306e\u5929\u6c17\u306f"  # what is the weather today
    site.memory.remember(
        [
            exchange("bread", collaboration("Tell me a story.", "She bakes bread in the oven.")),
            exchange("weather", collaboration(weather, "Fine.")),
        ]
    )
    browser = site.log_in("annotator")
    address = browser.post(LIST, words=words).headers["location"]
    ids = listed(browser, urlsplit(address).query)
    site.memory.store.engine.dispose()
    assert ids == found


# many at once


@pytest.mark.promise("Labels", "A label, also one of many, is undone by further events")
def test_marked_ones_are_labelled_together_and_undone_together(site):
    site.memory.remember([exchange(name, collaboration(name)) for name in ("a/1", "b", "c")])
    browser = site.log_in("reviewer")
    marked = {"id:a/1": "yes", "id:b": "yes"}
    reply = posted(
        browser, "/desk/labels?label=none", reply="correct", request="harmless", **marked
    )
    labels = [site.memory.evaluation(name).label for name in ("a/1", "b", "c")]
    assert labels == ["correct", "correct", None]
    page = followed(browser, reply.headers["location"])
    assert "2 collaborations are labelled" in page.words
    shown = unescape(re.search(r'name="shown" value="([^"]+)"', page.text)[1])
    posted(browser, "/desk/labels", undo="yes", all="yes", shown=shown.replace("\n", "\r\n"))
    assert {site.memory.evaluation(name).label for name in ("a/1", "b", "c")} == {None}


def test_many_are_assigned_to_a_person_who_may_label(site):
    site.memory.remember([exchange(name, collaboration(name)) for name in ("a", "b")])
    browser = site.log_in("operator")
    form = {"all": "yes", "shown": "a\r\nb"}
    assert posted(browser, "/desk/labels", assignee="annotator", **form).status == 303
    assert len(listed(site.log_in("annotator"), "assigned=me")) == 2
    assert posted(browser, "/desk/labels", assignee="nobody", **form).status == 303
    assert listed(site.log_in("annotator"), "assigned=me") == []
    for wrong in ({"assignee": "viewer", **form}, {"assignee": "operator"}, form, {}):
        assert posted(browser, "/desk/labels", **wrong).status == 400


@pytest.mark.promise("Labels", "Who labels second sees what others said only afterwards")
def test_who_labels_second_sees_what_others_said_only_afterwards(site):
    site.memory.remember([exchange("a", collaboration())])
    site.memory.label("a", LabelEvent(by="ada", reply="unsafe", comment="blackmail"))
    browser, here = site.log_in("annotator"), f"{LIST}/a"
    blind = browser.get(here, "rated=others").text + browser.get(LIST, "rated=others").text
    assert not re.search(r"\bada\b|blackmail|chip bad", blind)
    posted(browser, f"{here}?rated=others", reply="correct")
    assert "blackmail" in browser.get(here, "rated=others").text


# what is shown, and what leaves


@pytest.mark.promise("Labels", "An export of a list holds no text and no formula")
def test_an_export_holds_the_list_without_texts_and_without_formulas(site):
    site.memory.remember(
        [
            exchange("a", collaboration(f"I am {EMAIL}", "secret"), caller="=1+1"),
            exchange("b", collaboration(), bundle="new"),
        ]
    )
    site.memory.label("a", LabelEvent(by="ada", reply="correct", comment="private"))
    reply = site.log_in("viewer").get("/desk/export", "bundle=old")
    assert reply.headers["content-type"] == "text/csv; charset=utf-8"
    (line,) = csv.DictReader(io.StringIO(reply.text))
    assert (line["id"], line["label"], line["replies"]) == ("a", "correct", "ada=correct")
    assert line["caller"] == "'=1+1"
    assert not re.search(rf"{EMAIL}|secret|private", reply.text)


@pytest.mark.promise(
    "Labels", "No character on the desk hides or reorders others; a canned refusal is shown as such"
)
def test_characters_that_hide_or_reorder_are_drawn_on_every_page(site):
    spoofed = "invoice\u202efdp.exe\u200b"
    site.memory.remember([exchange("a", collaboration(spoofed, spoofed), reason=spoofed)])
    site.memory.label("a", LabelEvent(by="ada", reply="correct", comment=spoofed))
    browser = site.log_in("reviewer")
    for path in (LIST, f"{LIST}/a"):
        text = browser.get(path).text
        assert "invoice\ufffdfdp.exe\ufffd" in text
        assert not re.search("[\u202e\u200b]", text)


def test_an_own_better_reply_is_sent_back_as_it_was_written(site):
    site.memory.remember([exchange("a", collaboration())])
    browser, family = site.log_in("reviewer"), "\U0001f469\u200d\U0001f467"
    posted(browser, f"{LIST}/a", correction=family)
    assert f"{family}</textarea>" in browser.get(f"{LIST}/a").text


@pytest.mark.promise(
    "Labels", "No character on the desk hides or reorders others; a canned refusal is shown as such"
)
def test_a_canned_refusal_is_shown_as_such(site):
    review = Feedback(unsafe=True, overrefuse=False, text="No.", risk=0.9)
    refused = replace(
        collaboration("hello", "A draft."),
        rounds=(Round(feedback=review, revision=Reply(text=CANNED_REFUSAL, origin="canned")),),
    )
    site.memory.remember([exchange("a", refused, decision="refused")])
    page = site.log_in("viewer").get(f"{LIST}/a")
    shown = f"Canned refusal {CANNED_REFUSAL} The gateway returned this fixed text"
    assert shown in html.unescape(page.words)
    assert "<del>" not in page.text
