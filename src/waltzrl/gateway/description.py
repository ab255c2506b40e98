"""What a bundle is, kept for as long as the database, and how two bundles differ, in words.

It holds no content of users, no personal data and no secret, and is therefore never erased.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from waltzrl.foundation.sources import list_leaves
from waltzrl.foundation.texts import without_credentials

NAMED_AT_MOST = 5
"""The most names that a difference lists; the rest is counted."""
LONGEST_VALUE = 60
"""The most characters of a setting that a difference quotes."""
NOT_SET: tuple[object, ...] = (None, "", [], {})
RULES = "rules"
"""The key in `BundleDescription.parts` of the packs with their words, whose rules are told one by
one.
"""


class BundleDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle as it was when it was built: by its id nobody could tell."""

    recipe: dict[str, object]
    """All settings, nested as in TOML, without the credentials of URLs."""
    rules: dict[str, str] = {}
    """The id of each rule -> a hash of it."""
    parts: dict[str, str] = {}
    """The parts that are hashed beside the recipe: the rules' packs, weights, wordings,
    calibration.
    """
    version: str = ""
    """The version of waltzrl."""
    policy: str = ""
    """The name of the policy that it was built for; empty for the gateway's own."""

    @property
    def settings(self) -> dict[str, object]:
        """Dotted key of each setting -> its value."""
        return dict(list_leaves(self.recipe))


class StoredBundle(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle in the database."""

    id: str
    description: BundleDescription
    by: str = ""
    """The name of who proposed it; empty for a gateway's own."""
    added: float
    """The time in seconds since the epoch."""
    base_since: float | None = None
    """The time when a gateway last began to serve it by its own recipe; None if none did."""


def made_by(bundle: StoredBundle) -> str:
    """Return who made a bundle, in words."""
    if bundle.by:
        return bundle.by
    return "a gateway's own recipe" if bundle.base_since is not None else "unknown"


def without_secrets(recipe: Mapping[str, object]) -> dict[str, object]:
    """Return a recipe without the credentials of its URLs; it names only variables of keys."""
    return {name: _hide_credentials(value) for name, value in recipe.items()}


def describe_differences(before: BundleDescription, after: BundleDescription) -> tuple[str, ...]:
    """Say how `after` differs from `before`: settings, rules, weights; empty if in nothing."""
    return (
        *_compare_settings(before.settings, after.settings),
        *_compare_rules(before, after),
        *(
            f"{name} {old or 'none'} -> {new or 'none'}"
            for name, old, new in _find_changed_values(before.parts, after.parts)
            if name != RULES
        ),
    )


def _compare_settings(before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[str]:
    for key, old, new in _find_changed_values(before, after):
        if old in NOT_SET and new in NOT_SET:
            continue
        if isinstance(old, Sequence) and isinstance(new, Sequence) and not isinstance(old, str):
            changes = (
                ("added", [str(each) for each in new if each not in old]),
                ("removed", [str(each) for each in old if each not in new]),
            )
            told = [f"{what} {_join_names(names)}" for what, names in changes if names]
            yield f"{key}: {'; '.join(told) or 'another order'}"
        elif max(len(_quote_setting(old)), len(_quote_setting(new))) > LONGEST_VALUE:
            yield f"{key} changed"
        else:
            yield f"{key} {_quote_setting(old)} -> {_quote_setting(new)}"


def _compare_rules(before: BundleDescription, after: BundleDescription) -> Iterator[str]:
    names = {
        "added": [name for name in after.rules if name not in before.rules],
        "removed": [name for name in before.rules if name not in after.rules],
        "changed": [
            # The default leaves out rules that were added.
            name
            for name, hashed in after.rules.items()
            if before.rules.get(name, hashed) != hashed
        ],
    }
    for what, some in names.items():
        if some:
            yield f"{len(some)} {'rule' if len(some) == 1 else 'rules'} {what}: {_join_names(some)}"
    if not any(names.values()) and before.parts.get(RULES) != after.parts.get(RULES):
        yield "words of the rules changed"


def _find_changed_values(
    before: Mapping[str, object], after: Mapping[str, object]
) -> Iterator[tuple[str, object, object]]:
    """Yield each key with its two values where they differ."""
    for key in dict.fromkeys([*before, *after]):
        if before.get(key) != after.get(key):
            yield key, before.get(key), after.get(key)


def _join_names(names: Sequence[str]) -> str:
    more = len(names) - NAMED_AT_MOST
    named = ", ".join(names[:NAMED_AT_MOST])
    return f"{named} and {more} more" if more > 0 else named


def _quote_setting(value: object) -> str:
    return "not set" if value in NOT_SET else str(value)


def format_setting(value: object) -> str:
    """Return the value of a setting for people; empty where it is not set."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value in (None, {}) else str(value)


def _hide_credentials(value: object) -> object:
    if isinstance(value, dict):
        return without_secrets(value)
    if isinstance(value, list | tuple):
        return [_hide_credentials(each) for each in value]
    return without_credentials(value) if isinstance(value, str) else value
