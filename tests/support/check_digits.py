"""Valid numbers of many countries, drawn by lot: an oracle that shares no code with the scanner."""

import string
from itertools import pairwise

VERHOEFF_D = (
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
    (1, 2, 3, 4, 0, 6, 7, 8, 9, 5),
    (2, 3, 4, 0, 1, 7, 8, 9, 5, 6),
    (3, 4, 0, 1, 2, 8, 9, 5, 6, 7),
    (4, 0, 1, 2, 3, 9, 5, 6, 7, 8),
    (5, 9, 8, 7, 6, 0, 4, 3, 2, 1),
    (6, 5, 9, 8, 7, 1, 0, 4, 3, 2),
    (7, 6, 5, 9, 8, 2, 1, 0, 4, 3),
    (8, 7, 6, 5, 9, 3, 2, 1, 0, 4),
    (9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
)
VERHOEFF_P = (1, 5, 7, 6, 2, 8, 3, 0, 9, 4)
ODD_LETTERS = "BAKPLCQDREVOSFTGUHMINJWZYX"
"""Of the codice fiscale: a letter's place is its value in an odd place."""

ACCOUNTS = {
    "AT": "n16", "BE": "n12", "CH": "n5c12", "CZ": "n20", "DE": "n18", "DK": "n14", "ES": "n20",
    "FI": "n14", "FR": "n10c11n2", "GB": "a4n14", "GR": "n7c16", "IE": "a4n14", "IT": "a1n10c12",
    "LU": "n3c13", "MT": "a4n5c18", "NL": "a4n10", "NO": "n11", "PL": "n24", "PT": "n21",
    "SE": "n20",
}  # fmt: skip
"""Forms of IBANs behind the check digits: n digits, a capitals, c either."""

ISSUERS = (
    ("4", 16), ("4", 16), ("4", 13), ("51", 16), ("54", 16), ("2221", 16), ("2720", 16),
    ("34", 15), ("37", 15), ("6011", 16), ("65", 16), ("3530", 16), ("36", 14), ("62", 16),
)  # fmt: skip


def digits(draw, count):
    return "".join(draw.choice(string.digits) for _ in range(count))


def luhn(number):
    """Return the check digit."""
    doubled = [int(d) * (2 if n % 2 == 0 else 1) for n, d in enumerate(reversed(number))]
    return str(-sum(d - 9 if d > 9 else d for d in doubled) % 10)


def card(draw):
    first, length = draw.choice(ISSUERS)
    number = first + digits(draw, length - len(first) - 1)
    return number + luhn(number)


def iban(draw):
    country, form = draw.choice(sorted(ACCOUNTS.items()))
    alphabets = {"n": string.digits, "a": string.ascii_uppercase}
    rest = ""
    for kind, count in _parts(form):
        alphabet = alphabets.get(kind, string.digits + string.ascii_uppercase)
        rest += "".join(draw.choice(alphabet) for _ in range(count))
    check = 98 - int("".join(str(int(c, 36)) for c in f"{rest}{country}00")) % 97
    return f"{country}{check:02}{rest}"


def _parts(form):
    kinds = [place for place, c in enumerate(form) if c.isalpha()]
    for place, end in zip(kinds, [*kinds[1:], len(form)], strict=True):
        yield form[place], int(form[place + 1 : end])


def ssn(draw):
    area = draw.choice([n for n in range(1, 900) if n != 666])
    return f"{area:03}-{draw.randint(1, 99):02}-{draw.randint(1, 9999):04}"


def dni(draw):
    number = draw.randrange(10**7, 10**8)
    return f"{number}{'TRWAGMYFPDXBNJZSQVHLCKE'[number % 23]}"


def nie(draw):
    first, rest = draw.randrange(3), digits(draw, 7)
    return f"{'XYZ'[first]}{rest}{'TRWAGMYFPDXBNJZSQVHLCKE'[int(f'{first}{rest}') % 23]}"


def nir(draw):
    number = (
        f"{draw.choice('12')}{draw.randrange(100):02}{draw.randint(1, 12):02}"
        f"{draw.randint(1, 95):02}{draw.randint(1, 990):03}{draw.randint(1, 999):03}"
    )
    return f"{number}{97 - int(number) % 97:02}"


def cpf(draw):
    number = digits(draw, 9)
    for length in (9, 10):
        total = sum(int(d) * (length + 1 - n) for n, d in enumerate(number))
        number += str(total * 10 % 11 % 10)
    return f"{number[:3]}.{number[3:6]}.{number[6:9]}-{number[9:]}"


def pesel(draw):
    number = f"{draw.randint(50, 99)}{draw.randint(1, 12):02}{draw.randint(1, 28):02}"
    number += digits(draw, 4)
    weights = (1, 3, 7, 9, 1, 3, 7, 9, 1, 3)
    return number + str(-sum(int(d) * w for d, w in zip(number, weights, strict=True)) % 10)


def bsn(draw):
    while True:
        number = str(draw.randint(1, 9)) + digits(draw, 7)
        check = sum(int(d) * (9 - n) for n, d in enumerate(number)) % 11
        if check < 10:
            return f"{number}{check}"


def aadhaar(draw):
    number = draw.choice("23456789") + digits(draw, 10)
    check = 0
    for n, d in enumerate(reversed(number), start=1):
        value = int(d)
        for _ in range(n % 8):
            value = VERHOEFF_P[value]
        check = VERHOEFF_D[check][value]
    number += str(VERHOEFF_D[check].index(0))
    return f"{number[:4]} {number[4:8]} {number[8:]}"


def tax_id(draw):
    """Draw a German one: ten digits, of which one stands twice, and a check digit (mod 11, 10)."""
    while True:
        number = draw.sample(string.digits, 9)
        number.insert(draw.randrange(1, 10), draw.choice(number))
        if number[0] != "0" and not any(a == b for a, b in pairwise(number)):
            break
    product = 10
    for digit in number:
        product = ((int(digit) + product) % 10 or 10) * 2 % 11
    return "".join([*number, str((11 - product) % 10)])


def hetu(draw):
    born = f"{draw.randint(1, 28):02}{draw.randint(1, 12):02}{draw.randint(40, 99)}"
    one = f"{draw.randint(2, 899):03}"
    return f"{born}-{one}{'0123456789ABCDEFHJKLMNPRSTUVWXY'[int(born + one) % 31]}"


def ahv(draw):
    number = f"756{digits(draw, 9)}"
    total = sum(int(d) * (3 if n % 2 else 1) for n, d in enumerate(number))
    number += str(-total % 10)
    return f"{number[:3]}.{number[3:7]}.{number[7:11]}.{number[11:]}"


def national_register(draw):
    """Draw a Belgian one."""
    born = f"{draw.randint(40, 99)}{draw.randint(1, 12):02}{draw.randint(1, 28):02}"
    one = f"{draw.randint(1, 997):03}"
    check = 97 - int(born + one) % 97
    return f"{born[:2]}.{born[2:4]}.{born[4:]}-{one}.{check:02}"


def fiscal_code(draw):
    """Draw an Italian one."""
    letters = "".join(draw.choice("BCDFGLMNPRSTV") for _ in range(6))
    born = f"{draw.randint(40, 99)}{draw.choice('ABCDEHLMPRST')}{draw.randint(1, 28):02}"
    code = f"{letters}{born}{draw.choice('ABCDEFGHL')}{draw.randint(100, 999)}"
    total = 0
    for n, c in enumerate(code):
        value = int(c) if c.isdigit() else ord(c) - ord("A")
        total += ODD_LETTERS.index(chr(ord("A") + value)) if n % 2 == 0 else value
    return code + chr(ord("A") + total % 26)


def nino(draw):
    number = digits(draw, 6)
    return f"AB {number[:2]} {number[2:4]} {number[4:]} {draw.choice('ABCD')}"


def sin(draw):
    number = draw.choice("1234567") + digits(draw, 7)
    number += luhn(number)
    return f"{number[:3]} {number[3:6]} {number[6:]}"


BY_THEMSELVES = (dni, nie, nir, cpf, hetu, ahv, national_register, fiscal_code)
ANNOUNCED = (
    (pesel, "PESEL"), (bsn, "BSN"), (aadhaar, "Aadhaar"), (tax_id, "Steuer-ID"),
    (nino, "National Insurance"), (sin, "SIN"),
)  # fmt: skip


def grouped(number, separator):
    """Write a card or an account as people do."""
    sizes = (4,) * (len(number) // 4 + 1)
    if number.isdigit():
        sizes = {15: (4, 6, 5), 14: (4, 6, 4), 13: (4, 3, 3, 3)}.get(len(number), sizes)
    parts = [number[sum(sizes[:n]) : sum(sizes[: n + 1])] for n in range(len(sizes))]
    return separator.join(part for part in parts if part)


def mistyped(draw, number):
    """Change one digit, which every check digit here notices."""
    place = draw.choice([n for n, c in enumerate(number) if c.isdigit() and n > 3])
    other = draw.choice([d for d in string.digits if d != number[place]])
    return number[:place] + other + number[place + 1 :]
