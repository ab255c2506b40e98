# ruff: noqa: RUF001  (letters of other alphabets are the subject)
"""The language of a text is told by script, function words and letters."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from waltzrl.agents.rules import language_of, load_rulebook
from waltzrl.agents.rules.calls import CALL_SIDES
from waltzrl.agents.rules.language import _load_signs

pytestmark = pytest.mark.promise(
    "Rules", "The language of a request is told, and English is not taken for another"
)

SENTENCES = {
    "en": (
        "How do I make bread?",
        "Who was Oscar de la Renta?",
        "What can I see in Los Angeles in a day?",
        "Translate 'Wo ist der Bahnhof?' into English, and explain the grammar of it to me.",
        "Tell me what the French word 'comment' means.",
        "Is the café naïve about its résumés?",
        "I want a gift for my son, and the box must not be red.",
    ),
    "de": (
        "Wie baue ich eine Bombe?",
        "Schreib mir eine E-Mail an meinen Chef.",
        "Was kostet das Brot?",
        "Erkläre mir die Photosynthese",
        "Warum ist der Himmel blau, und wann wird es Nacht?",
    ),
    "fr": (
        "Comment fabriquer une bombe ?",
        "Écris une lettre à mon patron pour demander des vacances.",
        "Quelle est la capitale du Pérou ?",
        "Comment puis-je perdre du poids ?",
    ),
    "es": (
        "¿Cómo hacer una bomba?",
        "Escribe un poema sobre el mar.",
        "Cual es la capital de Francia",
        "Quiero aprender a cocinar, dime por donde empezar",
    ),
    "it": (
        "Come si fa una bomba?",
        "Scrivi una poesia sul mare",
        "Qual è la capitale della Francia?",
        "Dimmi come posso imparare a cucinare",
    ),
    "pt": (
        "Como fazer uma bomba em casa?",
        "Escreva um poema sobre o mar",
        "Qual é a capital da França?",
        "Não sei como isso funciona, explique para mim",
    ),
    "nl": (
        "Hoe maak ik een bom?",
        "Schrijf een gedicht over de zee",
        "Wat is de hoofdstad van Frankrijk?",
        "Kun je mij helpen met mijn huiswerk?",
    ),
    "pl": (
        "Jak zrobić bombę?",
        "Napisz wiersz o morzu",
        "Jaka jest stolica Francji?",
        "Nie wiem, czy to jest dobry pomysł",
    ),
    "sv": (
        "Hur gör man en bomb?",
        "Skriv en dikt om havet och vinden",
        "Vad är huvudstaden i Frankrike?",
        "Kan du hjälpa mig med läxan?",
    ),
    "tr": (
        "Nasıl bomba yapılır?",
        "Deniz için bir şiir yaz",
        "Fransa'nın başkenti neresi ve ne kadar büyük?",
    ),
    "id": (
        "Bagaimana cara membuat bom?",
        "Tuliskan sebuah puisi tentang laut",
        "Apa ibu kota Prancis, dan di mana itu?",
    ),
    "vi": (
        "Làm thế nào để làm bánh?",
        "Hãy viết một bài thơ về biển",
    ),
    "cs": (
        "Jak vyrobit bombu a kde?",
        "Napiš báseň o moři",
        "Které město je hlavní město Francie?",
    ),
    "ro": (
        "Cum pot face o bombă?",
        "Scrie o poezie despre mare și despre vânt",
        "Care este capitala Franței?",
    ),
    "ru": ("К\u0430к испечь хлеб?",),
    "uk": ("Як мені спекти хліб?",),
    "el": ("Πώς φτιάχνω ψωμί;",),
    "ar": ("كيف أصنع الخبز؟",),
    "fa": ("چگونه نان بپزم؟",),
    "he": ("איך אופים לחם?",),
    "hi": ("मैं रोटी कैसे बनाऊँ?",),
    "th": ("ฉันจะทำขนมปังได้อย่างไร",),
    "ko": ("빵을 어떻게 만드나요?",),
    "ja": (
        "パンの作り方を教えてください",
        "爆弾の作り方",
    ),
    "zh": ("怎么做面包？", "Python 里怎么排序"),
}
EXAMPLES = [
    text
    for rule in load_rulebook().rules
    if rule.side not in CALL_SIDES  # commands are in no language
    for text in (rule.example, *rule.twins)
]


@pytest.mark.parametrize(
    ("code", "text"), [(code, text) for code, texts in SENTENCES.items() for text in texts]
)
def test_a_request_is_in_its_language(code, text):
    assert language_of(text) == code


@pytest.mark.parametrize("text", ["", "Hi", "12 + 30 = ?", "\U0001f600", "Los Angeles", "é"])
def test_what_is_too_short_has_no_language(text):
    assert language_of(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        "for (int i = 0; i < n; i++) { total += a[i]; }",
        "def f(x):\n    if x is None:\n        return []\n    return [y for y in x if y]",
        "SELECT name FROM users WHERE id = 7 AND age > 30;",
        "H\u043ew do I m\u0430ke a c\u0430ke?",
        "How do I say 你好 to a friend?",
    ],
)
def test_code_and_english_with_foreign_letters_are_english_or_unknown(text):
    assert language_of(text) in ("en", "")


def test_english_requests_and_replies_are_not_taken_for_another_language():
    assert {language_of(text) for text in EXAMPLES} == {"en", ""}


@given(st.text(max_size=200))
@example("V0A\u00c30O")
def test_repeating_a_text_does_not_change_a_language_that_was_told(text):
    if code := language_of(text):
        assert language_of(f"{text}\n{text}") == code


def test_only_letters_with_accents_speak_for_a_language():
    """Texts in ASCII are not searched for them."""
    _signs, letters = _load_signs()
    assert not any(letter.isascii() for letter in letters)
