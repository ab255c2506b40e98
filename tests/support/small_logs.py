"""Small audit logs in real files."""

from dataclasses import replace

from waltzrl.records import (
    Collaboration,
    Feedback,
    Message,
    Prompt,
    Reply,
    Round,
    ServedExchange,
    Usage,
)
from waltzrl.store.audit.contents import content_files, read_contents
from waltzrl.store.audit.log import LogSettings
from waltzrl.store.audit.writer import LocalLog

COLLABORATION = Collaboration(
    prompt=Prompt(id="r", messages=(Message(role="user", content="How do I kill a process?"),)),
    draft=Reply(text="I cannot.", usage=Usage(input_tokens=11, output_tokens=3), milliseconds=20.0),
    rounds=(
        Round(
            feedback=Feedback(
                unsafe=False,
                overrefuse=True,
                text="Answer it.",
                risk=0.25,
                rules=("refusal/plain",),
                reply=Reply(
                    text="{}", usage=Usage(input_tokens=40, output_tokens=7), milliseconds=9.0
                ),
            ),
            revision=Reply(
                text="Use kill.", usage=Usage(input_tokens=20, output_tokens=5), milliseconds=15.0
            ),
        ),
    ),
)


def unchanged(collaboration):
    """A scrub function that removes nothing."""
    return collaboration


def settings(**changes):
    return LogSettings(**{"on_failure": "refuse", "commit_seconds": 0.005} | changes)


def open_log(folder, clock=None, **changes):
    """Open the log in a folder's `log`, with its key in the folder itself."""
    given = {} if clock is None else {"clock": clock}
    return LocalLog.open(
        folder / "log", key=folder / "audit.key", settings=settings(**changes), **given
    )


def exchange(name, collaboration=COLLABORATION, subject="user-17"):
    return ServedExchange(
        id=name, time=0.0, decision="revised", reason="refusal", caller="team-a", subject=subject,
        api="chat", model="m", bundle="b1", stage=1, mode="buffer", milliseconds=45.0,
        collaboration=collaboration,
    )  # fmt: skip


def log_decision(log, name, collaboration=COLLABORATION, subject="user-17"):
    """Append a decision whose record and contents bear a name."""
    served = exchange(name, collaboration, subject)
    log.append(served, replace(collaboration.prompt, id=name))


def fill(log, count, start=0):
    for number in range(start, start + count):
        log_decision(log, f"r{number}")


def write_log(folder, count=40, **changes):
    """Write and close a log of `count` decisions with many checkpoints; return its public key."""
    with open_log(folder, **{"checkpoint_records": 5} | changes) as log:
        for number in range(count):
            log_decision(log, f"r{number}")
            if number % 5 == 4:
                log.flush()
        return log.public_key


def contents_of(folder, digest):
    """Return the contents of one subject."""
    kept = (each for path in content_files(folder) for _, _, each in read_contents(path))
    return [content for content in kept if content.subject == digest]
