"""A gateway as it is deployed: with a wrong URL, and with files that Kubernetes replaces."""

import http.client
import json
import signal
import subprocess
import threading
from contextlib import ExitStack

import pytest

from support.gateway_processes import gateway_process, upstream_process
from support.timing import wait_until

BODY = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}


def readiness(gateway):
    status, _, text = gateway.get("/readyz")
    return status, json.loads(text)["checks"]["upstream"]


@pytest.mark.promise(
    "Operation", "An upstream's URL without `/v1` is never ready, and what is missing is said"
)
@pytest.mark.promise(
    "Bad input",
    "An upstream's URL that leads to no model's server, such as one without `/v1`: in `/readyz` "
    "and the log: what the server does not have, and what to change; the gateway is never ready",
)
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


class Mounted:
    """A folder as the kubelet keeps one of a ConfigMap or a Secret.

    A file is a link into `..data`, itself a link to the folder of a version, and replaced at once.
    """

    def __init__(self, folder):
        self.folder, self.versions = folder, 0
        folder.mkdir()

    def write(self, **files):
        self.versions += 1
        version = self.folder / f"..2026_{self.versions}"
        version.mkdir()
        old = [path for path in self.folder.glob("..2026_*") if path != version]
        for name, text in files.items():
            (version / f"{name}.toml").write_text(text)
            link = self.folder / f"{name}.toml"
            if not link.is_symlink():
                link.symlink_to(f"..data/{name}.toml")
        new = self.folder / "..data_tmp"
        new.symlink_to(version.name)
        new.rename(self.folder / "..data")
        for path in old:  # the kubelet deletes the earlier version
            subprocess.run(["rm", "-r", str(path)], check=True)


def threshold(gateway, text):
    return f'threshold = {text}\n[upstream]\nurl = "{gateway}/v1"\n'


def bundles(gateway):
    """Return the bundles of the workers that serve, and of those that retire."""
    lines = gateway.get("/metrics")[2].splitlines()
    infos = [line for line in lines if "build_info{" in line]
    return {info.partition('bundle="')[2].partition('"')[0] for info in infos}


@pytest.mark.promise(
    "Operation",
    "SIGHUP reads a recipe again that Kubernetes has replaced in its mounted folder; a gateway "
    "that stops asks clients to close the connections that they keep",
)
def test_a_config_map_that_the_kubelet_replaced_is_read_at_sighup(tmp_path):
    log, mounted = tmp_path / "log", Mounted(tmp_path / "recipe")
    with upstream_process() as upstream:
        mounted.write(gateway=threshold(upstream.url, 0.7))
        with gateway_process(str(mounted.folder / "gateway.toml"), log=log) as gateway:
            first = bundles(gateway)
            for number, value in enumerate((0.8, 0.7), 1):
                mounted.write(gateway=threshold(upstream.url, value))
                gateway.process.send_signal(signal.SIGHUP)
                wait_until(lambda count=number: log.read_text().count("reloaded: ") == count, 60.0)
                wait_until(lambda: len(bundles(gateway)) == 1)
                assert (bundles(gateway) == first) is (value == 0.7)
                assert gateway.post("/v1/chat/completions", BODY)[0] == 200


@pytest.mark.promise(
    "Operation",
    "SIGHUP reads a recipe again that Kubernetes has replaced in its mounted folder; a gateway "
    "that stops asks clients to close the connections that they keep",
)
def test_a_connection_that_a_client_kept_is_closed_with_the_refusal_of_a_gateway_that_stops(
    tmp_path,
):
    with (
        upstream_process() as upstream,
        gateway_process("--upstream", f"{upstream.url}/v1", log=tmp_path / "log") as gateway,
        ExitStack() as cleanup,
    ):
        kept = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=60)
        cleanup.callback(kept.close)

        def asked():
            headers = {"Content-Type": "application/json"}
            kept.request("POST", "/v1/chat/completions", json.dumps(BODY), headers)
            with kept.getresponse() as response:
                response.read()
                return response.status, response.headers

        status, headers = asked()
        assert (status, headers["connection"]) == (200, None)
        held = []
        body = BODY | {"model": "held"}
        asking = threading.Thread(
            target=lambda: held.append(gateway.post("/v1/chat/completions", body)[0])
        )
        asking.start()
        wait_until(lambda: gateway.metric("waltzrl_active_requests"))
        gateway.process.terminate()
        wait_until(lambda: gateway.metric("waltzrl_draining"))
        status, headers = asked()
        assert (status, headers["connection"]) == (503, "close")
        assert int(headers["retry-after"]) >= 1
        upstream.get("/release")
        asking.join(60)
        assert held == [200]
        assert gateway.process.wait(60) == 0
