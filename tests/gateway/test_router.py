"""Several upstreams: which one serves a model, when it is asked again, and who stands in for it."""

import asyncio
import json
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.small_gateway import CHAT, HELLO, REVISED, UNSAFE, Model, ask, chat
from support.small_site import events, http, site, words
from support.timing import run_on_fake_time
from waltzrl.errors import RequestError
from waltzrl.gateway.exchange import ModelCard, UpstreamDelta, UpstreamReply, UpstreamRequest
from waltzrl.gateway.health import OK, Health
from waltzrl.gateway.opening import open_gateway
from waltzrl.gateway.router import UpstreamRoute, UpstreamRouter
from waltzrl.gateway.settings import load_gateway
from waltzrl.gateway.upstream_errors import BreakerOpenError, UpstreamError, connection_error
from waltzrl.records import Reply, Usage

AWAY = connection_error(ConnectionRefusedError("refused"))
SILENT = connection_error(TimeoutError("5 s"))
OPEN = BreakerOpenError(10.0)


def answered(status, retry_after_seconds=None):
    """Return the error for a status of the upstream."""
    down = status in (502, 503, 504)
    shown = status if status < 500 else 503 if status == 503 else 502
    return UpstreamError(
        shown, "upstream", f"{status}", is_down=down, retry_after_seconds=retry_after_seconds
    )


class Scripted:
    """An upstream that fails as told, then answers with its name; it notes when it was asked."""

    def __init__(self, name, *failures, models=(), health=OK, breaks=False):
        self.name, self.failures = name, list(failures)
        self.cards = [ModelCard(id=model) for model in models]
        self.now_healthy, self.breaks = health, breaks
        self.asked, self.keys = [], []

    def _next(self, key):
        self.asked.append(asyncio.get_running_loop().time())
        self.keys.append(key)
        if self.failures:
            raise self.failures.pop(0)

    async def complete(self, body, bearer, received=None):
        self._next(bearer)
        return UpstreamReply(reply=Reply(text=self.name), finish="stop")

    async def stream(self, body, bearer):
        self._next(bearer)
        yield UpstreamDelta(text=self.name)
        if self.breaks:
            raise AWAY
        yield UpstreamDelta(finish="stop")

    async def forward(self, request):
        self._next(request.bearer)
        return self.name

    async def models(self, bearer):
        self._next(bearer)
        return self.cards

    def health(self):
        return self.now_healthy


def router(default, *named, **options):
    """Route `gpt-*` to the first of `named`; `options` are those of the default's route."""
    patterns = ("gpt-*",)
    routes = [
        UpstreamRoute(name=one.name, upstream=one, models=patterns if one is named[0] else ())
        for one in named
    ]
    return UpstreamRouter(UpstreamRoute(name="upstream", upstream=default, **options), routes)


async def complete(upstream, model="m", bearer="theirs"):
    return (await upstream.complete({"model": model}, bearer)).reply.text


async def streamed(upstream, model="m", bearer="theirs"):
    async with aclosing(upstream.stream({"model": model}, bearer)) as deltas:
        return "".join([delta.text async for delta in deltas])


async def forwarded(upstream, model="m", bearer="theirs"):
    return await upstream.forward(UpstreamRequest(path="/x", model=model, bearer=bearer))


each_way = pytest.mark.parametrize("way", [complete, streamed, forwarded])


@each_way
def test_a_model_goes_to_the_upstream_that_names_it_and_the_others_to_the_default(way):
    default, cheap = Scripted("default"), Scripted("cheap")
    upstream = router(default, cheap)
    assert run_on_fake_time(way(upstream, "gpt-4o")) == "cheap"
    assert run_on_fake_time(way(upstream, "qwen")) == "default"
    assert run_on_fake_time(way(upstream, "a-gpt-4o")) == "default"


@given(st.permutations(["gpt-*", "gpt-4o*", "gpt-4o-mini", "*"]))
def test_the_longest_pattern_decides_in_whatever_order_they_stand(patterns):
    routes = [
        UpstreamRoute(name=pattern, upstream=Scripted(pattern), models=(pattern,))
        for pattern in patterns
    ]
    upstream = UpstreamRouter(UpstreamRoute(name="upstream", upstream=Scripted("default")), routes)
    asked = ("gpt-3", "gpt-4o", "gpt-4o-mini", "qwen")
    served = [run_on_fake_time(complete(upstream, model)) for model in asked]
    assert served == ["gpt-*", "gpt-4o*", "gpt-4o-mini", "*"]


@pytest.mark.promise(
    "Endpoints and upstreams",
    "Each model goes to the upstream that names it; a client's own key only to the default "
    "upstream",
)
@each_way
def test_a_clients_own_key_goes_to_the_default_upstream_only(way):
    default, cheap = Scripted("default", AWAY), Scripted("cheap")
    upstream = router(default, cheap, fallback="cheap")
    run_on_fake_time(way(upstream, "gpt-4o"))
    run_on_fake_time(way(upstream, "qwen"))
    assert (default.keys, cheap.keys) == (["theirs"], [None, None])


@each_way
@pytest.mark.parametrize(
    "failure", [AWAY, answered(502), answered(503), answered(504), answered(429, 1.0)]
)
def test_what_may_succeed_soon_is_tried_again(way, failure):
    default = Scripted("default", failure, failure)
    assert run_on_fake_time(way(router(default, retries=2))) == "default"
    assert len(default.asked) == 3


@each_way
@pytest.mark.parametrize(
    "failure",
    [SILENT, OPEN, answered(400), answered(401), answered(408), answered(429), answered(500)],
)
def test_what_fails_for_another_reason_is_not(way, failure):
    default = Scripted("default", failure)
    with pytest.raises(UpstreamError) as raised:
        run_on_fake_time(way(router(default, retries=2)))
    assert raised.value is failure
    assert len(default.asked) == 1


def test_a_bug_or_an_unreadable_reply_is_not_tried_again():
    default = Scripted("default", RequestError(502, "upstream", "not a chat completion"))
    with pytest.raises(RequestError, match="not a chat completion"):
        run_on_fake_time(complete(router(default, retries=2)))
    assert len(default.asked) == 1


def test_the_waits_double_with_jitter_and_are_bounded():
    failures = [AWAY] * 8
    default = Scripted("default", *failures)
    run_on_fake_time(complete(router(default, retries=8, timeout_seconds=1000)))
    waits = [
        later - earlier for earlier, later in zip(default.asked, default.asked[1:], strict=False)
    ]
    for number, wait in enumerate(waits):
        longest = min(0.25 * 2**number, 8.0)
        assert longest / 2 <= wait <= longest


def test_retry_after_is_waited_for_if_the_time_allows():
    default = Scripted("default", answered(429, 7.0))
    run_on_fake_time(complete(router(default, retries=1)))
    assert 7.0 < default.asked[1] <= 7.25


def test_no_retry_begins_after_the_time_is_up():
    default = Scripted("default", answered(429, 61.0))
    with pytest.raises(UpstreamError):
        run_on_fake_time(complete(router(default, retries=5)))
    assert len(default.asked) == 1
    default = Scripted("default", *[AWAY] * 11)
    with pytest.raises(UpstreamError):
        run_on_fake_time(complete(router(default, retries=10, timeout_seconds=5)))
    assert default.asked[-1] <= 5
    assert len(default.asked) < 11


@each_way
@pytest.mark.parametrize("failure", [OPEN, AWAY, answered(503)])
def test_while_an_upstream_is_down_its_fallback_answers(way, failure):
    default, cheap = Scripted("default", failure), Scripted("cheap")
    assert run_on_fake_time(way(router(default, cheap, fallback="cheap"))) == "cheap"


@pytest.mark.promise("Specialists", "A fallback for another model is asked for its own first one")
@pytest.mark.parametrize(
    ("models", "asked", "named"),
    [
        (("qwen", "gpt-*"), "qa", "qwen"),
        (("qwen", "gpt-*"), "gpt-5", "gpt-5"),  # it serves that itself
        (("gpt-*", "qwen"), "qa", "qa"),  # a pattern is no name
        ((), "qa", "qa"),
    ],
)
def test_a_fallback_for_another_model_is_asked_for_its_own_first_one(models, asked, named):
    route = UpstreamRoute(name="cheap", upstream=Scripted("cheap"), models=models)
    assert route.renamed({"model": asked, "n": 1}) == {"model": named, "n": 1}


@each_way
@pytest.mark.parametrize("failure", [SILENT, answered(400), answered(429, 1.0), answered(500)])
def test_what_an_upstream_refuses_no_other_answers(way, failure):
    default, cheap = Scripted("default", failure), Scripted("cheap")
    with pytest.raises(UpstreamError):
        run_on_fake_time(way(router(default, cheap, fallback="cheap")))
    assert cheap.asked == []


def test_fallbacks_follow_one_another_and_the_last_error_is_told():
    default, last = Scripted("default", OPEN), Scripted("last", answered(503))
    middle = Scripted("middle", AWAY)
    upstream = UpstreamRouter(
        UpstreamRoute(name="upstream", upstream=default, fallback="middle"),
        [
            UpstreamRoute(name="middle", upstream=middle, fallback="last"),
            UpstreamRoute(name="last", upstream=last),
        ],
    )
    with pytest.raises(UpstreamError, match="503"):
        run_on_fake_time(complete(upstream))
    assert run_on_fake_time(complete(upstream)) == "default"


@pytest.mark.promise(
    "Endpoints and upstreams",
    "Retries happen only where they may help, within the time, and never after a part of a stream",
)
def test_after_a_part_of_a_stream_there_is_neither_a_retry_nor_a_fallback():
    default, cheap = Scripted("default", breaks=True), Scripted("cheap")
    with pytest.raises(UpstreamError):
        run_on_fake_time(streamed(router(default, cheap, fallback="cheap", retries=3)))
    assert (len(default.asked), cheap.asked) == (1, [])


class Counting(Scripted):
    """An upstream that tells the tokens of a request before anything else."""

    async def stream(self, body, bearer):
        yield UpstreamDelta(usage=Usage(input_tokens=len(self.name), output_tokens=0))
        async for delta in super().stream(body, bearer):
            yield delta


def test_after_counts_alone_a_stream_may_be_that_of_a_fallback():
    async def work():
        first, second = Counting("first", AWAY), Counting("second")
        return await streamed(router(first, second, fallback="second"))

    assert run_on_fake_time(work()) == "second"


@pytest.mark.parametrize("count", [1, 2])
def test_counts_of_a_stream_that_then_failed_everywhere_are_told_once(count):
    async def work():
        named = [Counting("a", AWAY), Counting("last", AWAY)][2 - count :]
        deltas = router(*named, fallback=None if count == 1 else "last").stream({}, None)
        counted = (await anext(deltas)).usage.input_tokens
        with pytest.raises(UpstreamError):
            await anext(deltas)
        return counted

    assert run_on_fake_time(work()) == len("last")


def test_a_request_that_may_not_be_repeated_is_sent_once():
    default, cheap = Scripted("default", AWAY), Scripted("cheap")
    upstream = router(default, cheap, fallback="cheap", retries=3)
    request = UpstreamRequest(path="/x", model="m", bearer="theirs", repeatable=False)
    with pytest.raises(UpstreamError):
        run_on_fake_time(upstream.forward(request))
    assert (default.keys, cheap.keys) == (["theirs"], [])


def test_models_are_listed_by_the_upstream_that_serves_them():
    default = Scripted("default", models=["qwen", "gpt-4o"])
    cheap = Scripted("cheap", models=["gpt-4o", "gpt-4o-mini", "o3"])
    listed = run_on_fake_time(router(default, cheap).models("theirs"))
    assert [model.id for model in listed] == ["qwen", "gpt-4o", "gpt-4o-mini"]
    assert (default.keys, cheap.keys) == (["theirs"], [None])


def test_models_of_an_upstream_that_fails_are_missing_and_if_all_fail_that_is_told():
    default, cheap = Scripted("default", AWAY), Scripted("cheap", models=["gpt-4o"])
    listed = run_on_fake_time(router(default, cheap).models(None))
    assert [model.id for model in listed] == ["gpt-4o"]
    default, cheap = Scripted("default", AWAY), Scripted("cheap", answered(503))
    with pytest.raises(UpstreamError) as raised:
        run_on_fake_time(router(default, cheap).models(None))
    assert raised.value is AWAY
    with pytest.raises(ZeroDivisionError):
        run_on_fake_time(router(Scripted("default", ZeroDivisionError())).models(None))


DOWN = Health("down", "unreachable")


@pytest.mark.parametrize(
    ("first", "second", "health"),
    [
        (OK, OK, OK),
        (OK, DOWN, Health("degraded", "1 of 2 are down")),
        (DOWN, OK, Health("degraded", "1 of 2 are down")),
        (DOWN, DOWN, DOWN),
    ],
)
def test_some_upstreams_that_are_down_degrade_the_gateway(first, second, health):
    upstream = router(Scripted("default", health=first), Scripted("cheap", health=second))
    assert upstream.health() == health


class Named(Model):
    """A model server that says who it is."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def answer(self, body, path):
        if path == "/models":
            return http({"data": [{"id": f"{self.name}-1"}, {"id": "shared"}]})
        if body["model"] == "unsafe":
            return super().answer(body, path)
        self.bodies.append(body)
        message = {"role": "assistant", "content": f"I am {self.name}."}
        return http({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


def through_a_gateway(work, *overrides, default=None):
    """Run `work(app, cheap)` on a gateway with the upstream `cheap` for `cheap-*`."""

    async def run():
        cheap = Named("cheap")
        async with site(default or Named("default")) as first, site(cheap) as second:
            options = {
                "upstream": {"url": first.url},
                "upstreams": {"cheap": {"url": second.url, "models": ["cheap-*"]}},
            }
            recipe = load_gateway(None, options, overrides, {})
            async with open_gateway(recipe) as app:
                return await work(app, cheap)

    return asyncio.run(run())


def said(response):
    return response.json["choices"][0]["message"]["content"]


def test_a_gateway_with_two_servers_lists_asks_and_reviews_both(monkeypatch):
    monkeypatch.setenv("WALTZRL_UPSTREAM_KEY", "first")
    monkeypatch.setenv("WALTZRL_UPSTREAM_KEY_CHEAP", "second")

    async def work(app, cheap):
        listed = (await ask(app, "/v1/models", method="GET")).json["data"]
        answers = [said(await chat(app, model)) for model in ("default-1", "cheap-1")]
        return [model["id"] for model in listed], answers, cheap.heads

    listed, answers, heads = through_a_gateway(work)
    assert listed == ["default-1", "shared", "cheap-1"]
    assert answers == ["I am default.", "I am cheap."]
    assert all("Authorization: Bearer second\r\n" in f"{head}\r\n" for head in heads)


def test_the_gateways_key_for_one_server_is_not_sent_to_another(monkeypatch):
    monkeypatch.setenv("WALTZRL_UPSTREAM_KEY", "first")
    monkeypatch.delenv("WALTZRL_UPSTREAM_KEY_CHEAP", raising=False)

    async def work(app, cheap):
        await chat(app, "cheap-1", key="clients")
        return cheap.heads

    assert not any("Authorization" in head for head in through_a_gateway(work))


@pytest.mark.promise(
    "Endpoints and upstreams", "While an upstream is down, its fallback answers, and is reviewed"
)
def test_a_server_that_is_away_is_replaced_and_what_the_other_says_is_reviewed():
    async def work(app, cheap):
        return [said(await chat(app, model)) for model in ("anything", "unsafe")], cheap.bodies

    async def gone(reader, writer):
        writer.close()

    answers, bodies = through_a_gateway(work, "upstream.fallback=cheap", default=gone)
    assert answers == ["I am cheap.", REVISED]
    assert UNSAFE not in json.dumps(answers)
    assert bodies[0]["messages"] == HELLO


class Flaky(Model):
    """A model server that gives one of these answers after the other."""

    def __init__(self, *answers):
        super().__init__()
        self.left = list(answers)

    def answer(self, body, path):
        return super().answer(body, path) if body is None else self.left.pop(0)


def test_a_server_is_asked_again_but_not_when_its_stream_broke():
    answer = http({"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]})
    server = Flaky(http(b"", 503), answer, events(words("Hel"), whole=False) + b"zz\r\n", answer)

    async def work(app, cheap):
        whole = await ask(app, CHAT, {"model": "m", "messages": HELLO})
        stream = await ask(app, CHAT, {"model": "m", "messages": HELLO, "stream": True})
        return said(whole), stream.text

    text, stream = through_a_gateway(work, "upstream.retries=3", default=server)
    assert text == "Hello."
    assert "the connection to the upstream failed" in stream
    assert len(server.left) == 1
