"""Personal data that Faker makes up for ten countries, announced in their languages.

    pip install faker==40.54.0
    python -m support.faker_corpus    in tests/: writes faker_corpus.jsonl beside this file again

A line is {"region": ..., "kind": ..., "text": ..., "start": ..., "end": ...}. Faker (MIT licence)
is others' work: how names, addresses, telephones, accounts and national numbers of a country look
is its choice. Telephone numbers that no plan assigns and Aadhaar numbers with a wrong check digit
are left out; Faker draws some.
"""

import json
import tomllib
from pathlib import Path

import phonenumbers
from stdnum.in_ import aadhaar

CORPUS = Path(__file__).with_name("faker_corpus.jsonl")
SEED = 20261201
EACH = 12
LOCALES = {
    "US": "en_US", "GB": "en_GB", "DE": "de_DE", "FR": "fr_FR", "ES": "es_ES", "IT": "it_IT",
    "IN": "en_IN", "BR": "pt_BR", "NL": "nl_NL", "JP": "ja_JP",
}  # fmt: skip
NATIONAL = {
    "US": ("ssn", "my SSN is {}"), "GB": ("ssn", "National Insurance number: {}"),
    "FR": ("ssn", "n\u00b0 de s\u00e9curit\u00e9 sociale {}"), "ES": ("nie", "mi NIE es {}"),
    "IT": ("ssn", "codice fiscale {}"), "IN": ("aadhaar_id", "Aadhaar: {}"),
    "BR": ("cpf", "meu CPF \u00e9 {}"), "NL": ("ssn", "mijn BSN is {}"),
}  # fmt: skip
"""Region -> Faker's method for its national number, and a sentence; it has none for the others."""
SENTENCES = tomllib.loads(Path(__file__).with_name("faker_sentences.toml").read_text("utf-8"))
SENTENCES |= {"GB": SENTENCES["US"] | {"date": ["%d/%m/%Y", "%d %B %Y"]}}
SENTENCES |= {"IN": SENTENCES["GB"]}
ALONE = ("It is {}, as I said.", "({})", "{}\nThanks", '{{"value": "{}"}}')


def pieces(fake, region):
    """Yield kind, sentence and piece."""
    said = SENTENCES[region]
    for n in range(EACH):
        name = fake.name() if region == "JP" else f"{fake.first_name()} {fake.last_name()}"
        born = fake.date_of_birth(minimum_age=18).strftime(said["date"][n % 2])
        address = " ".join(fake.address().split("\n")) if region == "JP" else fake.address()
        yield "personal_name", said["personal_name"][n % 2], name
        yield "secret", said["secret"][n % 2], fake.password(length=10, special_chars=n % 2 == 0)
        yield "date_of_birth", said["date_of_birth"][n % 2], born
        yield "address", said["address"][n % 2], address.replace("\n", ", ")
        phone = dialled(fake, region)
        yield "phone announced", said["phone"][n % 2], phone
        if any(mark in phone for mark in "+ -()"):
            yield "phone", ALONE[n % 4], phone
        yield "credit_card", ALONE[n % 4], fake.credit_card_number()
        if region != "IN":  # Faker's are too short there
            yield "iban", ALONE[n % 4], fake.iban()
        yield "email", ALONE[n % 4], fake.ascii_free_email()
        yield "ip_address", ALONE[n % 4], fake.ipv4_public()
        yield "ip_address", ALONE[n % 4], fake.ipv6()
        if region in NATIONAL:
            method, sentence = NATIONAL[region]
            yield "national_id", sentence, national(getattr(fake, method), region)


def national(draw, region):
    """Return a number; of Aadhaar, which Faker draws without its check digit, the first valid."""
    while not aadhaar.is_valid(number := draw()) and region == "IN":
        pass
    return number


def dialled(fake, region):
    """Return the first number of a telephone plan."""
    while True:
        number = fake.phone_number()
        try:
            parsed = phonenumbers.parse(number, region)
        except phonenumbers.NumberParseException:
            continue
        if phonenumbers.is_valid_number(parsed) and parsed.extension is None:
            return number


def corpus():
    from faker import Faker

    for region, locale in LOCALES.items():
        fake = Faker(locale)
        fake.seed_instance(SEED)
        for kind, sentence, piece in pieces(fake, region):
            before, behind = (
                part.replace("{{", "{").replace("}}", "}") for part in sentence.split("{}")
            )
            start = len(before)
            line = {"region": region, "kind": kind, "text": before + piece + behind}
            yield line | {"start": start, "end": start + len(piece)}


if __name__ == "__main__":
    CORPUS.write_text("".join(f"{json.dumps(line)}\n" for line in corpus()))
