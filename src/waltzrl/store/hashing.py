"""A number from a text by a hash: the same on PostgreSQL, on SQLite and in Python.

It orders rows at random and reproducibly without being stored. PostgreSQL has MD5 built in, SQLite
gets `hash_number` as a function; nothing here is a secret.
"""

import hashlib

from sqlalchemy import BigInteger, ColumnElement, Text, cast, func, literal_column

BITS = 52
"""The number of bits: the first 13 hexadecimal digits of the MD5."""
SQLITE_FUNCTION = "waltzrl_hash_number"


def hash_number(text: str) -> int:
    """Return a number from 0 to 2 ** `BITS` - 1, uniform over texts."""
    digest = hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
    return int(digest[: BITS // 4], 16)


def hash_column(text: ColumnElement[str], dialect: str) -> ColumnElement[int]:
    """Return `hash_number` of a column of texts.

    Args:
        text: the column.
        dialect: name of the database's.
    """
    if dialect == "sqlite":
        return func.waltzrl_hash_number(text, type_=BigInteger())
    digits = func.substr(func.md5(text), 1, BITS // 4)
    # PostgreSQL reads hexadecimal digits only as a bit string with the prefix x.
    bits = func.concat("x", cast(digits, Text)).op("::")(literal_column(f"bit({BITS})"))
    return bits.op("::", return_type=BigInteger())(literal_column("bigint"))
