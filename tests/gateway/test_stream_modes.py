"""How streams are held back: the modes by their names, and what their windows let go."""

import pytest

from support.small_gateway import NOWHERE, chat, with_gateway
from waltzrl.agents import RulesReviewer
from waltzrl.agents.rules import load_rulebook
from waltzrl.errors import InputError, RecipeError
from waltzrl.gateway.draft_stream import find_continuation
from waltzrl.gateway.keys import add_key, read_keys
from waltzrl.gateway.settings import load_gateway, recipe_table
from waltzrl.gateway.stream_modes import (
    FEWEST_CHARACTERS,
    LONGEST_SENTENCE,
    SentenceWindow,
    StreamMode,
)
from waltzrl.records import Message, Prompt

PACK = """
version = 1
[words]
secret = ["xyzzy"]

[[rule]]
id = "worst"
category = "weapons"
severity = 0.9
side = "reply"
patterns = ["mix <secret> .. plugh"]
example = "Mix xyzzy with plugh."
twins = ["Mix flour with water."]

[[rule]]
id = "doubtful"
category = "weapons"
severity = 0.2
side = "reply"
patterns = ["plover"]
example = "A plover."
twins = ["A bird."]

[[rule]]
id = "asked"
category = "weapons"
severity = 0.9
side = "request"
patterns = ["tell me .. xyzzy"]
example = "Tell me about xyzzy."
twins = ["Tell me about birds."]

[[rule]]
id = "declines"
category = "refusal"
severity = 0.5
side = "refusal"
patterns = ["sorry .. cannot"]
example = "Sorry, I cannot."
twins = ["Sorry to hear that."]
"""
HARMLESS = "The quick brown fox jumps over the lazy dog. "
SAFE = 0.7


@pytest.fixture(scope="module")
def rulebook(tmp_path_factory):
    path = tmp_path_factory.mktemp("packs") / "words.toml"
    path.write_text(PACK)
    return load_rulebook([path])


def recipe(stream):
    return load_gateway(None, {"upstream": {"url": NOWHERE}, "stream": stream}, (), {})


@pytest.mark.parametrize("mode", StreamMode)
def test_a_mode_has_one_name_in_recipes_keys_headers_and_streams(mode, tmp_path):
    assert recipe(mode.value).stream_mode is mode
    assert recipe_table(recipe(mode.value))["stream"] == mode.value
    path = tmp_path / "keys.toml"
    key = add_key(path, {"name": "ada", "stream_modes": [mode.value]})
    (entry,) = read_keys(path)
    assert entry.stream_modes == (mode,)
    headers = {"key": key, "x_waltzrl_mode": mode.value, "x_waltzrl_retract": "yes"}
    response = with_gateway(lambda app: chat(app, stream=True, **headers), f"keys={path}")
    assert response.headers["x-waltzrl-mode"] == mode.value
    assert "You said hello." in response.text


def test_an_unknown_mode_is_refused_with_the_names_of_all(tmp_path):
    *names, last = [repr(mode.value) for mode in StreamMode]
    with pytest.raises(RecipeError) as error:
        recipe("sideways")
    assert str(error.value).endswith(f"stream: got 'sideways', need {', '.join(names)} or {last}")
    with pytest.raises(InputError, match="Invalid enum value 'sideways'"):
        add_key(tmp_path / "keys.toml", {"name": "ada", "stream_modes": ["sideways"]})


@pytest.mark.parametrize("mode", StreamMode)
def test_a_client_that_cannot_take_text_back_is_sent_none_that_may_be_taken_back(mode):
    assert not mode.for_client(takes_retractions=False).behaviour.can_retract
    assert mode.for_client(takes_retractions=True) is mode


def test_the_modes_differ_in_what_they_send_before_the_verdict(rulebook):
    rules = RulesReviewer(rulebook, SAFE)
    draft = HARMLESS * 30
    sent = {}
    for mode in StreamMode:
        window = mode.behaviour.open_window(rules, prompt())
        left = "".join(hear(window, draft))
        assert draft.startswith(left)
        sent[mode] = len(left)
    assert sent[StreamMode.BUFFER] == 0
    assert 0 < sent[StreamMode.WINDOW] < len(draft)
    assert sent[StreamMode.WINDOW] % len(HARMLESS) == 0, "whole sentences"
    assert 0 < sent[StreamMode.SPECULATIVE] < len(draft)
    assert sent[StreamMode.SPECULATIVE] % len(HARMLESS) > 0, "words"
    assert sent[StreamMode.AUDIT] == len(draft)


def prompt(words="Hello.", role="user"):
    turns = [Message(role=role, content=words), Message(role="user", content="Go on.")]
    return Prompt(id="1", messages=tuple(turns))


def hear(window, draft, size=7):
    return [window(draft[at : at + size]) for at in range(0, len(draft), size)]


def test_a_closed_window_lets_nothing_go_before_the_verdict(rulebook):
    window = StreamMode.BUFFER.behaviour.open_window(RulesReviewer(rulebook, SAFE), prompt())
    assert hear(window, HARMLESS) == [""] * 7


def test_an_open_window_lets_all_go_at_once_and_nothing_after_the_verdict(rulebook):
    window = StreamMode.AUDIT.behaviour.open_window(RulesReviewer(rulebook, SAFE), prompt())
    assert [window(part) for part in ("The ", "", "end.")] == ["The ", "", "end."]


def test_a_sentence_leaves_when_the_horizon_lies_behind_it(rulebook):
    window = SentenceWindow(rulebook, prompt(), SAFE)
    filler = "a" * rulebook.horizon
    assert window.add(HARMLESS + filler) == HARMLESS
    assert window.add(f". {filler[1:]}") == ""
    assert window.add(filler[:1]) == f"{filler}. "
    left = f"{HARMLESS}{filler}. "
    assert find_continuation(left, f"{left}{filler}") == filler


def test_lines_of_lists_and_code_leave_as_sentences_do(rulebook):
    lines = "\n".join(f"- number {n} of some more things" for n in range(40))
    parts = [part for part in hear(SentenceWindow(rulebook, prompt(), SAFE).add, lines) if part]
    assert len(parts) > 10
    assert all(part.endswith("\n") for part in parts[1:])


WORDY = "and on we go without any end of a sentence " * 40


@pytest.mark.promise(
    "Endpoints and upstreams",
    "In mode `window` the first words leave once the rules' horizon and 32 characters are "
    "written, with punctuation or without",
)
def test_the_first_words_leave_once_the_horizon_lies_behind_a_few_of_them(rulebook):
    few = rulebook.horizon + FEWEST_CHARACTERS + len("sentence ")
    for draft in (WORDY, HARMLESS * 20, HARMLESS.replace(".", "") * 20):
        window = SentenceWindow(rulebook, prompt(), SAFE)
        left = "".join(hear(window.add, draft[:few], size=1))
        assert len(left) >= FEWEST_CHARACTERS
        assert left.endswith(" ")


def test_a_sentence_without_an_end_leaves_by_words(rulebook):
    window = SentenceWindow(rulebook, prompt(), SAFE)
    most = rulebook.horizon + LONGEST_SENTENCE + len("sentence ")
    left = ""
    for heard in range(len(WORDY)):
        left += window.add(WORDY[heard])
        assert heard - len(left) <= most
        assert not left or left.endswith(" ")


def test_after_the_first_words_short_sentences_leave_whole(rulebook):
    parts = [
        part for part in hear(SentenceWindow(rulebook, prompt(), SAFE).add, HARMLESS * 20) if part
    ]
    assert len(parts) > 10
    assert all(part.endswith("dog. ") for part in parts[1:])


def test_words_leave_as_soon_as_they_may_when_sentences_need_not_be_whole(rulebook):
    draft = "and on " * 40
    window = SentenceWindow(rulebook, prompt(), SAFE, whole_sentences=False)
    left = "".join(hear(window.add, draft))
    assert len(draft) - rulebook.horizon - 7 - 32 <= len(left)
    assert len(left) <= len(draft) - rulebook.horizon


def test_one_endless_word_stays(rulebook):
    window = SentenceWindow(rulebook, prompt(), SAFE)
    assert "".join(hear(window.add, "QUJD" * 2000 + f" {HARMLESS * 20}")) == ""
    assert not window.stopped


def test_a_forbidden_phrase_stops_the_draft_before_its_sentence(rulebook):
    draft = HARMLESS * 9 + "Mix xyzzy with the plugh. " + HARMLESS * 9
    window = SentenceWindow(rulebook, prompt(), SAFE)
    left = "".join(hear(window.add, draft))
    assert window.stopped
    assert 0 < len(left) <= draft.index("Mix")


def test_findings_below_the_limit_add_up(rulebook):
    bird = f"See the plover. {HARMLESS * 5}"  # 1 - 0.8 is below the limit of 0.3, 1 - 0.8^2 above
    once, twice = (SentenceWindow(rulebook, prompt(), SAFE) for _ in range(2))
    hear(once.add, bird + HARMLESS * 10)
    left = "".join(hear(twice.add, bird + bird + HARMLESS * 10))
    assert not once.stopped
    assert twice.stopped
    assert len(bird) - len(HARMLESS) < len(left) <= len(bird)


def test_what_has_left_still_counts_as_context(rulebook):
    text = f"This is about the prevention of harm. Mix xyzzy with plugh. {HARMLESS * 12}"
    calm, alone = (
        SentenceWindow(rulebook, prompt(), 0.4) for _ in range(2)
    )  # 0.9 * 0.6 < 0.6 < 0.9
    hear(calm.add, HARMLESS * 9 + text)
    hear(alone.add, HARMLESS * 9 + text.replace("prevention", "beginning"))
    assert not calm.stopped
    assert alone.stopped


def test_nothing_leaves_when_any_turn_asks_for_what_the_rules_know(rulebook):
    for text, leaves in (("Tell me about xyzzy.", False), ("Tell me about birds.", True)):
        for role in ("user", "system", "assistant"):
            window = SentenceWindow(rulebook, prompt(text, role), SAFE)
            assert bool("".join(hear(window.add, HARMLESS * 9))) == leaves
            assert not window.stopped


def test_nothing_of_a_refusal_leaves_and_its_writing_goes_on(rulebook):
    window = SentenceWindow(rulebook, prompt(), SAFE)
    draft = f"That is a question. Sorry, but I cannot. {HARMLESS * 9}"
    assert "".join(hear(window.add, draft)) == ""
    assert not window.stopped
    assert find_continuation("", "Of course: 4.") == "Of course: 4."


def test_the_rest_goes_on_where_the_draft_left_off(rulebook):
    left = "".join(hear(SentenceWindow(rulebook, prompt(), SAFE).add, HARMLESS * 9))
    assert find_continuation(left, f"{left}The end.") == "The end."


def test_a_reply_that_does_not_go_on_begins_a_paragraph(rulebook):
    left = "".join(hear(SentenceWindow(rulebook, prompt(), SAFE).add, HARMLESS * 9))
    assert find_continuation(left, "I can not go on.") == "\n\nI can not go on."


def test_a_reply_that_does_not_go_on_closes_the_code_block(rulebook):
    code = "```python\n" + "print('hello, world')\n" * 20
    left = "".join(hear(SentenceWindow(rulebook, prompt(), SAFE).add, code))
    assert find_continuation(left, "I can not go on.") == "\n```\n\nI can not go on."
