"""Environment variables, as sources of a gateway's settings; they override the recipe's file.

`VARIABLES` lists them. True may also be written 1, yes or on; false 0, no or off. An empty variable
counts as not set.

Two names of one setting with different values are an error: to prefer either could silently make
the gateway less safe than the operator believes.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, NamedTuple, get_args

from pydantic import Field, TypeAdapter

from waltzrl.agents.failsafe import OnFailure
from waltzrl.errors import RecipeError
from waltzrl.foundation.sources import Source
from waltzrl.foundation.switches import parse_switch

KEYS = ("WALTZRL_UPSTREAM_KEY", "WALTZRL_FEEDBACK_KEY")
"""The beginnings of the names of variables with API keys."""
OTHERS = ("WALTZRL_CACHE", "WALTZRL_CHROMIUM", "WALTZRL_JUDGE_CACHE")
"""The variables of other parts."""

logger = logging.getLogger(__name__)


class Variable(NamedTuple):
    """One setting and the names of its variables."""

    key: str | None
    """The field of `GatewayRecipe`; None if the variable is only checked."""
    names: tuple[str, ...]
    read: Callable[[str], object]
    """The function that parses the text; it raises ValueError or KeyError if it is invalid."""
    needs: str
    """The valid values, for the error message."""


def _require_true(text: str) -> bool:
    if not parse_switch(text):
        raise ValueError
    return True


VARIABLES = (
    Variable("stage", ("WALTZRL_STAGE",), {"1": 1, "2": 2}.__getitem__, "1 or 2"),
    Variable("enabled", ("ENABLE_WALTZRL", "WALTZRL_ENABLED"), parse_switch, "true or false"),
    Variable(
        "threshold",
        ("WALTZRL_GATEWAY_THRESHOLD", "WALTZRL_MIN_SAFETY_SCORE"),
        TypeAdapter(Annotated[float, Field(ge=0, le=1)]).validate_python,
        "a number from 0 to 1",
    ),
    Variable(
        "on_failure",
        ("WALTZRL_GATEWAY_ON_FAILURE",),
        lambda text: {choice: choice for choice in get_args(OnFailure)}[text.lower()],
        "refuse, rules or serve",
    ),
    Variable(
        "on_failure",
        ("WALTZRL_FALLBACK_TO_BLOCKING",),
        lambda text: "refuse" if parse_switch(text) else "rules",
        "true or false",
    ),
    Variable(
        "stage2_percentage",
        (
            "WALTZRL_TRAFFIC_PERCENTAGE",
            "WALTZRL_CANARY_PERCENTAGE",
            "WALTZRL_ROLLOUT_PERCENTAGE",
            "WALTZRL_ROLLOUT_PCT",
        ),
        TypeAdapter(Annotated[float, Field(ge=0, le=100)]).validate_python,
        "a number from 0 to 100",
    ),
    Variable("observe_only", ("WALTZRL_FEEDBACK_ONLY",), parse_switch, "true or false"),
    Variable(
        "review_timeout_ms",
        ("WALTZRL_COACHING_TIMEOUT_MS",),
        TypeAdapter(Annotated[int, Field(ge=1)]).validate_python,
        "a whole number of milliseconds, 1 or more",
    ),
    Variable(
        None,
        ("WALTZRL_ENABLE_BLOCKING", "WALTZRL_BLOCK_UNSAFE"),
        _require_true,
        "true, because the gateway never sends a reply that it considers unsafe; to observe only, "
        "set WALTZRL_FEEDBACK_ONLY=true",
    ),
)


def environment_sources(environ: Mapping[str, str]) -> list[Source]:
    """Return one source of settings for each of our variables that is set.

    Args:
        environ: such as `os.environ`; other variables are ignored.

    Raises:
        RecipeError: a variable has an invalid value, or two names of one setting have different
            values.
    """
    sources: dict[str, Source] = {}
    for variable in VARIABLES:
        values = {
            name: _parse_variable(variable, name, environ[name].strip())
            for name in variable.names
            if environ.get(name, "").strip()
        }
        if variable.key is None or not values:
            continue
        name, value = next(iter(values.items()))
        known = sources.get(variable.key)
        if len({*values.values(), *(known.table.values() if known else ())}) > 1:
            same = [*([known.name] if known else ()), *values]
            variables = " and ".join(f"{name}={environ[name]}" for name in same)
            raise RecipeError(f"{variables} are the same setting but differ; unset all but one")
        sources[variable.key] = known or Source(
            name=name, table={variable.key: value}, is_variable=True
        )
    return list(sources.values())


def _parse_variable(variable: Variable, name: str, text: str) -> object:
    try:
        return variable.read(text)
    except (ValueError, KeyError):
        raise RecipeError(f"{name}: got {text!r}, need {variable.needs}") from None


def warn_of_unknown(environ: Mapping[str, str], keys: Collection[str]) -> None:
    """Log the variables that begin like ours and set nothing, such as misspelled ones.

    Args:
        environ: such as `os.environ`.
        keys: names of variables with API keys.
    """
    known = {*keys, *OTHERS, *(name for variable in VARIABLES for name in variable.names)}
    for name in sorted(environ):
        if name.startswith("WALTZRL_") and not name.startswith(KEYS) and name not in known:
            logger.warning("%s is no variable of the gateway and sets nothing", name)
