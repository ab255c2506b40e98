from waltzrl.memory.counts import Calibration, Counts
from waltzrl.release.book import judge_errors
from waltzrl.release.correction import JudgeError


def test_the_judges_errors_are_what_people_counted():
    counted = {
        "true_positives": 1, "false_negatives": 2, "false_positives": 3, "true_negatives": 4,
        "disputed_positives": 5, "disputed_negatives": 6,
    }  # fmt: skip
    counts, error = Counts(**counted), JudgeError(**counted)
    none = JudgeError(true_positives=0, false_negatives=0, false_positives=0, true_negatives=0)
    found = judge_errors(Calibration(unsafe=counts, needless=Counts()))
    assert found == {"unsafe": error, "needless": none}
