"""The metrics of several workers as one."""

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from waltzrl.foundation.counters import Histogram, LabeledCounter, build_family, yield_rate
from waltzrl.foundation.families import families_of, format_exposition, keep_totals, merge_families

ORIGIN = (("bundle", "b"), ("stage", "1"))


class Worker(Collector):
    def __init__(self, requests, active, keys, refused, answered, milliseconds):
        self._values = requests, active, keys, refused, answered, milliseconds

    def collect(self):
        requests, active, keys, refused, answered, milliseconds = self._values
        errors = LabeledCounter("waltzrl_errors_total")
        errors.add("chat", "upstream", amount=requests)
        yield errors.family()
        yield build_family("waltzrl_active_requests", {(): active})
        yield build_family("waltzrl_keys", {(): keys})
        yield from yield_rate("waltzrl_refused_rate", refused, answered)
        times = Histogram("waltzrl_total_time_ms")
        times.add(milliseconds, "1", "b")
        yield times.family()


def values(families):
    text = format_exposition(families).decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for parsed in text_string_to_metric_families(text)
        for sample in parsed.samples
    }


def test_counts_are_added_and_gauges_become_one_as_the_catalogue_says():
    workers = [families_of(Worker(3, 2, 5, 1, 10, 7.0)), families_of(Worker(4, 1, 5, 6, 30, 0.3))]
    seen = values(merge_families(workers))
    assert seen["waltzrl_errors_total", ("api", "chat"), ("kind", "upstream")] == 7
    assert seen["waltzrl_active_requests",] == 3
    assert seen["waltzrl_keys",] == 5
    assert seen["waltzrl_refused_rate",] == 7 / 40  # 1 of 10 and 6 of 30
    assert seen["waltzrl_refused_rate_samples",] == 40
    assert seen["waltzrl_total_time_ms_count", *ORIGIN] == 2
    assert seen["waltzrl_total_time_ms_bucket", ORIGIN[0], ("le", "0.5"), ORIGIN[1]] == 1
    assert seen["waltzrl_total_time_ms_sum", *ORIGIN] == 7.3


def test_a_worker_without_a_sample_does_not_move_a_share():
    workers = [families_of(Worker(0, 0, 5, 1, 10, 7.0)), families_of(Worker(0, 0, 5, 0, 0, 7.0))]
    seen = values(merge_families(workers))
    assert (seen["waltzrl_refused_rate",], seen["waltzrl_refused_rate_samples",]) == (0.1, 10)


def test_one_worker_is_exposed_as_it_is():
    one = families_of(Worker(3, 2, 5, 1, 10, 7.0))
    assert format_exposition(merge_families([one])) == format_exposition(one)


def test_a_worker_that_has_ended_leaves_its_counts_only():
    left = keep_totals(families_of(Worker(3, 2, 5, 1, 10, 7.0)))
    assert {family.name for family in left} == {"waltzrl_errors", "waltzrl_total_time_ms"}
