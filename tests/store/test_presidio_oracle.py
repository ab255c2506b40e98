"""Presidio as an oracle: whatever it finds and we do not is listed here, with the reason."""

import json

import pytest

from support import planting
from waltzrl.store.privacy.scanner import PersonalDataScanner

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("presidio")]  # it takes seconds to import

KINDS = ("email", "credit_card", "iban", "ssn", "ip_address")
"""Those that both know and both confirm."""
OTHERS = (
    "Write to 'Ada L.' <ada.l@mail.example.co.uk> or ADA@EXAMPLE.ORG; cc: x+y@example.io",
    "pay 5271583049627157 or 3530 1113 3330 0000, not 1234567812345678",
    "GB82 WEST 1234 5698 7654 32, FR14 2004 1010 0505 0001 3M02 606, NL91ABNA0417164300",
    "his ssn 536-90-4399, hers 219-99-9999",
    "hosts 8.8.8.8, 192.168.0.0/16, 2a01:4f8:85a3::8a2e:370:7334 and ::ffff:192.0.2.128",
)
EXPLAINED = {
    ("version", "ip_address"): "a version number of four parts is no address",
    ("agent", "ip_address"): "neither is the version of a browser",
    ("code", "ip_address"): "nor a slice in code, a[::2]",
    ("host", "ip_address"): "0.0.0.0, 127.0.0.1, ::1 and 255.255.255.0 are nobody's",
    ("no ssn", "ssn"): "numbers from 900 on are never issued",
    ("mistyped nir", "credit_card"): "no issuer's cards begin with 1",
    ("coordinates", "credit_card"): "digits behind a decimal point",
    ("row", "credit_card"): "four numbers of a table with twelve in a row",
}
"""False alarms of presidio's by family of the corpus, none of which has anything planted."""


@pytest.fixture(scope="module")
def presidio():
    # spacy takes seconds to import, so only the tests that need it pay for it
    from support.presidio_oracle import Presidio

    return Presidio()


def missed(text, presidio, scanner):
    """Return what presidio finds where our scanner finds nothing."""
    covered = {place for f in scanner.find(text) for place in range(f.start, f.end)}
    return [
        (f.kind, text[f.start : f.end])
        for f in presidio.find(text)
        if f.kind in KINDS and not covered & set(range(f.start, f.end))
    ]


def test_what_presidio_finds_and_we_do_not_is_explained(presidio):
    scanner = PersonalDataScanner()
    lines = [json.loads(line) for line in planting.CORPUS.read_text().splitlines()]
    alarms = {
        (line["family"], kind)
        for line in lines
        for kind, _piece in missed(line["text"], presidio, scanner)
    }
    assert alarms == set(EXPLAINED)


@pytest.mark.parametrize("text", OTHERS)
def test_nothing_that_presidio_finds_in_ordinary_texts_is_missed(presidio, text):
    assert presidio.find(text)
    assert missed(text, presidio, PersonalDataScanner()) == []
