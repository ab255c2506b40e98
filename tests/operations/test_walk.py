"""Two thousand walks through the desk, by links, forms and awkward addresses: no page fails."""

import re
from html import unescape
from random import Random
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import pytest

from support.desk_states import STATES
from support.small_console import Site

WALKS = 500
"""In each of the four states."""
STEPS = 3
AWKWARD = (
    *("", "0", "-1", "1e309", "nan", "9" * 30, "\0", "%s", "'", '"', "*", "<b>", "..", "x" * 3000),
    *("\N{ARABIC-INDIC DIGIT THREE}", "\N{RIGHT-TO-LEFT OVERRIDE}", "\N{PILE OF POO}"),
    *("none", "0001-01-01", "9999-12-31"),
)
FIELDS = {
    "/desk": ("window",),
    "/desk/collaborations": ("after", "done", "found", "sort", "since", "until", "subject"),
    "/desk/export": ("sort", "since", "assigned"),
    "/desk/trends": ("window", "category"),
    "/desk/plans": ("state", "from"),
    "/desk/audit": ("record",),
}
"""Of the address of each page."""
START = (*FIELDS, "/desk/none", "/desk/collaborations/none")


class VisitedPage(NamedTuple):
    """What a walk can go on with."""

    links: list[str]
    forms: list[dict[str, list[str]]]
    """Of each form that only shows something: its fields, each with the values it offers."""
    actions: list[str]
    """Where they lead."""


class Walker:
    """Walks at random; an address that was visited is not asked for again: walks change nothing."""

    def __init__(self, site, role, random):
        self.browser, self.random = site.log_in(role), random
        self.rolls_back = role == "operator" and site.book.current() is not None
        self.pages = {}

    def walk(self):
        address = self.random.choice(START)
        for _ in range(STEPS):
            address = self.next(self.visit(address), address)

    def visit(self, address):
        if address not in self.pages:
            path, _, query = address.partition("?")
            reply = self.browser.get(unquote(path), query)
            assert reply.status < 500, address
            if "text/html" in reply.headers.get("content-type", ""):
                assert "Log out" in reply.text, address
                assert ("Roll back" in reply.text) == self.rolls_back, address
            self.pages[address] = _page(reply.text)
        return self.pages[address]

    def next(self, page, address):
        kind = self.random.random()
        if page.forms and kind < 0.4:
            number = self.random.randrange(len(page.forms))
            fields = {name: self.value(values) for name, values in page.forms[number].items()}
            kept = {name: value for name, value in fields.items() if self.random.random() < 0.4}
            return f"{page.actions[number]}?{urlencode(kept)}"
        if kind < 0.6:
            return self.changed(address)
        return self.random.choice(page.links or START)

    def value(self, offered):
        return self.random.choice(offered if offered and self.random.random() < 0.7 else AWKWARD)

    def changed(self, address):
        """Return an address with an awkward value in its query, or of another page."""
        path, _, query = address.partition("?")
        fields = dict(parse_qsl(query))
        names = [*fields, *FIELDS.get(path, ())]
        if not names:
            return self.random.choice(START)
        fields[self.random.choice(names)] = self.random.choice(AWKWARD)
        return f"{path}?{urlencode(fields)}"


SHOWING_FORM = re.compile(r'<form[^>]*method="get" action="([^"]+)">(.*?)</form>', re.DOTALL)
SELECT = re.compile(r'<select name="([^"]+)">(.*?)</select>', re.DOTALL)


def _page(text):
    links = [unescape(link) for link in re.findall(r'<a [^>]*href="(/desk[^"#]*)', text)]
    forms, actions = [], []
    for action, content in SHOWING_FORM.findall(text):
        fields = {name: [] for name in re.findall(r'<input[^>]* name="([^"]+)"', content)}
        for name, options in SELECT.findall(content):
            fields[name] = [unescape(value) for value in re.findall(r'value="([^"]*)"', options)]
        forms.append(fields)
        actions.append(urlsplit(unescape(action)).path)
    return VisitedPage(links, forms, actions)


@pytest.mark.parametrize("state", STATES)
def test_no_walk_through_the_desk_meets_a_page_that_fails(tmp_path, state):
    site, random = Site(tmp_path), Random(0)
    STATES[state](site)
    walkers = [Walker(site, role, random) for role in ("operator", "viewer")]
    for number in range(WALKS):
        walkers[number % 5 == 4].walk()
