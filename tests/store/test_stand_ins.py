"""Stand-ins: what leaves, and what comes back, however a reply is cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.store.privacy.scanner import PersonalDataScanner
from waltzrl.store.privacy.stand_ins import StandIns, StandInStream

pytestmark = pytest.mark.promise(
    "Personal data",
    "With `privacy.upstream` nothing that is found leaves for a model, and replies are restored",
)
SCANNER = PersonalDataScanner()
PIECES = {
    "email": ("ada@example.com", "jörg.müller@beispiel.de"),
    "phone": ("+49 30 901820", "(212) 555-0187"),
    "credit_card": ("4539 1488 0343 3654", "4539148803433654"),
    "iban": ("DE89 3704 0044 0532 0130 00",),
    "ssn": ("536-90-4399",),
    "national_id": ("111.444.777-35",),
    "ip_address": ("10.1.2.34", "2a00:1450:4001:82a::200e"),
    "secret": ("ghp_0aB1cD2eF3gH4iJ5kL6mN7oP8qR9sT0uV1wX",),
}
FOUND_ANYWHERE = [piece for pieces in PIECES.values() for piece in pieces]
TEXTS = st.lists(
    st.sampled_from(
        [*FOUND_ANYWHERE, "[EMAIL_1]", "[PHONE_2]", "[EMAIL", "hello", "über", "\n", '"']
    )
).map(" ; ".join)


def stand_ins(*texts, numbered=True, **settings):
    return StandIns(SCANNER, numbered=numbered, written="\n".join(texts), **settings)


def concealed(text, **settings):
    ours = stand_ins(text, **settings)
    return ours.conceal_all(text, ours.conceal), ours


def cut(text, places):
    """Cut a text at some of its places."""
    ends = sorted({place % (len(text) + 1) for place in places})
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


@given(TEXTS, st.lists(st.integers(0, 10**6), max_size=12), st.booleans())
def test_a_reply_that_keeps_the_stand_ins_is_restored_however_it_is_cut(text, places, as_addresses):
    hidden, ours = concealed(text, as_addresses=as_addresses)
    assert ours.restore(hidden) == text
    stream = StandInStream(ours)
    assert "".join([*map(stream.add, cut(hidden, places)), stream.end()]) == text


@given(st.integers(0, 40), st.sampled_from([r"\_", r"\[]_"]))
def test_a_stand_in_whose_signs_markdown_escapes_is_restored(place, signs):
    hidden, ours = concealed("Mail ada@example.com, number 111.444.777-35")
    for sign in signs.strip("\\"):
        hidden = hidden.replace(sign, f"\\{sign}")
    assert "NATIONAL\\_ID" in hidden
    restored = "Mail ada@example.com, number 111.444.777-35"
    assert ours.restore(hidden) == restored
    stream = StandInStream(ours)
    assert "".join([*map(stream.add, cut(hidden, [place])), stream.end()]) == restored
    arguments = json.dumps({"text": hidden})
    assert json.loads(ours.restore_json(arguments)) == {"text": restored}
    assert json.loads(ours.restore(arguments, in_json=True)) == {"text": restored}


def test_a_backslash_before_a_stand_in_stays():
    hidden, ours = concealed("C:\\users\\ada@example.com\\notes")
    assert hidden == "C:\\users\\[EMAIL_1]\\notes"
    assert ours.restore(hidden) == "C:\\users\\ada@example.com\\notes"


@given(TEXTS, st.booleans())
def test_nothing_that_is_found_is_left(text, numbered):
    hidden, _ours = concealed(text, numbered=numbered)
    assert [piece for piece in FOUND_ANYWHERE if piece in hidden] == []


@pytest.mark.parametrize("kind", PIECES)
def test_a_stand_in_names_the_kind_and_is_the_same_for_equal_pieces(kind):
    piece = PIECES[kind][0]
    label = kind.upper()
    assert concealed(f"Use {piece} and {piece}.")[0] == f"Use [{label}_1] and [{label}_1]."
    assert concealed(f"Use {piece}.", numbered=False)[0] == f"Use [{label}]."


def test_stand_ins_keep_their_numbers_while_a_conversation_grows():
    turns = ["Mail ada@example.com", "Or bob@example.org", "Call +49 30 901820, ada@example.com"]
    written = [concealed("\n".join(turns[:end]))[0].split("\n") for end in (1, 2, 3)]
    assert written[2] == ["Mail [EMAIL_1]", "Or [EMAIL_2]", "Call [PHONE_1], [EMAIL_1]"]
    assert [written[0], written[1]] == [written[2][:1], written[2][:2]]


def test_a_piece_is_replaced_also_where_nothing_announces_it():
    said = ["I typed Hunter2 first. Hunter22 is another.", "My password: Hunter2"]
    ours = stand_ins(*said)
    hidden = ours.conceal_all(said, lambda texts: [ours.conceal(text) for text in texts])
    assert hidden == ["I typed [SECRET_1] first. Hunter22 is another.", "My password: [SECRET_1]"]


def test_what_only_looks_like_a_stand_in_stays():
    text = "[EMAIL_1] is a placeholder; [PHONE_4915112345678] hides nothing. ada@example.com"
    hidden, ours = concealed(text)
    assert hidden.startswith("[EMAIL_1] is a placeholder; [PHONE_")
    assert hidden.endswith("[EMAIL_2]")
    assert ours.restore("[EMAIL_1] [EMAIL_2] [EMAIL_9] [EMAIL_02] [EMAIL]") == (
        "[EMAIL_1] ada@example.com [EMAIL_9] [EMAIL_02] [EMAIL]"
    )


def test_a_mask_is_not_restored():
    hidden, ours = concealed("ada@example.com", numbered=False)
    assert (hidden, ours.restore("[EMAIL] [EMAIL_1]")) == ("[EMAIL]", "[EMAIL] [EMAIL_1]")
    assert not ours.restores


def test_a_piece_within_a_piece_is_restored():
    text = 'ada@example.com and password: "see ada@example.com No1"'
    hidden, ours = concealed(text)
    assert hidden == '[EMAIL_1] and password: "[SECRET_1]"'
    assert ours.restore(hidden) == text


def compact(value):
    return json.dumps(value, separators=(",", ":"))


KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\n-----END PRIVATE KEY-----"
ARGUMENTS = {
    "to": ["ada@example.com", "jörg.müller@beispiel.de"],
    "ssn": 536904399,
    "key": KEY,
    "password": "pa\\ss1Word",
    "ada@example.com": {"order": 17, "share": 0.5, "flag": True, "none": None},
    "inner": compact({"to": "ada@example.com", "key": KEY, "more": compact([KEY])}),
}


@pytest.mark.parametrize("ascii_only", [True, False])
def test_arguments_stay_json_and_come_back_equal(ascii_only):
    text = json.dumps(ARGUMENTS, ensure_ascii=ascii_only, indent=1)
    hidden, ours = concealed(text)
    assert json.loads(hidden)["ssn"] == "[SSN_1]"
    assert json.loads(json.loads(hidden)["inner"])["to"] == "[EMAIL_1]"
    for piece in ("ada", "m\\u00fcller", "müller", "536904399", "MIIE", "ss1Word"):
        assert piece not in hidden
    assert json.loads(ours.restore_json(hidden)) == ARGUMENTS


@given(st.integers(0, 150))
def test_truncated_arguments_are_restored_as_far_as_they_go(end):
    flat = {name: ARGUMENTS[name] for name in ("to", "key", "password", "ada@example.com")}
    hidden, ours = concealed(json.dumps(flat))
    whole, part = ours.restore_json(hidden), ours.restore_json(hidden[:end])
    # Only the stand-in at the cut may be left, whose beginning nobody can restore.
    assert whole.startswith(part[: part.rfind("[")] if "[" in part[-20:] else part)


def test_a_reply_in_json_is_restored_in_json_while_it_is_streamed():
    hidden, ours = concealed(f"Use\n{KEY}\nand ada@example.com")
    assert hidden == "Use\n[SECRET_1]\nand [EMAIL_1]"
    reply = '{"to": "[EMAIL_1]", "key": "[SECRET_1]"}'
    stream = StandInStream(ours)
    streamed = "".join([*(stream.add(one, in_json=True) for one in reply), stream.end()])
    assert streamed == ours.restore(reply, in_json=True)
    assert json.loads(streamed) == {"to": "ada@example.com", "key": KEY}


@pytest.mark.parametrize(
    "hiding", ["ada\\u0040example.com", "4539 1488\\n0343 3654 \\ud83d\\ude00"]
)
def test_what_escapes_hide_outside_of_json_is_replaced_where_it_stands(hiding):
    text = f"\\ud83d\\ude00 C:\\new {hiding} \\d+"
    hidden, ours = concealed(text)
    assert hidden.startswith("\\ud83d\\ude00 C:\\new [")
    assert ours.restore(hidden) == text


def test_an_address_stands_in_for_an_address_where_a_schema_wants_one():
    hidden, ours = concealed("ada@example.com, email-1@stand-in.invalid", as_addresses=True)
    assert hidden == "email-2@stand-in.invalid, email-3@stand-in.invalid"
    assert ours.restore(hidden) == "ada@example.com, email-1@stand-in.invalid"


def test_small_numbers_are_not_searched_and_objects_that_are_none_are_text():
    ours = stand_ins()
    assert ours.conceal_value({"ssn": 12345, "list": [1, 2.5, None, False]}) == {
        "ssn": 12345,
        "list": [1, 2.5, None, False],
    }
    assert ours.conceal("[ada@example.com]") == "[[EMAIL_1]]"


def test_json_that_is_nested_too_deeply_is_searched_as_a_text():
    nested = f'{"[" * 700}"ada@example.com\\n"{"]" * 700}'
    assert concealed(nested)[0] == nested.replace("ada@example.com", "[EMAIL_1]")


def test_keys_nested_values_and_numbers_are_concealed():
    value = {
        "ada@example.com": [{"card": 4539148803433654, "share": 0.5, "is": True, "no": None}],
        "grace@example.com": ("10.1.2.3", 7, float("inf"), 10**5000, 4539148803433654.0),
    }
    assert stand_ins().conceal_value(value) == {
        "[EMAIL_1]": [{"card": "[CREDIT_CARD_1]", "share": 0.5, "is": True, "no": None}],
        "[EMAIL_2]": ["[IP_ADDRESS_1]", 7, float("inf"), 10**5000, "[CREDIT_CARD_1]"],
    }


def test_a_key_is_a_hint_on_its_value():
    value = {"ssn": 536904399, "password": "swordfish", "full_name": "x", "name": "Ada Lovelace"}
    assert stand_ins().conceal_value(value) == {
        "ssn": "[SSN_1]",
        "password": "[SECRET_1]",
        "full_name": "x",
        "name": "[PERSONAL_NAME_1]",
    }


def test_a_value_without_personal_data_is_the_same_value():
    value = {"a": [1, 2.5, None, True, "text"], "b": {"c": "2026-11-05"}}
    assert stand_ins().conceal_value(value) == value
