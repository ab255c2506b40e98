"""Settings that were given and have no effect, because another setting switches them off."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import NamedTuple

from waltzrl.foundation.sources import Source, list_leaves
from waltzrl.foundation.validation import Table

PACKAGED = "reviewer:"
"""The beginning of the name of a classifier that an installed package provides."""

logger = logging.getLogger(__name__)


class Switch(NamedTuple):
    """Settings, and when they have no effect."""

    keys: str
    """The dotted keys, with spaces between them; a table stands for all that is in it."""
    off: Callable[[Mapping[str, object]], bool]
    """The function that says whether they are off. It reads the settings as they apply, by their
    dotted keys; a table that is not there is None.
    """
    because: str
    """The reason why they are switched off, and what to do."""
    by: str = ""
    """The setting that switches them off, if it has an environment variable."""


def _stores_nothing(values: Mapping[str, object]) -> bool:
    # A table that is set has only the keys of what is in it, such as `audit.folder`.
    return values.get("audit", "") is None and values.get("memory", "") is None


SWITCHES: Sequence[Switch] = (
    Switch(
        "stage feedback threshold max_rounds observe_only on_failure on_other_language review "
        "refusals review_timeout_ms rules rules_flag_overrefusals on_load_failure "
        "stage2_percentage stream",
        lambda values: not values["enabled"],
        "enabled is false, so nothing is reviewed; set enabled = true",
        by="enabled",
    ),
    Switch(
        "feedback on_failure on_load_failure review_timeout_ms review stage2_percentage",
        lambda values: bool(values["enabled"]) and values["stage"] == 1,
        "stage is 1, in which only rules review; set stage = 2",
        by="stage",
    ),
    Switch(
        "max_rounds on_other_language refusals stream",
        lambda values: bool(values["enabled"] and values["observe_only"]),
        "observe_only sends every draft as it is; set observe_only = false",
        by="observe_only",
    ),
    Switch(
        "feedback.server feedback.wording feedback.max_new_tokens",
        lambda values: str(values.get("feedback.model")).startswith(PACKAGED),
        "feedback.model is a classifier of a package, which writes no text; remove them, "
        "or name another model",
    ),
    Switch(
        "feedback.wording feedback.max_new_tokens",
        lambda values: values.get("feedback.guard") is not None,
        "feedback.model is a guard model, which is asked in its own format; remove them, "
        "or leave out feedback.guard",
    ),
    Switch(
        "on_other_language",
        lambda values: (
            values["stage"] == 2 and not str(values["feedback.model"]).startswith(PACKAGED)
        ),
        "feedback.model is taken to read every language, so it holds only where the rules "
        "decide alone; name a classifier of a package, or set stage = 1",
    ),
    Switch(
        "feedback.api_key_env",
        lambda values: values.get("feedback.server", "") is None,
        "the feedback model is on no server; set feedback.server",
    ),
    Switch(
        "upstream.max_new_tokens",
        lambda values: values["upstream.url"] is not None,
        "the upstream is a server, which has a limit of its own; clients set max_tokens",
    ),
    Switch(
        "upstream.api_key_env",
        lambda values: values["upstream.url"] is None,
        "the upstream is in this process; set upstream.url for one on a server",
    ),
    Switch(
        "memory.judge_share",
        lambda values: values.get("memory.judge", "") is None,
        "nobody judges; set memory.judge",
    ),
    Switch(
        "memory.examples_for",
        lambda values: values.get("memory.examples") == 0,
        "no examples are shown; set memory.examples",
    ),
    Switch(
        "audit.contents_days",
        lambda values: values.get("audit.contents") is False,
        "the log keeps no texts; set audit.contents = true",
    ),
    Switch(
        "prices",
        lambda values: values.get("budget", "") is None,
        "costs are not recorded; set budget.folder",
    ),
    Switch(
        "privacy.actions privacy.engine privacy.key",
        _stores_nothing,
        "nothing is stored; set audit.folder or memory.url",
    ),
    Switch(
        "privacy.regions",
        lambda values: _stores_nothing(values) and values["privacy.upstream"] == "off",
        "nothing is stored; set audit.folder or memory.url, or privacy.upstream",
    ),
)


def log_unused(recipe: object, table: Table, sources: Sequence[Source]) -> None:
    """Log which of the given settings have no effect, and why.

    A value that is the default anyway is not worth a line. What an environment variable switches
    off is told as information: to roll back is what it is for.

    Args:
        recipe: a dataclass: what the sources result in.
        table: the same, with all defaults.
        sources: in ascending order of priority.
    """
    views = list(_view_policies(table))
    told: set[str] = set()
    for switch in SWITCHES:
        if not all(switch.off(values) for values in views):
            continue
        given = {
            key: source.name
            for source in sources
            for key, _value in list_leaves(source.table)
            if key not in told
            and any(f"{key}.".startswith(f"{name}.") for name in switch.keys.split())
            and not _is_default(recipe, key)
        }
        if given:
            told |= given.keys()
            settings = ", ".join(f"{key} ({name})" for key, name in given.items())
            level = logging.INFO if _is_set_by_variable(switch.by, sources) else logging.WARNING
            logger.log(level, "no effect: %s, because %s", settings, switch.because)


def _view_policies(table: Table) -> Iterator[Mapping[str, object]]:
    """Yield the settings as they apply without a policy, and with each: it inherits them."""
    values = dict(list_leaves(table))
    yield values
    policies = table.get("policies")
    for name in policies if isinstance(policies, dict) else ():
        prefix = f"policies.{name}."
        changed = {
            key.removeprefix(prefix): values[key] for key in values if key.startswith(prefix)
        }
        yield values | changed


def _is_set_by_variable(key: str, sources: Sequence[Source]) -> bool:
    """Return whether an environment variable decides a setting."""
    setters = [source for source in sources if key in source.table]
    return bool(setters) and setters[-1].is_variable


def _is_default(recipe: object, key: str) -> bool:
    """Return whether a setting is what it would be if nobody gave it."""
    *path, last = key.split(".")
    holder = recipe
    for name in path:
        holder = getattr(holder, name, None)
    for field in fields(holder) if is_dataclass(holder) else ():
        if field.name == last:
            make = field.default_factory
            return bool(getattr(holder, last) == (field.default if make is MISSING else make()))
    return False
