"""A tamper-evident log of decisions, and its verifier.

The modules `verify`, `merkle` and `note` verify a log with its folder and public key alone.
"""

from waltzrl.store.audit.contents import (
    contents_for,
    erase_contents,
    expire_contents,
    read_collaborations,
    tombstone_for,
)
from waltzrl.store.audit.keys import signing_key
from waltzrl.store.audit.log import Log, LogSettings
from waltzrl.store.audit.query import (
    Query,
    moment,
    newest,
    observed_drafts,
    select,
    subject_digest,
    table_rows,
    tally,
)
from waltzrl.store.audit.reading import Proof, find, one_line, one_page, prove, read_entries
from waltzrl.store.audit.record import (
    DecisionRecord,
    Entry,
    RoundRecord,
    record_of,
)
from waltzrl.store.audit.verify import LogFault, VerifiedLog, verify
from waltzrl.store.audit.writer import LocalLog, LogWriter

__all__ = [
    "DecisionRecord",
    "Entry",
    "LocalLog",
    "Log",
    "LogFault",
    "LogSettings",
    "LogWriter",
    "Proof",
    "Query",
    "RoundRecord",
    "VerifiedLog",
    "contents_for",
    "erase_contents",
    "expire_contents",
    "find",
    "moment",
    "newest",
    "observed_drafts",
    "one_line",
    "one_page",
    "prove",
    "read_collaborations",
    "read_entries",
    "record_of",
    "select",
    "signing_key",
    "subject_digest",
    "table_rows",
    "tally",
    "tombstone_for",
    "verify",
]
