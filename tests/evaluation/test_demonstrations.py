from support.small_evaluations import ANSWER, ASKED, REFUSAL, evaluation, said
from waltzrl.evaluation.collecting.demonstrations import demonstrations
from waltzrl.evaluation.collecting.selection import Selection
from waltzrl.records import Demonstration
from waltzrl.store.memory.labels import LabelEvent

ALL = Selection(held_out_percentage=0.0)


def corrected(text, by="ada", at=1.0):
    return LabelEvent(by=by, time=at, correction=text)


def drafts(*served, selection=ALL):
    return [row.collaboration.draft.text for row in demonstrations(served, selection)]


def test_a_corrected_reply_is_a_draft_to_imitate():
    served = evaluation(said(REFUSAL), id="r7", subject="5f").labelled(corrected(ANSWER))
    (row,) = demonstrations([served], ALL)
    example = Demonstration(collaboration=row.collaboration).collaboration
    assert row.subject == "5f"
    assert (example.draft.text, example.draft.origin, example.rounds) == (ANSWER, "given", ())
    assert [message.content for message in example.prompt.messages] == [ASKED]
    assert (example.prompt.id, example.prompt.source, example.prompt.label) == (
        "r7",
        "memory",
        None,
    )


def test_what_nobody_corrected_or_was_withdrawn_is_no_demonstration():
    withdrawn = LabelEvent(by="ada", action="withdraw")
    labelled = evaluation(said(REFUSAL)).labelled(LabelEvent(by="ada", reply="overrefusal"))
    assert drafts(evaluation(said(REFUSAL)), labelled) == []
    assert drafts(evaluation(said(REFUSAL)).labelled(corrected(ANSWER), withdrawn)) == []


def test_of_several_corrections_the_newest_counts_and_equal_ones_come_once():
    served = evaluation(said(REFUSAL))
    newer = served.labelled(corrected("Second.", "grace", at=2.0), corrected("First.", at=1.0))
    assert drafts(newer, newer) == ["Second."]
    assert drafts(newer, served.labelled(corrected(ANSWER))) == ["Second.", ANSWER]


def test_corrections_of_users_who_did_not_consent_stay_away():
    served = evaluation(said(REFUSAL), may_learn=False).labelled(corrected(ANSWER))
    assert drafts(served) == []
    kept = evaluation(said(REFUSAL)).labelled(corrected(ANSWER))
    assert drafts(kept, selection=Selection(held_out_percentage=100.0)) == []
