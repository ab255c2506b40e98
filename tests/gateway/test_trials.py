"""A trial is answered by the loop that answers clients, and shows everything that was said."""

import asyncio
import json

import aiohttp
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.openai_server import serving
from support.small_gateway import HELLO, REVISED, UNSAFE, Model, chat, gateway, listening
from support.small_runs import run
from support.small_trials import BOMB, open_trials, script
from support.small_trials import REVISED as REFUSAL
from support.small_trials import UNSAFE as RECIPE
from waltzrl.budget import ledgers_in, read_ledger
from waltzrl.errors import RequestError
from waltzrl.gateway.access import KeyRing
from waltzrl.gateway.keys import Caller
from waltzrl.gateway.named_policies import OWN
from waltzrl.gateway.trials import Trial
from waltzrl.policies import ScriptedPolicy
from waltzrl.records import Reply
from waltzrl.store.audit.reading import read_entries


def tried(request, caller=None, **fields):
    """Return what comes of a trial on a gateway without a server."""
    return asyncio.run(open_trials(KeyRing(None)).run(Trial(request=request, **fields), caller))


@pytest.mark.promise(
    "Trials", "A trial's reply and decision are a client's; it is audited and charged as a probe"
)
def test_a_trial_is_answered_as_for_a_client_and_audited_and_charged_as_a_probe(tmp_path):
    async def compare(model):
        settings = (f"audit.folder={tmp_path / model}", f"budget.folder={tmp_path / model}-costs")
        price = f"prices.{model}={{input=1.0,output=1.0}}"
        async with gateway(*settings, price, model=Model()) as app:
            answer = await chat(app, model)
            result = await app.trials.run(Trial(request="hello", model=model))
        entries = [entry.decision for entry in read_entries(tmp_path / model)]
        said, other = filter(None, entries)
        charges = read_ledger(*ledgers_in(tmp_path / f"{model}-costs")).charges
        return answer, result, (said, other), charges

    for model, decision, text in (
        ("echo", "draft", "You said hello."),
        ("unsafe", "revised", REVISED),
    ):
        answer, result, (said, other), charges = asyncio.run(compare(model))
        exchange = result.exchange
        assert answer.json["choices"][0]["message"]["content"] == text
        assert (exchange.collaboration.final.text, exchange.decision) == (text, decision)
        assert (said.probe, other.probe, other.id) == (False, True, exchange.id)
        assert (said.decision, said.draft, said.prompt) == (
            other.decision,
            other.draft,
            other.prompt,
        )
        assert [charge.key for charge in charges] == ["anonymous", "anonymous"]
        assert exchange.usd == charges[1].usd == sum(part.usd or 0 for part in result.parts) > 0


def test_every_part_of_a_trial_is_named_in_the_order_in_which_it_was_said():
    result = tried(BOMB)
    assert [part.name for part in result.parts] == [
        "draft", "feedback 1", "revision 1", "feedback 2",
    ]  # fmt: skip
    assert [part.usage is None for part in result.parts] == [False, True, False, True]
    (found,) = result.find_in_reply(RECIPE)
    assert RECIPE[found.start : found.end] == "here is how to build a working pipe bomb"
    assert [finding.rule for finding in result.find_in_request(BOMB)] == ["violence/explosives"]
    assert tried("hello").find_in_reply(RECIPE) == []  # no reviewer named a rule


def test_another_policy_reviews_the_same_draft_for_which_no_model_is_asked():
    said = tried(BOMB).exchange.said
    other = tried(BOMB, policy="strict", draft=said.draft)
    assert (other.exchange.policy, other.exchange.decision) == ("strict", "refused")
    assert other.exchange.said.draft.text == said.draft.text
    assert [part.name for part in other.parts] == ["feedback 1"]


@pytest.mark.parametrize(
    ("model", "policy", "served"),
    [
        ("echo", None, ""),
        ("strict-1", None, "strict"),
        ("strict-1", OWN, ""),
        ("echo", "strict", "strict"),
    ],
)
def test_the_policy_is_the_one_that_is_named_or_a_clients(model, policy, served):
    assert tried("hello", model=model, policy=policy).exchange.policy == served


@pytest.mark.parametrize(
    "request_",
    [
        json.dumps(HELLO),
        json.dumps({"messages": HELLO, "stream": True, "n": 3, "stream_options": {}}),
        f"  {json.dumps(HELLO, indent=2)}\n",
        "hello",
    ],
)
def test_messages_and_chat_requests_are_taken_in_json(request_):
    result = tried(request_)
    assert (result.chat.n, result.chat.body["messages"]) == (1, HELLO)
    assert result.exchange.collaboration.final.text == "You said: hello"


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\0")).filter(str.strip))
@example(text="[1, 2]")
@example(text="{a set}")
@example(text='{"answer": 42}')
def test_what_has_no_roles_is_what_a_user_says(text):
    assert tried(text).exchange.said.prompt.request == text


@pytest.mark.parametrize(
    ("request_", "fields", "words"),
    [
        (" \n", {}, "the request is empty"),
        ('[{"role": "user", "content": "x"', {}, "JSON"),
        ('[{"role": "robot", "content": "x"}]', {}, "robot"),
        ("hello", {"policy": "lax"}, "there is no policy 'lax'; there are strict"),
    ],
)
def test_a_request_that_cannot_be_tried_says_why(request_, fields, words):
    with pytest.raises(RequestError, match=words) as refused:
        tried(request_, **fields)
    assert refused.value.status == 400


def test_a_trial_counts_for_the_rate_of_whoever_tries():
    trials = open_trials(KeyRing(None))
    caller = Caller(name="ada", requests_per_minute=1, burst=1)

    async def try_twice():
        assert (await trials.run(Trial(request="hello"), caller)).exchange.caller == "ada"
        await trials.run(Trial(request="hello"), caller)

    with pytest.raises(RequestError) as refused:
        asyncio.run(try_twice())
    assert refused.value.status == 429


def test_an_error_of_the_model_is_a_result_that_keeps_what_was_said():
    async def fail():
        async with gateway() as app:
            return await app.trials.run(Trial(request="hello", model="broken"))

    result = asyncio.run(fail())
    assert (result.exchange.decision, result.problem.status, result.parts) == ("error", 502, ())


def test_the_first_model_of_the_upstream_is_asked_where_none_is_named():
    async def find():
        async with gateway() as app:
            return await app.trials.list_models(), await app.trials.run(Trial(request="hello"))

    models, result = asyncio.run(find())
    assert (models, result.exchange.model) == (["echo", "maker/echo"], "echo")


def test_the_draft_of_a_trial_may_be_given():
    result = tried("hello", draft=Reply(text=UNSAFE))
    assert (result.exchange.said.draft.text, result.exchange.decision) == (UNSAFE, "revised")


@pytest.mark.promise("Trials", "A gateway without keys and memory has the page that tries requests")
def test_a_gateway_without_keys_and_memory_has_only_the_page_that_tries_requests(tmp_path):
    (tmp_path / "keys.toml").write_text("")

    async def visit(*settings):
        async with gateway(*settings) as app, listening(app) as (host, port):
            address = f"http://{host}:{port}/desk"
            async with aiohttp.ClientSession() as session, session.get(address) as page:
                return page.status, page.url.path, await page.text()

    status, path, page = asyncio.run(visit())
    assert (status, path, "<h1>Try a request</h1>" in page) == (200, "/desk/try", True)
    assert asyncio.run(visit(f"keys={tmp_path / 'keys.toml'}"))[0] == 404


@pytest.fixture
def server():
    with serving({"echo": ScriptedPolicy(script)}) as server:
        yield server


@pytest.mark.promise("Trials", "`waltzrl try` prints what was said, found and advised")
def test_the_command_prints_what_was_said_found_and_advised(server, capsys):
    assert run("try", BOMB, "--upstream", server.base_url, "--model", "echo") == 0
    printed = " ".join(capsys.readouterr().out.split())
    for words in (
        f"request {BOMB} violence/explosives: make a pipe bomb",
        f"draft {' '.join(RECIPE.split())}",
        "feedback 1 unsafe, risk 1.00, violence/reply-weapon-steps, violence/explosives",
        "advice Leave out materials",
        f"revision 1 {' '.join(REFUSAL.split())} feedback 2 safe, risk 0.00",
        "decision revised: unsafe served by own settings, echo, ",
        "took draft ",
    ):
        assert words in printed


def test_the_command_takes_a_policy_of_the_recipe_and_keeps_nothing(server, tmp_path, capsys):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f"""
        keys = "{tmp_path}/none.toml"
        audit.folder = "{tmp_path}/audit"
        memory.url = "sqlite:///{tmp_path}/memory.db"
        [policies.strict.actions]
        weapons = "refuse"
        """
    )
    options = ("--upstream", server.base_url, "--model", "echo", "--policy", "strict", "--json")
    assert run("try", BOMB, recipe, *options) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["decision"], told["policy"]) == ("refused", "strict")
    assert told["collaboration"]["draft"]["text"] == RECIPE
    assert [finding["rule"] for finding in told["findings"]["request"]] == ["violence/explosives"]
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]


def test_the_command_fails_with_the_error_that_a_client_would_get(server, capsys):
    assert run("try", "hello", "--upstream", server.base_url, "--model", "none") == 2
    printed = capsys.readouterr()
    assert "decision error: " in " ".join(printed.out.split())
    assert printed.err.startswith("error: ")


def test_the_command_says_that_the_upstream_is_down(capsys):
    assert run("try", "hello", "--upstream", "http://127.0.0.1:9/v1") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: the connection to the upstream failed")
