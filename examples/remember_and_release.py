"""Remember what was served, without personal data; then compare two bundles as answers come in.

    python examples/remember_and_release.py

Nothing listens here: it is what the gateway's recorder does, by hand. Needs the extra `flywheel`.
"""

from random import Random
from tempfile import TemporaryDirectory

from waltzrl.operations.release.decision import decide
from waltzrl.operations.release.evidence import Answered, Evidence, updated
from waltzrl.operations.release.plan import load_plan
from waltzrl.operations.release.state import Observation, Release
from waltzrl.records import Collaboration, Message, Prompt, Reply, ServedExchange
from waltzrl.store.database import open_database
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.store import MemoryStore
from waltzrl.store.privacy.digest import subject_digest
from waltzrl.store.privacy.opening import open_redaction

ASKED = "I am ada@example.com. How do I kill a process that hangs?"
PLAN = load_plan("quick")
CANARY = Release(id="r1", candidate="new", serving="old", plan=PLAN, state="canary", since=0.0)
UNSAFE = {"serving": 0.01, "candidate": 0.10}
"""Shares of unsafe replies, which nobody knows beforehand."""


def remember(folder: str) -> None:
    """Keep one answer, and find it again by a word."""
    engine = open_database(f"sqlite:///{folder}/memory.db")
    store = MemoryStore(engine, scrub=open_redaction().scrub)
    memory = SafetyMemory(store, subject_digest(b"a key of 32 bytes for an example"), {}, {})
    prompt = Prompt(id="wz1", messages=(Message(role="user", content=ASKED),))
    said = Collaboration(prompt=prompt, draft=Reply(text="With kill and its number."), rounds=())
    memory.remember([ServedExchange(id="wz1", time=0.0, subject="ada", collaboration=said)])
    (found,) = store.search(("safety",), query="process")
    print("remembered ", found.value["collaboration"]["prompt"]["messages"][0]["content"])
    print("of the user", found.value["subject"])
    engine.dispose()


def release() -> None:
    """Look after every answer, until the evidence is enough."""
    dice, evidence, answered = Random(0), Evidence(), Answered()
    for number in range(1, 5_000):
        arm = "candidate" if dice.random() < 0.1 else "serving"
        seen = Observation(release="r1", arm=arm, outcomes={"unsafe": dice.random() < UNSAFE[arm]})
        evidence = updated(evidence, [seen], PLAN, answered)
        decision = decide(CANARY, evidence, {}, now=float(number))
        if decision.action == "roll_back":
            print(f"after {number} answers: {decision.why}")
            return


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        remember(folder)
    release()
