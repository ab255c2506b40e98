"""The requirement's environment variables, as defaults for a gateway's recipe.

| variable | also called | values | key of the recipe |
| --- | --- | --- | --- |
| `WALTZRL_STAGE` | | 1 or 2 | `stage` |
| `ENABLE_WALTZRL` | `WALTZRL_ENABLED` | true or false | `enabled` |
| `WALTZRL_SAFETY_THRESHOLD` | `WALTZRL_MIN_SAFETY_SCORE` | 0 to 1 | `threshold` |
| `WALTZRL_BLOCK_ON_FAILURE` | `WALTZRL_FALLBACK_TO_BLOCKING` | true: refuse, false: rules | `on_failure` |
| `WALTZRL_TRAFFIC_PERCENTAGE` | `WALTZRL_CANARY_PERCENTAGE`, `WALTZRL_ROLLOUT_PERCENTAGE`, `WALTZRL_ROLLOUT_PCT` | 0 to 100 | `stage2_percentage` |
| `WALTZRL_FEEDBACK_ONLY` | | true or false | `observe_only` |
| `WALTZRL_COACHING_TIMEOUT_MS` | | 1 or more | `review_timeout_ms` |
| `WALTZRL_ENABLE_BLOCKING` | `WALTZRL_BLOCK_UNSAFE` | true | none: what is unsafe never leaves |

True is also spelt 1, yes or on; false 0, no or off. A variable that is empty is not set.
"""  # noqa: E501 - a table's row is one line

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from waltzrl.config.validation import Table
from waltzrl.errors import RecipeError

WORDS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


def settings_from_environment(environ: Mapping[str, str]) -> Table:
    """Return what the variables say, as a sparse table of a gateway's recipe.

    Args:
        environ: such as `os.environ`; other variables are passed over.

    Raises:
        RecipeError: a variable has a value that it cannot have, or two names of the same one
            disagree.
    """
    table: Table = {}
    for variable in VARIABLES:
        said = {
            name: _read(variable, name, environ[name].strip())
            for name in variable.names
            if environ.get(name, "").strip()
        }
        if len(set(said.values())) > 1:
            both = " and ".join(f"{name}={environ[name]}" for name in said)
            raise RecipeError(f"{both} are the same setting and disagree; unset all but one")
        if said and variable.key is not None:
            table[variable.key] = next(iter(said.values()))
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One setting, by all its names."""

    key: str | None
    """Of `GatewayRecipe`; None when there is nothing to set."""
    names: tuple[str, ...]
    read: Callable[[str], object]
    """Turns its text into the value; ValueError when it is none, KeyError when no word for one."""
    needs: str
    """What it may be, for people."""


def _read(variable: Variable, name: str, text: str) -> object:
    try:
        return variable.read(text)
    except (ValueError, KeyError):
        raise RecipeError(f"{name}: got {text!r}, need {variable.needs}") from None


def _yes_or_no(text: str) -> bool:
    return WORDS[text.lower()]


def _up_to(most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        number = float(text)
        if not 0 <= number <= most:
            raise ValueError
        return number

    return read


def _stage(text: str) -> int:
    return {"1": 1, "2": 2}[text]


def _on_failure(text: str) -> str:
    return "refuse" if _yes_or_no(text) else "rules"


def _milliseconds(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _always(text: str) -> bool:
    if not _yes_or_no(text):
        raise ValueError
    return True


VARIABLES = (
    Variable(key="stage", names=("WALTZRL_STAGE",), read=_stage, needs="1 or 2"),
    Variable(
        key="enabled",
        names=("ENABLE_WALTZRL", "WALTZRL_ENABLED"),
        read=_yes_or_no,
        needs="true or false",
    ),
    Variable(
        key="threshold",
        names=("WALTZRL_SAFETY_THRESHOLD", "WALTZRL_MIN_SAFETY_SCORE"),
        read=_up_to(1),
        needs="a number from 0 to 1",
    ),
    Variable(
        key="on_failure",
        names=("WALTZRL_BLOCK_ON_FAILURE", "WALTZRL_FALLBACK_TO_BLOCKING"),
        read=_on_failure,
        needs="true or false",
    ),
    Variable(
        key="stage2_percentage",
        names=(
            "WALTZRL_TRAFFIC_PERCENTAGE",
            "WALTZRL_CANARY_PERCENTAGE",
            "WALTZRL_ROLLOUT_PERCENTAGE",
            "WALTZRL_ROLLOUT_PCT",
        ),
        read=_up_to(100),
        needs="a number from 0 to 100",
    ),
    Variable(
        key="observe_only",
        names=("WALTZRL_FEEDBACK_ONLY",),
        read=_yes_or_no,
        needs="true or false",
    ),
    Variable(
        key="review_timeout_ms",
        names=("WALTZRL_COACHING_TIMEOUT_MS",),
        read=_milliseconds,
        needs="a whole number of milliseconds, 1 or more",
    ),
    Variable(
        key=None,
        names=("WALTZRL_ENABLE_BLOCKING", "WALTZRL_BLOCK_UNSAFE"),
        read=_always,
        needs="true, for the gateway never sends what it holds to be unsafe; to only observe,"
        " say WALTZRL_FEEDBACK_ONLY=true",
    ),
)
