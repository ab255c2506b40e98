"""What requests cost: headers, ledger, audit log, memory, and the daily budgets of keys."""

import asyncio
import json
import time
from contextlib import closing
from datetime import UTC, datetime

import pytest

from support.guard_judge import GuardJudge
from support.small_gateway import HELLO, MESSAGES, REVIEW, REVISED, Model, ask, chat, gateway
from support.small_site import http, site
from waltzrl.budget import PriceBook, ledgers_in, read_ledger
from waltzrl.budget.daily import DAY_SECONDS, DailyLedger
from waltzrl.errors import InputError
from waltzrl.gateway.costs import ServingCosts, charge_to_gateway
from waltzrl.gateway.keys import Caller, add_key
from waltzrl.gateway.settings import load_gateway
from waltzrl.gateway.trials import Trial, TrialResult
from waltzrl.records import Usage

PRICE = "prices.echo={input=100.0,output=1000.0}"
"""100 tokens in and 20 out cost 0.03 dollars."""


class CountingModel(Model):
    """Counts 100 tokens in and 20 out for every reply."""

    def answer(self, body, path):
        if path == "/models":
            return super().answer(body, path)
        message = {"role": "assistant", "content": self.draft(body)}
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return http({"model": body["model"], "choices": [choice], "usage": usage})


def served(folder, work, *overrides, model=None):
    async def run():
        settings = (f"budget.folder={folder / 'costs'}", *overrides)
        async with gateway(*settings, model=model or CountingModel()) as app:
            return await work(app)

    return asyncio.run(run())


def charges(folder):
    return read_ledger(*ledgers_in(folder / "costs")).charges


def with_keys(folder, **budgets):
    """Return the keys of the two clients, of which ada has a budget, and the setting."""
    path = folder / "keys.toml"
    keys = [add_key(path, {"name": "ada", **budgets}), add_key(path, {"name": "bob"})]
    return keys, f"keys={path}"


@pytest.mark.promise(
    "Cost", "An answer says its tokens and its price; the ledger and the audit log have them"
)
def test_an_answer_says_its_tokens_and_its_price_and_the_ledger_has_them(tmp_path):
    response = served(tmp_path, chat, PRICE)
    assert response.headers["x-waltzrl-input-tokens"] == "100"
    assert response.headers["x-waltzrl-output-tokens"] == "20"
    assert response.headers["x-waltzrl-cost-usd"] == "0.03000000"
    (charge,) = charges(tmp_path)
    assert charge.id == response.headers["x-request-id"]
    assert (charge.activity, charge.key, charge.usd) == ("serving", "anonymous", 0.03)


@pytest.mark.parametrize("path", [MESSAGES, REVIEW])
def test_other_apis_say_it_too(tmp_path, path):
    body = {"model": "echo", "messages": HELLO, "max_tokens": 9, "reply": "Hi.", "revise": False}
    if path == MESSAGES:
        body = {"model": "echo", "messages": HELLO, "max_tokens": 9}
    response = served(tmp_path, lambda app: ask(app, path, body), PRICE)
    assert response.status == 200, response.text
    assert float(response.headers["x-waltzrl-cost-usd"]) == (0.03 if path == MESSAGES else 0)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"messages": HELLO}),
        (MESSAGES, {"messages": HELLO, "max_tokens": 9}),
        ("/v1/responses", {"input": HELLO}),
    ],
)
def test_a_stream_says_it_in_comments_before_its_end(tmp_path, path, asked):
    body = {"model": "echo", "stream": True, **asked}
    response = served(tmp_path, lambda app: ask(app, path, body), PRICE, "stream=buffer")
    assert response.status == 200, response.text
    assert [line for line in response.text.split("\n") if line.startswith(": x-waltzrl-")] == [
        ": x-waltzrl-input-tokens: 100",
        ": x-waltzrl-output-tokens: 20",
        ": x-waltzrl-cost-usd: 0.03000000",
    ]
    assert response.text.rstrip().split("\n")[-1].startswith("data: ")


@pytest.mark.promise(
    "Cost", "An answer says its tokens and its price; the ledger and the audit log have them"
)
def test_drafts_and_revisions_of_every_choice_are_charged(tmp_path):
    response = served(tmp_path, lambda app: chat(app, "unsafe", n=2))
    assert response.headers["x-waltzrl-input-tokens"] == "400"
    assert response.headers["x-waltzrl-cost-usd"] == "unknown"
    first, second = charges(tmp_path)
    assert {first.id, second.id} == {
        response.headers["x-request-id"],
        f"{response.headers['x-request-id']}/2",
    }
    assert [item.tokens for item in first.items] == [120, 120]
    assert first.usd is None


def test_a_revision_that_the_server_refuses_costs_nothing(tmp_path):
    class DraftsOnly(CountingModel):
        def answer(self, body, path):
            if body and self.draft(body) == REVISED:
                return http({"error": {"message": "too long"}}, 400)
            return super().answer(body, path)

    response = served(tmp_path, lambda app: chat(app, "unsafe"), model=DraftsOnly())
    assert response.headers["x-waltzrl-decision"] == "refused"
    (charge,) = charges(tmp_path)
    assert [item.tokens for item in charge.items] == [120, 0]


def test_what_a_server_does_not_count_is_estimated(tmp_path):
    async def run():
        async with gateway(f"budget.folder={tmp_path / 'costs'}", PRICE) as app:
            return [await chat(app), await chat(app, stream=True)]

    asyncio.run(run())
    whole, streamed = charges(tmp_path)
    # "hello" is two quarters of 4 characters, "You said hello." four
    assert [(item.input_tokens, item.output_tokens) for item in whole.items] == [(2, 4)]
    assert all(item.estimated for item in (*whole.items, *streamed.items))


@pytest.mark.promise("Cost", "Without a ledger nothing is computed, said or written")
def test_without_a_ledger_nothing_is_said_or_written(tmp_path):
    async def run():
        async with gateway(PRICE, f"audit.folder={tmp_path / 'audit'}") as app:
            return await chat(app)

    response = asyncio.run(run())
    assert not [name for name in response.headers if "cost" in name or "tokens" in name]


@pytest.mark.promise(
    "Cost",
    "A key that used up its budget gets 429 with the time at which it opens, also after a "
    "restart, and no other key does",
)
@pytest.mark.promise("Requirements", "cost: estimates, budget, report, ROI")
def test_a_key_that_used_up_its_tokens_is_told_when_it_may_send_again(tmp_path):
    (ada, bob), keys = with_keys(tmp_path, tokens_per_day=200)
    before = time.time()

    async def work(app):
        return [await chat(app, key=ada) for _ in range(3)] + [await chat(app, key=bob)]

    first, second, third, other = served(tmp_path, work, keys)
    assert [each.status for each in (first, second, third, other)] == [200, 200, 429, 200]
    left = DAY_SECONDS - before % DAY_SECONDS
    assert 0 < int(third.headers["retry-after"]) <= left + 1
    assert third.json["error"]["code"] == "insufficient_quota"
    midnight = datetime.fromtimestamp((before // DAY_SECONDS + 1) * DAY_SECONDS, UTC)
    assert "ada may use 200 tokens a day, and has used that up; it may send again at "
    assert f"{midnight:%Y-%m-%dT00:00:00Z}" in third.error

    # A restart forgets nothing, nor does another gateway with the same folder.
    assert served(tmp_path, lambda app: chat(app, key=ada), keys).status == 429


@pytest.mark.parametrize("limits", [(), ("limits.max_active=1",)], ids=["active", "waiting"])
def test_requests_at_the_same_time_use_up_no_multiple_of_a_budget(tmp_path, limits):
    (ada, bob), keys = with_keys(tmp_path, tokens_per_day=600)

    async def work(app):
        requests = [chat(app, key=ada) for _ in range(20)]
        first = [response.status for response in await asyncio.gather(*requests)]
        requests = [chat(app, key=ada) for _ in range(20)] + [chat(app, key=bob) for _ in range(20)]
        then = await asyncio.gather(*requests)
        return first, then

    first, then = served(tmp_path, work, keys, *limits)
    assert sorted(set(first)) == [200, 429]
    assert first.count(200) == 1  # nothing is known of what a request takes
    # 120 tokens are used: four more requests of as many end within the budget
    assert [response.status for response in then].count(200) == 4 + 20
    late = next(response for response in then if response.status == 429)
    assert late.headers["retry-after"] == "1"
    assert "requests in progress" in late.error


def test_trials_at_the_same_time_use_up_no_multiple_of_a_budget(tmp_path):
    ada = Caller(name="ada", tokens_per_day=600)

    async def work(app):
        trials = [app.trials.run(Trial(request="hello", model="echo"), ada) for _ in range(20)]
        return await asyncio.gather(*trials, return_exceptions=True)

    results = served(tmp_path, work)
    assert sum(isinstance(result, TrialResult) for result in results) == 1


@pytest.mark.promise(
    "Cost",
    "A key that used up its budget gets 429 with the time at which it opens, also after a "
    "restart, and no other key does",
)
def test_a_budget_in_money_is_used_up_too(tmp_path):
    (ada, _), keys = with_keys(tmp_path, usd_per_day=0.05)

    async def work(app):
        return [(await chat(app, key=ada)).status for _ in range(3)]

    assert served(tmp_path, work, keys, PRICE) == [200, 200, 429]


@pytest.mark.promise(
    "Cost", "A budget in money holds only where prices are known; a budget needs a ledger"
)
def test_a_budget_in_money_holds_only_where_prices_are_known(tmp_path):
    (ada, _), keys = with_keys(tmp_path, usd_per_day=100.0)

    async def work(app):
        return [await chat(app, key=ada) for _ in range(2)]

    first, second = served(tmp_path, work, keys)
    assert (first.status, second.status) == (200, 403)
    assert "used a model without a price" in second.error


@pytest.mark.promise(
    "Cost", "A budget in money holds only where prices are known; a budget needs a ledger"
)
def test_a_budget_needs_a_ledger(tmp_path):
    _, keys = with_keys(tmp_path, tokens_per_day=200)

    async def run():
        async with gateway(keys):
            raise AssertionError("it serves")

    with pytest.raises(InputError, match=r"ada has a daily budget.*set budget\.folder"):
        asyncio.run(run())


@pytest.mark.promise("Cost", "A ledger that cannot be written is shown, and answers go out")
def test_a_ledger_that_cannot_be_written_is_degraded_and_answers_go_out(tmp_path, caplog):
    folder = tmp_path / "costs"
    folder.mkdir()
    days = [datetime.fromtimestamp(time.time() + ahead, UTC) for ahead in (0, 60)]
    for day in {f"{day:%Y-%m-%d}" for day in days}:
        (folder / f"{day}-ledger.jsonl").symlink_to("/dev/full")

    async def work(app):
        statuses = [(await chat(app)).status for _ in range(2)]
        return statuses, app.checks["costs"]().status

    assert served(tmp_path, work) == ([200, 200], "degraded")
    assert len([line for line in caplog.records if "costs are not recorded" in line.message]) == 1


@pytest.mark.promise(
    "Cost", "An answer says its tokens and its price; the ledger and the audit log have them"
)
def test_the_audit_log_has_the_price(tmp_path):
    served(tmp_path, chat, PRICE, f"audit.folder={tmp_path / 'audit'}")
    lines = [
        json.loads(line)
        for path in (tmp_path / "audit").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    (decision,) = [line["decision"] for line in lines if line.get("decision")]
    assert decision["usd"] == 0.03


def test_a_policy_is_charged_by_its_own_servers(tmp_path):
    table = {"upstream": {"folder": "weights"}}
    paid = "policies.paid.upstreams.openai={url='https://api.openai.com/v1', models=['gpt-*']}"
    judge = "policies.paid.feedback={model='judge', server='http://127.0.0.1:9/v1'}"
    price = "prices={gpt-x={input=2.0, output=8.0}, judge={input=1.0, output=1.0}}"
    recipe = load_gateway(None, table, [f"budget.folder={tmp_path}", paid, judge, price], {})
    bundles = {"own": recipe, **recipe.policies}
    with closing(DailyLedger(tmp_path)) as ledger:
        costs = ServingCosts(ledger, PriceBook(recipe.prices), bundles.__getitem__)
        usage = Usage(input_tokens=1_000_000, output_tokens=0)
        asked = [("conversation", "gpt-x"), ("conversation", "llama"), ("feedback", "judge")]
        assert [
            [costs.cost(role, usage, model, bundle) for role, model in asked] for bundle in bundles
        ] == [[0.0, 0.0, 0.0], [2.0, 0.0, 1.0]]


def test_the_reviewer_of_a_policy_is_charged_in_the_answer_the_ledger_and_the_metrics(tmp_path):
    async def run():
        async with site(CountingModel()) as server:
            paid = f"policies.paid={{stage=2, feedback={{model='judge', server='{server.url}'}}}}"
            settings = (f"budget.folder={tmp_path / 'costs'}", paid, "prices.judge.input=100.0")
            async with gateway(
                *settings, "prices.judge.output=0.0", "prices.echo={input=0.0,output=0.0}",
                model=CountingModel(),
            ) as app:  # fmt: skip
                answer = await chat(app, x_waltzrl_policy="paid")
                return answer, (await ask(app, "/metrics", method="GET")).text

    answer, metrics = asyncio.run(run())
    assert answer.headers["x-waltzrl-cost-usd"] == "0.01000000"
    assert [charge.usd for charge in charges(tmp_path)] == [0.01]
    assert 'waltzrl_key_cost_usd_total{key="anonymous"} 0.01' in metrics


@pytest.mark.promise("Cost", "The answers of a gateway's judge are charged")
def test_what_the_judge_of_a_gateway_answers_is_charged_to_no_key(tmp_path):
    from waltzrl.budget import ModelPrice, PriceBook
    from waltzrl.budget.daily import DailyLedger
    from waltzrl.records import Message, Prompt, Reply

    ledger = DailyLedger(tmp_path / "costs")
    book = PriceBook({"guard": ModelPrice(input=1.0, output=1.0)})
    judge = charge_to_gateway(GuardJudge(1000, 0), ledger, book, ("guard", "http://127.0.0.1:9/v1"))
    prompt = Prompt(id="req-1", messages=(Message(role="user", content="hi"),))
    assert asyncio.run(judge.judge(prompt, Reply(text="ho"))).judge == judge.name
    (charge,) = charges(tmp_path)
    assert (charge.activity, charge.key, charge.usd) == ("judging", "", 0.001)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("own", "replies"), [("cheap-1", 1), ("unsafe", 2)])
def test_what_a_fallback_writes_has_its_own_price(tmp_path, stream, own, replies):
    async def away(reader, writer):
        writer.close()

    async def run():
        async with site(CountingModel()) as cheap:
            paid = f"upstreams.cheap={{url='{cheap.url}', models=['{own}']}}"
            prices = f"prices={{{own}={{input=100.0,output=0.0}}, echo={{input=0.0,output=0.0}}}}"
            settings = (f"budget.folder={tmp_path / 'costs'}", paid, "upstream.fallback=cheap")
            async with gateway(*settings, prices, model=away) as app:
                return await chat(app, stream=stream)

    assert asyncio.run(run()).status == 200
    (charge,) = charges(tmp_path)
    assert [(item.model, item.usd) for item in charge.items] == [(own, 0.01)] * replies
