"""Web pages of other origins: what a browser asks, and what it lets their scripts read."""

import pytest

from support.small_gateway import CHAT, HELLO, ask, with_gateway
from waltzrl.errors import InputError
from waltzrl.gateway.keys import add_key

PAGE = "https://chat.example.org"
ORIGINS = f"origins=['{PAGE}', 'app://obsidian.md']"
ASKED = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}
BODY = {"model": "echo", "messages": HELLO}


def asked(path, *overrides, method="OPTIONS", body=None, **headers):
    return with_gateway(lambda app: ask(app, path, body, method=method, **headers), *overrides)


@pytest.mark.parametrize("origin", [PAGE, "app://obsidian.md"])
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/models"])
def test_a_browser_is_told_what_a_page_may_send(origin, path):
    response = asked(path, ORIGINS, origin=origin, **ASKED)
    assert (response.status, response.text) == (204, "")
    assert response.headers["access-control-allow-origin"] == origin
    assert response.headers["access-control-allow-headers"] == "authorization,content-type"
    assert "POST" in response.headers["access-control-allow-methods"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_page_reads_answers_and_errors(stream):
    sent = {**BODY, "stream": stream}
    for body, status in ((sent, 200), ({}, 400)):
        response = asked(CHAT, ORIGINS, method="POST", body=body, origin=PAGE)
        assert (response.status, response.headers["access-control-allow-origin"]) == (status, PAGE)
        assert response.headers["vary"] == "origin"


@pytest.mark.parametrize(
    ("path", "overrides", "origin"),
    [
        (CHAT, (), PAGE),
        (CHAT, (ORIGINS,), "https://other.example.org"),
        (CHAT, (ORIGINS,), "null"),
        ("/healthz", (ORIGINS,), PAGE),
    ],
)
def test_no_other_page_is_told_anything(path, overrides, origin):
    for method in ("OPTIONS", "POST"):
        response = asked(path, *overrides, method=method, body=BODY, origin=origin, **ASKED)
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_with_keys_every_page_may_be_allowed_and_needs_one(tmp_path):
    path = tmp_path / "keys.toml"
    key = add_key(path, {"name": "ada"})
    every = ("origins=['*']", f"keys={path}")
    assert asked(CHAT, *every, origin=PAGE, **ASKED).status == 204
    for headers, status in (({}, 401), ({"authorization": f"Bearer {key}"}, 200)):
        response = asked(CHAT, *every, method="POST", body=BODY, origin=PAGE, **headers)
        assert (response.status, response.headers["access-control-allow-origin"]) == (status, PAGE)


@pytest.mark.promise(
    "Bad input",
    "An origin of web pages that is none, or every one without keys: the setting, and why",
)
@pytest.mark.parametrize(
    ("origins", "named"),
    [
        ("['chat.example.org']", "origins"),
        ("['https://a/b']", "origins"),
        ("['https://*.example.org']", "origins"),
        ("['https://Chat.example.org']", "origins"),
        ("['*']", "needs keys"),
    ],
)
def test_origins_that_cannot_be_are_refused(origins, named):
    with pytest.raises(InputError, match=named):
        asked(CHAT, f"origins={origins}")
