"""What `/readyz` reports, and how an upstream's state follows from traffic and probes."""

import asyncio
import json

import pytest

from support.small_gateway import Model, ask, chat, gateway, ready_gateway
from support.small_site import HANG_UP, answering, http, read_request, site
from support.timing import FakeClock, until
from waltzrl.agents.breaker import Breaker
from waltzrl.errors import RequestError
from waltzrl.gateway.health import OK, Health, report_readiness
from waltzrl.gateway.limits import Limits
from waltzrl.gateway.upstream import (
    FAILURES,
    IDLE_SECONDS,
    RETRY_SECONDS,
    Contact,
    HttpUpstream,
)

DEGRADED, DOWN = Health("degraded", "slow"), Health("down", "gone")


@pytest.mark.parametrize(
    ("parts", "code", "status"),
    [
        ({}, 200, "ready"),
        ({"a": OK, "b": OK}, 200, "ready"),
        ({"a": OK, "b": DEGRADED}, 200, "degraded"),
        ({"a": DEGRADED, "b": DOWN}, 503, "not ready"),
    ],
)
def test_one_part_that_is_down_makes_the_gateway_unready(parts, code, status):
    checks = {name: lambda part=part: part for name, part in parts.items()}
    told, body = report_readiness(checks)
    said = {name: {"status": part.status, "detail": part.detail} for name, part in parts.items()}
    assert (told, json.loads(body)) == (code, {"status": status, "checks": said})


def test_an_upstream_is_down_until_it_has_answered():
    contact = Contact(clock=FakeClock())
    assert contact.health == Health("down", "not reached yet")
    assert contact.needs_probe
    contact.succeeded()
    assert contact.health == OK


def test_some_failures_in_a_row_take_it_down_and_one_success_brings_it_back():
    contact = Contact(clock=FakeClock())
    contact.succeeded()
    for _ in range(FAILURES - 1):
        contact.failed("unreachable")
    assert contact.health == OK
    contact.failed("answered 503")
    assert contact.health == Health("down", "answered 503")
    contact.succeeded()
    assert contact.health == OK


def test_traffic_saves_the_probes_and_failures_bring_them_sooner():
    clock = FakeClock()
    contact = Contact(clock=clock)
    contact.succeeded()
    clock.now = IDLE_SECONDS - 0.1
    assert not contact.needs_probe
    contact.succeeded()
    clock.now += IDLE_SECONDS - 0.1
    assert not contact.needs_probe
    clock.now += 0.1
    assert contact.needs_probe
    contact.failed("unreachable")
    assert not contact.needs_probe
    clock.now += RETRY_SECONDS
    assert contact.needs_probe


class Failing(Model):
    """A server that answers probes and requests with a status, while it has one."""

    status = 503

    def answer(self, body, path):
        if self.status != 200:
            return http({"error": {"message": "loading"}}, self.status)
        return super().answer(body, path)


async def readyz(app):
    response = await ask(app, "/readyz", method="GET")
    return response.status, response.json["checks"]["upstream"]


@pytest.mark.promise("Operation", "`/readyz` knows the upstream, and asks it nothing itself")
def test_readyz_follows_the_upstream_without_asking_it_at_every_call():
    async def work():
        model = Failing()
        async with gateway(model=model) as app:
            assert (await readyz(app))[0] == 503
            model.status = 200
            assert (await chat(app)).status == 200  # traffic shows it too
            for _ in range(3):
                assert await readyz(app) == (200, {"status": "ok", "detail": ""})
            model.status = 500
            for _ in range(FAILURES):
                assert (await chat(app)).status == 502
            assert await readyz(app) == (503, {"status": "down", "detail": "answered 500"})
            model.status = 200
            await until(lambda: report_readiness(app.checks)[0] == 200)  # a probe

    asyncio.run(work())


def test_a_gateway_without_traffic_is_ready_once_its_upstream_is():
    async def work():
        async with gateway() as app:
            return await ready_gateway(app)

    body = asyncio.run(work()).json
    assert body["status"] == "ready"
    assert set(body["checks"]) >= {"gateway", "audit", "upstream"}


async def probed(*answers, breaker=None):
    """Probe a server that answers so; return the upstream."""
    async with site(answering(*answers)) as server:
        upstream = HttpUpstream(server.url, Limits(), api_key="ours", timeout_seconds=5)
        upstream.breaker = breaker or upstream.breaker
        watching = asyncio.create_task(upstream.watch())
        await until(lambda: upstream.health().detail != "not reached yet" or watching.done())
        watching.cancel()
        upstream.close()
        return upstream


@pytest.mark.parametrize("status", [200, 401, 403, 429])
def test_a_server_that_answers_a_probe_is_up_whatever_it_says_of_the_models(status):
    assert asyncio.run(probed([http({"data": []}, status)])).health() == OK


NOT_FOUND = http({"detail": "Not Found"}, 404)
NO_SUCH_MODEL = http({"error": {"message": "model '' not found"}}, 404)
UNEXPECTED = http({"error": "Unexpected endpoint or method."})
COMPLETION = http({"choices": [{"message": {"role": "assistant", "content": "Hi."}}]})
NO_CHAT = "the server has neither /models nor /chat/completions below the URL"


@pytest.mark.parametrize("models", [NOT_FOUND, http({}, 405), http(b"<html>"), UNEXPECTED])
@pytest.mark.parametrize("chat", [http({}, 400), http({}, 422), NO_SUCH_MODEL, COMPLETION])
def test_a_server_without_a_list_of_models_is_up_where_it_chats(models, chat):
    assert asyncio.run(probed([models], [chat])).health() == OK


@pytest.mark.parametrize(
    ("models", "chat"),
    [(NOT_FOUND, NOT_FOUND), (http({}, 405), http({}, 405)), (UNEXPECTED, UNEXPECTED)],
)
def test_a_url_that_leads_to_no_chat_is_told_and_what_to_do(models, chat):
    detail = f"{NO_CHAT}; the URL probably has to end in /v1"
    assert asyncio.run(probed([models], [chat])).health() == Health("down", detail)


def test_a_server_that_answers_no_probe_is_not_down_while_it_works_on_a_request():
    probes = []

    async def talk(reader, _):
        while request := await read_request(reader):
            probes.append(request.startswith(b"GET"))

    async def work():
        async with site(talk) as server:
            upstream = HttpUpstream(server.url, Limits(), api_key=None, timeout_seconds=60)
            asked = asyncio.create_task(upstream.complete({"model": "m"}, None))
            await until(lambda: probes == [False])
            watching = asyncio.create_task(upstream.watch())
            await until(lambda: len(probes) == 3)  # one ended without an answer
            working = upstream.health()
            asked.cancel()
            await until(lambda: upstream.health() != working)
            watching.cancel()
            upstream.close()
            return working, upstream.health()

    unknown, late = Health("down", "not reached yet"), Health("down", "timed out")
    assert asyncio.run(work()) == (unknown, late)


MOVED = http(b"", 308, Location="https://elsewhere.example/v1")


def test_a_server_that_only_redirects_is_down_with_or_without_requests():
    async def work():
        async with site(answering([MOVED], [MOVED], [MOVED])) as server:
            upstream = HttpUpstream(server.url, Limits(), api_key=None, timeout_seconds=5)
            watching = asyncio.create_task(upstream.watch())
            await until(lambda: upstream.health().detail != "not reached yet")
            watching.cancel()
            with pytest.raises(RequestError, match="the upstream answered 308"):
                await upstream.complete({"model": "m"}, None)
            upstream.close()
            return upstream.health()

    told = "the server redirects requests to another URL; use that one"
    assert asyncio.run(work()) == Health("down", told)


def test_a_server_that_redirects_the_list_of_models_alone_is_up():
    assert asyncio.run(probed([MOVED], [http({}, 400)])).health() == OK


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("", "the URL probably has to end in /v1"),
        ("/v1", "check the path of the URL"),
        ("/v1/chat/completions/", "end the URL before /chat/completions"),
    ],
)
def test_the_advice_is_about_the_url_that_was_given(path, advice):
    async def work():
        async with site(answering([NOT_FOUND], [NOT_FOUND])) as server:
            url = server.url.removesuffix("/base") + path
            upstream = HttpUpstream(url, Limits(), api_key=None, timeout_seconds=5)
            watching = asyncio.create_task(upstream.watch())
            await until(lambda: upstream.health().detail != "not reached yet")
            watching.cancel()
            upstream.close()
            return upstream.health()

    assert asyncio.run(work()) == Health("down", f"{NO_CHAT}; {advice}")


class Elsewhere(Model):
    """A server whose routes are below /v1, as most are, and not where the URL leads."""

    async def __call__(self, reader, writer):
        while await read_request(reader):
            writer.write(NOT_FOUND)


def test_a_request_that_got_404_does_not_make_the_gateway_ready():
    async def work():
        async with gateway(model=Elsewhere()) as app:
            await until(lambda: NO_CHAT in app.checks["upstream"]().detail)
            assert (await chat(app)).status == 404
            return await readyz(app)

    status, upstream = asyncio.run(work())
    assert (status, upstream["status"]) == (503, "down")


@pytest.mark.parametrize(
    ("answer", "detail"),
    [([http({}, 500)], "answered 500"), ([HANG_UP], "unreachable")],
)
def test_a_failed_probe_says_why_and_no_address(answer, detail):
    assert asyncio.run(probed(answer)).health() == Health("down", detail)


@pytest.mark.promise("Operation", "A probe that gets through closes the upstream's circuit breaker")
def test_a_probe_that_gets_through_closes_the_breaker():
    breaker = Breaker(failures=1, clock=FakeClock())
    with breaker.attempt() as attempt:
        attempt.succeeded = False
    assert breaker.state == "open"

    async def work():
        async with site(answering([http({"data": []})])) as server:
            upstream = HttpUpstream(server.url, Limits(), api_key=None, timeout_seconds=5)
            upstream.breaker = breaker
            assert upstream.health() == Health("down", "could not be reached several times")
            watching = asyncio.create_task(upstream.watch())
            await until(lambda: breaker.state == "closed")
            watching.cancel()
            upstream.close()

    asyncio.run(work())


def test_an_audit_log_that_cannot_be_written_makes_it_unready(tmp_path):
    async def work():
        async with gateway(f"audit.folder={tmp_path / 'audit'}") as app:
            await ready_gateway(app)
            return (await ask(app, "/readyz", method="GET")).json["checks"]["audit"]

    assert asyncio.run(work()) == {"status": "ok", "detail": ""}
