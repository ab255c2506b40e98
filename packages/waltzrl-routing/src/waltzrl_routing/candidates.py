"""The agents that can do a kind of task, in order of preference, and why the others lost."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import get_args

from waltzrl_routing.loads import Loads
from waltzrl_routing.plan import Alternative
from waltzrl_routing.registry import CostTier
from waltzrl_routing.success import SuccessRate

TIERS = {tier: place for place, tier in enumerate(get_args(CostTier))}
"""The place of each cost tier, the cheapest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An agent that can do the task."""

    name: str
    tier: CostTier
    rate: SuccessRate
    tie: bytes
    """A hash of the seed and the name, which breaks ties."""
    may_be_cheaper: bool
    """Whether cost goes before success: that was asked for, and the interval of its rate overlaps
    that of the best."""

    @property
    def merit(self) -> tuple[bool, int, float]:
        """What goes before load; the smallest is preferred."""
        tier = TIERS[self.tier] if self.may_be_cheaper else 0
        return not self.may_be_cheaper, tier, -self.rate.mean

    def advantage_over(self, other: "Candidate") -> str:
        """Say why an agent of less merit lost against this one."""
        rates = f"{other.rate} against {self.rate}"
        if self.may_be_cheaper and not other.may_be_cheaper:
            return f"success rate too far below the best: {rates}"
        if self.may_be_cheaper and self.tier != other.tier:
            return f"dearer: {other.tier} against {self.tier}, success rate {rates}"
        return f"lower success rate: {rates}"


class Candidates:
    """All agents, for tasks of one type that need the same skills."""

    def __init__(
        self, capable: Iterable[Candidate], incapable: tuple[Alternative, ...], loads: Loads
    ) -> None:
        """Order the capable agents.

        Args:
            capable: agents that can do the task.
            incapable: all others, by the reason why they cannot.
            loads: how many tasks each has.
        """
        ordered = sorted(capable, key=lambda c: (c.merit, TIERS[c.tier], c.tie))
        self.by_name = {candidate.name: candidate for candidate in ordered}
        """The agents that can do it, the preferred first."""
        self.incapable = incapable
        self._loads = loads
        levels: dict[tuple[bool, int, float], list[str]] = defaultdict(list)
        for candidate in ordered:
            levels[candidate.merit].append(candidate.name)
        self._levels = list(levels.values())
        """Agents among which load decides, the preferred first."""
        self._level = {name: place for place, names in enumerate(self._levels) for name in names}
        self._lower: dict[str, tuple[Alternative, ...]] = {}

    def best_free(self) -> str | None:
        """Return the preferred agent with a free place; None if all are at capacity."""
        at_work, capacity = self._loads.at_work, self._loads.capacity
        for names in self._levels:
            if free := [name for name in names if at_work[name] < capacity[name]]:
                # Of equally busy agents the first: cost and seed have ordered them.
                return min(free, key=at_work.__getitem__)
        return None

    def first_to_be_free(self) -> str:
        """Return the agent with the first place to become free, when all are at capacity."""
        return min(self.by_name, key=self._loads.free_at)

    def others_of_rule(
        self, chosen: str, rule: str, full: Collection[str]
    ) -> tuple[Alternative, ...]:
        """Return why the others lost against the agent that a rule names.

        Args:
            chosen: the agent.
            rule: the rule's id.
            full: agents at capacity that rules before it name.
        """
        reasons = self._group_full(name for name in self.by_name if name in full)
        others = [name for name in self.by_name if name != chosen and name not in full]
        if others:
            reasons[f"not the agent that rule {rule} names"] = others
        return (*group_agents(reasons), *self.incapable)

    def others_of_match(self, chosen: str) -> tuple[Alternative, ...]:
        """Return why the others lost against the best free agent."""
        load, tier = self._loads.at_work[chosen], self.by_name[chosen].tier
        at_work, capacity = self._loads.at_work, self._loads.capacity
        no_worse = [n for names in self._levels[: self._level[chosen] + 1] for n in names]
        busier: dict[int, list[str]] = defaultdict(list)
        equal: dict[str, list[str]] = defaultdict(list)
        for name in no_worse:
            if load < at_work[name] < capacity[name]:
                busier[at_work[name]].append(name)
            elif at_work[name] < capacity[name] and name != chosen:
                equal[self.by_name[name].tier].append(name)
        reasons = self._group_full(name for name in no_worse if at_work[name] >= capacity[name])
        reasons |= {f"busier: {n} at work against {load}": names for n, names in busier.items()}
        for other, names in equal.items():
            dearer = f"dearer: {other} against {tier}"
            reasons["tie broken by the seed" if other == tier else dearer] = names
        return (*group_agents(reasons), *self._lower_levels(chosen), *self.incapable)

    def others_of_wait(self, chosen: str) -> tuple[Alternative, ...]:
        """Return why the others lost when all were at capacity."""
        reasons = self._group_full(name for name in self.by_name if name != chosen)
        return (*group_agents(reasons), *self.incapable)

    def _group_full(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Return agents at capacity by the reason that says so."""
        full: dict[int, list[str]] = defaultdict(list)
        for name in names:
            full[self._loads.capacity[name]].append(name)
        return {f"at capacity, {n} of {n}": names for n, names in full.items()}

    def _lower_levels(self, chosen: str) -> tuple[Alternative, ...]:
        # They are the same whenever this agent is chosen, and the loads do not matter.
        if chosen not in self._lower:
            winner = self.by_name[chosen]
            reasons: dict[str, list[str]] = defaultdict(list)
            for names in self._levels[self._level[chosen] + 1 :]:
                for name in names:
                    reasons[winner.advantage_over(self.by_name[name])].append(name)
            self._lower[chosen] = group_agents(reasons)
        return self._lower[chosen]


def group_agents(reasons: Mapping[str, Iterable[str]]) -> tuple[Alternative, ...]:
    """Return agents by reason."""
    return tuple(Alternative(reason, tuple(names)) for reason, names in reasons.items())
