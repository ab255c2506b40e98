"""The ledgers of days: what a key has used today, in all processes, whatever the clock does."""

import pytest

from support.timing import FakeClock
from waltzrl.budget import Charge, ChargeItem, ledgers_in, read_ledger
from waltzrl.budget.daily import DAY_SECONDS, DailyLedger
from waltzrl.errors import InputError

NOON = 20_000.5 * DAY_SECONDS  # of 2024-10-04


def charge(id_, key="ada", tokens=10, usd=0.5):
    item = ChargeItem(role="conversation", usd=usd, model="echo", input_tokens=tokens)
    return Charge(id=id_, activity="serving", items=(item,), key=key)


@pytest.mark.promise(
    "Cost", "All workers and restarts see what a key has used; a clock set back gives nothing twice"
)
def test_a_key_has_used_what_all_processes_appended(tmp_path):
    clock = FakeClock(NOON)
    first, second = (DailyLedger(tmp_path, clock=clock) for _ in range(2))
    first.append(charge("a"))
    second.append(charge("b"))
    first.append(charge("c", key="bob", tokens=7))
    for ledger in (first, second, DailyLedger(tmp_path, clock=clock)):  # and after a restart
        spent = ledger.spent("ada")
        assert (spent.tokens, spent.usd, spent.unpriced) == (20, 1.0, False)
        assert ledger.spent("bob").tokens == 7
        assert ledger.spent("eve").tokens == 0


def test_a_price_that_is_unknown_is_remembered(tmp_path):
    ledger = DailyLedger(tmp_path, clock=FakeClock(NOON))
    ledger.append(charge("a", usd=None))
    spent = ledger.spent("ada")
    assert (spent.usd, spent.unpriced) == (0.0, True)


@pytest.mark.promise(
    "Cost", "All workers and restarts see what a key has used; a clock set back gives nothing twice"
)
def test_a_day_begins_with_nothing_used_and_a_clock_set_back_gives_nothing_twice(tmp_path):
    clock = FakeClock(NOON)
    ledger = DailyLedger(tmp_path, clock=clock)
    ledger.append(charge("a"))
    assert ledger.seconds_left == DAY_SECONDS / 2
    assert f"{ledger.ends:%Y-%m-%dT%H:%M}" == "2024-10-05T00:00"
    clock.now += DAY_SECONDS
    assert ledger.spent("ada").tokens == 0
    ledger.append(charge("b", tokens=3))
    clock.now = NOON + 60  # set back over midnight
    assert ledger.spent("ada").tokens == 10
    assert [path.name for path in ledgers_in(tmp_path)] == [
        "2024-10-04-ledger.jsonl",
        "2024-10-05-ledger.jsonl",
    ]
    assert len(read_ledger(*ledgers_in(tmp_path)).charges) == 2


def test_a_torn_line_of_a_killed_worker_spoils_no_other(tmp_path):
    clock = FakeClock(NOON)
    ledger = DailyLedger(tmp_path, clock=clock)
    ledger.append(charge("a"))
    with ledger.path.open("ab") as file:
        file.write(b'\n{"id":"torn","acti')
    assert ledger.spent("ada").tokens == 10
    ledger.append(charge("b"))
    assert ledger.spent("ada").tokens == 20


def test_on_a_full_disk_the_charge_counts_in_this_process(tmp_path):
    (tmp_path / "2024-10-04-ledger.jsonl").symlink_to("/dev/full")
    ledger = DailyLedger(tmp_path, clock=FakeClock(NOON))
    with pytest.raises(InputError, match="No space left"):
        ledger.append(charge("a"))
    assert ledger.spent("ada").tokens == 10


def test_a_day_whose_file_could_not_be_opened_is_opened_later(tmp_path):
    clock = FakeClock(NOON)
    ledger = DailyLedger(tmp_path, clock=clock)
    clock.now += DAY_SECONDS
    obstacle = tmp_path / "2024-10-05-ledger.jsonl"
    obstacle.mkdir()
    for _ in range(2):
        with pytest.raises(InputError, match="Is a directory"):
            ledger.append(charge("a"))
        with pytest.raises(InputError, match="Is a directory"):
            ledger.spent("ada")
    obstacle.rmdir()
    ledger.append(charge("b"))
    assert ledger.spent("ada").tokens == 10
