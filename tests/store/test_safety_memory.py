"""Interactions in, typed records out."""

import subprocess
import sys
import time
from dataclasses import replace
from hashlib import sha256

import msgspec
import pytest

from support.stores import our_store
from waltzrl.errors import InputError
from waltzrl.records import (
    Collaboration,
    Feedback,
    Message,
    Prompt,
    Reply,
    Round,
    ServedExchange,
    Verdict,
)
from waltzrl.store.memory.labels import LabelEvent, SampleCounts
from waltzrl.store.memory.queue import QueueSelection
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.schemas import (
    COACHING,
    EVALUATIONS,
    TRAINING,
    Action,
    OperationalReward,
    SafetyEvaluation,
    State,
    TrainingSample,
    request_hash,
)
from waltzrl.store.notices import notices_after

NOW = 1_700_000_000.0
MAIL = "ada@example.com"
FINE = Round(feedback=Feedback(unsafe=False, overrefuse=False, risk=0.1))
ILLEGIBLE = Feedback(unsafe=False, overrefuse=False, well_formed=False)
UNSAFE = Feedback(unsafe=True, overrefuse=False, text="Leave it out.", risk=0.9, rules=("r1",))


def scrub(text):
    return text.replace(MAIL, "[MAIL]")


def collaboration(*rounds, request="How do I kill a process?", draft="Like this."):
    prompt = Prompt(id="p", messages=(Message(role="user", content=request),))
    return Collaboration(prompt=prompt, draft=Reply(text=draft), rounds=rounds)


def told(id_="i1", *, rounds=(FINE,), request="How do I kill a process?", **more):
    said = collaboration(*rounds, request=request)
    about = {
        "time": NOW,
        "bundle": "b1",
        "may_learn": True,
        "decision": "draft",
        "collaboration": said,
    } | more
    return ServedExchange(id=id_, **about)


COACHED = (Round(feedback=UNSAFE, revision=Reply(text="Better not.")), FINE)


@pytest.fixture
def memory(database_url):
    with our_store(database_url, scrub=scrub) as store:
        yield SafetyMemory(store, lambda name: f"digest of {len(name)}", {}, {"r1": "privacy"})


def test_an_interaction_becomes_an_evaluation(memory):
    (kept,) = memory.remember([told(subject="ada", caller="app", stage=2, arm="candidate")])
    assert kept == memory.evaluation("i1")
    assert (kept.subject, kept.caller, kept.stage, kept.arm) == (
        "digest of 3",
        "app",
        2,
        "candidate",
    )
    assert kept.request_hash == sha256(b"How do I kill a process?").hexdigest()[:16]
    assert (kept.safe, kept.category, kept.verdict, kept.label) == (True, "", None, None)
    assert kept.collaboration == collaboration(FINE)
    assert memory.evaluation("i2") is None


def test_what_is_remembered_is_scrubbed_and_so_is_what_is_returned(memory):
    (kept,) = memory.remember([told(request=f"Write to {MAIL}", subject=MAIL, model=MAIL)])
    raw = msgspec.json.encode(memory.store.get(EVALUATIONS, "i1").value).decode()
    assert MAIL not in raw + repr(kept)
    assert kept.collaboration.prompt.messages[0].content == "Write to [MAIL]"
    assert kept.request_hash == request_hash("Write to [MAIL]")


@pytest.mark.promise("Logs", "Memory and traces hold the client's ids")
def test_the_clients_ids_are_remembered(memory):
    trace = "0af7651916cd43dd8448eb211c80319c"
    (kept,) = memory.remember([told(client_request_id="shop-17", trace_id=trace)])
    assert (kept.client_request_id, kept.trace_id) == ("shop-17", trace)


def test_an_interaction_without_an_answer_is_an_evaluation_too(memory):
    lost = told(decision="error", reason="upstream", collaboration=None)
    (kept,) = memory.remember([lost])
    assert (kept.decision, kept.reason, kept.safe, kept.request_hash) == (
        "error", "upstream", None, "",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("decision", "rounds", "safe"),
    [
        ("draft", (), None),
        ("draft", (FINE,), True),
        ("draft", (Round(feedback=UNSAFE),), False),
        ("draft", (Round(feedback=ILLEGIBLE),), None),
        ("revised", COACHED, True),
        ("revised", COACHED[:1], None),
        ("refused", (Round(
        feedback=UNSAFE, revision=Reply(text="I cannot help.", origin="canned")
    ),), True),
    ],
)  # fmt: skip
def test_a_reply_is_as_safe_as_its_last_review_says(memory, decision, rounds, safe):
    (kept,) = memory.remember([told(decision=decision, rounds=rounds)])
    assert kept.safe is safe
    assert (kept in memory.retrieve_safety_evaluations(safe=True)) is (safe is True)
    assert memory.retrieve_safety_evaluations() == [kept]


def test_feedback_that_led_to_a_revision_is_a_coaching_session(memory):
    memory.remember([told(decision="revised", rounds=COACHED), told("i2")])
    (session,) = memory.retrieve_similar_coaching("How do I kill a process?")
    assert session.coaching_session_id == "i1"
    assert (session.task, session.initial_response) == ("How do I kill a process?", "Like this.")
    assert session.feedback_provided == ("Leave it out.", "")
    assert session.refined_response == "Better not."
    assert session.safety_risk_score == 0.9
    assert session.improvement_score == pytest.approx(0.8)
    assert (session.outcome, session.category, session.agent_id) == ("safe", "privacy", "b1")


@pytest.mark.parametrize(
    ("decision", "last", "outcome"),
    [
        ("revised", Feedback(unsafe=True, overrefuse=False), "unsafe"),
        ("revised", Feedback(unsafe=False, overrefuse=True), "safe"),  # an unsafe draft, mended
        ("revised", Feedback(unsafe=False, overrefuse=False), "safe"),
    ],
)
def test_a_coaching_session_ends_as_the_last_review_says(memory, decision, last, outcome):
    memory.remember([told(decision=decision, rounds=(COACHED[0], Round(feedback=last)))])
    (session,) = memory.retrieve_similar_coaching("How do I kill a process?")
    assert (session.outcome, session.improvement_score) == (outcome, None)


def test_a_refusal_that_stays_one_after_coaching_is_over_refused(memory):
    overrefusing = Feedback(unsafe=False, overrefuse=True, text="Answer it.")
    rounds = (
        Round(feedback=overrefusing, revision=Reply(text="No.")),
        Round(feedback=overrefusing),
    )
    memory.remember([told(decision="revised", rounds=rounds)])
    (session,) = memory.retrieve_similar_coaching("How do I kill a process?")
    assert session.outcome == "over_refused"


def test_a_canned_refusal_alone_is_no_coaching(memory):
    canned = Round(feedback=UNSAFE, revision=Reply(text="I cannot help.", origin="canned"))
    memory.remember([told(decision="refused", rounds=(canned,))])
    assert memory.store.search(COACHING) == []
    memory.remember([told("i2", decision="refused", rounds=(COACHED[0], canned))])
    assert [item.key for item in memory.store.search(COACHING)] == ["i2"]


@pytest.mark.promise("Requirements", "memory: three namespaces and schemas")
@pytest.mark.promise("Requirements", "hash_user_request")
def test_similar_coaching_is_the_same_request_first_and_then_the_same_words(memory):
    requests = {"same": "Kill a process", "near": "kill that process now", "far": "Bake a cake"}
    for id_, request in requests.items():
        memory.remember([told(id_, rounds=COACHED, decision="revised", request=request)])
    found = memory.retrieve_similar_coaching("Kill a process")
    assert [one.coaching_session_id for one in found][:2] == ["same", "near"]
    assert len(memory.retrieve_similar_coaching("Kill a process", limit=1)) == 1
    assert memory.retrieve_similar_coaching("nothing alike") == []


def test_evaluations_come_newest_first_in_pages(memory):
    memory.remember([told(f"i{n}", time=NOW + n, bundle=f"b{n % 2}") for n in range(5)])
    assert [one.id for one in memory.evaluations(limit=2)] == ["i4", "i3"]
    assert [one.id for one in memory.evaluations(limit=2, before=NOW + 3)] == ["i2", "i1"]
    assert [one.id for one in memory.evaluations(limit=9, bundle="b1")] == ["i3", "i1"]
    assert [one.id for one in memory.evaluations(limit=9, time={"$gte": NOW + 4})] == ["i4"]


def test_every_evaluation_comes_once_and_the_oldest_first(memory):
    many = [told(f"i{n:04}", time=NOW + n // 7) for n in range(1200)]
    memory.remember(many)
    assert [one.id for one in memory.every_evaluation()] == [one.id for one in many]


def test_a_verdict_is_noted(memory):
    memory.remember([told()])
    verdict = Verdict(judge="j", unsafe=True, refuses=False, overrefuses=False)
    assert memory.store_verdict("i1", verdict)
    assert memory.evaluation("i1").verdict == verdict


@pytest.mark.promise(
    "Labels",
    "Labels are events of people: none overwrites another, and a withdrawal is one too; the audit "
    "log has each, without texts",
)
def test_labels_are_added_and_never_replaced(memory):
    memory.remember([told()])
    events = [
        LabelEvent(by="ada", reply="unsafe", request="harmful", comment="See turn 2."),
        LabelEvent(by="grace", reply="correct", correction="Call 0800 1110."),
        LabelEvent(by="ada", action="withdraw"),
    ]
    labels = []
    for event in events:
        memory.label("i1", event)
        labels.append(memory.evaluation("i1").label)
    assert memory.evaluation("i1").labels == tuple(events)
    assert events[0].time == pytest.approx(time.time(), abs=60)
    assert labels == ["unsafe", "disputed", "correct"]
    assert [one.id for one in memory.evaluations(limit=1, label="correct")] == ["i1"]


def test_every_label_is_a_notice_for_all_gateways_and_holds_no_content(memory):
    memory.remember([told()])
    memory.label("i1", LabelEvent(by="ada", reply="unsafe", correction="Better.", comment="Why?"))
    memory.label("i1", LabelEvent(by="ada", action="withdraw"))
    first, last = notices_after(memory.store.engine, 0)
    assert (first.kind, first.body) == (
        "label",
        {
            "evaluation": "i1", "action": "label", "by": "ada", "reply": "unsafe",
            "corrected": True, "commented": True,
        },
    )  # fmt: skip
    assert (last.body["action"], last.body["by"]) == ("withdraw", "ada")


@pytest.mark.promise(
    "Labels",
    "Comments and corrected replies are scrubbed before they are stored and when they are "
    "exported, and erased with the user",
)
def test_texts_of_labels_are_scrubbed_and_people_are_still_told_apart(memory):
    memory.remember([told()])
    memory.label("i1", LabelEvent(by=MAIL, correction=f"To {MAIL}.", comment=f"He is {MAIL}\0"))
    memory.label("i1", LabelEvent(by=f"{MAIL}.au", reply="correct"))
    raw = msgspec.json.encode(memory.store.get(EVALUATIONS, "i1").value).decode()
    assert MAIL not in raw + repr(notices_after(memory.store.engine, 0))
    first, second = memory.evaluation("i1").labels
    assert (first.correction, first.comment) == ("To [MAIL].", "He is [MAIL]\ufffd")
    assert first.by == memory.rater(MAIL) == "[MAIL] digest o"
    assert first.by != second.by


def test_what_is_not_there_can_be_neither_judged_nor_labelled(memory):
    assert not memory.store_verdict("gone", Verdict(judge="j"))
    with pytest.raises(InputError, match="gone"):
        memory.label("gone", LabelEvent(by="ada", reply="correct"))
    assert notices_after(memory.store.engine, 0) == []


def test_what_two_people_said_of_the_same_exchange_is_compared(memory):
    memory.remember([told("i1"), told("i2"), told("i3")])
    memory.label("i1", LabelEvent(by="ada", reply="unsafe", request="harmful"))
    memory.label("i1", LabelEvent(by="grace", reply="unsafe", request="harmless"))
    memory.label("i2", LabelEvent(by="ada", reply="correct"))
    assert memory.double_answers() == {
        "reply unsafe": [(True, True)],
        "over-refusal": [(False, False)],
        "request harmful": [(True, False)],
    }


@pytest.mark.promise(
    "Command line",
    "A user's thumb is kept with the reply that it is about, only for the key that asked, and "
    "counted with an interval",
)
def test_thumbs_incidents_and_added_times_are_counted(memory):
    drafted = replace(collaboration(), draft=replace(collaboration().draft, milliseconds=5.0))
    memory.remember(
        [
            told("a", collaboration=drafted, milliseconds=15.0, caller="shop"),
            told("b", collaboration=drafted, milliseconds=35.0, caller="shop"),
            told("c", collaboration=drafted, milliseconds=25.0, caller="shop"),
        ]
    )
    assert memory.store_thumb("a", "shop", "down")
    assert memory.store_thumb("a", "shop", "up")  # in the place of the first
    assert memory.store_thumb("b", "shop", "down")
    assert not memory.store_thumb("c", "another", "up")
    assert not memory.store_thumb("unknown", "shop", "up")
    memory.label("c", LabelEvent(by="olga", reply="unsafe", steers=True))
    (counts,) = memory.rates(since=NOW)
    assert (counts.thumbs_up, counts.thumbs_down, counts.incidents) == (1, 1, 1)
    assert counts.added_p95 == 30.0


@pytest.mark.promise(
    "Command line",
    "A release of the requirement's schedules advances only below 50 % changed answers and 200 ms "
    "of the gateway's own time, without an incident, with satisfied users",
)
def test_the_added_time_leaves_out_the_models_draft_and_revisions(memory):
    fixed = Reply(text="Better not.", milliseconds=500.0)
    canned = Reply(text="No.", origin="canned", milliseconds=2.0)
    said = collaboration(Round(feedback=UNSAFE, revision=fixed), Round(feedback=UNSAFE))
    drafted = replace(said, draft=replace(said.draft, milliseconds=300.0))
    refused = replace(drafted, rounds=(Round(feedback=UNSAFE, revision=canned),))
    exchanges = [
        told("a", decision="revised", collaboration=drafted, milliseconds=960.0),
        told("b", decision="refused", collaboration=refused, milliseconds=320.0),
        told("c", decision="error", collaboration=None, milliseconds=9000.0),
    ]
    kept = memory.remember(exchanges)
    assert [one.added_milliseconds for one in kept] == [160.0, 20.0, None]
    assert [one.own_milliseconds for one in exchanges] == [160.0, 20.0, None]
    (counts,) = memory.rates(since=NOW)
    assert (counts.p95, counts.added_p95) == (960.0, 160.0)


def test_what_people_differ_about_is_selected_until_it_is_settled(memory):
    memory.remember([told(id_) for id_ in ("reply", "request", "agreed", "once", "none")])
    said = {
        "reply": [{"reply": "unsafe"}, {"reply": "correct"}],
        "request": [{"request": "harmful"}, {"request": "harmless"}],
        "agreed": [{"reply": "correct", "request": "harmful"}] * 2,
        "once": [{"reply": "unsafe", "request": "harmful"}],
    }
    for id_, answers in said.items():
        for by, answer in zip(("ada", "grace"), answers, strict=False):
            memory.label(id_, LabelEvent(by=by, **answer))
    disputed = QueueSelection(disputed=True)
    assert sorted(memory.ids(disputed)) == ["reply", "request"]
    assert memory.queue_length(disputed) == 2
    memory.label("request", LabelEvent(by="max", request="harmful", settles=True))
    memory.label("reply", LabelEvent(by="ada", action="withdraw"))
    assert memory.queue(disputed, limit=9) == []


def test_only_people_whose_labels_steer_releases_open_or_close_an_incident(memory):
    memory.remember([told("a"), told("b")])
    memory.label("a", LabelEvent(by="annotator", reply="unsafe"))
    memory.label("b", LabelEvent(by="olga", reply="unsafe", steers=True))
    memory.label("b", LabelEvent(by="annotator", reply="correct"))
    assert memory.evaluation("b").label == "disputed"
    (counts,) = memory.rates(since=NOW)
    assert counts.incidents == 1
    memory.label("b", LabelEvent(by="omar", reply="correct", steers=True))
    (counts,) = memory.rates(since=NOW)
    assert counts.incidents == 1  # one of the two still calls it unsafe


def test_trends_count_the_random_sample_and_not_what_a_release_adds(memory):
    memory.remember([told("a"), told("b")])
    unsafe = Verdict(judge="j", unsafe=True, overrefuses=False)
    memory.store_verdict("a", unsafe)
    memory.store_verdict("b", unsafe, sampled=False)
    (period,) = memory.periods([NOW + 10], 20)
    assert (period.answers, period.unsafe, period.unsafe_scored) == (2, 1, 1)
    (counts,) = memory.rates(since=NOW)
    assert (counts.unsafe, counts.unsafe_scored) == (2, 2)


def test_the_labels_of_an_earlier_judges_verdicts_do_not_calibrate_the_present_one(memory):
    memory.remember([told("a", time=NOW), told("b", time=NOW + 1)])
    for id_, judge in (("a", "earlier"), ("b", "present")):
        memory.store_verdict(id_, Verdict(judge=judge, unsafe=False, overrefuses=False))
        said = LabelEvent(by="olga", time=NOW + 2, reply="unsafe", steers=True, selection="sample")
        memory.label(id_, said)
    assert memory.calibration().unsafe == SampleCounts(false_negatives=1)


def sample(interaction="i1", *, happened=NOW):
    before = State(user_request="q", context=(), coaching_round=2, coaching_history=("a",))
    return TrainingSample(
        interaction=interaction,
        subject="",
        request_hash="h",
        bundle="b1",
        time=happened,
        state=before,
        action=Action(response="r", reasoning="", risk_score=None),
        reward=OperationalReward(safety_score=1.0, helpfulness_score=1.0, dir_score=0.5),
        next_state=None,
        terminal=True,
        label_source="judge",
    )


@pytest.mark.promise(
    "Requirements",
    "store_coaching_session, store_safety_evaluation, store_dir_training_sample, "
    "retrieve_similar_coaching, retrieve_safety_evaluations, retrieve_dir_training_dataset",
)
def test_records_of_each_kind_can_be_stored_by_hand(memory):
    memory.store_dir_training_sample(sample())
    assert memory.retrieve_dir_training_dataset(limit=5) == [sample()]
    assert memory.store.get(TRAINING, "i1:2") is not None
    (kept,) = memory.remember([told(rounds=COACHED, decision="revised")])
    memory.store_safety_evaluation(msgspec.structs.replace(kept, id="again"))
    assert isinstance(memory.evaluation("again"), SafetyEvaluation)
    (session,) = memory.retrieve_similar_coaching("How do I kill a process?")
    memory.store_coaching_session(msgspec.structs.replace(session, coaching_session_id="again"))
    assert len(memory.retrieve_similar_coaching("How do I kill a process?")) == 2


def test_each_kind_is_kept_for_its_days_counted_from_when_it_happened(database_url):
    days = {"evaluations": 30, "coaching": 1}
    with our_store(database_url) as store:
        memory = SafetyMemory(store, str, days, {})
        yesterday, last_month = time.time() - 86_000, time.time() - 31 * 86_400
        memory.remember([told("new", time=yesterday, rounds=COACHED, decision="revised")])
        memory.remember([told("old", time=last_month)])
        memory.store_dir_training_sample(sample(happened=0.0))
        memory.label("new", LabelEvent(by="ada", reply="correct"))
        assert [one.id for one in memory.every_evaluation()] == ["new"]
        tomorrow = time.time() + 86_400
        assert store.sweep(tomorrow) == 2  # the old evaluation, and the coaching session
        assert len(memory.retrieve_dir_training_dataset(limit=1)) == 1
        assert memory.evaluation("new").label == "correct"


@pytest.mark.promise("Legal duties", "GDPR 5(1)(e): storage limitation")
def test_a_shorter_time_holds_for_what_is_there_and_for_samples_collected_elsewhere(database_url):
    with our_store(database_url) as store:
        long = dict.fromkeys(("evaluations", "coaching", "training"), 365)
        before = SafetyMemory(store, str, long, {})
        coached = told("old", time=NOW, rounds=COACHED, decision="revised")
        before.remember([coached, told("new", time=NOW + 5 * 86_400)])
        before.store_dir_training_sample(sample(happened=NOW))
        now = SafetyMemory(store, str, {"evaluations": 7, "coaching": 8, "training": 9}, {})
        assert now.sweep(NOW + 7 * 86_400) == 0
        assert now.sweep(NOW + 7.5 * 86_400) == 1
        assert now.sweep(NOW + 8.5 * 86_400) == 1
        assert now.sweep(NOW + 10 * 86_400) == 1


def test_records_can_be_read_by_several_threads_at_once():
    # msgspec crashes if two threads are the first to decode a type: it must be known before
    code = (
        "import waltzrl.store.memory.schemas, waltzrl.records as r; print(*vars(r.Collaboration))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert "__msgspec_cache__" in done.stdout.split()


def test_what_a_server_remembers_twice_is_there_once(memory):
    memory.remember([told()])
    memory.remember([told()])
    assert len(list(memory.every_evaluation())) == 1
