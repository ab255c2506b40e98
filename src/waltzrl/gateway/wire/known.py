"""The keys that a chat-completions request may have without a word from the operator.

Any other key may steer the reply where no reviewer sees it: a template for the conversation, a
grammar that forces the first words, a bias towards or against tokens. Clients whose key allows it
(`allow_fields`) may send it.
"""

_OPENAI = """
    audio frequency_penalty function_call functions logprobs max_completion_tokens max_tokens
    messages metadata modalities model moderation n parallel_tool_calls prediction presence_penalty
    prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort response_format
    safety_identifier seed service_tier stop store stream stream_options temperature tool_choice
    tools top_logprobs top_p user verbosity web_search_options
"""
"""Parameters of OpenAI's API, except `logit_bias`, which can suppress every refusal."""
_SERVERS = """
    cache_salt documents enable_thinking ignore_eos include_reasoning include_stop_str_in_output
    length_penalty min_p min_tokens priority provider random_seed reasoning reasoning_format
    repetition_penalty request_id safe_prompt separate_reasoning skip_special_tokens
    spaces_between_special_tokens stop_token_ids thinking thinking_budget top_a top_k typical_p
    usage
"""
"""The parameters of model servers and routers (vLLM, SGLang, llama.cpp, Mistral, OpenRouter) that
set how a reply is sampled or returned. Reviewers see `documents`.
"""
CHAT = frozenset(_OPENAI.split() + _SERVERS.split())
