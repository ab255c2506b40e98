"""Keys and signed checkpoints in the formats of https://c2sp.org/signed-note and /tlog-checkpoint.

A checkpoint states the number of records and their Merkle root:

    waltzrl.audit/3f9a
    1000
    CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=

    — waltzrl.audit/3f9a Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe...
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import BinaryIO, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

# Both are given by signed-note: the identifier of the algorithm, and an em dash (U+2014).
ED25519 = b"\x01"
SIGNATURE = "— "
SECRET = "PRIVATE+KEY+"
# No leading zeros, as tlog-checkpoint demands: one size has one spelling.
SIZE = re.compile("0|[1-9][0-9]{0,17}")


class NoteError(ValueError):
    """A key, a note or a signature is invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """Verifies the signatures of a log; may be published.

    Example:
        PublicKey.parse("example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k")
    """

    name: str
    raw: bytes
    """[32]"""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a verifier key `name+hash+base64(0x01 || key)`.

        Raises:
            NoteError: it is not one; the message never repeats a private key.
        """
        if SECRET in text:
            raise NoteError("not a public key but the private one; keep that secret")
        name, _, rest = text.strip().partition("+")
        # Base64 may hold a `+` too, so the parts are split off from the left.
        hashed, _, coded = rest.partition("+")
        raw = _decode_base64(coded)
        key = cls(name=name, raw=raw[1:])
        # One byte for the algorithm, and 32 for the key.
        if raw[:1] != ED25519 or len(raw) != 33 or not name or key.id.hex() != hashed:
            raise NoteError(
                f"not a public key: {text.strip()[:80]!r}; need name+hash+base64 in one line"
            )
        return key

    @property
    def id(self) -> bytes:
        """[4] identifies the key in signatures."""
        return sha256(self.name.encode() + b"\n" + ED25519 + self.raw).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{b64encode(ED25519 + self.raw).decode()}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SigningKey:
    """Signs the checkpoints of a log; its holder can rewrite the log."""

    name: str
    secret: Ed25519PrivateKey

    @classmethod
    def generate(cls, name: str) -> Self:
        return cls(name=name, secret=Ed25519PrivateKey.generate())

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `written` returned.

        Raises:
            NoteError: it is not a private key.
        """
        name, _, rest = text.strip().removeprefix(SECRET).partition("+")
        raw = _decode_base64(rest.partition("+")[2])
        if not text.startswith(SECRET) or raw[:1] != ED25519 or len(raw) != 33:
            raise NoteError("not a private key; need a line that starts with " + SECRET)
        return cls(name=name, secret=Ed25519PrivateKey.from_private_bytes(raw[1:]))

    @property
    def public(self) -> PublicKey:
        return PublicKey(name=self.name, raw=self.secret.public_key().public_bytes_raw())

    def written(self) -> str:
        """Return the key in the one-line form of Go's note package; keep it secret."""
        coded = b64encode(ED25519 + self.secret.private_bytes_raw()).decode()
        return f"{SECRET}{self.name}+{self.public.id.hex()}+{coded}\n"

    def sign(self, text: str) -> str:
        """Return the signed note of a text that ends in a newline."""
        signature = b64encode(self.public.id + self.secret.sign(text.encode())).decode()
        return f"{text}\n{SIGNATURE}{self.name} {signature}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state of a log at one moment."""

    origin: str
    size: int
    """Number of records."""
    root: bytes
    """[32] Merkle root over them."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text of a checkpoint.

        Raises:
            NoteError: it is not one.
        """
        # Padded for shorter texts; further lines are extensions, which tlog-checkpoint allows.
        origin, size, root = (*text.split("\n"), "", "")[:3]
        if not origin or not SIZE.fullmatch(size) or len(_decode_base64(root)) != 32:
            raise NoteError(f"not a checkpoint: {text[:80]!r}; need origin, size and root hash")
        return cls(origin=origin, size=int(size), root=_decode_base64(root))

    @property
    def text(self) -> str:
        return f"{self.origin}\n{self.size}\n{b64encode(self.root).decode()}\n"


def read_signed_text(note: str, key: PublicKey) -> str:
    """Return the text of a note that `key` has signed; signatures of others are skipped.

    Raises:
        NoteError: the note is malformed, not signed by the key, or the signature is wrong.
    """
    # The text may hold blank lines; the signatures stand behind the last one.
    text, _, signatures = note.rpartition("\n\n")
    for line in signatures.splitlines():
        name, _, coded = line.removeprefix(SIGNATURE).partition(" ")
        signature = _decode_base64(coded)
        if not line.startswith(SIGNATURE) or name != key.name or signature[:4] != key.id:
            continue
        try:
            Ed25519PublicKey.from_public_bytes(key.raw).verify(signature[4:], f"{text}\n".encode())
        except InvalidSignature:
            raise NoteError(f"the signature by {key.name} does not match the text") from None
        return f"{text}\n"
    raise NoteError(f"not signed by {key}")


def read_notes(file: BinaryIO, length: int) -> Iterator[str]:
    """Yield the notes in the first `length` bytes of a file; an incomplete last one is skipped.

    A note ends with its signature lines; blank lines between notes are skipped.
    """
    note: list[str] = []
    while file.tell() < length and (raw := file.readline()).endswith(b"\n"):
        line = raw.decode(errors="replace")
        complete = bool(note) and note[-1].startswith(SIGNATURE)
        if complete and not line.startswith(SIGNATURE):
            yield "".join(note)
            note = []
        if note or line != "\n":
            note.append(line)
    if note and note[-1].startswith(SIGNATURE):
        yield "".join(note)


def _decode_base64(text: str) -> bytes:
    """Decode base64; return no bytes if it is invalid."""
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return b""
