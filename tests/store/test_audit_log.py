import base64
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from support.small_logs import (
    COLLABORATION,
    exchange,
    fill,
    log_decision,
    open_log,
    settings,
    unchanged,
    write_log,
)
from support.timing import wait_until
from waltzrl.errors import AuditError, InputError
from waltzrl.records import Feedback, Message, Prompt, Reply, Round, ServedExchange, ToolCall
from waltzrl.store.audit.contents import contents_for, read_collaborations
from waltzrl.store.audit.merkle import includes, leaf_hash
from waltzrl.store.audit.note import Checkpoint, read_notes, read_signed_text
from waltzrl.store.audit.query import Query, newest
from waltzrl.store.audit.reading import find, prove, read_entries
from waltzrl.store.audit.record import record_of
from waltzrl.store.audit.verify import LogFault, VerifiedLog, verify
from waltzrl.store.audit.writer import LocalLog


def lines(folder):
    return [
        json.loads(line)
        for path in sorted((folder / "log").glob("decisions-*.jsonl"))
        for line in path.read_text().splitlines()
    ]


@pytest.mark.promise(
    "Operation",
    "Decisions are committed to the audit log in groups, and all that were accepted when it is "
    "closed",
)
def test_a_decision_waits_for_the_next_commit_but_a_closed_log_waits_for_none(tmp_path):
    log = open_log(tmp_path, commit_seconds=3600)
    fill(log, 3)
    assert (log.waiting, len(lines(tmp_path))) == (3, 1)  # the line that says that it was opened
    log.close()
    assert (log.waiting, len(lines(tmp_path))) == (0, 5)


@pytest.mark.promise(
    "Legal duties", "AI Act 12(2)(a): information that identifies risks is recorded"
)
def test_a_log_tells_who_asked_what_was_decided_and_why(tmp_path):
    with open_log(tmp_path) as log:
        fill(log, 1)
        hidden = log.digest(b"user-17")
    (entry,) = find(tmp_path / "log", "r0")
    said = entry.decision
    assert (said.who, said.api, said.model, said.bundle, said.stage) == (
        "team-a", "chat", "m", "b1", "1",
    )  # fmt: skip
    assert (said.decision, said.reason, said.mode, said.subject) == (
        "revised", "refusal", "buffer", hidden,
    )  # fmt: skip
    assert (said.prompt_tokens, said.reply_tokens) == (11 + 40 + 20, 3 + 7 + 5)
    assert (said.draft_ms, said.total_ms) == (20.0, 45.0)
    (turn,) = said.rounds
    assert (turn.unsafe, turn.overrefuse, turn.risk) == (False, True, 0.25)
    assert turn.rules == ("refusal/plain",)
    assert (turn.feedback_ms, turn.revision_ms) == (9.0, 15.0)


@pytest.mark.promise("Legal duties", "GDPR 5(1)(c): data minimisation")
def test_the_log_holds_digests_and_not_one_word_that_was_said(tmp_path):
    with open_log(tmp_path) as log:
        fill(log, 1)
        digests = {log.digest(text) for text in (b"I cannot.", b"Answer it.", b"Use kill.")}
        prompt = log.digest(b'[{"role":"user","content":"How do I kill a process?"}]')
    written = (tmp_path / "log" / "decisions-000001.jsonl").read_text()
    assert all(digest in written for digest in digests | {prompt})
    for word in ("kill", "cannot", "Answer", "user-17"):
        assert word not in written
    assert not list((tmp_path / "log").glob("contents-*"))


def test_digests_of_two_logs_do_not_match(tmp_path):
    with open_log(tmp_path / "a") as a, open_log(tmp_path / "b") as b:
        assert a.digest(b"yes") != b.digest(b"yes")
        assert a.digest(b"yes") == a.digest(b"yes")


def test_an_error_before_the_draft_is_a_record_too(tmp_path):
    with open_log(tmp_path) as log:
        failed = ServedExchange(id="e", time=0.0, reason="upstream_timeout")
        log.append(failed, replace(COLLABORATION.prompt, id="e"))
    (entry,) = find(tmp_path / "log", "e")
    assert (entry.decision.draft, entry.decision.rounds) == (None, ())
    assert entry.decision.prompt
    assert entry.decision.subject == ""


def test_half_a_character_is_logged_and_replayed(tmp_path):
    half = "so \ud800"
    said = replace(
        COLLABORATION,
        prompt=Prompt(id="h", messages=(Message(role="user", content=half),)),
        draft=Reply(text=half),
        rounds=(Round(feedback=Feedback(unsafe=True, overrefuse=False, text=half)),),
    )
    with open_log(tmp_path, contents=unchanged) as log:
        served = msgspec.structs.replace(exchange(half, said), model=half)
        log.append(served, replace(said.prompt, id=half))
    assert list(read_collaborations(tmp_path / "log")) == [(half, said)]
    assert isinstance(verify(tmp_path / "log", log.public_key), VerifiedLog)


def test_every_line_continues_the_chain_and_the_log_says_when_it_was_open(tmp_path):
    key = write_log(tmp_path, count=7)
    found = lines(tmp_path)
    assert [line["seq"] for line in found] == list(range(9))
    assert [line["event"] for line in found] == ["opened", *["decision"] * 7, "closed"]
    assert verify(tmp_path / "log", key).records == 9


def test_a_log_goes_on_where_it_was_closed(tmp_path):
    first = write_log(tmp_path, count=7)
    assert write_log(tmp_path, count=3) == first
    assert len(lines(tmp_path)) == 14
    result = verify(tmp_path / "log", first)
    assert (result.records, result.signed) == (14, 14)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        *({"peaks": []}, {"peaks": ["00" * 32] * 2}, {"size": "x"}, {"offset": -1}),
        *({"note": -1}, {"note": 7}, {"note": 10**9}, {"note": 10**20}, {"note": 0}),
        {"size": float("inf")},
    ],
)
def test_opening_needs_no_frontier_and_does_not_believe_a_wrong_one(tmp_path, wrong):
    key = write_log(tmp_path, count=7)
    frontier = tmp_path / "log" / "frontier.json"
    known = json.loads(frontier.read_text())
    assert (known["size"], len(known["peaks"])) == (9, 2)
    if wrong is None:
        frontier.unlink()
    else:
        frontier.write_text(json.dumps(known | wrong))
    write_log(tmp_path, count=3)
    assert verify(tmp_path / "log", key).records == 14


def test_opening_reads_the_newest_checkpoint_and_not_those_of_years(tmp_path):
    key = write_log(tmp_path)
    known = json.loads((tmp_path / "log" / "frontier.json").read_text())
    with (tmp_path / "log" / "checkpoints").open("rb") as file:
        file.seek(known["note"])
        (newest_note,) = read_notes(file, 1 << 20)
    assert Checkpoint.parse(read_signed_text(newest_note, key)).size == known["size"]


@pytest.mark.promise("Legal duties", "AI Act 19(1), 26(6): logs are kept for six months at least")
def test_segments_are_rotated_and_each_ends_signed(tmp_path):
    key = write_log(tmp_path, count=40, segment_bytes=4000, checkpoint_records=1000)
    files = sorted((tmp_path / "log").glob("decisions-*.jsonl"))
    assert len(files) > 3
    assert [path.name for path in files[:2]] == ["decisions-000001.jsonl", "decisions-000002.jsonl"]
    notes = (tmp_path / "log" / "checkpoints").read_text()
    total = 0
    for path in files[:-1]:
        total += len(path.read_text().splitlines())
        assert f"\n{total}\n" in notes
    write_log(tmp_path, count=1)
    assert verify(tmp_path / "log", key).records == 45


def test_a_checkpoint_is_signed_after_so_many_records(tmp_path):
    with open_log(tmp_path, checkpoint_records=5) as log:
        fill(log, 3)
        log.flush()
        assert verify(tmp_path / "log", log.public_key).signed == 1
        fill(log, 2)
        log.flush()
        # A flush waits for the write; the signature follows it.
        wait_until(lambda: verify(tmp_path / "log", log.public_key).signed == 6)


def test_a_checkpoint_is_signed_after_so_many_seconds(tmp_path):
    with open_log(tmp_path, checkpoint_seconds=0.02) as log:
        fill(log, 1)
        wait_until(lambda: verify(tmp_path / "log", log.public_key).signed == 2)


def test_a_clock_that_jumps_back_is_visible_and_does_no_harm(tmp_path):
    seconds = iter([1_000_000.5, 2_000_000.25, 10.0, 3_000_000.0])
    with open_log(tmp_path, clock=lambda: next(seconds)) as log:
        fill(log, 2)
    entries = list(read_entries(tmp_path / "log"))
    assert [entry.time for entry in entries[:3]] == [
        "1970-01-12T13:46:40.500000+00:00",
        "1970-01-24T03:33:20.250000+00:00",
        "1970-01-01T00:00:10.000000+00:00",
    ]
    ticks = [entry.monotonic_ns for entry in entries]
    assert ticks == sorted(ticks)
    assert isinstance(verify(tmp_path / "log", log.public_key), VerifiedLog)


@pytest.mark.promise("Legal duties", "GDPR 32: security")
def test_keys_are_for_their_owner_only_and_the_public_key_is_for_all(tmp_path):
    with open_log(tmp_path, contents=unchanged) as log:
        fill(log, 1)
    for secret in ("audit.key", "audit.key.digest", "log/contents-000001.jsonl"):
        assert (tmp_path / secret).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "audit.key.pub").read_text() == f"{log.public_key}\n"


def test_two_logs_do_not_share_a_key_at_a_time(tmp_path):
    with open_log(tmp_path), pytest.raises(AuditError, match="in use"):
        open_log(tmp_path)
    open_log(tmp_path).close()


def test_two_logs_do_not_share_a_folder_at_a_time(tmp_path):
    with open_log(tmp_path) as log:
        fill(log, 1)
        for name in ("audit.key", "audit.key.digest"):
            copy = tmp_path / "copies" / name
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes((tmp_path / name).read_bytes())
        with pytest.raises(AuditError, match="in use"):
            LocalLog.open(
                tmp_path / "log", key=tmp_path / "copies" / "audit.key", settings=settings()
            )
        fill(log, 1, start=1)
    assert isinstance(verify(tmp_path / "log", log.public_key), VerifiedLog)


def test_keys_that_are_whole_are_only_read(tmp_path):
    public = tmp_path / "audit.key.pub"
    write_log(tmp_path)
    os.utime(public, ns=(0, 0))
    open_log(tmp_path).close()
    assert public.stat().st_mtime_ns == 0
    public.write_text("of an older key\n")
    with open_log(tmp_path) as log:
        assert public.read_text() == f"{log.public_key}\n"


def test_a_log_is_not_continued_with_another_key(tmp_path):
    write_log(tmp_path)
    (tmp_path / "audit.key").unlink()
    with pytest.raises(AuditError, match="not signed by"):
        open_log(tmp_path)


def test_a_log_that_was_cut_is_not_continued(tmp_path):
    write_log(tmp_path)
    (tmp_path / "log" / "decisions-000001.jsonl").write_bytes(b"")
    with pytest.raises(AuditError, match="truncated"):
        open_log(tmp_path)


def test_a_file_that_is_no_key_is_named(tmp_path):
    (tmp_path / "audit.key").write_text("hello\n")
    with pytest.raises(InputError, match=r"audit\.key: not a private key"):
        open_log(tmp_path)


def test_a_folder_that_cannot_be_is_named(tmp_path):
    (tmp_path / "log").write_text("a file")
    with pytest.raises(InputError, match="cannot keep an audit log"):
        open_log(tmp_path)


def test_a_closed_log_takes_nothing(tmp_path):
    log = open_log(tmp_path)
    log.close()
    log.close()
    with pytest.raises(AuditError, match="closed"):
        log_decision(log, "late")


def test_contents_are_kept_on_request_and_replayed(tmp_path):
    with open_log(tmp_path, contents=unchanged, segment_bytes=3000) as log:
        for start in range(0, 12, 4):
            fill(log, 4, start)
            log.flush()
    assert len(list((tmp_path / "log").glob("contents-*.jsonl"))) > 1
    assert list(read_collaborations(tmp_path / "log")) == [
        (f"r{n}", COLLABORATION) for n in range(12)
    ]


def test_the_contents_of_a_request_are_not_those_that_name_it_elsewhere(tmp_path):
    call = ToolCall(id="r1", name="search", arguments="{}")
    answer = Message(role="tool", content="", call_id="r1")
    messages = (Message(role="assistant", content="", calls=(call,)), answer)
    other = replace(COLLABORATION, prompt=Prompt(id="p", messages=messages))
    with open_log(tmp_path, contents=unchanged) as log:
        log_decision(log, "other", other)
        log_decision(log, "r1")
    assert contents_for(tmp_path / "log", "other") == [other]
    assert contents_for(tmp_path / "log", "r1") == [COLLABORATION]


def test_without_contents_there_is_nothing_to_replay(tmp_path):
    write_log(tmp_path)
    with pytest.raises(InputError, match="holds no contents"):
        list(read_collaborations(tmp_path / "log"))


def test_a_damaged_line_is_named(tmp_path):
    with open_log(tmp_path, contents=unchanged) as log:
        fill(log, 2)
    for name in ("decisions-000001.jsonl", "contents-000001.jsonl"):
        path = tmp_path / "log" / name
        path.write_bytes(path.read_bytes().replace(b'"id":"r1"', b'"id":17', 1))
    with pytest.raises(InputError, match=r"decisions-000001\.jsonl:3: "):
        list(read_entries(tmp_path / "log"))
    with pytest.raises(InputError, match=r"contents-000001\.jsonl:2: "):
        list(read_collaborations(tmp_path / "log"))


@pytest.mark.promise(
    "Legal duties", "AI Act 13(3)(f): deployers can collect, keep and read the logs"
)
def test_the_newest_entries_are_found_and_an_unknown_id_is_named(tmp_path):
    write_log(tmp_path, count=9)
    assert [entry.event for entry in newest(tmp_path / "log", Query(), 2)] == ["decision", "closed"]
    with pytest.raises(InputError, match="no decision 'r99'"):
        find(tmp_path / "log", "r99")
    with pytest.raises(InputError, match="holds no audit log"):
        find(tmp_path, "r1")


@pytest.mark.promise("Legal duties", "AI Act 73: serious incidents are reported")
def test_a_proof_shows_one_decision_to_somebody_who_has_no_log(tmp_path):
    key = write_log(tmp_path, count=12)
    (proof,) = prove(tmp_path / "log", "r4")
    assert json.loads(proof.line)["decision"]["id"] == "r4"
    checkpoint = Checkpoint.parse(read_signed_text(proof.checkpoint, key))
    path = [base64.b64decode(node) for node in proof.hashes]
    leaf = leaf_hash(proof.line.encode())
    assert includes(checkpoint.root, checkpoint.size, leaf, proof.index, path)


def test_a_log_can_be_checked_while_it_is_written(tmp_path):
    results = []
    with open_log(tmp_path, checkpoint_records=3, segment_bytes=5000) as log:
        done = threading.Event()

        def check():
            while not done.is_set():
                results.append(verify(tmp_path / "log", log.public_key))

        checker = threading.Thread(target=check)
        checker.start()
        for start in range(0, 200, 4):
            fill(log, 4, start)
            log.flush()
        done.set()
        checker.join()
    assert results
    assert [result for result in results if isinstance(result, LogFault)] == []


def test_the_verifier_needs_nothing_of_the_rest_of_the_house():
    room = Path(verify.__globals__["__file__"]).parent
    alone = {"merkle", "note", "verify"}
    for name in alone:
        text = (room / f"{name}.py").read_text()
        imports = [line for line in text.splitlines() if line.startswith(("import", "from"))]
        ours = [line.split()[1] for line in imports if "waltzrl" in line]
        assert {module.removeprefix("waltzrl.store.audit.") for module in ours} <= alone


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_writer_that_died_of_a_mistake_is_not_passed_over(tmp_path):
    log = open_log(tmp_path, contents=lambda collaboration: 1 / 0)
    log_decision(log, "r0")
    with pytest.raises(AuditError, match="has died"):
        log.flush()
    with pytest.raises(AuditError, match="has died"):
        log.ready()
    with pytest.raises(AuditError, match="are lost"):
        log.close()
    assert verify(tmp_path / "log", log.public_key).records == 1


def test_what_happens_to_the_gateway_stands_among_the_decisions(tmp_path):
    with open_log(tmp_path) as log:
        fill(log, 1)
        log.notice({"kind": "release", "action": "roll_back", "why": "unsafe"})
    entries = list(read_entries(tmp_path / "log"))
    assert [entry.event for entry in entries] == ["opened", "decision", "notice", "closed"]
    assert entries[2].notice == {"kind": "release", "action": "roll_back", "why": "unsafe"}


def test_the_digest_of_a_turn_names_a_call_as_ever_and_only_other_kinds_by_their_kind():
    function = ToolCall(id="1", name="f", arguments="{}")
    custom = ToolCall(id="2", name="g", arguments="+a", kind="custom")
    prompt = Prompt(
        id="42",
        messages=(
            Message(role="assistant", content="", calls=(function, custom)),
            Message(role="tool", content="5", call_id="1"),
        ),
    )
    record = record_of(ServedExchange(id="42", time=0.0), prompt, bytes.decode)
    assert record.prompt == (
        '[{"role":"assistant","content":"","calls":[{"id":"1","name":"f","arguments":"{}"},'
        '{"id":"2","name":"g","arguments":"+a","kind":"custom"}]},'
        '{"role":"tool","content":"5","call_id":"1"}]'
    )
