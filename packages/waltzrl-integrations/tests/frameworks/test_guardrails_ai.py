"""The validator of Guardrails AI, in its two kinds of guard."""

import asyncio

import pytest
from drivers import of_framework

from support.bad_model import BAD, REVISED, UNSAFE, BadModel
from support.openai_server import serving
from waltzrl import InputError, RemotePolicy, open_guard

pytestmark = of_framework("guardrails")
DRAFT = f"Certainly. {UNSAFE} And that is all."
GOOD = "Mix the flour. Then bake it."
METADATA = {"messages": [{"role": "user", "content": BAD}]}


@pytest.fixture
def guard(monkeypatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")  # or it reports its use
    with serving({"bad": BadModel()}) as server:
        yield open_guard(upstream=RemotePolicy(server.base_url, "bad"))


@pytest.mark.promise(
    "Adapters for frameworks",
    "Output guardrails of NeMo and Guardrails AI revise an unsafe reply, or end what they cannot "
    "revise, and leave a good one as it is",
)
@pytest.mark.parametrize(("draft", "text"), [(DRAFT, REVISED), (GOOD, GOOD)])
def test_the_fix_is_the_revision(guard, draft, text):
    import guardrails

    from waltzrl_integrations.guardrails_ai import RevisedReply

    with guard.sync:
        fixed = guardrails.Guard().use(RevisedReply(guard, on_fail="fix"))
        assert fixed.validate(draft, metadata=METADATA).validated_output == text


def test_an_event_loop_waits_for_the_review_and_can_end_the_call(guard):
    import guardrails
    from guardrails.errors import ValidationError

    from waltzrl_integrations.guardrails_ai import RevisedReply

    async def run():
        async with guard:
            strict = guardrails.AsyncGuard().use(RevisedReply(guard, on_fail="exception"))
            assert (await strict.validate(GOOD, metadata=METADATA)).validated_output == GOOD
            with pytest.raises(ValidationError, match="asks for another reply"):
                await strict.validate(DRAFT, metadata=METADATA)

    asyncio.run(run())


def test_a_stream_is_refused(guard):
    from waltzrl_integrations.guardrails_ai import RevisedReply

    with pytest.raises(InputError, match="without stream=True"):
        RevisedReply(guard).validate_stream("Certainly.", METADATA)
