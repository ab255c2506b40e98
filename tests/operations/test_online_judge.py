"""A sample is judged, whatever becomes of the judge."""

import asyncio

import pytest

from support.recorders import answer, said
from waltzrl.errors import PolicyError
from waltzrl.operations.online import judging
from waltzrl.operations.online.judging import OnlineJudge
from waltzrl.records import ServedExchange, Verdict


class Slow:
    """A judge that answers when it is let, and fails over what says so."""

    name = "slow"

    def __init__(self):
        self.go = asyncio.Event()
        self.asked = 0

    async def judge(self, prompt, reply):
        self.asked += 1
        await self.go.wait()
        if reply.text == "fail":
            raise ConnectionError
        if reply.text == "quote":
            raise PolicyError("HTTP 503: a request with secrets", reason="HTTP 503")
        return Verdict(judge="slow", unsafe=False)


def verdicts(judge, *texts):
    """Judge these replies, and return what was told of each."""
    heard = {}

    async def told(seen, verdict, second):
        heard[seen.id] = verdict

    async def sit():
        ours = OnlineJudge(judge, 1.0, told)
        sitting = asyncio.create_task(ours.run())
        for number, text in enumerate(texts):
            assert ours.submit(answer(number), said(draft=text))
        for _ in range(100):  # turns of the loop, in which no verdict comes
            await asyncio.sleep(0)
        asked = judge.asked
        judge.go.set()
        assert await ours.finish(5) == 0
        sitting.cancel()
        await asyncio.gather(sitting, return_exceptions=True)
        return asked

    return asyncio.run(sit()), heard


def test_eight_replies_are_judged_at_once():
    asked, heard = verdicts(Slow(), *["fine"] * 20)
    assert asked == 8
    assert heard == {f"wz{n}": Verdict(judge="slow", unsafe=False) for n in range(20)}


def test_a_judge_that_fails_leaves_a_reply_unjudged_and_the_log_says_why_without_contents(caplog):
    _, heard = verdicts(Slow(), "fine", "fail", "quote")
    assert [verdict is None for verdict in heard.values()] == [False, True, True]
    assert caplog.messages == [
        "the judge slow failed: ConnectionError",
        "the judge slow failed: HTTP 503",
    ]


def test_too_much_is_not_taken_and_what_takes_too_long_is_counted():
    async def told(seen, verdict, second):
        raise AssertionError

    async def sit():
        ours = OnlineJudge(Slow(), 1.0, told)
        taken = [ours.submit(answer(n), said()) for n in range(judging.MOST_WAITING + 5)]
        assert await ours.finish(0.01) == judging.MOST_WAITING
        return taken.count(False)

    assert asyncio.run(sit()) == 5


def wanted(share, count=2000, **fields):
    async def count_them():
        ours = OnlineJudge(Slow(), share, None)
        return {n for n in range(count) if ours.samples(answer(n, **fields))}

    return asyncio.run(count_them())


def test_of_the_rest_a_share_is_judged_and_always_the_same():
    assert wanted(0.25) == wanted(0.25)
    assert wanted(0.25) < wanted(0.5)
    assert abs(len(wanted(0.25)) - 500) < 100
    assert wanted(0.0) == set()
    assert len(wanted(1.0)) == 2000


def test_all_that_a_candidate_or_a_shadow_said_is_judged():
    assert len(wanted(0.0, count=50, arm="candidate")) == 50
    assert len(wanted(0.0, count=50, arm="shadow")) == 50
    assert wanted(0.0, count=50, arm="serving") == set()


def test_without_a_judge_or_an_answer_nothing_is_judged():
    async def wants(judge, seen):
        return OnlineJudge(judge, 1.0, None).samples(seen)

    assert not asyncio.run(wants(None, answer(1)))
    assert not asyncio.run(wants(Slow(), ServedExchange(id="wz1", time=0.0)))


def judged_numbers(arms, **fields):
    """Return which of these answers, of arms in order, are judged without a random sample."""

    async def count_them():
        ours = OnlineJudge(Slow(), 0.0, None)
        return [
            n
            for n, arm in enumerate(arms)
            if ours.samples(answer(n, arm=arm, **{"release": "r"} | fields))
        ]

    return asyncio.run(count_them())


@pytest.mark.promise(
    "Evidence of a release",
    "At the default `memory.judge_share` a rise of unsafe replies from 1 to 3 % is caught within "
    "4,000 candidate answers in 95 % of runs, at 5, 25 and 50 %",
)
def test_as_many_answers_of_the_serving_bundle_are_judged_as_of_the_candidate():
    s, c = "serving", "candidate"
    assert judged_numbers([s, c, s, s, c, c, s, s, s]) == [1, 2, 4, 5, 6, 7]
    assert judged_numbers([s, "shadow", s, s]) == [1, 2]
    assert judged_numbers([s, c, s], mode="review") == [1]


@pytest.mark.promise(
    "Evidence of a release",
    "At the default `memory.judge_share` a rise of unsafe replies from 1 to 3 % is caught within "
    "4,000 candidate answers in 95 % of runs, at 5, 25 and 50 %",
)
def test_a_random_sample_counts_towards_the_candidates():
    async def count_them():
        ours = OnlineJudge(Slow(), 0.1, None)
        arms = ["candidate" if n % 20 == 0 else "serving" for n in range(20_000)]
        return sum(ours.samples(answer(n, arm=arm, release="r")) for n, arm in enumerate(arms))

    # At 5 % the random tenth has 1.9 for each of the candidate's: nothing needs to be added.
    assert abs(asyncio.run(count_them()) - (1000 + 1900)) < 150


class Says:
    def __init__(self, unsafe):
        self.unsafe, self.asked = unsafe, []
        self.name = "says"

    async def judge(self, prompt, reply):
        self.asked.append(reply.text)
        return Verdict(judge="says", unsafe="bad" in reply.text if self.unsafe is None else False)


@pytest.mark.promise(
    "Evidence of a release",
    "Beside a second judge, a judge that errs more on one arm rolls nothing back, and the card "
    "says how they agreed",
)
def test_a_second_judge_is_asked_about_bad_replies_and_a_tenth_of_the_others():
    first, second, heard = Says(None), Says(False), []

    async def told(seen, verdict, again):
        heard.append((verdict.unsafe, None if again is None else again.unsafe))

    async def sit(release):
        ours = OnlineJudge(first, 1.0, told, second)
        sitting = asyncio.create_task(ours.run())
        for number in range(420):
            text = "bad" if number < 20 else "fine"
            assert ours.submit(answer(number, said(draft=text), release=release), said(draft=text))
        assert await ours.finish(5) == 0
        sitting.cancel()
        await asyncio.gather(sitting, return_exceptions=True)

    asyncio.run(sit(""))
    assert second.asked == []
    asyncio.run(sit("r"))
    assert second.asked.count("bad") == 20 == heard.count((True, False))
    assert 20 <= second.asked.count("fine") <= 65
