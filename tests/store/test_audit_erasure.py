"""Contents that are forgotten while the log of decisions stays as it is."""

import json
import threading
from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_struct

from support.small_logs import COLLABORATION, contents_of, log_decision, open_log, unchanged
from waltzrl.errors import InputError
from waltzrl.records import Message, Prompt, Reply
from waltzrl.store.audit.contents import (
    contents_for,
    erase_contents,
    expire_contents,
    has_nameless_tombstones,
    read_collaborations,
    tombstone_for,
)
from waltzrl.store.audit.keys import digest_under, signing_key
from waltzrl.store.audit.note import SigningKey
from waltzrl.store.audit.reading import find
from waltzrl.store.audit.verify import VerifiedLog, verify


def said_by(subject, number=0):
    prompt = Prompt(id="p", messages=(Message(role="user", content=f"I am {subject}: {number}"),))
    return replace(COLLABORATION, prompt=prompt)


def tell(log, subject, count, start=0):
    for number in range(start, start + count):
        said = said_by(subject, number)
        log_decision(log, f"{subject}-{number}", said, subject)


def erased(folder, digest):
    return erase_contents(folder / "log", signing_key(folder / "audit.key"), digest)


def expired(folder, before):
    return expire_contents(folder / "log", signing_key(folder / "audit.key"), before)


def raw_contents(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "log").glob("contents-*"))}


def test_contents_are_found_by_the_digest_of_the_decisions_record(tmp_path):
    with open_log(tmp_path, contents=unchanged, clock=lambda: 1234.5) as log:
        tell(log, "ada", 2)
        tell(log, "bob", 1)
        ada = log.digest(b"ada")
    assert digest_under(tmp_path / "audit.key", b"ada") == ada
    found = contents_of(tmp_path / "log", ada)
    assert [content.id for content in found] == ["ada-0", "ada-1"]
    assert {content.time for content in found} == {1234.5}
    (entry,) = find(tmp_path / "log", "ada-1")
    assert entry.decision.subject == ada == found[0].subject


def test_erased_contents_are_gone_and_the_log_still_verifies(tmp_path):
    with open_log(tmp_path, contents=unchanged) as log:
        for number in range(3):
            tell(log, "ada", 1, number)
            tell(log, "bob", 1, number)
        ada = log.digest(b"ada")
    before = {path: path.read_bytes() for path in (tmp_path / "log").glob("decisions-*")}
    (length,) = map(len, raw_contents(tmp_path).values())
    assert erased(tmp_path, ada) == 3
    (raw,) = raw_contents(tmp_path).values()
    assert b"I am ada" not in raw
    assert ada.encode() not in raw
    assert len(raw) == length
    assert [json.loads(line).get("erased") for line in raw.splitlines()] == [True, None] * 3
    assert [said for _, said in read_collaborations(tmp_path / "log")] == [
        said_by("bob", number) for number in range(3)
    ]
    assert before == {path: path.read_bytes() for path in (tmp_path / "log").glob("decisions-*")}
    assert isinstance(verify(tmp_path / "log", log.public_key), VerifiedLog)
    assert erased(tmp_path, ada) == 0


@pytest.mark.promise(
    "Evidence of a release",
    "Erased texts are told from texts that were never kept by a tombstone that the log's key "
    "signed",
)
def test_a_signed_tombstone_tells_what_was_erased_from_what_was_never_kept(tmp_path):
    with open_log(tmp_path, contents=unchanged) as log:
        tell(log, "ada", 2)
        log_decision(log, "wz7", COLLABORATION, "ada")
    erased(tmp_path, log.digest(b"ada"))
    left = [tombstone_for(tmp_path / "log", name) for name in ("ada-0", "ada-1", "wz7", "none")]
    assert [one and (one.id, one.why) for one in left] == [
        ("ada-0", "erasure"), ("ada-1", "erasure"), ("wz7", "erasure"), None,
    ]  # fmt: skip
    assert all(one.is_signed_by(log.public_key) for one in left[:3])
    assert not replace_struct(left[0], id="none").is_signed_by(log.public_key)
    assert not left[0].is_signed_by(SigningKey.generate("other").public)


def test_a_collaboration_that_is_shorter_than_a_signature_leaves_a_nameless_tombstone(tmp_path):
    with open_log(tmp_path, contents=unchanged) as log:
        tell(log, "ada", 1)
    (path,) = (tmp_path / "log").glob("contents-*")
    asked = '{"id":"p","messages":[{"role":"user","content":""}]}'
    words = f'"collaboration":{{"prompt":{asked},"draft":{{"text":""}}}}'
    path.write_text(f'{{"id":"ada-0","subject":"","time":1.0,{words}}}\n')
    assert not has_nameless_tombstones(tmp_path / "log")
    assert erase_contents(tmp_path / "log", signing_key(tmp_path / "audit.key"), "", {"ada-0"}) == 1
    assert tombstone_for(tmp_path / "log", "ada-0") is None
    assert has_nameless_tombstones(tmp_path / "log")


@pytest.mark.promise(
    "Audit", "Erased texts are told from texts that were never kept, and the log verifies as before"
)
def test_a_gateway_appends_while_contents_are_erased(tmp_path):
    with open_log(tmp_path, contents=unchanged, segment_bytes=60_000) as log:
        ada, rounds = log.digest(b"ada"), 60
        counts = []
        done = threading.Event()

        def erase():
            while not done.is_set():
                counts.append(erased(tmp_path, ada))

        eraser = threading.Thread(target=erase)
        eraser.start()
        for number in range(rounds):
            tell(log, "ada", 5, number * 5)
            tell(log, "bob", 5, number * 5)
            log.flush()
        done.set()
        eraser.join()
        key = log.public_key
    counts.append(erased(tmp_path, ada))
    assert sum(counts) == 5 * rounds
    assert sum(count > 0 for count in counts) > 1
    contents = raw_contents(tmp_path)
    assert len(contents) > 1
    assert not any(b"I am ada" in raw for raw in contents.values())
    assert [said for _, said in read_collaborations(tmp_path / "log")] == [
        said_by("bob", number) for number in range(5 * rounds)
    ]
    assert isinstance(verify(tmp_path / "log", key), VerifiedLog)


def test_a_log_whose_contents_are_erased_goes_on(tmp_path):
    with open_log(tmp_path, contents=unchanged) as log:
        tell(log, "ada", 2)
    erased(tmp_path, log.digest(b"ada"))
    with open_log(tmp_path, contents=unchanged) as log:
        tell(log, "ada", 1, 2)
    assert [name for name, _ in read_collaborations(tmp_path / "log")] == ["ada-2"]
    assert verify(tmp_path / "log", log.public_key).records == 7


def test_what_nobody_put_a_name_to_is_not_taken_for_anybody(tmp_path):
    with open_log(tmp_path, contents=unchanged) as log:
        said = said_by("nobody")
        log_decision(log, "r", said, "")
        assert contents_of(tmp_path / "log", log.digest(b"ada")) == []
    assert erased(tmp_path, log.digest(b"ada")) == 0
    with pytest.raises(AssertionError):
        erased(tmp_path, "")


def test_a_damaged_line_is_not_passed_over_as_somebody_elses(tmp_path):
    with open_log(tmp_path, contents=unchanged) as log:
        tell(log, "ada", 2)
    (path,) = (tmp_path / "log").glob("contents-*")
    path.write_bytes(path.read_bytes().replace(b'"subject"', b'"subject', 1))
    with pytest.raises(InputError, match=r"contents-000001\.jsonl:1: not contents of an audit log"):
        erased(tmp_path, log.digest(b"ada"))


@pytest.mark.promise("Legal duties", "GDPR 5(1)(e): storage limitation")
def test_contents_expire_and_their_files_go_but_for_the_one_that_grows(tmp_path):
    now = [100.0]
    with open_log(tmp_path, contents=unchanged, segment_bytes=3000, clock=lambda: now[0]) as log:
        for number in range(12):
            now[0] = 100.0 + number
            tell(log, "ada", 1, number)
            log.flush()
        assert len(raw_contents(tmp_path)) > 2
        assert expired(tmp_path, before=100.0) == 0
        assert expired(tmp_path, before=106.0) == 6
        assert [name for name, _ in read_collaborations(tmp_path / "log")] == [
            f"ada-{number}" for number in range(6, 12)
        ]
        assert expired(tmp_path, before=1000.0) == 6
        assert len(raw_contents(tmp_path)) == 1
        left = [tombstone_for(tmp_path / "log", f"ada-{number}") for number in range(12)]
        assert {(one.why, one.is_signed_by(log.public_key)) for one in left} == {("expiry", True)}
        tell(log, "ada", 1, 12)
    assert [name for name, _ in read_collaborations(tmp_path / "log")] == ["ada-12"]
    assert isinstance(verify(tmp_path / "log", log.public_key), VerifiedLog)


def test_a_file_that_expires_after_it_was_listed_holds_nothing(tmp_path):
    with open_log(tmp_path, contents=unchanged) as log:
        tell(log, "ada", 2)
        digest = log.digest(b"ada")
    folder = tmp_path / "log"
    (folder / "contents-000000.jsonl").symlink_to("deleted")
    assert [content.id for content in contents_of(folder, digest)] == ["ada-0", "ada-1"]
    assert contents_for(folder, "ada-1") == [said_by("ada", 1)]
    assert erased(tmp_path, digest) == 2
    assert tombstone_for(folder, "ada-1").why == "erasure"


@pytest.mark.promise("Legal duties", "GDPR 5(1)(c): data minimisation")
def test_contents_are_scrubbed_before_they_reach_the_disk(tmp_path):
    scrubbed_in = []

    def scrub(said):
        scrubbed_in.append(threading.current_thread().name)
        return replace(said, draft=Reply(text="[REDACTED:email]"))

    with open_log(tmp_path, contents=scrub) as log:
        said = replace(COLLABORATION, draft=Reply(text="ada@example.com"))
        log_decision(log, "r", said)
    assert b"ada@example.com" not in b"".join(raw_contents(tmp_path).values())
    assert [said.draft.text for _, said in read_collaborations(tmp_path / "log")] == [
        "[REDACTED:email]"
    ]
    assert scrubbed_in == ["audit"]
