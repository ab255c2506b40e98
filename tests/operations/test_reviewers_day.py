"""A reviewer's day: 200 items, two people at once, three disputes, one correction, an export."""

import csv
import io
import re
from concurrent.futures import ThreadPoolExecutor
from html import unescape

import pytest

from support.small_console import Site, collaboration, exchange

LIST = "/desk/collaborations"
ITEMS = 200
CORRECTED = "item007"
UNSAFE = re.compile(r"item\d\d[05]")


class Worker:
    """A person who follows what the pages offer, and counts pages loaded and forms sent."""

    def __init__(self, site, role):
        self.site, self.browser = site, site.log_in(role)
        self.token = self.browser.token
        self.loads = self.forms = 0

    def load(self, address):
        """Load a page, and those that it redirects to; return its path and the page."""
        while True:
            path, _, query = address.partition("#")[0].partition("?")
            reply = self.browser.get(path, query)
            if reply.status != 303:
                self.loads += 1
                return path, reply
            address = reply.headers["location"]

    def send(self, address, **form):
        path, _, query = address.partition("?")
        form = {"token": self.token, **form}
        reply = self.site.ask("POST", path, form, cookie=self.browser.cookie, query=query)
        assert reply.status == 303, reply.words
        self.forms += 1
        return self.load(reply.headers["location"])

    def work_off(self, address, answer):
        """Label what a list or a queue leads to until it leads to no other; return the ids."""
        path, page = self.load(address)
        done = []
        while (
            form := re.search(r'action="([^"]+)" class="better" data-keep', page.text)
        ) is not None:
            name = path.rpartition("/")[2]
            done.append(name)
            path, page = self.send(unescape(form[1]), go="next", **answer(name))
        return done


def first_look(name):
    unsafe = UNSAFE.fullmatch(name) is not None
    corrected = {"correction": "A better reply."} if name == CORRECTED else {}
    request = "harmful" if unsafe else "harmless"
    return {"reply": "unsafe" if unsafe else "correct", "request": request, **corrected}


@pytest.mark.promise(
    "Labels", "A day of 200 items, two people at once, three disputes, a correction and an export"
)
def test_a_day_of_two_hundred_items(tmp_path):
    site = Site(tmp_path)
    names = [f"item{number:03}" for number in range(ITEMS)]
    site.memory.remember(
        [
            exchange(name, collaboration(name), seconds_ago=60 + number)
            for number, name in enumerate(names)
        ]
    )
    ada, grace, third = (Worker(site, role) for role in ("reviewer", "annotator", "operator"))
    third.send("/desk/queues", name="day", instructions="Label all.", blind="yes")
    with ThreadPoolExecutor(2) as pool:
        work = [
            pool.submit(worker.work_off, "/desk/queues/next?queue=day", first_look)
            for worker in (ada, grace)
        ]
        of_ada, of_grace = (future.result() for future in work)
    assert sorted([*of_ada, *of_grace]) == names  # each item was given to one person
    assert min(len(of_ada), len(of_grace)) > ITEMS / 4
    # a form and a page for each item, and the page of the first one
    assert ada.forms + grace.forms == ITEMS
    assert ada.loads + grace.loads == ITEMS + 2
    assert f"{ITEMS} of {ITEMS} labelled" in third.load("/desk/queues")[1].words

    # grace looks at three of ada's, without seeing what ada said, and differs
    second = [name for name in of_ada if not UNSAFE.fullmatch(name)][:3]
    for name in second:
        grace.send(f"{LIST}/{name}?rated=others", reply="unsafe")
    assert "3 collaborations are disputed" in third.load("/desk/queues")[1].words
    assert sorted(
        third.work_off(
            f"{LIST}/{second[0]}?label=disputed", lambda _: {"reply": "correct", "settle": "yes"}
        )
    ) == sorted(second)
    assert "0 collaborations are disputed" in third.load("/desk/queues")[1].words

    lines = list(csv.DictReader(io.StringIO(third.load("/desk/export")[1].text)))
    labels = {line["id"]: line["label"] for line in lines}
    assert labels == {name: first_look(name)["reply"] for name in names}
    assert [line["id"] for line in lines if line["settled_by"] == "operator"] == sorted(second)
    assert {kind for line in lines for kind in line["annotator_kind"].split()} == {
        f"{by}=person" for by in ("reviewer", "annotator", "operator")
    }
    corrections = [event.correction for event in site.memory.evaluation(CORRECTED).labels]
    assert corrections[0] == "A better reply."
