"""Microsoft's presidio as an oracle of the scanner; loads no model and uses no network."""

import spacy
import tldextract
from presidio_analyzer import AnalyzerEngine, RecognizerRegistry, predefined_recognizers
from presidio_analyzer.nlp_engine import SpacyNlpEngine

from waltzrl.store.privacy.detection import Detection, disjoint

MIN_SCORE = 0.4
KINDS_BY_ENTITY = {
    "EMAIL_ADDRESS": "email",
    "PHONE_NUMBER": "phone",
    "CREDIT_CARD": "credit_card",
    "IBAN_CODE": "iban",
    "US_SSN": "ssn",
    "IP_ADDRESS": "ip_address",
}


class EmailRecognizer(predefined_recognizers.EmailRecognizer):
    """Uses the list of domains that comes with tldextract instead of downloading one."""

    _domain_of = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)

    def validate_result(self, pattern_text):
        return bool(self._domain_of(pattern_text).fqdn)


class BlankSpacy(SpacyNlpEngine):
    """Splits texts into words, without a model."""

    def load(self):
        self.nlp = {"en": spacy.blank("en")}


class Presidio:
    """A `Detector` that runs presidio's patterns."""

    def __init__(self):
        recognizers = [
            EmailRecognizer(),
            predefined_recognizers.PhoneRecognizer(),
            predefined_recognizers.CreditCardRecognizer(),
            predefined_recognizers.IbanRecognizer(),
            predefined_recognizers.UsSsnRecognizer(),
            predefined_recognizers.IpRecognizer(),
        ]
        self._analyzer = AnalyzerEngine(
            registry=RecognizerRegistry(recognizers),
            nlp_engine=BlankSpacy(),
            supported_languages=["en"],
        )

    def find(self, text):
        """Return detections in order of position, without overlaps."""
        results = self._analyzer.analyze(text, language="en", score_threshold=MIN_SCORE)
        return disjoint(
            [
                Detection(
                    kind=KINDS_BY_ENTITY[result.entity_type],
                    start=result.start,
                    end=result.end,
                    score=result.score,
                    validator="presidio",
                )
                for result in results
            ]
        )
