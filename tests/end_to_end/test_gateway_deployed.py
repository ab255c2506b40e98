"""A gateway as it is deployed: with a wrong URL, and with files that Kubernetes replaces."""

import json

import pytest

from support.gateway_processes import gateway_process, upstream_process
from support.timing import wait_until

BODY = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}


def readiness(gateway):
    status, _, text = gateway.get("/readyz")
    return status, json.loads(text)["checks"]["upstream"]


@pytest.mark.parametrize("by", ["command line", "recipe"])
def test_an_upstream_url_without_v1_is_never_ready_and_says_what_is_missing(tmp_path, by):
    log = tmp_path / "log"
    with upstream_process() as upstream:
        arguments = ("--upstream", upstream.url)
        if by == "recipe":
            recipe = tmp_path / "gateway.toml"
            recipe.write_text(f'[upstream]\nurl = "{upstream.url}"\n')
            arguments = (str(recipe),)
        with gateway_process(*arguments, log=log) as gateway:
            wait_until(lambda: "/v1" in readiness(gateway)[1]["detail"], 30.0)
            assert gateway.post("/v1/chat/completions", BODY)[0] == 404
            status, told = readiness(gateway)
            assert (status, told["status"]) == (503, "down")
            assert told["detail"] == (
                "the server has neither /models nor /chat/completions below the URL; the URL "
                "probably has to end in /v1"
            )
            wait_until(lambda: "the upstream is down" in log.read_text(), 30.0)
        assert "the URL probably has to end in /v1" in log.read_text()
        with gateway_process("--upstream", f"{upstream.url}/v1", log=log) as gateway:
            wait_until(lambda: gateway.get("/readyz")[0] == 200, 30.0)
            assert gateway.post("/v1/chat/completions", BODY)[0] == 200
