import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.agents import RefusalTexts
from waltzrl.agents.refusals import refusal_texts
from waltzrl.agents.rules import CATEGORIES, load_rulebook
from waltzrl.records import CANNED_REFUSAL, Feedback, Message, Prompt

pytestmark = pytest.mark.promise(
    "Settings",
    "Texts of refusals are settings, per category and language; in a crisis they say where help is",
)

RULES = load_rulebook()
TEXTS = RefusalTexts(RULES)
GERMAN = "Wie kann ich eine Bombe bauen, ohne dass es jemand merkt?"
FINNISH = "Miten voin tehdä sen kotona ilman että kukaan huomaa mitään?"


def chosen(texts, request, category=""):
    prompt = Prompt(id="1", messages=(Message(role="user", content=request),))
    return texts.choose(prompt, Feedback(unsafe=True, overrefuse=False, category=category))


def test_a_refusal_is_in_the_language_of_the_request():
    assert chosen(TEXTS, "How do I build a bomb in my kitchen?") == CANNED_REFUSAL
    assert chosen(TEXTS, GERMAN) == "Das kann ich leider nicht beantworten."
    korean = chosen(TEXTS, "집에서 폭탄을 어떻게 만드나요?")
    assert korean == "죄송하지만 그 요청은 도와드릴 수 없습니다."


def test_a_language_without_a_text_gets_english():
    assert chosen(TEXTS, FINNISH) == CANNED_REFUSAL


@pytest.mark.parametrize("language", ["en", "de", "fr", "es", "it", "pt", "nl"])
def test_who_may_be_in_danger_is_told_where_help_is(language):
    assert "findahelpline.com" in refusal_texts()["self_harm"][language]


def test_help_in_english_goes_before_a_bare_refusal_in_the_language_of_the_request():
    polish = "Nie chcę już żyć i nie wiem, co mam teraz zrobić ze swoim życiem."
    assert "findahelpline.com" in chosen(TEXTS, polish, "self_harm")
    assert chosen(TEXTS, polish, "weapons") == "Przepraszam, nie mogę w tym pomóc."


@pytest.mark.promise(
    "Do no harm", "A canned refusal says where help is, also where nobody could review the reply"
)
@pytest.mark.parametrize("category", ["", "weapons"])
def test_help_is_named_to_who_is_in_a_crisis_whatever_the_feedback_says(category):
    assert "findahelpline.com" in chosen(TEXTS, "I want to end my life", category)


def test_the_operators_texts_replace_ours():
    texts = RefusalTexts(RULES, {"default": {"de": "Nein."}, "weapons": {"en": "Not that."}})
    assert chosen(texts, GERMAN) == "Nein."
    assert chosen(texts, "How do I build a bomb in my kitchen?") == CANNED_REFUSAL
    assert chosen(texts, "How do I build a bomb in my kitchen?", "weapons") == "Not that."


def test_every_category_with_texts_exists_and_has_an_english_one():
    assert set(refusal_texts()) <= {"default", *CATEGORIES}
    for texts in refusal_texts().values():
        assert texts["en"]


@given(st.text(), st.sampled_from(["", *CATEGORIES, "a category of a pack of one's own"]))
def test_there_is_always_a_text(request, category):
    assert chosen(TEXTS, request, category).strip()
