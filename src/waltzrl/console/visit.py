"""A request at work: what was asked, by whom, and how it is answered."""

from urllib.parse import quote

import msgspec

from waltzrl.console.pages import render
from waltzrl.console.session import Session
from waltzrl.console.source import ConsoleSource
from waltzrl.console.web import Asked, Replied, page
from waltzrl.errors import RequestError
from waltzrl.serving.keys import DeskRole

LONGEST_SHOWN = 20_000
"""Characters of a text that a page shows."""
LONGEST_PIECE = 4_000
"""Characters of the longest personal data, a private key: so far beyond what is shown a text is
redacted, so that none is cut in two and not seen for what it is."""
COLLABORATIONS = "/desk/collaborations"


class DeskVisit(msgspec.Struct, frozen=True, kw_only=True):
    """A request of somebody who has logged in."""

    source: ConsoleSource
    asked: Asked
    session: Session
    now: float
    """Seconds since the epoch."""

    def require(self, role: DeskRole) -> None:
        """Let those pass who may do what `role` may.

        Raises:
            RequestError: 403.
        """
        if not self.session.may(role):
            raise RequestError(
                403,
                "permission",
                f"this needs the role of {role}; your key has that of {self.session.key.role}",
            )

    def shown(self, text: str, most: int = LONGEST_SHOWN) -> str:
        """Return as much of a text as a page shows: redacted for viewers."""
        head = text[: most + LONGEST_PIECE]
        if not self.session.may("reviewer"):
            head = self.source.redact(head)
        return head if len(head) <= most else f"{head[:most]}\N{HORIZONTAL ELLIPSIS}"

    def page(self, template: str, **context: object) -> Replied:
        """Reply with a page."""
        seen = {"session": self.session, "here": self.asked.path, "now": self.now}
        return page(render(template, **seen, **context))


def path_of(evaluation_id: str) -> str:
    """Return the path of a collaboration; its id may hold slashes."""
    return f"{COLLABORATIONS}/{quote(evaluation_id, safe='')}"
