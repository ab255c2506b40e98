"""The meter: tokens by role, time, energy, and caps."""

import pytest

from waltzrl.budget import LEDGER, BudgetSettings, CostMeter, Ledger, ModelPrice, PriceBook
from waltzrl.budget.energy import open_energy
from waltzrl.errors import BudgetError
from waltzrl.records import Usage

SERVER = "http://127.0.0.1:8000/v1"


def usage(read, written, model="guard", **fields):
    return Usage(input_tokens=read, output_tokens=written, model=model, **fields)


def meter(path, clock, *, energy=lambda: None, **caps):
    book = PriceBook({"guard": ModelPrice(input=1.0, output=2.0)})
    return CostMeter(
        ledger=Ledger(path / LEDGER, clock=lambda: 1.0),
        prices=book,
        settings=BudgetSettings(**caps),
        timer=lambda: clock[0],
        energy=energy,
        gpus=1,
    )


@pytest.mark.promise(
    "Cost", "A step is charged for its time and the tokens of both agents and the judge"
)
def test_a_step_is_charged_for_its_time_and_its_tokens(tmp_path):
    clock = [100.0]
    counted = meter(tmp_path, clock, usd_per_hour=36.0)
    counted.count("conversation", [usage(10, 5, "tiny"), usage(20, 5, "tiny")], None)
    counted.count("judge", [usage(300, 4), usage(100, 8)], SERVER)
    clock[0] = 110.0
    charge = counted.charge("joint/0", "joint")
    machine, conversation, judge = charge.items
    assert (machine.role, machine.usd, charge.seconds) == ("machine", 0.1, 10)  # 10 s at 36 $/h
    assert (conversation.input_tokens, conversation.output_tokens, conversation.usd) == (30, 10, 0)
    assert judge.usd == pytest.approx((400 * 1 + 12 * 2) / 1e6)
    clock[0] = 111.0
    following = counted.charge("joint/1", "joint")
    assert (following.seconds, len(following.items)) == (1, 1)  # nothing is charged twice


def test_what_is_unknown_stays_unknown(tmp_path):
    counted = meter(tmp_path, [0.0])
    counted.count("judge", [usage(5, 5), usage(5, 5, "nameless")], SERVER)
    counted.count("judge", [None], SERVER, "guard")
    _, guard, nameless = counted.charge("joint/0").items
    assert (guard.usd, guard.input_tokens, guard.uncounted) == (None, 5, 1)
    assert (nameless.usd, nameless.input_tokens) == (None, 5)


def test_estimates_are_marked(tmp_path):
    counted = meter(tmp_path, [0.0])
    counted.count("judge", [usage(5, 5), usage(5, 5, estimated=True)], SERVER)
    assert counted.charge("joint/0").items[1].estimated


@pytest.mark.parametrize(
    ("caps", "said"),
    [
        ({"max_usd": 0.2, "usd_per_hour": 36.0}, "0.2 of budget.max_usd 0.2"),
        ({"max_tokens": 40}, "40 of budget.max_tokens 40"),
        ({"max_hours": 20 / 3600}, "0.005556 of budget.max_hours 0.00555556"),
    ],
)
def test_a_cap_is_reached_by_the_step_that_meets_it(tmp_path, caps, said):
    clock = [0.0]
    counted = meter(tmp_path, clock, **caps)
    for step, reached in enumerate(("", said)):
        clock[0] += 10.0
        counted.count("conversation", [usage(15, 5, "tiny")], None)
        counted.charge(f"joint/{step}")
        assert counted.reached == reached
    # The next process continues the sum, and a repeated step is in it once.
    resumed = meter(tmp_path, clock, **caps)
    assert resumed.reached == said
    resumed.charge("joint/1")
    assert resumed.reached == ""  # it took no time and no tokens this time


@pytest.mark.promise(
    "Cost",
    "A cap in money needs every price, before the first step; with one set later the run goes on",
)
def test_a_cap_in_money_needs_every_price(tmp_path):
    counted = meter(tmp_path, [0.0], max_usd=1.0)
    counted.count("judge", [usage(5, 5, "nameless")], SERVER)
    counted.charge("joint/0")
    with pytest.raises(BudgetError, match=r'price of nameless is unknown.*prices\."nameless"'):
        _ = counted.reached


@pytest.mark.promise(
    "Cost",
    "A cap in money needs every price, before the first step; with one set later the run goes on",
)
def test_a_step_without_a_price_gets_one_when_the_run_goes_on(tmp_path):
    def opened(**prices):
        return CostMeter(
            ledger=Ledger(tmp_path / LEDGER),
            prices=PriceBook(prices),
            settings=BudgetSettings(max_usd=1.0),
            timer=lambda: 0.0,
        )

    counted = opened()
    counted.count("judge", [usage(400_000, 300_000, "nameless")], SERVER)
    counted.charge("joint/0")
    with pytest.raises(BudgetError, match="price of nameless is unknown"):
        _ = opened().reached
    dear, cheap = ModelPrice(input=1.0, output=2.0), ModelPrice(input=0.5, output=1.0)
    assert opened(nameless=cheap).reached == ""  # 0.5 dollars
    assert opened(nameless=dear).reached == "1 of budget.max_usd 1"


def test_a_model_that_counts_no_tokens_cannot_be_capped_in_money(tmp_path):
    counted = meter(tmp_path, [0.0], max_usd=1.0)
    counted.count("judge", [None], SERVER, "guard")
    counted.charge("joint/0")
    with pytest.raises(BudgetError, match=r"guard did not say how many tokens .*max_hours"):
        _ = counted.reached


def test_a_price_is_required_under_a_cap_in_money_alone(tmp_path):
    capped = meter(tmp_path, [0.0], max_usd=1.0)
    capped.require_price("guard", SERVER)
    capped.require_price("tiny", None)  # in this process
    with pytest.raises(BudgetError, match=r'price of nameless is unknown.*prices\."nameless"'):
        capped.require_price("nameless", SERVER)
    meter(tmp_path, [0.0], max_tokens=1).require_price("nameless", SERVER)


def zone(folder, name, microjoules, most=1_000, domain="package-0"):
    path = folder / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "name").write_text(f"{domain}\n")
    (path / "energy_uj").write_text(f"{microjoules}\n")
    (path / "max_energy_range_uj").write_text(f"{most}\n")


@pytest.mark.promise("Cost", "Energy is added up where it can be read, and absent where it cannot")
def test_the_energy_of_processors_is_added_up_also_when_a_counter_begins_again(tmp_path):
    zone(tmp_path, "intel-rapl:0", 900)
    zone(tmp_path, "intel-rapl:1", 0)
    zone(tmp_path, "intel-rapl:0:0", 500, domain="core")  # a part of the first
    zone(tmp_path, "intel-rapl:2", 0, domain="psys")  # contains both
    energy = open_energy(tmp_path)
    assert energy() == 0
    zone(tmp_path, "intel-rapl:0", 100)  # 100 to its maximum, and 100 more
    zone(tmp_path, "intel-rapl:1", 50)
    zone(tmp_path, "intel-rapl:2", 300, domain="psys")
    assert energy() == pytest.approx((200 + 50) / 1e6)


@pytest.mark.promise("Cost", "Energy is added up where it can be read, and absent where it cannot")
def test_a_machine_that_does_not_tell_has_no_energy(tmp_path):
    counted = meter(tmp_path, [0.0], energy=open_energy(tmp_path))
    assert counted.charge("joint/0").joules is None
    zone(tmp_path, "intel-rapl:0", 7)
    energy = open_energy(tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()  # no longer readable
    assert energy() is None


def test_a_step_bears_the_energy_of_its_time(tmp_path):
    zone(tmp_path, "intel-rapl:0", 0, most=10**9)
    counted = meter(tmp_path, [0.0], energy=open_energy(tmp_path))
    zone(tmp_path, "intel-rapl:0", 3_000_000, most=10**9)
    assert counted.charge("joint/0").joules == pytest.approx(3)
    assert counted.charge("joint/1").joules == 0
