import asyncio

import pytest

from waltzrl.errors import InputError
from waltzrl.recipes.judging import open_judge
from waltzrl.recipes.models import remote_policy


def named(name):
    async def opened():
        async with open_judge(name) as judge:
            return judge.name

    return asyncio.run(opened())


def test_judges_are_made_by_name():
    assert named("refusal").startswith("label-refusal@")
    assert named("llm:org/guard@http://user@localhost:8000/v1").startswith("llm:org/guard@")


@pytest.mark.parametrize("name", ["llm", "llm:guard", "llm:@http://x", "llm:guard@", "oracle"])
def test_an_unknown_judge_is_refused_with_the_way_to_say_it(name):
    with pytest.raises(InputError, match="say refusal, or llm:MODEL@URL"):
        named(name)


@pytest.mark.parametrize("server", ["localhost:8000", "http://", "ftp://x/y", "http://x:99999/v1"])
def test_what_is_no_address_is_refused_before_anything_is_asked(server):
    with pytest.raises(InputError, match="is no server's address; say it like http://"):
        remote_policy(server, "m")
    with pytest.raises(InputError, match="is no server's address"):
        named(f"llm:guard@{server}")
