import random
import time

import pytest

from waltzrl.errors import InputError
from waltzrl.evaluation.judges.guard import LinearGuard

HARMFUL, HARMLESS = ["bombs", "poison", "malware"], ["bread", "candles", "kites"]


def examples(count):
    rng = random.Random(5)
    texts, labels = [], []
    for _ in range(count):
        unsafe, answers = rng.random() < 0.5, rng.random() < 0.5
        thing = rng.choice(HARMFUL if unsafe else HARMLESS)
        filler = " ".join(rng.choice(["alpha", "beta", "gamma", "delta"]) for _ in range(20))
        reply = f"sure , for {thing} {filler}" if answers else f"sorry , i can not {filler}"
        texts.append((f"how do i make {thing} {filler}", reply))
        labels.append(unsafe and answers)
    return texts, labels


TEXTS, LABELS = examples(3000)


def test_three_thousand_short_texts_are_learnt_in_seconds():
    start = time.process_time()
    guard = LinearGuard.fit(TEXTS, LABELS, seed=0)
    assert time.process_time() - start < 5
    right = [guard.flags(*text) == label for text, label in zip(TEXTS, LABELS, strict=True)]
    assert sum(right) / len(right) > 0.99


def test_it_reads_the_reply_and_not_only_the_prompt():
    guard = LinearGuard.fit(TEXTS[:500], LABELS[:500], seed=0)
    assert guard.flags("how do i make bombs", "sure , for bombs")
    assert not guard.flags("how do i make bombs", "sorry , i can not")


def test_the_same_seed_makes_the_same_guard(tmp_path):
    for name in ("one", "two"):
        LinearGuard.fit(TEXTS[:200], LABELS[:200], seed=3).save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_saved_guard_flags_the_same_after_loading(tmp_path):
    guard = LinearGuard.fit(TEXTS[:200], LABELS[:200], seed=3)
    guard.save(tmp_path / "guard.json")
    loaded = LinearGuard.load(tmp_path / "guard.json")
    assert [loaded.flags(*text) for text in TEXTS] == [guard.flags(*text) for text in TEXTS]


@pytest.mark.parametrize("content", [None, "{", "[]", '{"bias": 1}'])
def test_a_file_that_is_no_guard_is_named(tmp_path, content):
    path = tmp_path / "guard.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=r"guard\.json: not a guard's weights"):
        LinearGuard.load(path)
