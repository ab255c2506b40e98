"""What holds of the adapter for DSPy only."""

import pytest
from drivers import of_framework

from support.bad_model import BAD, REVISED, UNSAFE, BadModel
from support.openai_server import serving
from waltzrl import RemotePolicy, open_guard

pytestmark = of_framework("dspy")


@pytest.mark.promise("Adapters for frameworks", "A draft in DSPy's cache is reviewed too")
def test_a_draft_in_the_cache_is_reviewed_too():
    import dspy

    from waltzrl_integrations.dspy import guarded_lm

    dspy.configure_cache(enable_disk_cache=False)
    with serving({"bad": BadModel()}) as server:
        guard = open_guard(upstream=RemotePolicy(server.base_url, "bad"))
        bad = dspy.LM("openai/bad", api_base=server.base_url, api_key="none")
        with guard.sync:
            (draft,) = bad(BAD)
            assert UNSAFE in draft
            assert guarded_lm(bad, guard)(BAD) == [REVISED]
