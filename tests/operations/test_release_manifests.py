import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest
import yaml

from support.small_releases import begun, short_plan
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.view import decision_body
from waltzrl.store.database import open_database

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture
def bodies(tmp_path):
    """What the gateway answers of a healthy release, and of one that was rolled back."""
    engine = open_database(f"sqlite:///{tmp_path}/memory.db")
    book = ReleaseBook(engine)
    release = begun(book, short_plan(10))
    healthy = msgspec.json.encode(decision_body(book.view()))
    book.move(release, "roll_back", "ada", "complaints")
    yield healthy, msgspec.json.encode(decision_body(book.view()))
    engine.dispose()


@pytest.fixture
def gateway():
    """Serve a body to who shows the key, as the gateway does."""

    class Answer(BaseHTTPRequestHandler):
        body = b""

        def do_GET(self):
            known = self.headers["Authorization"] == "Bearer secret"
            found = self.path == "/v1/release/decision"
            self.send_response(200 if known and found else 401)
            self.end_headers()
            self.wfile.write(self.body)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port, Answer
    server.shutdown()
    server.server_close()


def test_argo_asks_for_a_key_that_the_decision_has(bodies):
    template = yaml.safe_load((DEPLOY / "argo-analysis.yaml").read_text())
    assert template["kind"] == "AnalysisTemplate"
    (metric,) = template["spec"]["metrics"]
    assert metric["successCondition"] == "result == true"
    web = metric["provider"]["web"]
    assert web["url"].endswith("/v1/release/decision")
    assert {"{{ args.gateway }}", "{{ args.key }}"} == {
        "{{ args." + argument["name"] + " }}" for argument in template["spec"]["args"]
    }
    key = web["jsonPath"].removeprefix("{$.").removesuffix("}")
    assert [msgspec.json.decode(body)[key] for body in bodies] == [True, False]


@pytest.mark.parametrize(
    ("which", "key", "status"), [(0, "secret", 0), (1, "secret", 1), (0, "x", 1)]
)
def test_flagger_s_command_fails_when_the_release_is_not_healthy(
    which, key, status, bodies, gateway
):
    part = yaml.safe_load((DEPLOY / "flagger-webhook.yaml").read_text())
    command = part["analysis"]["webhooks"][0]["metadata"]["cmd"]
    port, answer = gateway
    answer.body = bodies[which]
    there = command.replace("http://waltzrl:8080", f"http://127.0.0.1:{port}")
    environment = {**os.environ, "WALTZRL_KEY": key}
    done = subprocess.run(["bash", "-c", there], env=environment, check=False)
    assert done.returncode == status
