"""A real recorder, told by hand what was served; and what a memory holds in the end."""

import queue
import threading
import time
from contextlib import contextmanager, suppress

import msgspec

from support.forked import Forked
from waltzrl.operations.online.recorder_opening import RecorderConfig, main
from waltzrl.operations.online.recorder_protocol import RecorderReport, encode_frame
from waltzrl.records import Collaboration, Feedback, Message, Prompt, Reply, Round, ServedExchange
from waltzrl.store.database import open_database
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.settings import MemoryConfig, RetentionDays
from waltzrl.store.memory.store import MemoryStore

SAFE = Feedback(unsafe=False, overrefuse=False, risk=0.05)
FOREVER = dict.fromkeys(("evaluations", "coaching", "training"), 1e5)
UNSAFE = Feedback(unsafe=True, overrefuse=False, text="Say less.", risk=0.9, rules=("harm/a",))


def config(url, folder, *, categories=None, retention=None, **memory):
    """Configure a recorder that competes with the other tests, where one in use is nice."""
    return RecorderConfig(
        memory=MemoryConfig(
            url=url,
            subject_key=folder / "subjects.key",
            retention_days=RetentionDays(**FOREVER | (retention or {})),
            **{"niceness": 0} | memory,
        ),
        categories=categories or {},
    )


def said(prompt="How do I bake bread?", draft="Mix, wait, bake.", rounds=((SAFE, None),)):
    """Return a collaboration of texts; `rounds` are (feedback, revision or None)."""
    return Collaboration(
        prompt=Prompt(id="wz", messages=(Message(role="user", content=prompt),)),
        draft=Reply(text=draft),
        rounds=tuple(
            Round(feedback=feedback, revision=None if new is None else Reply(text=new))
            for feedback, new in rounds
        ),
    )


def answer(number, collaboration=None, **fields):
    """Return the interaction wzNUMBER."""
    about = {
        "decision": "draft",
        "milliseconds": 20.0,
        "bundle": "b1",
        "stage": 1,
        "may_learn": True,
    }
    return ServedExchange(
        id=f"wz{number}", time=time.time(), collaboration=collaboration or said(), **about | fields
    )


class Told:
    """A recorder that runs."""

    def __init__(self, process):
        self.process = process
        self.report = RecorderReport()
        self._reports = queue.Queue()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def tell(self, *values):
        self.process.stdin.write(b"".join(map(encode_frame, values)))
        self.process.stdin.flush()

    def until(self, is_so, seconds=30):
        """Wait until what it reports is so."""
        ends = time.monotonic() + seconds
        while not is_so(self.report):
            self.report = self._reports.get(timeout=max(0.1, ends - time.monotonic()))
        return self.report

    def finish(self):
        """Let it finish; return its last report."""
        self.process.stdin.close()
        assert self.process.wait(60) == 0
        self._thread.join()
        while not self._reports.empty():
            self.report = self._reports.get()
        return self.report

    def close(self):
        self._thread.join()
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def _listen(self):
        for line in self.process.stdout:
            self._reports.put(msgspec.json.decode(line, type=RecorderReport))


@contextmanager
def recorder(configuration, log):
    """Run a recorder; its messages go to the file `log`."""
    with log.open("a") as errors, Forked(main, stderr=errors) as process:
        told = Told(process)
        try:
            told.tell(configuration.to_json())
            yield told
        finally:
            process.kill()
            told.close()


def remembered(engine):
    """Return every evaluation that a memory holds, by its id."""
    memory = SafetyMemory(MemoryStore(engine, scrub=str), str, {}, {})
    return {one.id: one for one in memory.every_evaluation()}


def at(url):
    """Return every evaluation that is remembered there."""
    engine = open_database(url)
    try:
        return remembered(engine)
    finally:
        engine.dispose()
