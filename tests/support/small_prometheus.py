"""A real Prometheus that scrapes one gateway, many times a second."""

import asyncio
import math
import os
import re
import shutil
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from support.timing import until
from waltzrl.operations.monitoring.alerts import rules_file

ENVIRONMENT = Path(__file__).parents[2] / ".venv/bin"
CONFIG = """
global: {{ scrape_interval: {every}, scrape_timeout: {every}, evaluation_interval: {every} }}
rule_files: [rules.yml]
scrape_configs:
  - job_name: gateway
    static_configs: [{{ targets: ["{target}"] }}]
"""


def find_program(name):
    """Look in the environment that `make test` fills, then on the path."""
    return shutil.which(name, path=f"{ENVIRONMENT}:{os.environ['PATH']}")


class Prometheus:
    """Asks a Prometheus that runs."""

    def __init__(self, url, session):
        self._url, self._session = url, session

    async def get(self, path, **parameters):
        async with self._session.get(f"{self._url}/api/v1/{path}", params=parameters) as response:
            body = await response.json()
        assert body["status"] == "success", body
        return body["data"]

    async def values(self, query):
        """Return the finite values of a query now."""
        data = await self.get("query", query=query)
        assert data["resultType"] == "vector"
        values = [float(sample["value"][1]) for sample in data["result"]]
        return [value for value in values if math.isfinite(value)]

    async def until(self, query, holds):
        """Wait until the sum of a query's values is as it should be."""
        async with asyncio.timeout(120):
            while True:
                if (values := await self.values(query)) and holds(sum(values)):
                    return
                await asyncio.sleep(0.2)


@asynccontextmanager
async def scraping(prometheus, folder, target, every="300ms"):
    """Run Prometheus for as long as the block runs.

    Args:
        prometheus: path of the program.
        folder: for its files.
        target: host and port to scrape.
        every: the time from one scrape to the next, and the longest that one may take.
    """
    (folder / "rules.yml").write_text(rules_file())
    (folder / "prometheus.yml").write_text(CONFIG.format(target=target, every=every))
    log = folder / "prometheus.log"
    with log.open("w") as errors:
        process = await asyncio.create_subprocess_exec(
            prometheus,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--web.listen-address=127.0.0.1:0",
            stdout=errors,
            stderr=errors,
        )

    def address():
        said = log.read_text()
        assert process.returncode is None, said
        # It listens before it answers.
        return "Server is ready" in said and re.search(r'"Listening on" address=(\S+)', said)

    try:
        url = f"http://{(await until(address))[1]}"
        async with aiohttp.ClientSession() as session:
            yield Prometheus(url, session)
    finally:
        process.terminate()
        await process.wait()
