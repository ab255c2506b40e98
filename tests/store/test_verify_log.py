"""Every way to tamper with a log, on real files."""

import json
import shutil
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.small_logs import open_log, write_log
from waltzrl.store.audit.merkle import leaf_hash, root_of
from waltzrl.store.audit.note import Checkpoint, PublicKey, SigningKey
from waltzrl.store.audit.verify import LogFault, VerifiedLog, verify

RECORDS = 42
"""Of the log `written`: opened, 40 decisions, closed."""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A closed log in several segments, with a checkpoint every few records; never changed."""
    folder = tmp_path_factory.mktemp("written")
    write_log(folder, segment_bytes=8000)
    return folder


@pytest.fixture
def log(written, tmp_path):
    """A copy to tamper with."""
    shutil.copytree(written, tmp_path / "copy")
    return tmp_path / "copy" / "log"


def check(log, trusted=None):
    key = PublicKey.parse((log.parent / "audit.key.pub").read_text())
    return verify(log, key, trusted)


def fault(log, trusted=None):
    found = check(log, trusted)
    assert isinstance(found, LogFault), found
    return found.kind, found.record


def load(log):
    """Return all lines, each with the file it stands in."""
    return [
        (path, line)
        for path in sorted(log.glob("decisions-*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]


def save(log, lines):
    for path in log.glob("decisions-*.jsonl"):
        path.write_bytes(b"".join(line + b"\n" for where, line in lines if where == path))


def tamper(log, change):
    lines = load(log)
    change(lines)
    save(log, lines)


def edited(line, **changes):
    return json.dumps(json.loads(line) | changes, separators=(",", ":")).encode()


def rechain(lines, start):
    """Make the lines from `start` on continue the chain again."""
    for number in range(start, len(lines)):
        path, line = lines[number]
        prev = sha256(lines[number - 1][1]).hexdigest() if number else "0" * 64
        lines[number] = (path, edited(line, seq=number, prev=prev))


def signing_key(log):
    return SigningKey.parse((log.parent / "audit.key").read_text())


def sign_anew(log):
    """What a thief of the key does: one checkpoint over all that stands there now."""
    key = signing_key(log)
    leaves = [leaf_hash(line) for _, line in load(log)]
    text = Checkpoint(origin=key.name, size=len(leaves), root=root_of(leaves)).text
    (log / "checkpoints").write_text(key.sign(text))


def test_an_honest_log_is_verified(written):
    found = check(written / "log")
    assert isinstance(found, VerifiedLog)
    assert (found.records, found.signed) == (RECORDS, RECORDS)
    assert found.checkpoints >= 8
    assert str(found) == f"ok: {RECORDS} records, {found.checkpoints} signed checkpoints"
    assert found.root == root_of([leaf_hash(line) for _, line in load(written / "log")]).hex()
    assert len(list((written / "log").glob("decisions-*"))) >= 4


@pytest.mark.promise("Legal duties", "AI Act 12(1): recorded events cannot be altered undetected")
@pytest.mark.promise("Faults of an audit log", "`flipped`")
@given(st.data())
def test_a_flipped_byte_is_found_and_its_record_named(written, tmp_path_factory, data):
    log = tmp_path_factory.mktemp("flipped") / "copy" / "log"
    shutil.copytree(written, log.parent)
    lines = load(log)
    number = data.draw(st.integers(0, len(lines) - 1))
    path, line = lines[number]
    place = data.draw(st.integers(0, len(line) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b not in (10, line[place])))
    lines[number] = (path, line[:place] + bytes([byte]) + line[place + 1 :])
    save(log, lines)
    assert fault(log) == ("flipped", number)


def test_a_decision_that_was_turned_round_is_named(log):
    def soften(lines):
        path, line = lines[17]
        lines[17] = (path, line.replace(b'"decision":"revised"', b'"decision":"draft"'))

    tamper(log, soften)
    assert fault(log) == ("flipped", 17)
    assert "record 17 was changed" in check(log).message


@pytest.mark.promise("Faults of an audit log", "`dropped`")
@pytest.mark.parametrize("number", [0, 1, 5, 20, RECORDS - 2])
def test_a_dropped_record_is_named(log, number):
    tamper(log, lambda lines: lines.pop(number))
    assert fault(log) == ("dropped", number)


@pytest.mark.promise("Faults of an audit log", "`reordered`")
@pytest.mark.parametrize(("first", "second"), [(0, 1), (7, 8), (3, 30), (RECORDS - 2, RECORDS - 1)])
def test_records_that_changed_places_are_named(log, first, second):
    def swap(lines):
        one, two = lines[first], lines[second]
        lines[first], lines[second] = (one[0], two[1]), (two[0], one[1])

    tamper(log, swap)
    assert fault(log) == ("reordered", first)


def test_a_record_that_stands_twice_is_named(log):
    tamper(log, lambda lines: lines.insert(20, (lines[19][0], lines[9][1])))
    assert fault(log) == ("reordered", 20)


@pytest.mark.promise("Faults of an audit log", "`truncated`")
@pytest.mark.parametrize("kept", [0, 1, 12, RECORDS - 1])
def test_a_truncated_log_is_named_with_the_first_record_that_is_gone(log, kept):
    def cut(lines):
        del lines[kept:]

    tamper(log, cut)
    assert fault(log) == ("truncated", kept)
    assert f"{RECORDS} were signed" in check(log).message


def test_a_log_that_ends_inside_a_line_is_truncated(log):
    path, line = load(log)[-1]
    path.write_bytes(path.read_bytes()[: -len(line) // 2])
    assert fault(log) == ("truncated", RECORDS - 1)


@pytest.mark.promise("Faults of an audit log", "`missing-segment`")
def test_a_missing_file_is_named_with_its_first_record(log):
    lines, files = load(log), sorted(log.glob("decisions-*.jsonl"))
    for path in (files[0], files[2]):
        hidden = path.with_suffix(".away")
        path.rename(hidden)
        first = next(number for number, (where, _) in enumerate(lines) if where == path)
        assert fault(log) == ("missing-segment", first)
        hidden.rename(path)
    files[-1].unlink()
    assert fault(log)[0] == "truncated"


@pytest.mark.promise("Legal duties", "AI Act 12(1): recorded events cannot be altered undetected")
@pytest.mark.promise("Faults of an audit log", "`forked`")
def test_who_writes_the_chain_anew_is_caught_by_the_next_checkpoint(log):
    def rewrite(lines):
        path, line = lines[17]
        lines[17] = (path, line.replace(b'"decision":"revised"', b'"decision":"draft"'))
        rechain(lines, 18)

    tamper(log, rewrite)
    kind, first = fault(log)
    assert kind == "forked"
    assert 17 - 5 <= first <= 17
    assert "chain was rewritten" in check(log).message


def test_who_drops_a_record_and_writes_the_chain_anew_is_caught_too(log):
    def rewrite(lines):
        del lines[17]
        rechain(lines, 17)

    tamper(log, rewrite)
    assert fault(log)[0] == "forked"


def test_two_signed_checkpoints_that_differ_are_a_fork(log):
    key = signing_key(log)
    other = Checkpoint(origin=key.name, size=RECORDS, root=bytes(32))
    with (log / "checkpoints").open("a") as file:
        file.write(key.sign(other.text))
    assert fault(log) == ("forked", RECORDS)
    assert "two signed checkpoints" in check(log).message


@pytest.mark.promise("Faults of an audit log", "`bad-signature`")
def test_a_checkpoint_that_nobody_signed_is_a_bad_signature(log):
    path = log / "checkpoints"
    path.write_text(path.read_text().replace(f"\n{RECORDS}\n", f"\n{RECORDS - 1}\n"))
    assert fault(log)[0] == "bad-signature"


def test_checkpoints_of_another_key_are_bad_signatures(log):
    other = SigningKey.generate("waltzrl.audit/other")
    assert verify(log, other.public).kind == "bad-signature"


@pytest.mark.parametrize("left", [None, "", "nonsense\n\n— x y\n"])
def test_a_log_without_checkpoints_is_vouched_for_by_nobody(log, left):
    (log / "checkpoints").unlink()
    if left is not None:
        (log / "checkpoints").write_text(left)
    assert fault(log) == ("bad-signature", 0)


def test_checkpoints_in_another_order_are_named(log):
    path = log / "checkpoints"
    notes = path.read_text().split("\n\n")
    notes[4:8] = notes[6:8] + notes[4:6]
    path.write_text("\n\n".join(notes))
    assert fault(log)[0] == "reordered"


def test_a_kept_checkpoint_shows_a_log_that_was_cut_with_its_checkpoints(log, tmp_path):
    kept = tmp_path / "kept"
    shutil.copy(log / "checkpoints", kept)
    assert isinstance(check(log, kept), VerifiedLog)

    def cut(lines):
        del lines[21:]

    tamper(log, cut)
    path = log / "checkpoints"
    notes = path.read_text().split("\n\n")
    end = next(n for n, note in enumerate(notes) if "\n" in note and int(note.split("\n")[1]) > 20)
    path.write_text("\n\n".join(notes[:end]) + "\n")
    assert isinstance(check(log), VerifiedLog)
    assert fault(log, kept) == ("truncated", 21)


def test_kept_checkpoints_are_in_any_order(log, tmp_path):
    kept = tmp_path / "kept"
    parts = (log / "checkpoints").read_text().split("\n\n")
    notes = [f"{text}\n\n{end}\n" for text, end in zip(parts[::2], parts[1::2], strict=False)]
    kept.write_text("".join(reversed(notes)))
    found = check(log, kept)
    assert isinstance(found, VerifiedLog)
    assert found.checkpoints == 2 * len(notes)
    tamper(log, lambda lines: lines.pop())
    assert fault(log, kept)[0] == "truncated"


def test_a_kept_checkpoint_shows_a_log_that_the_keys_thief_wrote_anew(log, tmp_path):
    kept = tmp_path / "kept"
    shutil.copy(log / "checkpoints", kept)

    def rewrite(lines):
        path, line = lines[17]
        lines[17] = (path, line.replace(b'"decision":"revised"', b'"decision":"draft"'))
        rechain(lines, 18)

    tamper(log, rewrite)
    sign_anew(log)
    assert isinstance(check(log), VerifiedLog)
    kind, first = fault(log, kept)
    assert kind == "forked"
    assert first <= 17


def test_a_kept_checkpoint_of_another_log_is_no_evidence(log, tmp_path):
    write_log(tmp_path / "other")
    assert fault(log, tmp_path / "other" / "log" / "checkpoints")[0] == "bad-signature"


def test_an_emptied_folder_is_truncated_to_who_kept_a_checkpoint(log, tmp_path):
    kept = shutil.copy(log / "checkpoints", tmp_path / "kept")
    shutil.rmtree(log)
    log.mkdir()
    assert fault(log, kept) == ("truncated", 0)
    with pytest.raises(FileNotFoundError, match="holds no audit log"):
        check(log)


@pytest.mark.parametrize("line", [b"[" * 100_000, b"\xff", b"{}", b"17", b'{"seq":true}', b""])
def test_a_line_that_is_no_record_is_a_flipped_one(log, line):
    def spoil(lines):
        lines[9] = (lines[9][0], line)

    tamper(log, spoil)
    assert fault(log) == ("flipped", 9)


def test_records_after_the_newest_checkpoint_are_told_apart(tmp_path):
    with open_log(tmp_path) as log:
        from support.small_logs import fill

        fill(log, 3)
        log.flush()
        found = verify(tmp_path / "log", log.public_key)
    assert (found.records, found.signed) == (4, 1)
    assert "the newest 3 are not signed yet" in str(found)
