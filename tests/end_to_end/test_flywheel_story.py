"""The flywheel's whole story, with real clients: trained, served, labelled, learned, released."""

import json
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar

import openai
import pytest

from support.gateway_processes import ENVIRONMENT
from support.small_demo import put_base
from support.small_runs import run
from support.timing import wait_until
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.store.audit.note import PublicKey
from waltzrl.store.audit.reading import read_entries
from waltzrl.store.audit.verify import verify
from waltzrl.store.database import open_database
from waltzrl.store.privacy.digest import key_in, subject_digest

MODEL = "waltzrl_conversation_stage2"
SHORTER = ("--set", "stages.feedback.steps=4", "--set", "stages.joint.steps=8")
"""Of the second training: the first pair of the kept base needs no more to improve."""
ONE = r'href="(/desk/collaborations/[^"?]+)"'


class Desk:
    """A person's browser, as far as the desk needs one."""

    def __init__(self, address, key):
        self._address = address
        self._browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        self.page = self.post("/desk/login", key=key)

    def get(self, path):
        with self._browser.open(self._address + path) as answer:
            return answer.read().decode()

    def post(self, path, **fields):
        data = urllib.parse.urlencode(fields).encode()
        headers = {"Origin": self._address}
        request = urllib.request.Request(self._address + path, data, headers)
        with self._browser.open(request) as answer:
            return answer.read().decode()

    def label_newest(self, label):
        """Call the newest reply something, as a person would; return its place."""
        place = wait_until(lambda: re.search(ONE, self.get("/desk/collaborations")))[1]
        form = self.get(place)
        token = re.search(r'name="token" value="([^"]+)"', form)[1]
        self.post(place, reply=label, token=token)
        return place


def waited(words, log, process):
    """Wait until the story has come to some words; return what it said."""

    def told():
        ended = process.poll() is not None
        said = " ".join(log.read_text().split())
        found = re.search(words, said)
        assert found or not ended, said
        return found

    return wait_until(told, seconds=1800)


def reply_to_visitor(client):
    """Ask; return None as long as the gateway has not read the visitor's new key."""
    question = [{"role": "user", "content": "what is the capital of france?"}]
    try:
        return client.chat.completions.create(model=MODEL, messages=question, user="visitor-1")
    except openai.AuthenticationError:
        return None


@pytest.mark.promise(
    "Command line",
    "`waltzrl demo flywheel` explains its terms, shows progress in every phase, erases a user, "
    "and ends with a summary that says how to open the desk again",
)
@pytest.mark.timeout(2400)
def test_what_is_served_is_learned_and_released_and_a_bad_bundle_comes_back(tmp_path, capsys):
    log = tmp_path / "story.log"
    folder = tmp_path / "runs/demo/seed-0/flywheel"
    put_base(folder)
    with log.open("w") as words:
        process = subprocess.Popen(
            [sys.executable, "-m", "waltzrl", "demo", "flywheel", *SHORTER],
            cwd=tmp_path,
            stderr=words,
            env=ENVIRONMENT,
        )
    try:
        gateway = waited(r"its console: (http://[^/]+)/desk, key (\S+)", log, process)
        address, key = gateway[1], gateway[2]
        run("keys", "add", "visitor", "--file", folder / "keys.toml")
        mine = re.search(r"wz-\S+", capsys.readouterr().out)[0]
        client = openai.OpenAI(base_url=f"{address}/v1", api_key=mine, max_retries=0)
        said = wait_until(lambda: reply_to_visitor(client))
        assert said.choices[0].message.content
        waited("training further on what was served", log, process)
        desk = Desk(address, key)
        labelled = desk.label_newest("correct")
        assert re.search(r'value="correct" data-key="\w" checked', desk.get(labelled))
        waited("-> rolled back: ", log, process)
        assert process.wait(120) == 0, log.read_text()
    finally:
        process.terminate()  # with all that it has started
        process.wait(60)
    book = ReleaseBook(open_database(f"sqlite:///{folder}/memory.db"))
    bad = book.latest()
    moves = [(move.action, move.by) for move in book.history(bad.id)]
    assert moves == [("propose", "demo"), ("roll_back", "waltzrl")]
    assert book.serving() == bad.serving, "what was promoted serves on"
    noticed = [e.notice for e in read_entries(folder / "audit") if e.event == "notice"]
    notices = [notice for notice in noticed if notice["kind"] == "release"]
    assert [n["state"] for n in notices if n["release"] != bad.id][-1] == "full"
    why = notices[-1]["why"]
    assert (notices[-1]["action"], notices[-1]["by"]) == ("roll_back", "waltzrl")
    assert re.search(r"of the candidate|e-value", why)
    public = PublicKey.parse((folder / "audit.key.pub").read_text())
    assert verify(folder / "audit", public).records > 1000
    check_the_end(log.read_text(), folder)


def check_the_end(said, folder):
    """Check what is printed: terms, progress of every phase, and the summary."""
    said = " ".join(said.split())
    for phase in ("questions asked", "answers labelled", r"release \S+, questions asked"):
        assert re.search(rf"{phase} \d+", said), phase
    assert "e-value how strong the evidence is that the candidate is worse" in said
    summary = re.sub(r"\[ *\d+ s\] ", "", said.partition("summary:")[2])
    for step in (
        r"served [\d,]+ questions, 0 failed",
        r"labels people called \d+ correct, \d+ unsafe, \d+ over-refusals, of 300 answers",
        r"learned \d+ exchanges as trajectories",
        r"release release \S+: advance -> full: ",
        r"drill release \S+: roll_back -> rolled back: ",
        r"erasure [1-9]\d* records of user-1 erased from memory and exports, nothing is left",
        r"audit log ok: \d+ records",
        rf"desk waltzrl serve \S*{folder.name}/gateway.toml opens it again, .*, key wz-",
    ):
        assert re.search(step, summary), (step, summary)
    # user-1 asked first and was erased
    rows = map(json.loads, (folder / "trajectories.jsonl").read_text().splitlines())
    users = {row["subject"] for row in rows}
    assert subject_digest(key_in(folder / "memory.key"))("user-1") not in users
    assert len(users) > 300
