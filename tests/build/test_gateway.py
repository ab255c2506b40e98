"""What the gateway says when it starts."""

import asyncio

import pytest

from waltzrl.build.gateway import serve
from waltzrl.config.gateway import load_gateway
from waltzrl.serving.server import listen

URL = "http://127.0.0.1:9/v1"


class AnnouncedError(Exception):
    """Ends the gateway once it has said what it serves."""


def announced(*settings: str) -> str:
    def announce(_listener, description):
        raise AnnouncedError(description)

    recipe = load_gateway(None, {}, [f"upstream.url={URL}", *settings], {})
    with listen("127.0.0.1", 0) as listener, pytest.raises(AnnouncedError) as error:
        asyncio.run(serve(recipe, listener, open_to_all=False, announce=announce))
    return str(error.value)


def test_the_start_says_that_the_rules_are_english():
    stage_2 = ["stage=2", "feedback.model=reviewer", f"feedback.server={URL}"]
    assert announced().startswith(f"stage 1, rules for English, in front of {URL}")
    assert announced(*stage_2).startswith(f"stage 2, rules for English, in front of {URL}")
    assert announced("enabled=false").startswith(f"no review in front of {URL}")
