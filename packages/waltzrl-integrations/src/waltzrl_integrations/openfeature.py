"""A conversation's bundle as OpenFeature flags: `waltzrl.bundle` and `waltzrl.candidate`.

The targeting key identifies the conversation, as `user` does in a request to the gateway.
"""

from typing import NoReturn

from waltzrl.errors import MissingExtraError
from waltzrl.operations.release.assignment import serves_candidate
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.state import Release

try:
    from openfeature.evaluation_context import EvaluationContext
    from openfeature.exception import FlagNotFoundError, TargetingKeyMissingError, TypeMismatchError
    from openfeature.flag_evaluation import FlagResolutionDetails, Reason
    from openfeature.provider import AbstractProvider, Metadata
except ModuleNotFoundError as missing:
    raise MissingExtraError("the provider of flags", "OpenFeature", "openfeature") from missing

BUNDLE, CANDIDATE = "waltzrl.bundle", "waltzrl.candidate"
Context = EvaluationContext | None


class ReleaseProvider(AbstractProvider):
    """Assigns as the gateways do: `openfeature.api.set_provider(ReleaseProvider(book))`."""

    def __init__(self, book: ReleaseBook) -> None:
        super().__init__()
        self._book = book

    def get_metadata(self) -> Metadata:
        return Metadata(name="waltzrl")

    def resolve_string_details(
        self, flag_key: str, default_value: str, evaluation_context: Context = None
    ) -> FlagResolutionDetails[str]:
        if flag_key != BUNDLE:
            _refuse_flag(flag_key)
        if release := self._book.current():
            chosen, reason = _assign_side(release, evaluation_context)
            return FlagResolutionDetails(
                release.candidate if chosen else release.serving, reason=reason
            )
        if serving := self._book.in_force():
            return FlagResolutionDetails(serving, reason=Reason.STATIC)
        return FlagResolutionDetails(default_value, reason=Reason.DEFAULT)

    def resolve_boolean_details(
        self, flag_key: str, default_value: bool, evaluation_context: Context = None
    ) -> FlagResolutionDetails[bool]:
        if flag_key != CANDIDATE:
            _refuse_flag(flag_key)
        release = self._book.current()
        chosen, reason = (
            _assign_side(release, evaluation_context) if release else (False, Reason.STATIC)
        )
        return FlagResolutionDetails(chosen, reason=reason)

    def _resolve_other(
        self, flag_key: str, default_value: object, evaluation_context: Context = None
    ) -> NoReturn:
        _refuse_flag(flag_key)

    resolve_integer_details = resolve_float_details = resolve_object_details = _resolve_other


def _assign_side(release: Release, context: Context) -> tuple[bool, Reason]:
    """Return whether the candidate answers, and whether that depends on the conversation."""
    if release.percentage in {0.0, 100.0}:
        return release.percentage == 100.0, Reason.STATIC
    if context is None or not context.targeting_key:
        raise TargetingKeyMissingError("set the targeting key to the conversation's user")
    return serves_candidate(release, context.targeting_key), Reason.SPLIT


def _refuse_flag(flag_key: str) -> NoReturn:
    if flag_key in {BUNDLE, CANDIDATE}:
        raise TypeMismatchError(f"{BUNDLE} is a string and {CANDIDATE} a boolean")
    raise FlagNotFoundError(f"there is no flag {flag_key}; use {BUNDLE} or {CANDIDATE}")
