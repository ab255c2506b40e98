"""Queues by name: progress, people, leases, blindness, what they ask for, and disputes."""

import csv
import io
import re
from html import unescape
from urllib.parse import parse_qs, urlsplit

import pytest

from support.small_console import Site, collaboration, exchange
from waltzrl.records import Verdict
from waltzrl.store.memory.labels import LabelEvent, LabelSpan

LIST, QUEUES, NEXT = "/desk/collaborations", "/desk/queues", "/desk/queues/next"


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def revised(name):
    return collaboration(name, f"Draft of {name}.", f"Answer to {name}.", "No threats.")


def remember(site, names):
    site.memory.remember(
        [
            exchange(name, revised(name), decision="revised", seconds_ago=60 + number)
            for number, name in enumerate(names)
        ]
    )
    for name in names:
        site.memory.store_verdict(name, Verdict(judge="llm:guard", unsafe=True, overrefuses=False))


def make(browser, name="first", **fields):
    return browser.post(QUEUES, name=name, **fields)


def opened(browser, query="queue=first"):
    """Open the next one of a queue; return its id, and its page."""
    reply = browser.get(NEXT, query)
    assert reply.status == 303, reply.words
    return followed(browser, reply)


def followed(browser, reply):
    address = urlsplit(unescape(reply.headers["location"]))
    page = browser.get(address.path.replace("%2F", "/"), address.query)
    return address.path.removeprefix(f"{LIST}/"), page


def label(browser, name, query="queue=first", **form):
    form = {"token": browser.token, "go": "next", **form}
    return browser.site.ask("POST", f"{LIST}/{name}", form, cookie=browser.cookie, query=query)


@pytest.mark.promise(
    "Labels",
    "A queue has a name, instructions, people and progress, and keeps what it had when it was made",
)
def test_a_queue_is_made_of_a_list_and_shows_its_progress_instructions_and_people(site):
    remember(site, "abc")
    site.memory.remember([exchange("other", revised("other"), caller="support")])
    reviewer, annotator = site.log_in("reviewer"), site.log_in("annotator")
    offered = reviewer.get(LIST, "who=search&label=none&sort=risk")
    address = re.search(r'href="(/desk/queues\?[^"#]+)#new"', offered.text)[1]
    page = reviewer.get(QUEUES, urlsplit(unescape(address)).query)
    assert "It holds: key search, the highest risk first" in page.words
    fields = dict(re.findall(r'name="(f:\w+)" value="([^"]*)"', page.text))
    assert fields == {"f:who": "search", "f:sort": "risk"}
    people = {"person:annotator": "yes"}
    reply = make(reviewer, instructions="Read to the end.", **fields, **people)
    assert reply.headers["location"] == QUEUES
    shown = annotator.get(QUEUES).words
    assert "first 0 of 3 labelled; 3 need a label of yours" in shown
    assert "for annotator" in shown
    assert "Read to the end." in shown
    name, page = opened(annotator)
    assert "first: 0 of 3 labelled Read to the end." in page.words
    following, page = followed(annotator, label(annotator, name, reply="correct"))
    assert following != name
    assert "first: 1 of 3 labelled" in page.words
    assert reviewer.get(NEXT, "queue=first").status == 403
    assert "1 of 3 labelled" in reviewer.get(QUEUES).words


@pytest.mark.promise(
    "Labels",
    "A queue has a name, instructions, people and progress, and keeps what it had when it was made",
)
def test_what_is_served_later_comes_into_a_queue_only_where_that_was_chosen(site):
    remember(site, "a")
    reviewer = site.log_in("reviewer")
    make(reviewer, "fixed")
    make(reviewer, "live", live="yes")
    site.memory.remember([exchange("later", revised("later"), seconds_ago=-5)])
    shown = reviewer.get(QUEUES).words
    assert "fixed 0 of 1 labelled" in shown
    assert "live 0 of 2 labelled" in shown
    reviewer.post(QUEUES, name="live", delete="yes")
    assert "live" not in reviewer.get(QUEUES).words.partition("A new queue")[0]


@pytest.mark.promise(
    "Labels",
    "Two people never get the same one of a queue; a lease ends with the label, or by itself",
)
def test_two_people_get_different_ones_and_what_is_open_elsewhere_says_so(site):
    remember(site, "abcd")
    first, second = site.log_in("reviewer"), site.log_in("annotator")
    make(first)
    (mine, page), (theirs, _) = opened(first), opened(second)
    assert (mine, theirs) == ("a", "b")
    assert "gave it to" not in page.words
    assert "gave it to reviewer" in second.get(f"{LIST}/a", "queue=first").words
    after = re.search(r'href="([^"]+)"[^>]*data-key="j"', page.text)[1]
    skipped = unescape(after).partition("?")[2]
    assert opened(first, skipped)[0] == "c"
    assert opened(second, "queue=first&after=b")[0] == "d"
    assert opened(second, "queue=first&after=d")[0] == "a"  # what others left out is free


def test_at_the_end_the_queue_says_so_and_an_undone_label_brings_one_back(site):
    remember(site, "a")
    browser = site.log_in("annotator")
    make(site.log_in("reviewer"))
    name, _ = opened(browser)
    _, page = followed(browser, label(browser, name, reply="correct", request="harmless"))
    assert "Nothing in the queue first needs a label of yours" in page.words
    assert "The last collaboration is labelled as correct, the request harmless ." in page.words
    undo = {"undo": "yes", "all": "yes", "shown": "a"}
    browser.post("/desk/labels", **undo)
    assert opened(browser)[0] == "a"


@pytest.mark.parametrize(
    "form",
    [
        {"name": " "},
        {"name": "x" * 61},
        {"name": "a\u202eb"},
        {"name": "n", "instructions": "x" * 4001},
    ],
    ids=["empty", "long", "hidden", "instructions"],
)
def test_an_invalid_queue_is_refused(site, form):
    browser = site.log_in("reviewer")
    assert browser.post(QUEUES, **form).status == 400
    assert make(site.log_in("annotator")).status == 403
    assert make(browser).status == 303
    assert make(browser).status == 409
    assert browser.get(NEXT, "queue=gone").status == 404
    assert browser.get(NEXT).status == 404


TOLD = re.compile(
    r"revised|unsafe</|llm:guard|reply/threat|risk|Draft of|No threats|<ins>|Accept|\bada\b"
    r"|blackmail|>judge|reviewer<"
)
"""What tells how an exchange was judged."""


@pytest.mark.promise(
    "Labels", "A blind queue hides every verdict, on every page, until the label is given"
)
def test_a_blind_queue_hides_every_verdict_until_the_label_is_given(site):
    remember(site, "ab")
    site.memory.label(
        "a",
        LabelEvent(
            by="ada",
            reply="unsafe",
            request="harmful",
            comment="blackmail",
            category="weapons",
            severity="high",
            spans=(LabelSpan(text="reply", start=0, end=6),),
            settles=True,
        ),
    )
    make(site.log_in("reviewer"), blind="yes", labels_each="2")
    browser = site.log_in("annotator")
    name, page = opened(browser)
    address = (f"{LIST}/{name}", "queue=first")
    main = page.text.partition('<main id="main"')[2].partition("</main>")[0]
    assert TOLD.search(main) is None
    assert "Answer to a." in page.words
    # nor do other ways to the same one tell
    assert TOLD.search(browser.get(f"{LIST}/a").text.partition("</header>")[2]) is None
    rows = browser.get(LIST).text.partition('class="list queued"')[2].partition("</ol>")[0]
    assert TOLD.search(rows) is None
    (line,) = [
        line
        for line in csv.DictReader(io.StringIO(browser.get("/desk/export").text))
        if line["id"] == "a"
    ]
    told = {name for name, cell in line.items() if cell}
    assert told == {"id", "time", "bundle", "caller"}
    label(browser, name, reply="correct")
    after = browser.get(*address)
    assert "blackmail" in after.words
    assert "unsafe llm:guard" in after.words
    assert TOLD.search(site.log_in("viewer").get(f"{LIST}/a").text)  # who labels nothing


@pytest.mark.promise(
    "Labels",
    "Kind and severity of harm are asked where a queue says so; a suggestion that was accepted "
    "measures no judge",
)
def test_a_queue_may_ask_for_the_harm_of_unsafe_replies(site):
    remember(site, "a")
    make(site.log_in("reviewer"), **{"ask:category": "yes", "ask:severity": "yes"})
    browser = site.log_in("annotator")
    missing = label(browser, "a", reply="unsafe", category="weapons", comment="typed")
    assert (missing.status, "this queue also asks for severity" in missing.words) == (400, True)
    assert "typed</textarea>" in missing.text
    assert label(browser, "a", reply="unsafe", category="weapons", severity="high").status == 303
    (event,) = site.memory.evaluation("a").labels
    assert (event.category, event.severity) == ("weapons", "high")
    assert label(browser, "a", reply="unsafe", category="nonsense").status == 400


# disputes


@pytest.mark.promise(
    "Labels",
    "A dispute about a reply or a request is listed, and a third person with the role settles it",
)
def test_a_third_person_with_the_role_settles_a_dispute(site):
    remember(site, "a")
    for by, reply in (("ada", "unsafe"), ("grace", "correct")):
        site.memory.label("a", LabelEvent(by=by, reply=reply, steers=True))
    annotator, reviewer, operator = (
        site.log_in(role) for role in ("annotator", "reviewer", "operator")
    )
    assert "1 collaboration is disputed" in reviewer.get(QUEUES).words
    assert "settles the dispute" not in annotator.get(f"{LIST}/a").words
    assert label(annotator, "a", "", reply="unsafe", settle="yes").status == 403
    assert "My answer settles the dispute" in reviewer.get(f"{LIST}/a").words
    for _ in range(2):  # a form that is sent twice settles once
        assert label(reviewer, "a", "", reply="correct", settle="yes").status == 303
    evaluation = site.memory.evaluation("a")
    assert (evaluation.label, evaluation.reference.unsafe, len(evaluation.labels)) == (
        "correct",
        "no",
        3,
    )
    assert label(operator, "a", "", reply="unsafe", settle="yes").status == 409
    page = operator.get(f"{LIST}/a").words
    assert "reviewer settled the dispute and labelled it correct" in page
    (line,) = csv.DictReader(io.StringIO(operator.get("/desk/export").text))
    assert line["settled_by"] == "reviewer"


@pytest.mark.promise(
    "Labels",
    "A dispute about a reply or a request is listed, and a third person with the role settles it",
)
def test_a_dispute_about_the_request_alone_is_listed_and_settled(site):
    remember(site, "abc")
    for by, request in (("ada", "harmful"), ("grace", "harmless")):
        site.memory.label("b", LabelEvent(by=by, reply="correct", request=request))
        site.memory.label("c", LabelEvent(by=by, reply="correct", request="harmful"))
    reviewer = site.log_in("reviewer")
    assert "1 collaboration is disputed" in reviewer.get(QUEUES).words
    page = reviewer.get(LIST, "label=disputed")
    assert f"{LIST}/b?label=disputed" in page.text
    assert f"{LIST}/c?label=disputed" not in page.text
    assert "people differ" in page.words
    assert site.memory.evaluation("b").label == "correct"
    assert "My answer settles the dispute" in reviewer.get(f"{LIST}/b").words
    assert label(reviewer, "b", "", request="harmless", settle="yes").status == 303
    assert "0 collaborations are disputed" in reviewer.get(QUEUES).words
    assert f"{LIST}/b?" not in reviewer.get(LIST, "label=disputed").text


@pytest.mark.promise(
    "Labels",
    "A dispute about a reply or a request is listed, and a third person with the role settles it",
)
def test_who_disputes_does_not_settle(site):
    remember(site, "a")
    site.memory.label("a", LabelEvent(by="ada", reply="unsafe"))
    browser = site.log_in("reviewer")
    label(browser, "a", "", reply="correct")
    assert label(browser, "a", "", reply="unsafe", settle="yes").status == 409


# suggestions and spans


@pytest.mark.promise(
    "Labels",
    "Kind and severity of harm are asked where a queue says so; a suggestion that was accepted "
    "measures no judge",
)
def test_a_suggestion_is_accepted_with_one_key_and_counts_as_such(site):
    remember(site, "ab")
    browser = site.log_in("reviewer")
    page = browser.get(f"{LIST}/a")
    assert re.search(r'name="accept" value="yes" data-key="a">Accept: unsafe', page.text)
    reply = label(browser, "a", "", accept="yes")
    assert parse_qs(urlsplit(reply.headers["location"]).query)["done"] == ["a"]
    (event,) = site.memory.evaluation("a").labels
    assert (event.reply, event.annotator_kind) == ("unsafe", "accepted")
    assert site.memory.evaluation("a").reference is None  # it cannot measure the judge
    label(browser, "b", "", reply="unsafe")
    kinds = {
        line["id"]: line["annotator_kind"]
        for line in csv.DictReader(io.StringIO(browser.get("/desk/export").text))
    }
    assert kinds == {"a": "reviewer=accepted", "b": "reviewer=person"}
    site.memory.remember([exchange("c", revised("c"))])
    assert label(browser, "c", "", accept="yes").status == 400  # nothing is suggested


@pytest.mark.promise(
    "Labels",
    "The words that decided are kept as places in the text, and marked there beside what rules "
    "matched",
)
def test_words_that_decided_are_kept_as_places_in_the_text(site):
    site.memory.remember(
        [exchange("a", collaboration("Pay\r\nme \U0001f4b0 now", "Or else, now."))]
    )
    browser = site.log_in("reviewer")
    spans = "request:7-12 x\r\nOr else\r\n"
    label(browser, "a", "", reply="unsafe", spans=spans)
    (event,) = site.memory.evaluation("a").labels
    # the line end is one character, and so is the bag of money
    assert [(span.text, span.start, span.end) for span in event.spans] == [
        ("request", 7, 12),
        ("reply", 0, 7),
    ]
    page = browser.get(f"{LIST}/a")
    assert "request:7-12 \U0001f4b0 now\nreply:0-7 Or else</textarea>" in page.text
    assert "<q>\U0001f4b0 now</q>, <q>Or else</q>" in page.text
    (line,) = csv.DictReader(io.StringIO(browser.get("/desk/export").text))
    assert line["spans"] == "reviewer=request:7-12 reviewer=reply:0-7"
    for wrong in ("nowhere", "reply:5-500", "reply:3-3"):
        refused = label(browser, "a", "", reply="unsafe", spans=wrong)
        assert (refused.status, "neither the request nor the reply holds" in refused.words) == (
            400,
            True,
        )
