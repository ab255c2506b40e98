import json
import shutil

import pytest
from typer.testing import CliRunner

from support.small_logs import write_log
from waltzrl.errors import InputError
from waltzrl.store.audit.commands import audit


@pytest.fixture
def log(tmp_path):
    write_log(tmp_path, count=8)
    return tmp_path / "log"


def call(*arguments):
    return CliRunner().invoke(audit, [str(word) for word in arguments])


def test_an_honest_log_is_ok_and_exits_with_0(log):
    for key in (log.parent / "audit.key.pub", (log.parent / "audit.key.pub").read_text()):
        result = call("verify", log, "--key", key)
        assert result.exit_code == 0
        assert result.output.startswith("ok: 10 records, ")


def test_a_fault_is_named_and_exits_with_1(log):
    path = log / "decisions-000001.jsonl"
    path.write_text(path.read_text().replace('"team-a"', '"team-b"', 1))
    result = call("verify", log, "--key", log.parent / "audit.key.pub")
    assert result.exit_code == 1
    assert result.output.startswith("fault: flipped: record 1 was changed")
    shown = call("verify", log, "--key", log.parent / "audit.key.pub", "--json")
    assert shown.exit_code == 1
    assert json.loads(shown.output)["kind"] == "flipped"
    assert json.loads(shown.output)["record"] == 1


def test_a_checkpoint_kept_elsewhere_is_believed(log, tmp_path):
    kept = shutil.copy(log / "checkpoints", tmp_path / "kept")
    shutil.rmtree(log)
    log.mkdir()
    result = call("verify", log, "--key", log.parent / "audit.key.pub", "--checkpoint", kept)
    assert result.exit_code == 1
    assert result.output.startswith("fault: truncated: the log ends before record 0")


@pytest.mark.parametrize("kept", ["", "no checkpoint\n", "waltzrl.audit/x\n7\n"])
def test_a_file_without_a_checkpoint_proves_nothing(log, tmp_path, kept):
    (tmp_path / "kept").write_text(kept)
    trusted = ("--key", log.parent / "audit.key.pub", "--checkpoint", tmp_path / "kept")
    result = call("verify", log, *trusted)
    assert result.exit_code == 1
    expected = f"fault: bad-signature: {tmp_path / 'kept'} holds no checkpoint to compare with\n"
    assert result.output == expected


def test_a_key_is_found_in_a_folder_with_a_plus_and_another_file_is_none(log, tmp_path):
    (tmp_path / "a+b").mkdir()
    kept = shutil.copy(log.parent / "audit.key.pub", tmp_path / "a+b")
    assert call("verify", log, "--key", kept).exit_code == 0
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    assert isinstance(call("verify", log, "--key", tmp_path / "binary").exception, InputError)


def test_what_is_no_key_and_what_is_no_log_are_errors(log):
    assert isinstance(call("verify", log, "--key", "a+b+c").exception, InputError)
    assert isinstance(call("verify", log, "--key", log / "none").exception, InputError)
    nowhere = call("verify", log.parent / "x", "--key", log.parent / "audit.key.pub")
    assert isinstance(nowhere.exception, FileNotFoundError)
    trusted = ("--key", log.parent / "audit.key.pub", "--checkpoint", log / "none")
    assert isinstance(call("verify", log, *trusted).exception, FileNotFoundError)


def test_a_private_key_given_by_mistake_is_not_repeated(log):
    key = log.parent / "audit.key"
    for given in (key, key.read_text()):
        said = str(call("verify", log, "--key", given).exception)
        assert "but the private one; keep that secret" in said
        assert key.read_text().split("+")[-1][:8] not in said


def test_a_decision_is_shown_whole_and_the_newest_in_a_line_each(log):
    page = call("show", log, "r3").output
    for said in ("record 4", "team-a", "revised", "refusal/plain", "round 1", "0.25"):
        assert said in page
    assert "notice" not in page
    lines = call("show", log).output.splitlines()
    assert len(lines) == 10
    assert "(opened)" in lines[0]
    assert "r7" in lines[8]
    assert json.loads(call("show", log, "r3", "--json").output)[0]["decision"]["id"] == "r3"


@pytest.mark.parametrize("folder", [".", "../log", "below/..", "../log/."])
def test_a_log_is_shown_from_within_its_folder(log, monkeypatch, folder):
    (log / "below").mkdir()
    shutil.copy(log.parent / "audit.key.digest", log.parent / "log.key.digest")
    monkeypatch.chdir(log)
    found = json.loads(call("show", folder, "--subject", "user-17", "--json").output)
    assert [entry["decision"]["id"] for entry in found] == [f"r{number}" for number in range(8)]


def test_a_proof_is_json(log):
    (proof,) = json.loads(call("prove", log, "r3").output)
    assert proof["index"] == 4
    assert json.loads(proof["line"])["decision"]["id"] == "r3"
    assert proof["checkpoint"] in (log / "checkpoints").read_text()
