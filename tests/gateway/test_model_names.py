import asyncio

import pytest

from support.small_gateway import chat, gateway
from waltzrl.gateway.model_names import ModelNames
from waltzrl.store.audit.reading import read_entries
from waltzrl.store.privacy.redaction import RedactionRules
from waltzrl.store.privacy.scanner import PersonalDataScanner

SCRUB = RedactionRules({}, PersonalDataScanner()).scrub


@pytest.mark.parametrize(
    "name",
    ["llama", "gpt-4o-2024-08-06", "claude-3-5-sonnet-20241022", "meta-llama/Llama-3.1-8B:free",
     "accounts/fireworks/models/qwen2p5", "Qwen/Qwen2.5-0.5B-Instruct", "ft:gpt-4o:org::9abCdEf1"],
)  # fmt: skip
def test_what_looks_like_a_name_is_recorded(name):
    assert ModelNames(scrub=SCRUB).recorded(name) == name


@pytest.mark.promise("Personal data", "No text of a client comes into a log as the name of a model")
@pytest.mark.parametrize(
    "text",
    ["My name is Ada Lovelace", "ada@example.com", "4539148803433654", "card-4539-1488-0343-3654",
     "m" * 65, "ssn-536-90-4399", "", "a\nb", "\u738b", "sk-proj-aB3dE5gH7jK9mN1pQ2rS4tU6vW8"],
)  # fmt: skip
def test_any_other_text_of_a_client_is_not(text):
    assert ModelNames(scrub=SCRUB).recorded(text) == "other"


def test_a_name_that_an_upstream_or_the_recipe_knows_is_recorded_whatever_it_looks_like():
    names = ModelNames({"my own model", "17"}.__contains__)
    assert [names.recorded(name) for name in ("17", "my own model", "llama")] == [
        "17", "my own model", "other",
    ]  # fmt: skip


def test_thousands_of_names_are_not_kept_in_memory():
    names = ModelNames(scrub=str)
    assert all(names.recorded(f"m{number}") == f"m{number}" for number in range(5000))
    assert len(names._recorded) == 1000


@pytest.mark.promise("Personal data", "No text of a client comes into a log as the name of a model")
def test_no_text_of_a_client_comes_into_the_audit_log_as_the_name_of_a_model(tmp_path):
    text = "My name is Ada Lovelace, card 4539 1488 0343 3654"
    names = (text, "4539148803433654", "m" * 9000, "llama-3.1")

    async def served():
        async with gateway(f"audit.folder={tmp_path / 'audit'}", "audit.contents=true") as app:
            for name in names:
                await chat(app, name)

    asyncio.run(served())
    decisions = [entry.decision for entry in read_entries(tmp_path / "audit") if entry.decision]
    assert [decision.model for decision in decisions] == ["other", "other", "other", "llama-3.1"]
    for file in tmp_path.glob("audit/*"):
        content = file.read_bytes()
        said = (b"Lovelace", b"4539 1488", b"4539148803433654", b"m" * 300)
        assert not any(piece in content for piece in said), file
