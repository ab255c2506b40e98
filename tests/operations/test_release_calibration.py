from waltzrl.evaluation.sample_correction import LabelledSample
from waltzrl.operations.release.book import people_labels
from waltzrl.store.memory.labels import Calibration, SampleCounts


def test_the_labels_of_each_arm_are_what_the_memory_counted():
    counted = {
        "true_positives": 1, "false_negatives": 2, "false_positives": 3, "true_negatives": 4,
        "unknown_positives": 5, "unknown_negatives": 6,
    }  # fmt: skip
    labels = people_labels({"candidate": Calibration(unsafe=SampleCounts(**counted))})
    sample = LabelledSample(**counted)
    assert labels == {"candidate": {"unsafe": sample, "overrefusal": LabelledSample()}}
