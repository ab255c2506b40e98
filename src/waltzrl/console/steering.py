"""Moves the release, for operators."""

from typing import get_args

from waltzrl.console.visit import DeskVisit
from waltzrl.console.web import Replied, see
from waltzrl.errors import InputError, RequestError
from waltzrl.release.state import Action

MOVES: tuple[Action, ...] = tuple(action for action in get_args(Action) if action != "propose")
LONGEST_REASON = 300


def steer(visit: DeskVisit) -> Replied:
    """Do to the release what the form says, if it still stands where its sender saw it.

    Raises:
        RequestError: 403, 400 for a form that is incomplete, 409 when it cannot be done any more.
    """
    visit.require("operator")
    form = visit.asked.form
    why = visit.source.redact(" ".join(form.get("why", "").split())[:LONGEST_REASON])
    action = next((move for move in MOVES if move == form.get("action")), None)
    if not why or action is None:
        raise RequestError(400, "invalid_request", "a move needs a reason; say why")
    book = visit.source.releases
    release = book.release(form.get("release", ""))
    if release is None:
        raise RequestError(404, "not_found", "there is no such release")
    if action != "roll_back" and str(release.version) != form.get("version"):
        raise RequestError(409, "conflict", "the release has moved meanwhile; look at it again")
    try:
        book.move(release, action, visit.session.key.name, why)
    except InputError as error:
        raise RequestError(409, "conflict", str(error)) from error
    return see("/desk")
