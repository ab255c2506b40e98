"""Whatever comes in, it is read, or refused with a status of the client's fault."""

import json

import msgspec
import pytest

from support.malformed import VALID, malformed
from support.wire_server import answer_of
from waltzrl.errors import RequestError
from waltzrl.gateway.wire import CHAT, COMPLETIONS, MESSAGES, RESPONSES

ANSWER = answer_of("Hi")
DIALECTS = dict(zip(VALID, (CHAT, COMPLETIONS, RESPONSES, MESSAGES), strict=True))


@pytest.mark.parametrize("path", VALID)
def test_the_requests_that_are_made_wrong_were_right(path):
    assert DIALECTS[path].read(json.dumps(VALID[path]).encode(), "42").model == "m"


def test_the_same_seed_makes_the_same_requests():
    assert list(malformed(3, 50)) == list(malformed(3, 50))


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_ten_thousand_malformed_requests_are_read_or_refused():
    refused = 0
    for path, raw in malformed(seed=7, count=10_000):
        dialect = DIALECTS[path]
        found = outcome(dialect, raw)
        if isinstance(found, RequestError):
            refused += 1
            assert 400 <= found.status < 500
            assert json.loads(dialect.error(found))["error"]["message"]
        else:
            assert msgspec.json.encode(found.body)
            assert dialect.writer(found).open()
            assert dialect.write(found, [ANSWER] * found.n)
    assert 5_000 < refused < 10_000


def outcome(dialect, raw):
    try:
        return dialect.read(raw, "42")
    except RequestError as error:
        return error
