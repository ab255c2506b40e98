"""A check with its result, and checks by name that are run one after the other."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from waltzrl.errors import WaltzError

Suite = TypeVar("Suite")
Result: TypeAlias = tuple[bool | None, str]
"""Whether a check passed, None if it could not be measured; and what was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the result."""

    name: str
    passed: bool | None
    """Whether it passed; None if it could not be measured."""
    detail: str
    """The numbers, or the error."""


async def run_checks(
    checks: Mapping[str, Callable[[Suite], Awaitable[Result]]], suite: Suite
) -> list[Check]:
    """Run the checks on what they share; one that ends with an error has failed."""
    results = []
    for name, check in checks.items():
        try:
            passed, detail = await check(suite)
        except WaltzError as error:
            passed, detail = False, str(error)
        results.append(Check(name=f"test_{name}", passed=passed, detail=detail))
    return results
