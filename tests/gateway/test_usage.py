"""Tokens in the metrics of a gateway in front of servers that stream and count, or do not."""

import asyncio
import json

import pytest

from support.small_gateway import Model, ask, chat, gateway
from support.small_site import events, http, site, words

LABELS = '{"unsafe": false, "overrefuse": false,'


class Reviewer(Model):
    """A feedback model that approves, and would go on for long; it counts only at the end."""

    def answer(self, body, path):
        if path == "/models":
            return http({"data": [{"id": "judge"}]})
        assert body["stream"]
        rest = json.dumps({"choices": [], "usage": {"prompt_tokens": 90, "completion_tokens": 80}})
        more = words(' "reasoning": "on and on"}', "stop")
        return events(words(LABELS), more, rest, "[DONE]")


def tokens(text):
    """Return the tokens by role, direction, model and who counted."""
    lines = [line for line in text.splitlines() if line.startswith("waltzrl_tokens_total{")]
    return {
        tuple(sorted(json.loads(f"{{{_quoted(labels)}}}").items())): float(value)
        for labels, _, value in (
            line.removeprefix("waltzrl_tokens_total{").rpartition("} ") for line in lines
        )
    }


def _quoted(labels):
    return ",".join(
        f'"{name}":{value}'
        for name, _, value in (pair.partition("=") for pair in labels.split(","))
    )


def labelled(**labels):
    return tuple(sorted(labels.items()))


def metrics_after(*, stream):
    async def work():
        async with site(Reviewer()) as reviewer:
            feedback = ("feedback.model=judge", f"feedback.server={reviewer.url}")
            async with gateway("stage=2", *feedback) as app:
                assert (await chat(app, stream=stream)).status == 200
                return (await ask(app, "/metrics", method="GET")).text

    return tokens(asyncio.run(work()))


@pytest.mark.promise(
    "Metrics",
    "Tokens are counted by role, model and key, estimates marked, streamed and early-stopped "
    "reviews too",
)
def test_the_tokens_of_a_review_that_was_stopped_early_are_counted():
    counted = metrics_after(stream=False)
    labels = {"role": "feedback", "model": "judge", "counted": "estimate"}
    assert counted[labelled(direction="input", **labels)] > 0
    # The reply was read up to the comma at the end of LABELS at most: 38 characters, 10 tokens.
    assert 0 < counted[labelled(direction="output", **labels)] <= 10


def test_the_tokens_of_a_stream_without_counts_are_estimated():
    counted = metrics_after(stream=True)
    labels = {"role": "conversation", "model": "echo", "counted": "estimate"}
    # "hello" and "You said hello.": 5 and 15 characters
    assert counted[labelled(direction="input", **labels)] == 2
    assert counted[labelled(direction="output", **labels)] == 4
