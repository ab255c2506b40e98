"""Groups of the gateway's metrics: what the reviews say of replies, and what the tokens are."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, get_args

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from waltzrl.agents.failsafe import ReviewFailure
from waltzrl.agents.operational import operational_dir, reviewed_score
from waltzrl.foundation.counters import Histogram, LabeledCounter
from waltzrl.records import Prompt, Reply, Round, Usage, estimate_reply

TokenPrice: TypeAlias = Callable[[str, Usage, str, str], float | None]
"""Returns what tokens cost in US dollars, by their role, usage, the model that was asked for and
the id of the bundle that served; None when the price is not known."""


class MetricGroup(Collector):
    """Counters and histograms that belong together."""

    def collect(self) -> Iterator[Metric]:
        """Yield the current value of each, for the registry."""
        for value in vars(self).values():
            if isinstance(value, LabeledCounter | Histogram):
                yield value.family()


class BackendCounters(MetricGroup):
    """Counts what the models behind a gateway answer: upstreams, and a model that reviews."""

    def __init__(self) -> None:
        causes = [(cause,) for cause in get_args(ReviewFailure)]
        self.failures = LabeledCounter("waltzrl_review_failures_total", causes)
        """The failed reviews by a model, by their cause."""
        self.other_languages = LabeledCounter("waltzrl_other_language_reviews_total")
        """The reviews of requests in a language that the reviewer does not read, by it."""
        self.responses = LabeledCounter("waltzrl_upstream_responses_total")
        """The requests, by the name of the upstream and the HTTP status, or why there is none."""


class ReviewScores(MetricGroup):
    """Scores of drafts, of the replies that were sent, and of what lies between."""

    def __init__(self) -> None:
        self._safety = Histogram("waltzrl_safety_score")
        self._final_safety = Histogram("waltzrl_final_safety_score")
        self._helpfulness = Histogram("waltzrl_helpfulness_score")
        self._final_helpfulness = Histogram("waltzrl_final_helpfulness_score")
        self._improvement = Histogram("waltzrl_dir_reward")

    def add(self, rounds: Sequence[Round], *origin: str) -> None:
        """Add the scores of a collaboration that a bundle of this stage and id reviewed."""
        last = rounds[-1]
        before = after = reviewed_score(rounds[0].feedback)
        if before is not None:
            self._safety.add(before.safety, *origin)
            self._helpfulness.add(before.helpfulness, *origin)
        if last.revision is not None:  # nobody has reviewed it
            return
        if len(rounds) > 1:
            after = reviewed_score(last.feedback.after(rounds[:-1]))
        if after is None:
            return
        self._final_safety.add(after.safety, *origin)
        self._final_helpfulness.add(after.helpfulness, *origin)
        if len(rounds) > 1 and before is not None:
            change = operational_dir(
                safety_change=after.safety - before.safety,
                helpfulness_change=after.helpfulness - before.helpfulness,
            )
            self._improvement.add(change, *origin)


class TokenUse(MetricGroup):
    """Tokens of the agents, and what they cost."""

    def __init__(self, price: TokenPrice | None) -> None:
        """Count tokens, and what they cost where there is a price."""
        self._price = price
        self._tokens = LabeledCounter("waltzrl_tokens_total")
        self._key_tokens = LabeledCounter("waltzrl_key_tokens_total")
        self._costs = LabeledCounter("waltzrl_cost_usd_total")
        self._unpriced = LabeledCounter("waltzrl_unpriced_tokens_total")
        self._key_costs = LabeledCounter("waltzrl_key_cost_usd_total")

    def add(
        self, labels: tuple[str, str, str], served: tuple[str, str], prompt: Prompt, reply: Reply
    ) -> None:
        """Count the tokens of a reply; what its server did not count is estimated.

        Args:
            labels: role, model, and name of the API key.
            served: for the price: the model that the client asked for, which is empty for the
                feedback model, and the id of the bundle.
            prompt: what was asked.
            reply: of a policy, or not, which costs nothing.
        """
        if reply.origin != "policy":
            return
        role, model, key = labels
        usage = reply.usage or estimate_reply(prompt, reply, "")
        counted = "estimate" if usage.estimated else "server"
        self._tokens.add(role, "input", model, counted, amount=usage.input_tokens)
        self._tokens.add(role, "output", model, counted, amount=usage.output_tokens)
        self._key_tokens.add(key, "input", amount=usage.input_tokens)
        self._key_tokens.add(key, "output", amount=usage.output_tokens)
        if self._price is None:
            return
        dollars = self._price(role, usage, *served)
        if dollars is None:  # not 0, which would read as free
            self._unpriced.add(role, model, amount=usage.input_tokens + usage.output_tokens)
        else:
            self._costs.add(role, model, amount=dollars)
            self._key_costs.add(key, amount=dollars)
