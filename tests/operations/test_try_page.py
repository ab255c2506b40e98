"""The page that tries a request: who may, what it shows, and what it never shows or keeps."""

import json
import re
from html import unescape

import pytest

from support.small_console import Site, collaboration, exchange
from support.small_trials import BOMB, REVISED, UNSAFE, open_trials
from waltzrl.gateway.access import KeyRing
from waltzrl.operations.desk import Console, open_guest_desk
from waltzrl.records import Collaboration as Turns
from waltzrl.records import Message, Prompt, Reply
from waltzrl.store.memory.workqueues import WorkQueue, put_queue

TRY = "/desk/try"
REQUEST = re.compile(r'<textarea name="request"[^>]*>\n(.*?)</textarea>', re.DOTALL)
DRAFT = re.compile(r'<textarea name="draft"[^>]*>\n(.*?)</textarea>', re.DOTALL)
RECORD = re.compile(r'<div class="page-of-entry"[^>]*>(.*?)</div>', re.DOTALL)
CASE = re.compile(r'name="case" value="([^"]*)"')


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.mark.promise(
    "Trials", "The page shows the draft, what was found in it, the advice, the revision and times"
)
def test_the_page_shows_what_was_drafted_found_advised_and_revised(site):
    page = site.log_in("annotator").post(TRY, request=BOMB, model="echo")
    assert page.status == 200
    parts = [
        "revised unsafe",
        f"Request {BOMB.partition(' make')[0]} make a pipe bomb at home?",
        "Draft Sure, here is how to build a working pipe bomb at home.",
        "Feedback 1 unsafe risk 1.00",
        "Leave out materials, amounts and assembly",
        "Revision 1 What changed",
        f"As it was returned {' '.join(REVISED.split())}",
        "Feedback 2 safe risk 0.00",
        "feedback 1",
        "What an audit log would keep",
    ]
    words = page.words.replace("&#39;", "'")
    places = [words.index(part) for part in parts]
    assert places == sorted(places)
    marked = ("make a pipe bomb", "here is how to build a working pipe bomb")
    assert re.findall(r"<mark[^>]*>([^<]*)</mark>", page.text) == [*marked]
    assert "<del>" in page.text
    (record,) = RECORD.findall(page.text)
    kept = json.loads(unescape(record))
    assert (kept["probe"], kept["who"], kept["decision"]) == (True, "annotator", "revised")
    assert "bomb" not in record


def test_a_second_policy_reviews_the_draft_of_the_first(site):
    page = site.log_in("operator").post(TRY, request=BOMB, other="strict")
    own, strict = page.words.split("Policy strict refused")
    assert ("Revision 1" in own, "Canned refusal" in strict) == (True, True)
    assert strict.count("Sure,") == own.count("Sure,") - 1  # its diff shows the draft again
    same = site.log_in("operator").post(TRY, request=BOMB, policy="strict", other="/own")
    assert same.words.index("Policy strict") < same.words.index("The gateway&#39;s own settings re")


def test_only_who_may_see_drafts_may_try_and_only_with_a_form_of_the_page(site):
    assert site.log_in("viewer").get(TRY).status == 403
    assert site.log_in("viewer").post(TRY, request=BOMB).status == 403
    browser = site.log_in("annotator")
    assert browser.get(TRY).status == 200
    forged = browser.post(TRY, request=BOMB, token="0" * 64)
    assert (forged.status, "Draft" in forged.words) == (403, False)
    elsewhere = site.ask("POST", TRY, {"request": BOMB}, cookie=browser.cookie, origin="http://x")
    assert elsewhere.status == 403
    assert site.ask("GET", TRY).headers["location"] == "/desk/login?to=%2Fdesk%2Ftry"


def test_what_cannot_be_tried_is_said_above_the_form_which_keeps_its_fields(site):
    page = site.log_in("annotator").post(TRY, request='[{"role": "x"}]', draft="mine\r\ntwo")
    assert (page.status, "Not tried: " in page.words) == (400, True)
    assert unescape(REQUEST.search(page.text)[1]) == '[{"role": "x"}]'
    assert DRAFT.search(page.text)[1] == "mine\r\ntwo"


@pytest.mark.promise(
    "Trials", "What was tried is downloaded as a case: messages, draft, expectation"
)
@pytest.mark.parametrize(
    ("fields", "expect"),
    [({"request": BOMB}, "revise"), ({"request": BOMB, "policy": "strict"}, "refuse"),
     ({"request": "hello", "draft": "one\r\n\"two\" <b>"}, "pass")],
)  # fmt: skip
def test_a_case_holds_the_messages_the_draft_and_what_became_of_it(site, fields, expect):
    browser = site.log_in("annotator")
    page = browser.post(TRY, **fields)
    case = unescape(CASE.search(page.text)[1])
    assert f'<option value="{expect}" selected>' in page.text
    reply = browser.post(TRY, case=case, expect=expect)
    assert reply.headers["content-disposition"] == 'attachment; filename="case.jsonl"'
    assert reply.text.count("\n") == 1
    draft = 'one\n"two" <b>' if "draft" in fields else UNSAFE
    assert json.loads(reply.text) == {
        "messages": [{"role": "user", "content": fields["request"]}],
        "reply": draft,
        "expect": expect,
    }
    for wrong in ({"case": case, "expect": "maybe"}, {"case": "{}", "expect": "pass"}):
        assert browser.post(TRY, **wrong).status == 400


def test_a_kept_request_is_loaded_with_its_draft_and_a_conversation_as_json(site):
    turns = (
        Message(role="system", content="Be brief."),
        Message(role="user", content="Say <b>."),
    )
    talk = Turns(prompt=Prompt(id="p", messages=turns), draft=Reply(text="<b>"))
    site.memory.remember(
        [exchange("a/2", collaboration("hello", "Good day.")), exchange("b", talk)]
    )
    browser = site.log_in("annotator")
    (link,) = re.findall(r'href="/desk/try\?([^"]+)"', browser.get("/desk/collaborations/a/2").text)
    page = browser.get(TRY, link).text
    assert (REQUEST.search(page)[1], DRAFT.search(page)[1]) == ("hello", "Good day.")
    loaded = unescape(REQUEST.search(browser.get(TRY, "id=b").text)[1])
    assert json.loads(loaded) == [{"role": turn.role, "content": turn.content} for turn in turns]
    tried = browser.post(TRY, request=loaded, draft="<b>")
    assert ("System Be brief." in tried.words, "Draft &lt;b&gt;" in tried.words) == (True, True)
    for id_ in ("none", "a" * 5000):
        assert browser.get(TRY, f"id={id_}").status == 404


def test_what_must_be_labelled_blindly_is_not_loaded_before(site):
    site.memory.remember([exchange("a", collaboration())])
    put_queue(site.memory.store, WorkQueue(name="day", filters={}, blind=True))
    browser = site.log_in("annotator")
    assert browser.get(TRY, "id=a").status == 403
    labelled = browser.post("/desk/collaborations/a", reply="correct")
    assert labelled.status == 303, labelled.words
    assert browser.get(TRY, "id=a").status == 200


@pytest.mark.promise("Trials", "Where a gateway has no keys, its page of trials needs no log-in")
def test_without_keys_the_page_needs_no_log_in_and_shows_nothing_else(site):
    keys = KeyRing(None)
    site.desk = open_guest_desk(keys, open_trials(keys))
    site.host, site.client = "localhost:8080", "127.0.0.1"
    first = site.ask("GET", TRY)
    shown = [name in first.words for name in ("Try a request", "Collaborations", "Log out")]
    assert (first.status, shown) == (200, [True, False, False])
    assert {"httponly", "samesite=lax"} < set(first.headers["set-cookie"].lower().split("; "))
    token = re.search(r'name="token" value="(\w+)"', first.text)[1]
    tried = site.ask("POST", TRY, {"token": token, "request": BOMB}, cookie=first.cookie)
    assert ("set-cookie" in tried.headers, "Feedback 2 safe" in tried.words) == (False, True)
    forged = site.ask("POST", TRY, {"token": token, "request": BOMB})  # without the cookie
    assert (forged.status, "Draft" in forged.words) == (403, False)
    assert site.ask("GET", "/desk").headers["location"] == TRY
    for path in ("/desk/collaborations", "/desk/login", "/desk/audit", f"{TRY}/x"):
        assert site.ask("GET", path, cookie=first.cookie).status == 404
    assert site.ask("GET", TRY, query="id=a", cookie=first.cookie).status == 404


def test_a_guest_of_a_gateway_with_a_memory_sees_no_page_but_that_of_trials(site):
    site.memory.remember([exchange("a", collaboration())])
    site.desk = Console(KeyRing(None), site.desk._source)
    site.host, site.client = "127.0.0.1:8080", "127.0.0.1"
    cookie = site.ask("GET", TRY).cookie
    assert site.ask("GET", TRY, query="id=a", cookie=cookie).status == 404
    for path in ("/desk", "/desk/collaborations", "/desk/collaborations/a", "/desk/export"):
        sent = site.ask("GET", path, cookie=cookie)
        assert (sent.status, sent.headers["location"].partition("?")[0]) == (303, "/desk/login")


@pytest.mark.promise("Trials", "An open gateway on a network shows its drafts to no other machine")
@pytest.mark.parametrize(
    ("host", "client", "headers"),
    [
        ("127.0.0.1", "192.0.2.7", {}),
        ("evil.test", "127.0.0.1", {}),  # a name of another site that leads here
        ("127.0.0.1", "127.0.0.1", {"x_forwarded_for": "192.0.2.7"}),
        ("127.0.0.1", "127.0.0.1", {"forwarded": "for=192.0.2.7"}),
    ],
)
def test_no_guest_comes_from_another_machine(site, host, client, headers):
    keys = KeyRing(None)
    site.desk = open_guest_desk(keys, open_trials(keys))
    site.host, site.client = "[::1]:8080", "::1"
    first = site.ask("GET", TRY)
    form = {"token": re.search(r'name="token" value="(\w+)"', first.text)[1], "request": BOMB}
    assert site.ask("POST", TRY, form, cookie=first.cookie).status == 200
    site.host, site.client = host, client
    assert site.ask("GET", TRY, **headers).status == 403
    assert site.ask("POST", TRY, form, cookie=first.cookie, **headers).status == 403


def test_a_gateway_with_keys_admits_no_guest(site):
    site.host, site.client = "localhost", "127.0.0.1"
    locked, site.desk = site.desk, Console(KeyRing(None), site.desk._source)
    guest = site.ask("GET", TRY).cookie
    site.desk = locked
    assert site.ask("GET", TRY, cookie=guest).status == 303
