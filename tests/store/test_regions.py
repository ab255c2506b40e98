"""Telephones, national numbers and hint words of the ten default regions."""

import pytest

from waltzrl.errors import InputError
from waltzrl.store.privacy.detection import DEFAULT_REGIONS
from waltzrl.store.privacy.opening import open_redaction
from waltzrl.store.privacy.scanner import PersonalDataScanner
from waltzrl.store.privacy.settings import PrivacyConfig

SCANNER = PersonalDataScanner()
PHONES = {
    "US": ["(212) 555-0132", "415-555-0101"],
    "GB": ["020 7946 0958", "07911 123456", "07911123456", "(0161)4960415"],
    "DE": ["030 23125 000", "0151 23456789", "030/23125000"],
    "FR": ["06 12 34 56 78", "01.42.68.53.00", "0612345678"],
    "ES": ["612 345 678", "91 555 01 23", "612 34 56 78"],
    "IT": ["347 123 4567", "06 6982 1234"],
    "IN": ["98765 43210", "022 2345 6789"],
    "BR": ["(11) 91234-5678", "11 91234-5678", "(11) 3123-4567"],
    "NL": ["06-12345678", "020 123 4567", "0612345678"],
    "JP": ["03-1234-5678", "090-1234-5678", "09012345678"],
}
HINTED = [
    ("Mein Passwort lautet geheim7", "secret", "geheim7"),
    ("mot de passe : soleil77", "secret", "soleil77"),
    ("la contrase\u00f1a es perro77", "secret", "perro77"),
    ("a contrasena: perro77", "secret", "perro77"),
    ("minha senha \u00e9 gato77", "secret", "gato77"),
    ("wachtwoord: kaas1234", "secret", "kaas1234"),
    ("\u30d1\u30b9\u30ef\u30fc\u30c9: hunter2x", "secret", "hunter2x"),
    ("\u092a\u093e\u0938\u0935\u0930\u094d\u0921: hunter2x", "secret", "hunter2x"),
    ("Ich hei\u00dfe Ada Lovelace.", "personal_name", "Ada Lovelace"),
    ("Pr\u00e9nom : Ada", "personal_name", "Ada"),
    ("Mi chiamo Ada Lovelace.", "personal_name", "Ada Lovelace"),
    ("\u6c0f\u540d\uff1a\u5c71\u7530\u592a\u90ce", "personal_name", "\u5c71\u7530\u592a\u90ce"),
    ("geboren am 3. Mai 1985 in Ulm", "date_of_birth", "3. Mai 1985"),
    ("I was born on May 3rd, 1985.", "date_of_birth", "May 3rd, 1985"),
    ("n\u00e9e le 12 avril 1975", "date_of_birth", "12 avril 1975"),
    ("\u751f\u5e74\u6708\u65e5\uff1a1990\u5e745\u670812\u65e5", "date_of_birth",
     "1990\u5e745\u670812\u65e5"),
    ("I live at 221B Baker Street, London. I like tea.", "address", "221B Baker Street, London"),
    ("Adresse : 12 rue de la Paix, 75002 Paris", "address", "12 rue de la Paix, 75002 Paris"),
    ("Indirizzo: Via Roma, 8, 10062, Luserna (TO)", "address", "Via Roma, 8, 10062, Luserna (TO)"),
    ("\u500b\u4eba\u756a\u53f7 1234 5678 9018", "national_id", "1234 5678 9018"),
    ("Mein Handy: 0151 23456789", "phone", "0151 23456789"),
]  # fmt: skip
ORDINARY = [
    "The address is reserved per RFC 3879.", "Return the site-local address space of RFC 3879.",
    "address: 0x7fff 12", "email address: see page 12", "IP address: port 8080 is open (tcp)",
    "5. Your address:\n6. Your age", "self.name = None", 'name = "MainThread"',
    "Customer: Thank you! I'm fine.", "Customer: No, I think so.", "He was born in 1985 in Ulm.",
    "The ISBN is 0306406152.", "EUR 039545.00", "part 12-345-6789-0", "62.09.23-107",
    "born on a Monday, 12 of 30", "my name is long", "Nombre de casos: 12",
    "le mot de passe est faux",
]  # fmt: skip


def found(text, scanner=SCANNER):
    return [(f.kind, text[f.start : f.end]) for f in scanner.find(text)]


@pytest.mark.promise(
    "Personal data",
    "A telephone is found as it is written in its country, of those that the recipe names",
)
@pytest.mark.parametrize("region", DEFAULT_REGIONS)
def test_a_telephone_is_found_as_it_is_written_in_its_country_and_only_if_asked_for(region):
    at_home = PersonalDataScanner(["phone"], regions=[region])
    elsewhere = PersonalDataScanner(["phone"], regions=["IS"])
    for number in PHONES[region]:
        for text in (f"It is {number}, thanks", f"({number})"):
            assert found(text) == found(text, at_home) == [("phone", number)]
            assert found(text, elsewhere) == []


@pytest.mark.promise(
    "Personal data",
    "A telephone is found as it is written in its country, of those that the recipe names",
)
@pytest.mark.parametrize(
    ("region", "number"),
    [("GB", "AB123456C"), ("GB", "AB 12 34 56 C"), ("IN", "ABCPE1234F"), ("DE", "36 574 261 809")],
)
def test_some_national_numbers_need_no_word_in_their_region(region, number):
    text = f"It is {number}."
    assert found(text, PersonalDataScanner(regions=[region])) == [("national_id", number)]
    assert found(text, PersonalDataScanner(regions=["IS"])) == []


@pytest.mark.promise(
    "Personal data",
    "Names, passwords, dates of birth and addresses are found after the words of nine languages, "
    "and ordinary text holds nothing",
)
@pytest.mark.parametrize(("text", "kind", "piece"), HINTED)
def test_what_is_announced_is_found_in_nine_languages(text, kind, piece):
    assert (kind, piece) in found(text)


@pytest.mark.promise(
    "Personal data",
    "Names, passwords, dates of birth and addresses are found after the words of nine languages, "
    "and ordinary text holds nothing",
)
@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_holds_nothing(text):
    assert found(text) == []


@pytest.mark.promise(
    "Personal data",
    "A telephone is found as it is written in its country, of those that the recipe names",
)
def test_the_regions_of_a_recipe_are_those_of_its_scanner():
    scrub = open_redaction(PrivacyConfig(regions=("FR",))).scrub
    assert scrub("06 12 34 56 78, 612 345 678") == "[REDACTED:phone], 612 345 678"
    with pytest.raises(InputError, match="'XX'"):
        open_redaction(PrivacyConfig(regions=("XX",)))
