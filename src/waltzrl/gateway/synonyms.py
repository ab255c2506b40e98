"""What others call the keys of a gateway's recipe, so that an unknown key names ours.

The names are of the requirement's documents, and of other gateways and clients of OpenAI's API.
"""

from waltzrl.foundation.validation import Synonyms

SYNONYMS: Synonyms = {
    "enabled": ("enable_waltzrl", "waltzrl_enabled"),
    "feedback.model": ("feedback_agent", "feedback_model", "guardrails", "review_model"),
    "keys": ("api_keys", "auth", "master_key"),
    "limits.max_active": ("max_concurrency", "max_concurrent_requests", "max_parallel_requests"),
    "logs.level": ("log_level",),
    "max_rounds": ("max_feedback_rounds", "max_revision_attempts", "max_turns"),
    "memory.url": ("database", "database_url", "memory_store"),
    "observe_only": ("dry_run", "feedback_only", "feedback_only_mode", "log_only"),
    "on_failure": ("block_on_failure", "fail_closed", "fail_open", "fallback_to_blocking"),
    "review_timeout_ms": ("coaching_timeout_ms", "review_timeout"),
    "stage2_percentage": (
        *("canary_percentage", "rollout_pct", "rollout_percentage", "traffic_percentage"),
    ),
    "threshold": ("min_safety_score", "safety_threshold"),
    "upstream.api_key_env": ("api_key",),
    "upstream.fallback": ("fallbacks",),
    "upstream.retries": ("max_retries", "num_retries"),
    "upstream.timeout_seconds": ("request_timeout", "timeout"),
    "upstream.url": ("api_base", "base_url", "upstream_url"),
    "workers": ("num_workers",),
}
"""Our keys, and what others call each in lower case."""
