"""Plants personal data in ordinary texts, and writes texts that only look as if they held some.

    python tests/support/planting.py        writes corpus.jsonl beside this file again

A line is {"family": ..., "text": ..., "planted": [[kind, start, end], ...]}. Whatever is not
planted is a false alarm when it is found. Addresses, telephones and names are those set aside for
examples; numbers are drawn by lot and belong to nobody we know of.
"""

import itertools
import json
import random
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

from support import check_digits

CORPUS = Path(__file__).with_name("corpus.jsonl")
SEED = 20261120

SENTENCES = (
    "{}", "Please use {} for the refund.", "It is {}, as I said before.", "({})", "#{}",
    "Old: {}; new: none.", '{{"value": "{}", "count": 3}}', "12;{};open;2026-11-05",
    "<td>{}</td>", "Is '{}' right?", "Ref. 17\n{}\nThanks!", "| 3 | {} | yes |", "Voici {}.",
    "2026-11-05T10:00:00Z INFO form field={} step=4", "Bitte pr\u00fcfen Sie {} bis morgen.",
    "\u8bf7\u6838\u5bf9 {}\uff0c\u8c22\u8c22\u3002", "\u53f7\u7801{}\u8c22\u8c22",
    'x = "{}"  # from the form', "We got {} yesterday and answered at 10:30.",
    "\U0001f44b {} \U0001f64f", "q={}&next=/home", "Numbers: 7, {}.", "a)\t{}\tb)",
)  # fmt: skip
PHONES = (
    "(212) 555-01{:02}", "415-555-01{:02}", "312.555.01{:02}", "1-202-555-01{:02}",
    "+1 303 555 01{:02}", "+1 (617) 555-01{:02}", "+44 20 7946 09{:02}", "+44 161 496 01{:02}",
    "+4930231250{:02}", "+33 1 99 00 12 {:02}", "+61 2 5550 12{:02}", "+1-503-555-01{:02}",
)  # fmt: skip
PHONE_HINTS = ("Tel: {}", "phone {}", "Mobile: {}", "call {}", "Fax {}", "WhatsApp: {}")
LOCALS = (
    "ada", "a.lovelace", "grace+news", "info", "x_y", "first.last", "o'neil", "user%team", "b2b",
)  # fmt: skip
DOMAINS = (
    "example.com", "example.org", "mail.example.net", "example.co.uk", "sub.dept.example.edu",
    "xn--bcher-kva.example", "example-shop.de", "EXAMPLE.COM",
)  # fmt: skip
NAMES = (
    "Ada Lovelace", "Grace B. Hopper", "Jos\u00e9 \u00d1and\u00fa", "Anna-Lena van der Berg", "Ada",
    "\u738b\u5c0f\u660e",
)  # fmt: skip
NAME_HINTS = ("Name: {}", "Full Name: {}\nAge: 36", "Contact: {}, extension 3", "My name is {}.")
PASSWORDS = ("hunter2", "S3cure!pass", "correct-horse-7")
PASSWORD_HINTS = (
    "password: {}", "PASSWORD={}", '{{"password": "{}"}}', "the password is {}.", "pwd = '{}'",
)  # fmt: skip
NEVER_SSN = ("000-12-3456", "666-12-3456", "123-00-4567", "123-45-0000", "923-12-3456")
LOOKALIKES = {
    "timestamp": "started {now:%Y-%m-%dT%H:%M:%SZ}, ended {now:%d.%m.%Y %H:%M}, {now:%Y%m%d%H%M%S}",
    "epoch": "at {seconds}, in ms {seconds}{three}, in ns {seconds}{nine}",
    "order": "order {number} and parcel 1Z{number}, invoice INV-{now:%Y}-{six}",
    "version": "version {version}, v{version}, release {version} and numpy=={version}",
    "hash": "sha256:{digest}, commit {digest:.40}, short {digest:.7}",
    "uuid": "id {uuid}, or urn:uuid:{uuid}",
    "price": "$1,{three}.99, EUR {six}.00, {two}% of {number:,}",
    "coordinates": "{latitude:.6f}, {longitude:.6f} and {latitude:.15f}",
    "isbn": "ISBN {dashed_book} or {book}",
    "code": "x[{two}:{number}:2] = a[::2]; std::vector<int> v{{{commas}}};",
    "decorator": "@app.route('/a')\ndef f(x): return x@weights.T + 0x{digest:.8} + w@x.mean()",
    "log": "{now:%H:%M:%S}.{three} pid={six} took={longitude:.2f}ms id={digest:.32}",
    "columns": "{wide}\n{tabs}\n{commas}",
    "row": "{row}\n{row}",
    "mac": "mac {mac}, time 12:{two}:30:15",
    "agent": "Mozilla/5.0 Chrome/1{two}.0.0.0 Safari/537.36",
    "host": "listening on 127.0.0.1:8080, 0.0.0.0 and [::1]:8080, mask 255.255.255.0",
    "date": "from {now:%Y-%m-%d} to {now:%Y/%m/%d}, {now:%m/%d/%Y} and {now:%Y %m %d}",
    "placeholder": "password: <your password>, api_key=$API_KEY, token = get_token(), pwd: ****",
    "prose": "The password is wrong. Token: none. Her name: unknown. Call the shop {two} times.",
    "picture": "logo@2x.png is {two} KB; see git log --since={now:%Y-%m-%d}",
    "bytes": "read {number} bytes, 0.{number}{six}, 1e-{two}",
}


def planted(family, kind, sentence, piece):
    before, behind = sentence.split("{}")
    before, behind = (part.replace("{{", "{").replace("}}", "}") for part in (before, behind))
    start = len(before)
    return {
        "family": family,
        "text": before + piece + behind,
        "planted": [[kind, start, start + len(piece)]] if kind else [],
    }


def disguised(draw, number):
    """Write a number with wide digits, no-break spaces or characters without a width."""
    ways = (
        lambda: number.translate({ord("0") + n: 0xFF10 + n for n in range(10)}),
        lambda: number.replace(" ", "\u00a0").replace("-", "\u2011"),
        lambda: number[:5] + "\u200b" + number[5:9] + "\u2060" + number[9:],
        lambda: number.translate({ord("0") + n: 0x0660 + n for n in range(10)}),
    )
    return draw.choice(ways)()


def cards(draw):
    for n in range(110):
        piece = check_digits.grouped(check_digits.card(draw), draw.choice(("", " ", " ", "-")))
        if n % 6 == 0:
            piece = disguised(draw, piece)
        yield planted("card", "credit_card", draw.choice(SENTENCES), piece)
    for _ in range(110):
        piece = check_digits.mistyped(draw, check_digits.card(draw))
        piece = check_digits.grouped(piece, draw.choice(("", " ", "-")))
        yield planted("mistyped card", None, draw.choice(SENTENCES), piece)


def accounts(draw):
    for n in range(90):
        piece = check_digits.grouped(check_digits.iban(draw), draw.choice(("", " ", " ", "-")))
        if n % 6 == 0:
            piece = disguised(draw, piece)
        elif n % 6 == 1:
            piece = piece.lower()
        yield planted("iban", "iban", draw.choice(SENTENCES), piece)
    for _ in range(60):
        piece = check_digits.mistyped(draw, check_digits.iban(draw))
        piece = check_digits.grouped(piece, draw.choice(("", " ")))
        yield planted("mistyped iban", None, draw.choice(SENTENCES), piece)


def social_security(draw):
    for n in range(80):
        piece = check_digits.ssn(draw)
        if n % 3 == 0:
            hint = draw.choice(("SSN: {}", "my social security number is {}.", "ssn={}"))
            piece = piece.replace("-", draw.choice(("", " ", ".")))
            yield planted("announced ssn", "ssn", hint, piece)
        else:
            piece = disguised(draw, piece) if n % 6 == 1 else piece
            yield planted("ssn", "ssn", draw.choice(SENTENCES), piece)
    for sentence, never in itertools.product(SENTENCES[:8], NEVER_SSN):
        yield planted("no ssn", None, sentence, never)


def national_ids(draw):
    for number in check_digits.BY_THEMSELVES:
        for n in range(10):
            piece = number(draw)
            if n == 0 and piece[-1].isdigit():
                piece = disguised(draw, piece)
            yield planted(number.__name__, "national_id", draw.choice(SENTENCES), piece)
            piece = check_digits.mistyped(draw, number(draw))
            yield planted(f"mistyped {number.__name__}", None, draw.choice(SENTENCES), piece)


def announced_ids(draw):
    for number, hint in check_digits.ANNOUNCED:
        hints = (f"{hint}: {{}}", f"my {hint} number is {{}}.", f"({hint.lower()} {{}})")
        for n in range(12):
            yield planted(number.__name__, "national_id", hints[n % 3], number(draw))
            if number is not check_digits.nino:  # it has no check digit
                piece = check_digits.mistyped(draw, number(draw))
                yield planted(f"mistyped {number.__name__}", None, hints[n % 3], piece)


def addresses(draw):
    for _ in range(90):
        piece = f"{draw.choice(LOCALS)}@{draw.choice(DOMAINS)}"
        yield planted("email", "email", draw.choice(SENTENCES), piece)
    for _ in range(50):
        net = draw.choice(("81.169.145", "52.95.110", "172.16.4", "10.20.30", "192.168.1"))
        piece = f"{net}.{draw.randint(1, 254)}"
        yield planted("ipv4", "ip_address", draw.choice(SENTENCES), piece)
    for _ in range(25):
        parts = [f"{draw.randrange(1, 65536):x}" for _ in range(6)]
        long, short = f"2a01:4f8:{':'.join(parts)}", f"2a01:4f8::{parts[0]}"
        piece = draw.choice((long, short, f"fe80::{parts[1]}"))
        yield planted("ipv6", "ip_address", draw.choice(SENTENCES), piece)


def phones(draw):
    for _ in range(100):
        piece = draw.choice(PHONES).format(draw.randrange(100))
        yield planted("phone", "phone", draw.choice(SENTENCES), piece)
    for _ in range(34):
        piece = f"21255501{draw.randrange(100):02}"
        yield planted("announced phone", "phone", draw.choice(PHONE_HINTS), piece)


def names_and_passwords(_draw):
    for hint, name in itertools.product(NAME_HINTS, NAMES):
        yield planted("name", "personal_name", hint, name)
    for hint, password in itertools.product(PASSWORD_HINTS, PASSWORDS):
        yield planted("password", "secret", hint, password)


def lookalikes(draw):
    """Write what is no personal data, however much it looks like it."""
    for _ in range(12):
        cells = [str(draw.randrange(1000, 10000)) for _ in range(12)]
        digest = f"{draw.getrandbits(256):064x}"
        book = f"978{check_digits.digits(draw, 9)}"
        book += str(-sum(int(d) * (3 if n % 2 else 1) for n, d in enumerate(book)) % 10)
        values = {
            "now": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=draw.randrange(3 * 10**7)),
            "seconds": draw.randrange(16 * 10**8, 18 * 10**8),
            "number": draw.randrange(10**9, 10**10),
            "two": check_digits.digits(draw, 2),
            "three": check_digits.digits(draw, 3),
            "six": check_digits.digits(draw, 6),
            "nine": check_digits.digits(draw, 9),
            "version": ".".join(str(draw.randrange(30)) for _ in range(4)),
            "digest": digest,
            "uuid": uuid.UUID(int=draw.getrandbits(128), version=4),
            "latitude": draw.uniform(-90, 90),
            "longitude": draw.uniform(0, 180),
            "book": book,
            "dashed_book": "-".join((book[:3], book[3], book[4:7], book[7:12], book[12])),
            "commas": ", ".join(cells),
            "wide": "  ".join(cells),
            "tabs": "\t".join(cells),
            "row": " ".join(cells),
            "mac": ":".join(digest[n : n + 2] for n in range(0, 12, 2)),
        }
        for family, form in LOOKALIKES.items():
            yield {"family": family, "text": form.format(**values), "planted": []}


PLANTS = (
    cards, accounts, social_security, national_ids, announced_ids, addresses, phones,
    names_and_passwords, lookalikes,
)  # fmt: skip


def corpus():
    draw = random.Random(SEED)
    return [line for plant in PLANTS for line in plant(draw)]


if __name__ == "__main__":
    CORPUS.write_text("".join(f"{json.dumps(line)}\n" for line in corpus()))
