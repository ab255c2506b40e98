"""The ledger: appended to, cut anywhere, a clock set back, a step that runs twice."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.timing import wait_until
from waltzrl.budget import LEDGER, Charge, ChargeItem, Ledger, ledgers_in, read_ledger, totals
from waltzrl.errors import InputError


def charge(id_, usd=1.0, tokens=10, **fields):
    item = ChargeItem(role="judge", usd=usd, model="guard", input_tokens=tokens)
    return Charge(id=id_, activity="training", items=(item,), **fields)


def usd(contents):
    return sum(each.usd for each in contents.charges)


def written(path, *charges, clock=lambda: 1000.0):
    with Ledger(path, clock=clock) as ledger:
        for each in charges:
            ledger.append(each)


@pytest.mark.promise(
    "Requirements", "CostProfiler: record_execution, estimate_cost, estimate_time, get_statistics"
)
def test_what_was_appended_is_read_back(tmp_path):
    path = tmp_path / "run" / LEDGER
    written(path, charge("a", seconds=2.5, gpus=1, joules=7.0), charge("b", usd=None))
    first, second = read_ledger(path).charges
    assert (first.id, first.seconds, first.gpus, first.joules, first.time) == ("a", 2.5, 1, 7, 1000)
    assert second.usd is None


@pytest.mark.promise(
    "Cost", "A step that runs again counts once; a clock set back leaves the times in order"
)
def test_a_step_that_runs_again_counts_once(tmp_path):
    path = tmp_path / LEDGER
    written(path, charge("joint/1", usd=1), charge("joint/2", usd=2))
    written(path, charge("joint/2", usd=5), charge("joint/3", usd=7))
    contents = read_ledger(path)
    assert [each.id for each in contents.charges] == ["joint/1", "joint/2", "joint/3"]
    assert usd(contents) == 1 + 5 + 7
    assert [each.usd for each in contents.repeated] == [2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("ledger") / LEDGER
    written(path, *(charge(str(number)) for number in range(4)))
    return path


@pytest.mark.promise(
    "Cost", "The ledger survives kill -9 and a cut at any byte, and is only appended to"
)
@pytest.mark.promise(
    "Bad input",
    "A ledger cut in the middle of a line, a clock set back, a full disk: the lines that cannot "
    "be read are counted; times stay in order; the file",
)
@given(data=st.data())
def test_cut_at_any_byte_only_the_torn_line_is_lost(whole, data):
    lines = whole.read_bytes()
    cut = data.draw(st.integers(0, len(lines)))
    path = whole.with_name("cut.jsonl")
    path.write_bytes(lines[:cut])
    written(path, charge("next"))
    contents = read_ledger(path)
    # A line that lost only its break is still whole.
    whole_lines = [line for line in lines.split(b"\n") if line and lines[:cut].count(line)]
    torn = lines[:cut].rpartition(b"\n")[2]
    assert [each.id for each in contents.charges] == [
        *(str(number) for number in range(len(whole_lines))),
        "next",
    ]
    assert contents.damaged == bool(torn and torn not in whole_lines)
    assert path.read_bytes().startswith(lines[:cut])  # nothing was taken away


@pytest.mark.promise(
    "Cost", "A step that runs again counts once; a clock set back leaves the times in order"
)
@pytest.mark.promise(
    "Bad input",
    "A ledger cut in the middle of a line, a clock set back, a full disk: the lines that cannot "
    "be read are counted; times stay in order; the file",
)
def test_a_clock_set_back_leaves_the_times_in_order(tmp_path):
    path, clock = tmp_path / LEDGER, iter((5000.0, 100.0, 6000.0))
    written(path, charge("a"), charge("b"), clock=lambda: next(clock))
    written(path, charge("c"), clock=lambda: 50.0)
    written(path, charge("d"), clock=lambda: 7000.0)
    assert [each.time for each in read_ledger(path).charges] == [5000, 5000, 5000, 7000]


WRITER = """
import sys
from pathlib import Path
from waltzrl.budget import Charge, ChargeItem, Ledger
item = ChargeItem(role="judge", usd=1.0, model="m" * 2000)
with Ledger(Path(sys.argv[1])) as ledger:
    for number in range(10**9):
        ledger.append(Charge(id=f"{sys.argv[2]}/{number}", activity="training", items=(item,)))
"""


@pytest.mark.promise(
    "Cost", "The ledger survives kill -9 and a cut at any byte, and is only appended to"
)
@pytest.mark.slow
def test_killed_while_two_processes_write_every_charge_before_is_there(tmp_path):
    path = tmp_path / LEDGER
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in ("a", "b")
    ]
    try:
        wait_until(lambda: path.exists() and path.stat().st_size > 500_000)
    finally:
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
    contents = read_ledger(path)
    assert contents.damaged <= len(writers)
    for name in ("a", "b"):
        numbers = [int(each.id[2:]) for each in contents.charges if each.id[0] == name]
        assert numbers == list(range(len(numbers)))
    written(path, charge("after"))
    assert read_ledger(path).charges[-1].id == "after"


def test_a_line_of_something_else_is_counted_and_left_out(tmp_path):
    path = tmp_path / LEDGER
    written(path, charge("a"))
    path.write_bytes(b'{"no": "charge"}\n\xff\xfe\n' + path.read_bytes())
    contents = read_ledger(path)
    assert ([each.id for each in contents.charges], contents.damaged) == (["a"], 2)


@pytest.mark.promise("Cost", "A full disk is one line that says so")
@pytest.mark.promise(
    "Bad input",
    "A ledger cut in the middle of a line, a clock set back, a full disk: the lines that cannot "
    "be read are counted; times stay in order; the file",
)
def test_a_full_disk_is_one_line():
    with (
        Ledger(Path("/dev/full")) as ledger,
        pytest.raises(InputError, match="cannot write /dev/full: No space left"),
    ):
        ledger.append(charge("a"))


def test_a_ledger_that_is_missing_is_named(tmp_path):
    with pytest.raises(InputError, match="cannot read the ledger"):
        read_ledger(tmp_path / LEDGER)
    with pytest.raises(InputError, match=r"holds no ledger\.jsonl"):
        ledgers_in(tmp_path)


def test_the_ledgers_of_days_are_read_as_one(tmp_path):
    for day in ("2026-11-21", "2026-11-22"):
        written(tmp_path / f"{day}-{LEDGER}", charge(day))
    contents = read_ledger(*ledgers_in(tmp_path))
    assert [each.id for each in contents.charges] == ["2026-11-21", "2026-11-22"]


@pytest.mark.promise(
    "Requirements", "CostProfiler: record_execution, estimate_cost, estimate_time, get_statistics"
)
def test_steps_of_two_runs_all_count_and_a_ledger_that_is_named_twice_counts_once(tmp_path):
    first, second = (tmp_path / name / LEDGER for name in "ab")
    written(first, charge("joint/1", usd=1), charge("joint/2", usd=2))
    written(second, charge("joint/1", usd=4), charge("joint/2", usd=8))
    contents = read_ledger(first, second, tmp_path / "a" / ".." / "a" / LEDGER)
    assert (usd(contents), contents.repeated) == (15, ())


def test_sums_are_the_hand_counted_ones():
    machine = ChargeItem(role="machine", usd=0.5, model="cuda")
    judge = ChargeItem(role="judge", usd=None, model="guard", input_tokens=7, output_tokens=3)
    step = Charge(
        id="a", activity="training", items=(machine, judge), seconds=10.0, gpus=2, joules=40.0,
        stage="joint", time=1767225599.0,  # the last second of 2025
    )  # fmt: skip
    served = charge("b", usd=0.25, tokens=4, key="mobile", time=1767225600.0)
    by_role = totals([step, served], "role")
    assert list(by_role) == ["judge", "machine"]
    assert (by_role["judge"].usd, by_role["judge"].unpriced_tokens) == (0.25, 10)
    assert not by_role["judge"].is_complete
    assert (by_role["machine"].gpu_seconds, by_role["machine"].joules) == (20, 40)
    assert {name: each.usd for name, each in totals([step, served], "month").items()} == {
        "2025-12": 0.5,
        "2026-01": 0.25,
    }
    assert list(totals([step, served], "key")) == ["mobile", "none"]
    assert list(totals([step, served], "stage")) == ["joint", "none"]
