from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from waltzrl.errors import InputError
from waltzrl.evaluation.data.generator.generate import demonstrations, generate
from waltzrl.evaluation.data.opening import read_audited_collaborations, read_sets
from waltzrl.foundation.jsonl import read_prompts, write_lines
from waltzrl.records import Collaboration, Demonstration, Message, Prompt, Reply
from waltzrl.training.data import (
    rollout_prompts,
    training_demonstrations,
    training_prompts,
    validation_prompts,
)
from waltzrl.training.recipe import DataSettings, load_recipe

TINY = Path(__file__).parents[2] / "recipes" / "tiny.toml"


def prompt(name, text):
    return Prompt(id=name, messages=(Message(role="user", content=text),), label="benign")


def test_files_splits_and_public_sets_are_read_in_order(tmp_path):
    own, public = tmp_path / "own.jsonl", tmp_path / "advbench.csv"
    write_lines(own, [prompt("a", "How do I bake bread?")])
    public.write_text("goal,target\nA question,An answer\n")
    found = read_sets([str(own), f"advbench:{public}", "generator:validation"])
    assert [one.id for one in found[:2]] == ["a", "advbench/1"]
    assert len(found) == 2 + sum(record.split == "validation" for record in generate())


def test_an_unknown_split_is_refused():
    with pytest.raises(InputError, match="train, validation, test"):
        read_sets(["generator:tests"])


def test_a_training_prompt_that_is_held_out_stops_the_run(tmp_path):
    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    write_lines(train, [prompt("a", "How do I bake bread?"), prompt("b", "How do I boil eggs?")])
    write_lines(test, [prompt("c", "how do I BAKE bread")])
    with pytest.raises(InputError, match="'c' is train 'a'"):
        training_prompts(DataSettings(prompts=(str(train),), held_out=(str(test),)))


def test_sets_that_share_ids_are_named_by_their_files(tmp_path):
    files = [tmp_path / folder / "test.jsonl" for folder in ("harmful", "benign")]
    for file in files:
        file.parent.mkdir()
        write_lines(file, [{"prompt": f"{file.parent.name} question"}])
    halves = [tmp_path / f"{half}-behaviors.csv" for half in ("harmful", "benign")]
    for half in halves:
        half.write_text(f"Goal,Behavior,Category\nA {half.stem} question,Theft,Crime\n")
    names = [*map(str, files), *(f"jailbreakbench:{half}" for half in halves)]
    assert [one.id for one in read_sets(names)] == [
        "harmful/test/test/1",
        "benign/test/test/1",
        "harmful-behaviors/jailbreakbench/1",
        "benign-behaviors/jailbreakbench/1",
    ]
    assert {one.id for one in read_sets(names[::-1])} == {one.id for one in read_sets(names)}
    assert [one.id for one in read_sets(names[:1])] == ["test/1"]
    assert [one.cluster for one in read_sets(names[2:])] == ["jailbreakbench/Theft"] * 2
    assert [one.id for one in read_sets(names[:1] * 2)] == ["test/1"] * 2


def labelled(path, *texts, label):
    write_lines(path, [replace(prompt(text, text), label=label) for text in texts])
    return str(path)


@pytest.mark.promise("Evaluation", "Training, validation and held-out prompts do not touch")
def test_validation_prompts_are_taken_evenly_and_touch_neither_training_nor_test(tmp_path):
    asked = [f"How do I {verb} bread?" for verb in ("bake", "slice", "toast", "freeze", "buy")]
    benign = labelled(tmp_path / "benign.jsonl", *asked, label="benign")
    unsafe = labelled(tmp_path / "unsafe.jsonl", "How is poison made?", label="unsafe")
    data = DataSettings(prompts=(), validation=(unsafe, benign), validation_limit=3)
    assert [one.id for one in validation_prompts(data)] == [
        "How is poison made?",  # of six, every second
        "How do I slice bread?",
        "How do I freeze bread?",
    ]
    with pytest.raises(InputError, match="is train"):
        training_prompts(DataSettings(prompts=(benign,), validation=(benign, unsafe)))
    with pytest.raises(InputError, match="is train"):
        validation_prompts(replace(data, held_out=(unsafe,)))
    assert validation_prompts(DataSettings(prompts=())) == []


def test_a_limit_keeps_both_labels_where_they_alternate(tmp_path):
    rows = [
        replace(prompt(text, text), label=label)
        for number in range(8)
        for label, text in (("unsafe", f"harm {number}"), ("benign", f"help {number}"))
    ]
    write_lines(tmp_path / "both.jsonl", rows)
    path = str(tmp_path / "both.jsonl")
    data = DataSettings(prompts=(), validation=(path,), validation_limit=8)
    chosen = validation_prompts(data)
    assert [one.label for one in chosen].count("unsafe") == 4
    assert chosen == [row for row in rows if row in chosen]


def test_validation_needs_both_labels_and_prompts_that_stay_the_same(tmp_path):
    benign = labelled(tmp_path / "benign.jsonl", "How do I bake bread?", label="benign")
    with pytest.raises(InputError, match=r"data\.validation has 0 unsafe and 1 benign prompts"):
        validation_prompts(DataSettings(prompts=(), validation=(benign,)))
    with pytest.raises(ValueError, match="changes while the run lasts"):
        DataSettings(prompts=(), validation=("memory:sqlite:///m.db",))


def test_demonstrations_come_from_a_file_and_the_limit_holds(tmp_path):
    path = tmp_path / "demonstrations.jsonl"
    said = Collaboration(prompt=prompt("a", "How?"), draft=Reply(text="So."))
    write_lines(path, [Demonstration(collaboration=said)] * 3)
    data = DataSettings(prompts=(), demonstrations=(str(path),), limit=2)
    assert training_demonstrations(data) == [Demonstration(collaboration=said)] * 2


def test_the_generators_records_in_a_file_are_demonstrations_too(tmp_path):
    path = tmp_path / "generated.jsonl"
    write_lines(path, [record for record in generate() if record.split == "validation"])
    from_file, from_name = (
        training_demonstrations(DataSettings(demonstrations=(name,), limit=40))
        for name in (str(path), "generator:validation")
    )
    assert from_file == from_name
    assert len(from_file) == 40  # ten records, four turns of each


def test_a_demonstration_of_a_held_out_prompt_stops_a_run(tmp_path):
    learned = labelled(tmp_path / "learned.jsonl", "How do I bake bread?", label="benign")
    held_out = labelled(tmp_path / "held-out.jsonl", "How do I kill a process?", label="benign")
    (shown,) = read_prompts(Path(held_out))
    demonstration = Demonstration(
        collaboration=Collaboration(prompt=shown, draft=Reply(text="So."))
    )
    recipe = load_recipe(TINY, ["data.limit=2"])
    data = DataSettings(prompts=(learned,), held_out=(held_out,))
    assert len(rollout_prompts(recipe, data, [])) == 1
    with pytest.raises(InputError, match="1 of 1 test prompts are in the training prompts"):
        rollout_prompts(recipe, data, [demonstration])


def test_training_needs_a_set_of_prompts_and_demonstrations_that_are_there(tmp_path):
    path = tmp_path / "demonstrations.jsonl"
    path.write_text("\n")
    with pytest.raises(InputError, match=r"data\.prompts names no set"):
        training_prompts(DataSettings(prompts=()))
    with pytest.raises(InputError, match=r"demonstrations\.jsonl holds no demonstrations"):
        training_demonstrations(DataSettings(prompts=(), demonstrations=(str(path),)))


def test_a_line_that_is_no_demonstration_is_named(tmp_path):
    path = tmp_path / "demonstrations.jsonl"
    path.write_text('{"prompt": "a"}\n')
    with pytest.raises(InputError, match=r"demonstrations\.jsonl:1: not a demonstration"):
        training_demonstrations(DataSettings(prompts=(), demonstrations=(str(path),)))


def test_the_generators_demonstrations_teach_both_roles_both_kinds_equally():
    records = [record for record in generate() if record.split == "train"][:200]
    taught = [demonstration.collaboration for demonstration in demonstrations(records)]
    reviews = [said.rounds[-1].feedback for said in taught if said.rounds]
    content = [one for one in reviews if not one.asks_for_revision]
    assert sum(one.unsafe for one in reviews) == sum(one.overrefuse for one in reviews) > 0
    assert len(content) * 3 == len(reviews)  # of a draft's four turns three have feedback
    assert sum(said.revised for said in taught) * 4 == len(taught)
    for said in taught:
        harmful = said.prompt.label == "unsafe"
        assert all(
            r.feedback.unsafe is harmful for r in said.rounds if r.feedback.asks_for_revision
        )
    assert msgspec.convert(msgspec.to_builtins(taught[3]), Collaboration) == taught[3]


def test_choices_of_one_request_in_an_audit_log_are_prompts_of_their_own(tmp_path):
    asked = prompt("r", "How?")
    said = [Collaboration(prompt=asked, draft=Reply(text=text)) for text in ("One.", "Two.")]
    content = {"id": "r", "subject": "", "time": 0.0}
    lines = [msgspec.json.encode(content | {"collaboration": one}) + b"\n" for one in said]
    (tmp_path / "contents-000001.jsonl").write_bytes(b"".join(lines))
    found = list(read_audited_collaborations(f"audit:{tmp_path}"))
    assert [one.draft.text for one in found] == ["One.", "Two."]
    assert [one.prompt for one in found] == read_sets([f"audit:{tmp_path}"])
    assert [one.prompt.id for one in found] == ["r", "r/2"]
