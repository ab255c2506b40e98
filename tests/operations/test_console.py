"""Who may log in to the desk, for how long, and what its responses may hold."""

import logging
import re
from html import escape, unescape
from urllib.parse import parse_qs, urlsplit

import pytest

from support.desk_plans import run_minutes
from support.small_console import EMAIL, HOSTILE, ROLES, Site, collaboration, exchange
from waltzrl.gateway.keys import revoke_keys
from waltzrl.operations.desk.app import WRONG_KEYS
from waltzrl.operations.desk.request import MAX_FORM_BYTES

PAGES = (
    "/desk",
    "/desk/collaborations",
    "/desk/collaborations/wz1/2",
    "/desk/trends",
    "/desk/bundles",
    "/desk/plans",
    "/desk/plans/minutes",
    "/desk/audit",
)


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    site.memory.remember([exchange("wz1/2", collaboration(f"I am {EMAIL}", "Hello.", "Good day."))])
    run_minutes(site.memory)
    return site


def test_without_a_session_only_the_log_in_page_is_served(site):
    for path in PAGES:
        reply = site.ask("GET", path)
        assert (reply.status, reply.text) == (303, "")
        assert reply.headers["location"].partition("?")[0] == "/desk/login"
    assert "API key" in site.ask("GET", "/desk/login").words


@pytest.mark.parametrize("role", ROLES)
def test_a_key_with_a_role_opens_every_page(site, role):
    browser = site.log_in(role)
    for path in PAGES:
        reply = browser.get(path)
        assert (reply.status, role in reply.words) == (200, True)


def test_a_link_leads_to_its_page_after_the_log_in(site):
    sent = site.ask("GET", "/desk/collaborations/wz1/2", query="label=none&text=a%20b")
    login = urlsplit(sent.headers["location"])
    form = site.ask("GET", login.path, query=login.query).text
    wanted = unescape(re.search(r'name="to" value="([^"]+)"', form)[1])
    wrong = site.ask("POST", "/desk/login", {"key": "wz-wrong", "to": wanted})
    assert f'value="{escape(wanted)}"' in wrong.text
    inside = site.ask("POST", "/desk/login", {"key": site.keys["viewer"], "to": wanted})
    place = urlsplit(inside.headers["location"])
    assert (place.path, parse_qs(place.query)) == (
        "/desk/collaborations/wz1/2",
        {"label": ["none"], "text": ["a b"]},
    )


@pytest.mark.parametrize(
    "elsewhere",
    [
        "//evil.test",
        "https://evil.test/desk",
        "/desk@evil.test",
        "/desk/\r\nset-cookie: a=b",
        "/desk/../v1/models",
        "/desk/%2e%2e/v1/models",
        "/desk/.%2E/v1/models",
        "/v1",
    ],
)
def test_the_log_in_redirects_to_no_other_site(site, elsewhere):
    inside = site.ask("POST", "/desk/login", {"key": site.keys["viewer"], "to": elsewhere})
    assert inside.headers["location"] == "/desk"


def test_a_key_without_a_role_and_an_invalid_key_are_refused(site):
    for key in (site.keys["none"], "wz-wrong", ""):
        reply = site.ask("POST", "/desk/login", {"key": key})
        assert (reply.status, "set-cookie" in reply.headers) == (403, False)


def test_the_cookie_is_for_the_desk_alone_and_no_script_reads_it(site):
    key = {"key": site.keys["viewer"]}
    plain = site.ask("POST", "/desk/login", key)
    attributes = {"max-age=28800", "path=/desk", "httponly", "samesite=lax"}
    assert cookie_attributes(plain) == attributes
    behind = site.ask("POST", "/desk/login", key, x_forwarded_proto="https")
    assert cookie_attributes(behind) == attributes | {"secure"}


def links_of(page):
    return re.findall(r'(?:href|src|action)="(/[^"#?]+)', page)


def test_every_address_begins_with_the_path_that_a_proxy_removed(site):
    below = {"x_forwarded_prefix": "/team-a/waltzrl/"}
    sent = site.ask("GET", "/desk/trends", **below)
    assert sent.headers["location"].startswith("/team-a/waltzrl/desk/login?to=%2Fdesk%2Ftrends")
    form = site.ask("GET", "/desk/login", query=urlsplit(sent.headers["location"]).query, **below)
    assert 'name="to" value="/desk/trends"' in form.text
    inside = site.ask(
        "POST", "/desk/login", {"key": site.keys["operator"], "to": "/desk/trends"}, **below
    )
    assert inside.headers["location"] == "/team-a/waltzrl/desk/trends"
    assert "path=/team-a/waltzrl/desk" in cookie_attributes(inside)
    browser = site.log_in("operator")
    for path in ("/desk", "/desk/collaborations", "/desk/collaborations/wz1/2", "/desk/none"):
        plain = links_of(browser.get(path).text)
        links = links_of(site.ask("GET", path, cookie=browser.cookie, **below).text)
        assert links == [f"/team-a/waltzrl{link}" for link in plain]
    left = site.ask(
        "POST", "/desk/logout", {"token": browser.token}, cookie=browser.cookie, **below
    )
    assert "path=/team-a/waltzrl/desk" in cookie_attributes(left)


@pytest.mark.parametrize("prefix", ["//evil.test", "https://evil.test", '/"><script>', "/a b", "/"])
def test_what_is_no_path_is_no_prefix(site, prefix):
    reply = site.ask("GET", "/desk", x_forwarded_prefix=prefix)
    assert reply.headers["location"] == "/desk/login"


def cookie_attributes(reply):
    return set(reply.headers["set-cookie"].lower().split("; ")[1:])


def test_a_session_lasts_eight_hours(site):
    browser = site.log_in("viewer")
    site.now += 8 * 3600 - 1
    assert browser.get("/desk").status == 200
    site.now += 2
    assert browser.get("/desk").status == 303


def test_a_session_ends_with_its_key(site):
    browser, other = site.log_in("viewer"), site.log_in("operator")
    revoke_keys(site.keys_file, "viewer")
    site.look_at_keys()
    assert browser.get("/desk").status == 303
    assert other.get("/desk").status == 200


def test_a_session_ends_when_its_key_loses_the_role(site):
    browser = site.log_in("viewer")
    site.keys_file.write_text(site.keys_file.read_text().replace('role = "viewer"\n', ""))
    site.look_at_keys()
    assert browser.get("/desk").status == 303


def test_a_changed_role_takes_effect_at_once(site):
    browser = site.log_in("operator")
    site.keys_file.write_text(
        site.keys_file.read_text().replace('role = "operator"', 'role = "viewer"')
    )
    site.look_at_keys()
    assert browser.post("/desk/collaborations", words="x").status == 403


@pytest.mark.parametrize("part", [0, 1, 2, 3])
def test_a_changed_cookie_is_refused(site, part):
    name, _, value = site.log_in("viewer").cookie.partition("=")
    fields = value.split(".")
    fields[part] = str(int(fields[1]) + 3600) if part == 1 else "0" * len(fields[part])
    assert site.ask("GET", "/desk", cookie=f"{name}={'.'.join(fields)}").status == 303


@pytest.mark.parametrize("cookie", ["", "waltzrl_desk", "waltzrl_desk=..", "a=b; waltzrl_desk=a.9"])
def test_an_invalid_cookie_is_refused(site, cookie):
    assert site.ask("GET", "/desk", cookie=cookie).status == 303


def test_a_form_after_the_end_of_the_session_changes_nothing_and_says_so(site):
    browser = site.log_in("reviewer")
    token = browser.token
    site.now += 8 * 3600
    form = {"token": token, "reply": "correct"}
    reply = site.ask("POST", "/desk/collaborations/wz1/2", form, cookie=browser.cookie)
    assert (reply.status, "nothing was changed" in reply.words) == (403, True)
    assert site.memory.evaluation("wz1/2").label is None
    out = site.ask("POST", "/desk/logout", {"token": token}, cookie=browser.cookie)
    assert (out.status, out.headers["location"]) == (303, "/desk/login")


def test_cookies_of_other_sites_do_not_hide_ours(site):
    ours = site.log_in("viewer").cookie
    # browsers send the cookie with the longest path, ours, before another one of its name
    for cookie in (f"odd[name]=}}; {ours}; last=1", f"{ours}; waltzrl_desk=another"):
        assert site.ask("GET", "/desk", cookie=cookie).status == 200


def test_logging_out_deletes_the_cookie(site):
    browser = site.log_in("viewer")
    reply = browser.post("/desk/logout")
    assert reply.headers["location"] == "/desk/login"
    assert reply.cookie == 'waltzrl_desk=""'
    assert cookie_attributes(reply) >= {"max-age=0", "path=/desk", "httponly", "samesite=lax"}


@pytest.mark.promise("Labels", "Logging out ends the session on every replica")
def test_logging_out_ends_the_session_on_the_server_and_no_other(site):
    browser, other = site.log_in("viewer"), site.log_in("viewer")
    browser.post("/desk/logout")
    assert browser.get("/desk").status == 303  # with the cookie that the browser has kept
    assert other.get("/desk").status == 200
    assert site.log_in("viewer").get("/desk").status == 200
    site.memory.sweep(site.now + 9 * 3600)
    assert site.memory.store.list_namespaces(prefix=("desk",)) == []


def test_a_form_without_this_sessions_token_does_nothing(site):
    browser, other = site.log_in("operator"), site.log_in("reviewer")
    site.now += 1
    later = site.log_in("operator")
    for token in ("", "0" * 64, other.token, later.token):
        form = {"token": token, "reply": "correct"}
        reply = site.ask("POST", "/desk/collaborations/wz1/2", form, cookie=browser.cookie)
        assert reply.status == 403
    assert site.memory.evaluation("wz1/2").label is None


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://[desk.test"},
        {"origin": "http://desk.test.evil.example"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site", "origin": "http://desk.test"},
    ],
    ids=str,
)
def test_a_form_from_another_site_does_nothing(site, headers):
    browser = site.log_in("operator")
    form = {"token": browser.token, "reply": "correct", "key": site.keys["viewer"]}
    for path in ("/desk/collaborations/wz1/2", "/desk/login", "/desk/logout"):
        reply = site.ask("POST", path, form, cookie=browser.cookie, **headers)
        assert (reply.status, "set-cookie" in reply.headers) == (403, False)
    assert site.memory.evaluation("wz1/2").label is None


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://desk.test"},
        {"origin": "https://desk.example.com", "x_forwarded_host": "desk.example.com"},
        {"sec_fetch_site": "same-origin"},
    ],
)
def test_a_form_of_the_desk_is_accepted(site, headers):
    browser = site.log_in("reviewer")
    form = {"token": browser.token, "reply": "correct"}
    path = "/desk/collaborations/wz1/2"
    assert site.ask("POST", path, form, cookie=browser.cookie, **headers).status == 303
    assert site.memory.evaluation("wz1/2").label == "correct"


def test_failed_log_ins_are_limited_and_valid_keys_still_log_in(site):
    for _ in range(WRONG_KEYS.burst):
        assert site.ask("POST", "/desk/login", {"key": "wz-wrong"}).status == 403
    assert site.ask("POST", "/desk/login", {"key": "wz-wrong"}).status == 429
    assert site.log_in("viewer").get("/desk").status == 200


def test_pages_are_not_stored_framed_or_referred_to_other_sites(site):
    browser = site.log_in("operator")
    for reply in (browser.get("/desk"), site.ask("GET", "/desk/login"), browser.get("/desk/none")):
        policy = dict(
            part.split(" ", 1) for part in reply.headers["content-security-policy"].split("; ")
        )
        assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == "'self'"
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "same-origin"


def test_operators_have_the_roll_back_on_every_page_while_a_release_can_be_rolled_back(site):
    operator, reviewer = site.log_in("operator"), site.log_in("reviewer")
    assert "Roll back" not in operator.get("/desk").words
    release = site.begin_release()
    for path in (*PAGES, "/desk/none"):
        assert operator.get(path).text.count('value="roll_back"') == 1
        assert "Roll back" not in reviewer.get(path).words
    for _ in range(2):  # to the second step, and to full traffic
        release = site.book.move(release, "advance", "ada", "on")
    assert "Release: full" in operator.get("/desk/audit").words
    site.book.move(release, "roll_back", "ada", "back")
    assert "Roll back" not in operator.get("/desk/audit").words


def test_pages_hold_no_inline_script_no_inline_style_and_no_other_host(site):
    site.begin_release()
    browser = site.log_in("operator")
    for path in PAGES:
        text = browser.get(path).text.replace('<script src="/desk/desk.js" defer>', "")
        assert not any(word in text for word in ("<script", "style=", "<style", "http:", "https:"))


@pytest.mark.parametrize(("name", "kind"), [("desk.css", "css"), ("desk.js", "javascript")])
def test_a_file_of_the_desk_is_sent_once(site, name, kind):
    first = site.ask("GET", f"/desk/{name}")
    assert (first.status, first.headers["content-type"]) == (200, f"text/{kind}; charset=utf-8")
    again = site.ask("GET", f"/desk/{name}", if_none_match=first.headers["etag"])
    assert (again.status, again.text) == (304, "")


def test_head_is_get_without_a_body(site):
    browser = site.log_in("viewer")
    head = site.ask("HEAD", "/desk/audit", cookie=browser.cookie)
    get = browser.get("/desk/audit")
    assert (head.status, head.text) == (200, "")
    assert head.headers["content-length"] == get.headers["content-length"]


@pytest.mark.parametrize(
    "path",
    [
        "/desk/x",
        *(f"/desk/collaborations/{name}" for name in ("x", "a\0b", "wz1", "x" * 700)),
    ],
    ids=lambda path: path[:30],
)
def test_a_missing_page_is_404(site, path):
    reply = site.log_in("operator").get(path)
    assert (reply.status, "Not found" in reply.words, "Log out" in reply.words) == (404, True, True)


def test_other_methods_and_oversized_forms_are_refused(site):
    browser = site.log_in("operator")
    assert site.ask("PUT", "/desk", cookie=browser.cookie).status == 405
    assert browser.get("/desk/logout").status == 404
    assert browser.post("/desk/logout", x="x" * MAX_FORM_BYTES).status == 413
    many = {f"field{number}": "1" for number in range(60)}
    assert browser.post("/desk/logout", **many).status == 400


def test_an_internal_error_is_logged_without_content(site, caplog):
    browser = site.log_in("operator")
    site.memory.store.put(("safety", "waltzrl", "evaluations"), "odd", {"id": EMAIL})
    reply = browser.get("/desk/collaborations/odd")
    assert (reply.status, EMAIL in reply.text, EMAIL in caplog.text) == (500, False, False)
    assert "ValidationError" in caplog.text


def test_a_page_that_fails_keeps_the_navigation_and_the_roll_back(site):
    release = site.begin_release()
    operator, viewer = site.log_in("operator"), site.log_in("viewer")
    site.memory.store.put(("safety", "waltzrl", "evaluations"), "odd", {"id": "odd"})
    failed = operator.get("/desk/collaborations/odd")
    assert failed.status == 500
    assert 'href="/desk/collaborations"' in failed.text
    assert "Log out" in failed.words
    form = dict(re.findall(r'name="(token|release|version)" value="([^"]+)"', failed.text))
    sent = site.ask(
        "POST",
        "/desk/release",
        form | {"action": "roll_back", "why": "it fails"},
        cookie=operator.cookie,
    )
    assert (sent.status, site.book.release(release.id).state) == (303, "rolled_back")
    assert "Roll back" not in viewer.get("/desk/collaborations/odd").words


def test_a_form_that_cannot_be_read_keeps_the_navigation(site):
    reply = site.log_in("operator").post("/desk/logout", x="x" * MAX_FORM_BYTES)
    assert (reply.status, "Log out" in reply.words) == (413, True)


def test_a_session_that_was_ended_sees_no_release_on_an_error_page(site):
    site.begin_release()
    browser = site.log_in("operator")
    token = browser.token
    browser.post("/desk/logout")
    reply = site.ask("POST", "/desk/labels", {"token": f"{token}x"}, cookie=browser.cookie)
    assert (reply.status, "Roll back" in reply.words) == (403, False)


def test_an_unavailable_database_is_reported(site, tmp_path, caplog):
    browser = site.log_in("operator")
    site.memory.store.engine.dispose()
    for file in tmp_path.glob("memory.db*"):
        file.unlink()
    (tmp_path / "memory.db").mkdir()
    reply = browser.get("/desk/collaborations")
    assert (reply.status, "database" in reply.words, "Log out" in reply.words) == (503, True, True)


def test_what_is_logged_holds_no_content_and_no_key(site, caplog):
    caplog.set_level(logging.DEBUG)
    browser = site.log_in("operator")
    for path in PAGES:
        browser.get(path)
    found = browser.post("/desk/collaborations", words=EMAIL).headers["location"]
    browser.get("/desk/collaborations", urlsplit(found).query)
    site.ask("POST", "/desk/login", {"key": f"wz-{HOSTILE}"})
    assert "operator" in caplog.text
    for secret in (EMAIL, HOSTILE, site.keys["operator"], browser.cookie.partition("=")[2]):
        assert secret not in caplog.text
