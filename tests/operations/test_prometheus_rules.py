"""The alerts fire when they should and are silent when they should: promtool plays them."""

import json
import subprocess
from dataclasses import dataclass, field

import pytest

from waltzrl.operations.monitoring.alerts import ALERTS, rules_file

pytestmark = pytest.mark.prometheus

HEALTHY = {
    "waltzrl_active_requests": "3x60",
    "waltzrl_unsafe_rate_samples": "500x60",
    'waltzrl_check{check="upstream",status="down"}': "0x60",
    "waltzrl_unaudited_total": "0x60",
}
REQUESTS = 'waltzrl_requests_total{{api="chat",stage="2",decision="{}",draft_verdict="{}",\
final_verdict="{}"}}'
OWN = 'waltzrl_own_time_ms_count{stage="1"}'
IN_TIME = 'waltzrl_own_time_ms_bucket{stage="1",le="200.0"}'
MODEL = 'waltzrl_total_time_ms_count{stage="1"}'
ROLLED_BACK = 'waltzrl_release_moved_timestamp_seconds{{action="roll_back",by="{}"}}'
NEEDS = 'waltzrl_release_needs{{what="{}"}}'
FAILED = 'waltzrl_errors_total{api="chat",kind="upstream"}'
KEPT = REQUESTS.format("draft", "safe", "safe")
REVISED = REQUESTS.format("revised", "unsafe", "safe")
REFUSED = REQUESTS.format("refused", "unsafe", "safe")
LEFT = REQUESTS.format("draft", "overrefuse", "overrefuse")

OUTAGE = {FAILED: "0x10 0+100x5 500x50", KEPT: "0+100x10 1000x5 1000+100x50"}
"""From minute 11 to 16 all requests fail, 500 of them."""


@dataclass
class Scenario:
    """What Prometheus scrapes, a sample a minute, and what has fired after so many minutes."""

    series: dict
    after: int
    fires: dict = field(default_factory=dict)
    """Alert -> its summary; all other alerts are silent."""
    without: tuple = ()
    """Series of a healthy gateway that are missing."""


def each_minute(count):
    return f"0+{count}x60"


def judged(label, bad, good):
    return {
        f'waltzrl_judge_labels_total{{label="{label}",value="{value}"}}': each_minute(count)
        for value, count in (("true", bad), ("false", good))
    }


SCENARIOS = {
    "a healthy gateway": Scenario(
        judged("unsafe", 1, 99)
        | judged("overrefuse", 2, 98)
        | {KEPT: each_minute(100), OWN: each_minute(100), IN_TIME: each_minute(99)},
        18,
    ),
    "six unsafe replies of a hundred that were judged": Scenario(
        judged("unsafe", 6, 94),
        18,
        {"WaltzRLHighUnsafeRate": "The judge called 6% of sampled replies unsafe"},
    ),
    "five are as many as allowed": Scenario(judged("unsafe", 5, 95), 18),
    "six of a hundred for less than five minutes": Scenario(judged("unsafe", 6, 94), 4),
    "one of one, which says nothing": Scenario(judged("unsafe", 1, 0), 18),
    "twelve over-refusals of a hundred": Scenario(
        judged("overrefuse", 12, 88),
        18,
        {"WaltzRLHighOverrefusalRate": "The judge called 12% of sampled replies over-refusals"},
    ),
    "ten are as many as allowed": Scenario(judged("overrefuse", 10, 90), 18),
    "most drafts objected to": Scenario(
        {REVISED: each_minute(48), LEFT: each_minute(12), KEPT: each_minute(40)},
        20,
        {"WaltzRLHighFeedbackTriggerRate": "The reviewer objected to 60% of drafts"},
    ),
    "half of them": Scenario({REVISED: each_minute(50), KEPT: each_minute(50)}, 20),
    "most of very few": Scenario({REVISED: each_minute(8), KEPT: each_minute(2)}, 20),
    "a reviewer that reviews nothing": Scenario(
        {REQUESTS.format("refused", "unreviewed", "safe"): each_minute(100)},
        20,
        {
            "WaltzRLHighRefusedRate": "100% of answers were a canned refusal: under attack, or the "
            "reviewer cannot review"
        },
    ),
    "one answer in ten refused, which attacks cause every day": Scenario(
        {REFUSED: each_minute(10), KEPT: each_minute(90)}, 20
    ),
    "no gateway": Scenario(
        {},
        20,
        {"WaltzRLNoMetrics": "No gateway reports metrics: the other alerts cannot fire"},
        without=("waltzrl_active_requests",),
    ),
    "a gateway without a judge": Scenario(
        {},
        20,
        {
            "WaltzRLNoJudge": "No gateway has an online judge: unsafe replies and over-refusals "
            "are not measured"
        },
        without=("waltzrl_unsafe_rate_samples",),
    ),
    "a gateway without its upstream": Scenario(
        {'waltzrl_check{check="upstream",status="down"}': "1x60"},
        20,
        {"WaltzRLUpstreamDown": "1 gateways cannot reach their upstream"},
    ),
    "reviews that fail": Scenario(
        {
            'waltzrl_review_failures_total{cause="timeout"}': each_minute(10),
            'waltzrl_feedback_time_ms_count{stage="2"}': each_minute(100),
        },
        20,
        {"WaltzRLReviewsFail": "10% of reviews had to do without the model"},
    ),
    "requests that are told that the reviewer has no time": Scenario(
        {
            'waltzrl_review_failures_total{cause="overloaded"}': each_minute(25),
            KEPT: each_minute(75),
            REQUESTS.format("error", "unreviewed", "unreviewed"): each_minute(25),
            'waltzrl_feedback_time_ms_count{stage="2"}': each_minute(75),
        },
        20,
        {
            "WaltzRLReviewsOverloaded": "For 25% of choices the feedback model had no time",
        },
    ),
    "a review in fifty that fails": Scenario(
        {
            'waltzrl_review_failures_total{cause="timeout"}': each_minute(2),
            'waltzrl_feedback_time_ms_count{stage="2"}': each_minute(100),
        },
        20,
    ),
    "an answer without a record": Scenario(
        {"waltzrl_unaudited_total": "0x10 1x50"},
        13,
        {"WaltzRLUnaudited": "Answers went out without an audit record"},
    ),
    "three requests in a hundred fail": Scenario(
        {FAILED: each_minute(3), KEPT: each_minute(97)},
        18,
        {
            "WaltzRLAvailabilityBurnFast": "3% of requests failed: fast burn of the budget of "
            "0.1 % in 30 days",
            "WaltzRLAvailabilityBurnSlow": "3% of requests failed: slow burn of the budget of "
            "0.1 % in 30 days",
        },
    ),
    "four in a thousand": Scenario(
        {FAILED: each_minute(4), KEPT: each_minute(996)},
        18,
        {
            "WaltzRLAvailabilityBurnSlow": "0.4% of requests failed: slow burn of the budget of "
            "0.1 % in 30 days"
        },
    ),
    "one in two thousand, which the budget covers": Scenario(
        {FAILED: each_minute(1), KEPT: each_minute(1999)}, 18
    ),
    "one in five of very few": Scenario({FAILED: "0x8 1x60", KEPT: "0x8 4x60"}, 18),
    "mistakes of clients": Scenario(
        {
            'waltzrl_errors_total{api="chat",kind="invalid_request"}': each_minute(50),
            KEPT: each_minute(50),
        },
        18,
    ),
    "an outage of five minutes, while it lasts": Scenario(
        OUTAGE,
        16,
        {
            "WaltzRLAvailabilityBurnFast": "33.33% of requests failed: fast burn of the budget "
            "of 0.1 % in 30 days"
        },
    ),
    "and forty minutes later": Scenario(
        OUTAGE,
        56,
        {
            "WaltzRLAvailabilityBurnSlow": "9.259% of requests failed: slow burn of the budget "
            "of 0.1 % in 30 days"
        },
    ),
    "four replies in five that the gateway itself takes too long for": Scenario(
        {OWN: each_minute(100), IN_TIME: each_minute(20)},
        18,
        {
            "WaltzRLLatencyBurnFast": "80% of replies took the gateway itself more than 200 ms: "
            "fast burn of the budget of 5 % in 30 days",
            "WaltzRLLatencyBurnSlow": "80% of replies took the gateway itself more than 200 ms: "
            "slow burn of the budget of 5 % in 30 days",
        },
    ),
    "one in five": Scenario(
        {OWN: each_minute(100), IN_TIME: each_minute(80)},
        18,
        {
            "WaltzRLLatencyBurnSlow": "20% of replies took the gateway itself more than 200 ms: "
            "slow burn of the budget of 5 % in 30 days"
        },
    ),
    "a model that takes all the time": Scenario(
        {OWN: each_minute(100), IN_TIME: each_minute(100), MODEL: each_minute(100)}, 18
    ),
    "a release that was rolled back by itself ten minutes ago": Scenario(
        {ROLLED_BACK.format("itself"): "0x120 7200x60"},
        130,
        {
            "WaltzRLReleaseRolledBack": "A release was rolled back by itself: the evidence says "
            "that its candidate is worse"
        },
    ),
    "and more than an hour ago": Scenario({ROLLED_BACK.format("itself"): "0x120 7200x120"}, 181),
    "one that a person rolled back": Scenario({ROLLED_BACK.format("person"): "0x120 7200x60"}, 130),
    "a release that is held": Scenario(
        {NEEDS.format("resume"): "1x60"},
        18,
        {"WaltzRLReleaseHeld": "A release is held: it does not advance until a person resumes it"},
    ),
    "one that waits for labels, for half an hour": Scenario({NEEDS.format("label"): "1x60"}, 30),
    "for an hour": Scenario(
        {NEEDS.format("label"): "1x70"},
        65,
        {
            "WaltzRLReleaseWaitsForLabels": "A release waits for labels: only the unknown error "
            "of the judge keeps it"
        },
    ),
    "one that waits for a person": Scenario(
        {NEEDS.format("advance"): "1x70"},
        65,
        {
            "WaltzRLReleaseWaitsForAPerson": "A release waits for a person to advance it, as its "
            "plan says"
        },
    ),
    "one in twenty-five, which the budget covers": Scenario(
        {OWN: each_minute(100), IN_TIME: each_minute(96)}, 18
    ),
}


def played(scenario, name):
    """Return a scenario as promtool reads it; every alert has an expectation."""
    series = {
        key: values.replace("x60", f"x{max(60, scenario.after)}")
        for key, values in HEALTHY.items()
        if key not in scenario.without
    }
    return {
        "name": name,
        "interval": "1m",
        "input_series": [
            {"series": key, "values": values} for key, values in (series | scenario.series).items()
        ],
        "alert_rule_test": [
            {
                "alertname": alert.name,
                "eval_time": f"{scenario.after}m",
                "exp_alerts": [
                    {
                        "exp_labels": {"severity": alert.severity},
                        "exp_annotations": {
                            "summary": scenario.fires[alert.name],
                            "action": alert.action,
                            "runbook_url": f"docs/on-call.md#{alert.runbook}",
                        },
                    }
                ]
                if alert.name in scenario.fires
                else [],
            }
            for alert in ALERTS
        ],
    }


def promtool_says(promtool, folder, *arguments):
    return subprocess.run(
        [promtool, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def play(promtool, folder, rules, scenarios):
    (folder / "rules.yml").write_text(rules)
    tests = [played(scenario, name) for name, scenario in scenarios.items()]
    (folder / "tests.yml").write_text(json.dumps({"rule_files": ["rules.yml"], "tests": tests}))
    return promtool_says(promtool, folder, "test", "rules", "tests.yml")


@pytest.mark.promise("Do no harm", "A gateway that refuses many answers raises an alert")
@pytest.mark.promise(
    "Metrics",
    "Every alert is played through firing and silence; the documents' three have their bounds",
)
@pytest.mark.promise("Requirements", "observability: metric names, alerts, dashboards")
def test_each_alert_fires_in_its_scenarios_and_is_silent_in_all_others(promtool, tmp_path):
    done = play(promtool, tmp_path, rules_file(), SCENARIOS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promise(
    "Metrics",
    "Every alert is played through firing and silence; the documents' three have their bounds",
)
def test_each_alert_is_played_through_firing():
    assert {name for scenario in SCENARIOS.values() for name in scenario.fires} == {
        alert.name for alert in ALERTS
    }


def test_promtool_finds_nothing_to_object_to(promtool, tmp_path):
    (tmp_path / "rules.yml").write_text(rules_file())
    done = promtool_says(promtool, tmp_path, "check", "rules", "--lint-fatal", "rules.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_rejects_an_alert_that_does_not_fire(promtool, tmp_path):
    rules = rules_file()
    assert rules.count("ratio_1h > 0.05") == 1
    name = "six unsafe replies of a hundred that were judged"
    done = play(promtool, tmp_path, rules.replace("> 0.05", "> 0.5"), {name: SCENARIOS[name]})
    assert done.returncode == 1
    assert "WaltzRLHighUnsafeRate" in done.stdout + done.stderr
