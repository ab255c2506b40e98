"""A tamper-evident log of decisions, and its verifier.

`waltzrl.audit.verify`, `.merkle` and `.note` check a log by its folder and the public key alone.
"""

from waltzrl.audit.erasure import contents_of, erase_contents, expire_contents
from waltzrl.audit.log import Log
from waltzrl.audit.proof import Proof, prove
from waltzrl.audit.reading import find, latest, read_entries
from waltzrl.audit.record import (
    DecisionRecord,
    Entry,
    RoundRecord,
    record_of,
)
from waltzrl.audit.replay import read_collaborations
from waltzrl.audit.settings import LogSettings
from waltzrl.audit.verify import LogFault, VerifiedLog, verify

__all__ = [
    "DecisionRecord",
    "Entry",
    "Log",
    "LogFault",
    "LogSettings",
    "Proof",
    "RoundRecord",
    "VerifiedLog",
    "contents_of",
    "erase_contents",
    "expire_contents",
    "find",
    "latest",
    "prove",
    "read_collaborations",
    "read_entries",
    "record_of",
    "verify",
]
