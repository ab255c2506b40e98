"""Time in tests: waiting for other processes, and clocks that only a test moves."""

import asyncio
import time

POLL_SECONDS = 0.01


def wait_until(condition, seconds=200.0):
    """Wait until `condition()` is true and return its value; fail after so many seconds."""
    ends = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < ends, f"the condition did not hold within {seconds:g} s"
        time.sleep(POLL_SECONDS)
    return value


async def until(condition, seconds=200.0):
    """Do what `wait_until` does, and let the event loop run meanwhile."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    while not (value := condition()):
        assert loop.time() < ends, f"the condition did not hold within {seconds:g} s"
        await asyncio.sleep(POLL_SECONDS)
    return value


async def settle():
    """Let every task run as far as it can without waiting."""
    for _ in range(5):
        await asyncio.sleep(0)


async def hold(admission, name, order, until):
    """Take a place of an admission, note who got it, and keep it until an event."""
    async with admission:
        order.append(name)
        await until.wait()


class FakeClock:
    """A clock that stands still until a test sets `now`."""

    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now


class FakeTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time stands still during work and skips every wait.

    Only for work that waits for nothing but timers: it would not wait for a socket either.
    """

    def __init__(self):
        super().__init__()
        self._now = 0.0
        self._select, self._selector.select = self._selector.select, self._skip

    def time(self):
        return self._now

    def advance(self, seconds):
        """Let time pass before the loop looks at its timers again."""
        self._now += seconds

    def _skip(self, seconds):
        self._now += seconds or 0.0
        return self._select(0)


def run_on_fake_time(work):
    """Run a coroutine to its end without waiting; return its result."""
    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        return runner.run(work)
