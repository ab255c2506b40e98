"""Says which replies stand in the field for refusals, where a request has one."""

import re

from waltzrl.gateway.draft_stream import DraftStream
from waltzrl.gateway.exchange import UpstreamReply
from waltzrl.records import Collaboration

BRACE = re.compile(r"[{}]")


def refuses(collaboration: Collaboration, last: UpstreamReply, stream: DraftStream | None) -> bool:
    """Return whether a reply that must be an object of a schema refuses to be one.

    So does a revision in prose, by an upstream that does not enforce the schema.

    Args:
        collaboration: how the reply came about.
        last: the upstream's last reply.
        stream: where the draft went; a revision may begin with what was sent of it.
    """
    if collaboration.decision == "refused" or last.refused:
        return True
    revision = collaboration.last_revision
    if revision is None or revision.calls:
        return False
    released = "" if stream is None else stream.released.text
    return BRACE.search(revision.text.removeprefix(released)) is None
