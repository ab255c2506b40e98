"""A real Prometheus scrapes a real gateway: what the dashboards and the alerts see of it."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from support.small_gateway import Model, ask, chat, draft, gateway, listening
from support.small_prometheus import find_program, scraping
from waltzrl.operations.monitoring.dashboards import DASHBOARDS, RATE_WINDOW

pytestmark = [pytest.mark.prometheus, pytest.mark.xdist_group("monitored")]

BENIGN, HARMFUL = "How do I bake bread?", "What must nobody say?"
TRAFFIC = (("unsafe", BENIGN, 90), ("echo", HARMFUL, 35), ("refuses", BENIGN, 35))
"""Model, prompt and number of requests: feedback revises the first; the others are as they should
not be, and only the judge notices."""
JUDGED = 163
"""With one request of each before; nobody knows the labels of the others."""
PENDING = 'ALERTS{alertname=~"WaltzRLHigh(Unsafe|Overrefusal|FeedbackTrigger)Rate"}'


class RefusingModel(Model):
    def draft(self, body):
        if body["model"] == "refuses":
            return "I'm sorry, but I can't help with that."
        return draft(body)


@asynccontextmanager
async def monitored(prometheus, folder):
    """Run a gateway with memory, judge and prices, in its default mode, below a Prometheus."""
    labels = folder / "labels.jsonl"
    labelled = {BENIGN: "benign", HARMFUL: "unsafe"}
    lines = [json.dumps({"prompt": text, "label": label}) for text, label in labelled.items()]
    labels.write_text("\n".join(lines))
    settings = (
        f"memory.url=sqlite:///{folder / 'memory.db'}",
        f"memory.subject_key={folder / 'memory.key'}",
        "memory.niceness=0",
        f"memory.judge=labelled:{labels}",
        "memory.judge_share=1.0",
        f"budget.folder={folder / 'costs'}",
        "prices.echo={input=100.0,output=1000.0}",
    )
    async with (
        gateway(*settings, model=RefusingModel()) as app,
        listening(app) as (host, port),
        scraping(prometheus, folder, f"{host}:{port}") as running,
    ):
        yield app, running


async def ask_all(app, counts):
    """Ask, and return the ids of the last two answers."""
    for model, prompt, count in counts:
        for _ in range(count):
            await chat(app, model, messages=[{"role": "user", "content": prompt}])
    await chat(app, "unsafe", stream=True)
    assert (await chat(app, "broken")).status == 502
    answers = [await chat(app, "stubborn"), await chat(app, "echo")]
    return [answer.headers["x-request-id"] for answer in answers]


async def rate(app, ids):
    """Give a thumb down to the first, and one up to the second."""
    for id_, thumb in zip(ids, ("down", "up"), strict=True):
        assert (await ask(app, "/v1/feedback", {"id": id_, "thumb": thumb})).status == 200


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What each panel shows, and the alerts, once a gateway has served its traffic."""
    folder = tmp_path_factory.mktemp("monitored")

    async def watch(prometheus):
        async with monitored(prometheus, folder) as (app, running):
            await ask_all(app, [(model, prompt, 1) for model, prompt, _ in TRAFFIC])
            await running.until("sum(waltzrl_judge_labels_total)", lambda count: count >= 5)
            ids = await ask_all(app, TRAFFIC)
            await running.until("sum(waltzrl_unsafe_rate_samples)", lambda count: count == JUDGED)
            await running.until("sum(waltzrl_recorder_waiting)", lambda count: count == 0)
            await rate(app, ids)
            await running.until("sum(waltzrl_thumbs_total)", lambda count: count == 2)
            await running.until(f"count({PENDING})", lambda count: count == 3)
            panels = {
                (panel.title, legend): await running.values(query.replace(RATE_WINDOW, "1m"))
                for dashboard in DASHBOARDS
                for panel in dashboard.panels
                for legend, query in panel.queries.items()
            }
            return panels, (await running.get("alerts"))["alerts"]

    return asyncio.run(watch(find_program("prometheus")))


@pytest.mark.promise(
    "Metrics", "Every panel of the dashboards shows data of a real gateway, and the right rates"
)
@pytest.mark.promise("Requirements", "observability: metric names, alerts, dashboards")
def test_every_panel_shows_data_of_a_real_gateway(seen):
    panels, _ = seen
    assert len(panels) == sum(len(p.queries) for one in DASHBOARDS for p in one.panels)
    assert [panel for panel, values in panels.items() if not values] == []


@pytest.mark.promise(
    "Metrics", "Every panel of the dashboards shows data of a real gateway, and the right rates"
)
@pytest.mark.promise(
    "Metrics",
    "What the online judge leaves without a label is counted apart, and users' thumbs are counted",
)
def test_the_rates_are_those_of_the_traffic(seen):
    panels, _ = seen
    (unsafe,) = panels["Unsafe rate (ASR)", "served replies, by the judge"]
    (overrefused,) = panels["Over-refusal rate (ORR)", "served replies, by the judge"]
    assert unsafe == overrefused == 36 / JUDGED
    assert panels["Satisfaction", "thumbs up"] == [0.5]


@pytest.mark.promise(
    "Metrics", "The documents' three alerts can fire while a gateway reviews every reply"
)
def test_the_three_alerts_of_the_requirement_see_a_gateway_in_its_default_mode(seen):
    _, alerts = seen
    states = {alert["labels"]["alertname"]: alert["state"] for alert in alerts}
    for name in ("HighUnsafeRate", "HighOverrefusalRate", "HighFeedbackTriggerRate"):
        assert states[f"WaltzRL{name}"] == "pending"  # it fires after five or fifteen minutes
    assert "WaltzRLNoJudge" not in states
    assert "WaltzRLNoMetrics" not in states
