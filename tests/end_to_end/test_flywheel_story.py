"""The flywheel's whole story, with real clients: trained, served, labelled, learned, released."""

import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar

import openai
import pytest

from support.gateway_processes import ENVIRONMENT
from support.small_runs import run
from waltzrl.audit import read_entries, verify
from waltzrl.audit.note import PublicKey
from waltzrl.release.book import ReleaseBook
from waltzrl.storage.database import open_database

MODEL = "waltzrl_conversation_stage2"
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
        while not (found := re.search(ONE, self.get("/desk/collaborations"))):
            time.sleep(0.2)  # the recorder has other things to do
        place = found[1]
        form = self.get(place)
        token = re.search(r'name="token" value="([^"]+)"', form)[1]
        self.post(place, label=label, token=token)
        return place


def waited(words, log, process):
    """Wait until the story has come to some words; return what it said."""
    ends = time.monotonic() + 600
    while time.monotonic() < ends:
        said = " ".join(log.read_text().split())
        if found := re.search(words, said):
            return found
        assert process.poll() is None, said
        time.sleep(0.2)
    raise AssertionError(log.read_text())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_is_served_is_learned_and_released_and_a_bad_bundle_comes_back(tmp_path, capsys):
    log = tmp_path / "story.log"
    folder = tmp_path / "runs/demo/seed-0/flywheel"
    with log.open("w") as words:
        process = subprocess.Popen(
            [sys.executable, "-m", "waltzrl", "demo", "flywheel"],
            cwd=tmp_path,
            stderr=words,
            env=ENVIRONMENT,
        )
    try:
        gateway = waited(r"its console: (http://[^/]+)/desk, key (\S+)", log, process)
        address, key = gateway[1], gateway[2]
        run("keys", "add", "visitor", "--file", folder / "keys.toml")
        mine = re.search(r"wz-\S+", capsys.readouterr().out)[0]
        time.sleep(1.5)
        client = openai.OpenAI(base_url=f"{address}/v1", api_key=mine, max_retries=0)
        asked = [{"role": "user", "content": "what is the capital of france?"}]
        said = client.chat.completions.create(model=MODEL, messages=asked, user="visitor-1")
        assert said.choices[0].message.content
        waited("training further on what was served", log, process)
        desk = Desk(address, key)
        labelled = desk.label_newest("correct")
        assert 'value="correct" aria-pressed="true"' in desk.get(labelled)
        waited("-> rolled back: ", log, process)
        assert process.wait(120) == 0
    finally:
        process.terminate()  # with all that it has started
        process.wait(60)
    book = ReleaseBook(open_database(f"sqlite:///{folder}/memory.db"))
    bad = book.latest()
    moves = [(move.action, move.by) for move in book.history(bad.id)]
    assert moves == [("propose", "demo"), ("roll_back", "waltzrl")]
    assert book.serving() == bad.serving, "what was promoted serves on"
    notices = [e.notice for e in read_entries(folder / "audit") if e.event == "notice"]
    assert [n["state"] for n in notices if n["release"] != bad.id][-1] == "full"
    why = notices[-1]["why"]
    assert (notices[-1]["action"], notices[-1]["by"]) == ("roll_back", "waltzrl")
    assert re.search(r"of the candidate|e-value", why)
    public = PublicKey.parse((folder / "audit.key.pub").read_text())
    assert verify(folder / "audit", public).records > 1000
    assert (folder / "trajectories.jsonl").stat().st_size > 10_000
