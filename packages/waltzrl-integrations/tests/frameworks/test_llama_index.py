"""What holds of the adapter for LlamaIndex only."""

from drivers import of_framework

from waltzrl import open_guard

pytestmark = of_framework("llama")


def test_the_settings_of_the_wrapped_llm_hold():
    from llama_index.core.llms.mock import MockFunctionCallingLLM
    from llama_index.core.prompts import PromptTemplate

    from waltzrl_integrations.llama_index import GuardedLLM

    asked = []

    class Fixed(MockFunctionCallingLLM):
        def chat(self, messages, **options):
            asked.extend(messages)
            return super().chat(messages, **options)

    wrapped = Fixed(
        system_prompt="Be brief.",
        query_wrapper_prompt=PromptTemplate("Asked: {query_str}"),
        pydantic_program_mode="llm",
    )
    guard = open_guard()
    with guard.sync:
        guarded = GuardedLLM(wrapped, guard)
        guarded.predict(PromptTemplate("How do I bake {what}?"), what="bread")
    assert "\n\n".join(message.content for message in asked) == (
        "Asked: Be brief.\n\nHow do I bake bread?"
    )
    assert guarded.pydantic_program_mode == "llm"
