"""Two people with records in every place in which a gateway stores any."""

import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Engine

from waltzrl.evaluation.collecting.export import export
from waltzrl.evaluation.collecting.selection import Selection, labelled_prompts
from waltzrl.evaluation.collecting.trajectories import collect
from waltzrl.operations.compliance.subject import RecordsOf, open_places
from waltzrl.records import Collaboration, Feedback, Message, Prompt, Reply, Round, ServedExchange
from waltzrl.store.audit.log import LogSettings
from waltzrl.store.audit.writer import LocalLog
from waltzrl.store.memory.erasure import note_export
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.store import MemoryStore
from waltzrl.store.privacy.digest import key_in, subject_digest

EVERYBODY = Selection(held_out_percentage=0.0)
AN_HOUR_AGO = time.time() - 3600
WORDS = "my grandmother's ocelot sings at dawn"


class Site(NamedTuple):
    """The folder, the database and the audit log of a gateway."""

    folder: Path
    url: str
    log: Path
    engine: Engine

    @property
    def key(self):
        return self.folder / "memory.key"

    @property
    def log_key(self):
        return self.log.with_name("audit.key")

    def memory(self):
        store = MemoryStore(self.engine, scrub=lambda text: text)
        return SafetyMemory(store, self.digest, {"evaluations": 10, "coaching": 20}, {})

    def digest(self, subject):
        return subject_digest(key_in(self.key))(subject)

    def open_log(self):
        settings = LogSettings(
            on_failure="refuse", contents=lambda collaboration: collaboration, commit_seconds=0.005
        )
        return LocalLog.open(self.log, key=self.log_key, settings=settings)


def collaboration_of(subject, number, rounds=1):
    feedback = Feedback(unsafe=False, overrefuse=True, text="Answer.", risk=0.1)
    last = Round(feedback=Feedback(unsafe=False, overrefuse=False, risk=0.0))
    question = f"I am {subject}, and {WORDS}: how often, {number} times?"
    return Collaboration(
        prompt=Prompt(id=f"{subject}-{number}", messages=(Message(role="user", content=question),)),
        draft=Reply(text=f"I cannot tell {subject} that, whatever the beast may be."),
        rounds=(Round(feedback=feedback, revision=Reply(text=f"Often, {subject}.")), last)[:rounds],
    )


def interaction(subject, number, when):
    return ServedExchange(
        id=f"{subject}-{number}",
        time=when,
        subject=subject,
        may_learn=True,
        bundle="b1",
        decision="revised",
        collaboration=collaboration_of(subject, number, rounds=2),
    )


def leave_traces(site, subjects=("ada", "bob"), count=3, when=AN_HOUR_AGO):
    """Store records of all kinds; return the exports."""
    memory = site.memory()
    memory.remember(
        [interaction(subject, n, when + n) for n in range(count) for subject in subjects]
    )
    with site.open_log() as log:
        for number in range(count):
            for subject in subjects:
                log_decision(log, subject, number)
    return export_all(site, memory)


def log_decision(log, subject, number):
    """Log a decision and its contents."""
    collaboration = collaboration_of(subject, number)
    name = f"{subject}-{number}"
    exchange = ServedExchange(
        id=name, time=0.0, decision="revised", subject=subject, collaboration=collaboration
    )
    prompt = replace(collaboration.prompt, id=name)
    log.append(exchange, prompt)


def export_all(site, memory):
    evaluations = list(memory.every_evaluation())
    samples = list(collect(evaluations, EVERYBODY))
    for sample in samples:
        memory.store_dir_training_sample(sample)
    prompts = [prompt.row for prompt in labelled_prompts(evaluations, EVERYBODY)]
    files = {
        site.folder / name: rows
        for name, rows in (
            ("samples.jsonl", samples),
            ("samples.parquet", samples),
            ("prompts.json", prompts),
        )
    }
    for path, rows in files.items():
        note_export(memory.store.engine, path)
        export(path, rows)
    return list(files)


def open_places_of(site, whose):
    """Open the places of a site for a person, by the client's name or otherwise."""
    whose = RecordsOf(subject=whose) if isinstance(whose, str) else whose
    return open_places(whose, site.url, site.key, {site.log: site.log_key})
