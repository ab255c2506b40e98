"""A client that goes away ends the work for it, and a quick answer costs no watcher."""

import asyncio

import pytest

from support.small_gateway import Model, ask, chat, gateway
from support.small_site import read_request
from support.timing import run_on_fake_time
from waltzrl.errors import RequestError
from waltzrl.gateway.server import GRACE_SECONDS, DisconnectWatcher


class Line:
    """A connection whose client may hang up."""

    def __init__(self):
        self.gone = asyncio.Event()
        self.watched = 0

    async def receive(self):
        self.watched += 1
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def nothing_is_left():
    """Let what was cancelled end, and say whether only this task runs."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return asyncio.all_tasks() == {asyncio.current_task()}


def test_a_quick_answer_never_starts_a_watcher():
    async def work():
        line = Line()
        with DisconnectWatcher(line.receive, 30):
            await asyncio.sleep(0)
        await asyncio.sleep(GRACE_SECONDS + 0.05)
        return line.watched, await nothing_is_left()

    assert run_on_fake_time(work()) == (0, True)


def test_a_client_that_stays_is_answered_and_no_longer_watched():
    async def work():
        line = Line()
        with DisconnectWatcher(line.receive, 30):
            await asyncio.sleep(GRACE_SECONDS + 0.05)
        return line.watched, await nothing_is_left()

    assert run_on_fake_time(work()) == (1, True)


def test_a_client_that_goes_away_ends_the_work_and_nothing_is_raised():
    async def work():
        line, ended = Line(), []
        asyncio.get_running_loop().call_later(GRACE_SECONDS + 0.05, line.gone.set)
        with DisconnectWatcher(line.receive, 30):
            try:
                await asyncio.sleep(60)
            finally:
                ended.append("cancelled")
        return ended, await nothing_is_left()

    assert run_on_fake_time(work()) == (["cancelled"], True)


def test_a_client_that_went_away_early_is_found_out_later():
    async def work():
        line = Line()
        line.gone.set()
        with DisconnectWatcher(line.receive, 30):
            await asyncio.sleep(5)
            pytest.fail("the client has gone")
        return await nothing_is_left()

    assert run_on_fake_time(work())


def test_what_is_still_sent_by_a_client_that_stays_is_passed_over():
    async def work():
        events = iter([{"type": "http.request", "body": b"more"}] * 3)
        line = Line()

        async def receive():
            return next(events, None) or await line.receive()

        with DisconnectWatcher(receive, 30):
            await asyncio.sleep(GRACE_SECONDS + 0.05)
        return line.watched

    assert run_on_fake_time(work()) == 1


def test_a_cancellation_by_somebody_else_is_not_swallowed():
    async def work():
        async def visit():
            with DisconnectWatcher(Line().receive, 30):
                await asyncio.sleep(60)

        task = asyncio.create_task(visit())
        await asyncio.sleep(GRACE_SECONDS + 0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await nothing_is_left()

    assert run_on_fake_time(work())


def test_an_error_of_the_work_is_raised():
    async def work():
        with DisconnectWatcher(Line().receive, 30):
            raise KeyError("work")

    with pytest.raises(KeyError):
        run_on_fake_time(work())


class Hanging(Model):
    """A model server that begins to answer and never ends; it knows when its client has gone."""

    def __init__(self):
        super().__init__()
        self.called, self.left = asyncio.Event(), asyncio.Event()

    async def __call__(self, reader, writer):
        await read_request(reader)
        self.called.set()
        await read_request(reader)
        self.left.set()


@pytest.mark.parametrize("more", [{}, {"n": 3}, {"stream": True}])
def test_the_upstream_is_let_go_when_the_client_has_gone(more):
    async def work():
        model, gone = Hanging(), asyncio.Event()
        async with gateway(model=model) as app:
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **more}
            asking = asyncio.create_task(ask(app, "/v1/chat/completions", body, gone=gone))
            await asyncio.wait_for(model.called.wait(), 60)
            gone.set()
            response = await asyncio.wait_for(asking, 60)
            await asyncio.wait_for(model.left.wait(), 60)
            metrics = (await ask(app, "/metrics", method="GET")).text
            return response, app.access.admission.active, metrics

    response, active, metrics = asyncio.run(work())
    assert response is None or not response.whole
    assert active == 0
    cancelled = 'waltzrl_errors_total{api="chat",kind="cancelled"}'
    assert f"{cancelled} {float(more.get('n', 1))}" in metrics


def test_no_task_is_left_over_by_those_who_stay():
    async def work():
        async with gateway() as app:
            before = asyncio.all_tasks()
            for more in ({}, {"n": 2}, {"stream": True}):
                assert (await chat(app, **more)).whole
            ours = {task for task in asyncio.all_tasks() if "Site" not in repr(task)}
            return len(ours - before)

    assert asyncio.run(work()) == 0


def test_a_body_that_does_not_come_is_given_up():
    async def work():
        with DisconnectWatcher(Line().receive, body_seconds=0.3) as watcher:
            await watcher.read(asyncio.sleep(60, b""))

    with pytest.raises(RequestError, match=r"did not arrive within 0\.3 s") as raised:
        run_on_fake_time(work())
    assert raised.value.status == 408


def test_a_body_that_comes_slowly_is_read_and_its_client_is_watched_from_then_on():
    async def work():
        line = Line()
        with DisconnectWatcher(line.receive, body_seconds=2 * GRACE_SECONDS) as watcher:
            body = await watcher.read(asyncio.sleep(GRACE_SECONDS + 0.05, b"late"))
            await asyncio.sleep(2 * GRACE_SECONDS)
        return body, line.watched, await nothing_is_left()

    assert run_on_fake_time(work()) == (b"late", 1, True)
