"""Microsoft's presidio as an engine: beside our scanner, or with a model that knows names.

By itself it loads no model and never asks the network: its patterns run over a blank tokenizer.
"""

from collections.abc import Mapping

from waltzrl.errors import MissingExtraError
from waltzrl.privacy.detection import Detection, Kind, disjoint

try:
    import spacy
    import tldextract
    from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
    from presidio_analyzer import predefined_recognizers as known
    from presidio_analyzer.nlp_engine import SpacyNlpEngine
except ImportError:
    raise MissingExtraError("presidio", "presidio-analyzer", "presidio") from None

KINDS_OF_ENTITIES: Mapping[str, Kind] = {
    "EMAIL_ADDRESS": "email",
    "PHONE_NUMBER": "phone",
    "CREDIT_CARD": "credit_card",
    "IBAN_CODE": "iban",
    "US_SSN": "ssn",
    "US_ITIN": "national_id",
    "UK_NHS": "national_id",
    "ES_NIF": "national_id",
    "IT_FISCAL_CODE": "national_id",
    "PL_PESEL": "national_id",
    "IN_AADHAAR": "national_id",
    "IP_ADDRESS": "ip_address",
    "PERSON": "personal_name",
}
_RECOGNIZERS = (
    known.PhoneRecognizer,
    known.CreditCardRecognizer,
    known.IbanRecognizer,
    known.UsSsnRecognizer,
    known.IpRecognizer,
)


class _MailRecognizer(known.EmailRecognizer):  # type: ignore[misc]  # presidio is not typed for us
    """Presidio's, with the list of domains that tldextract brings along instead of a download."""

    _domain_of = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)

    def validate_result(self, pattern_text: str) -> bool:
        return bool(self._domain_of(pattern_text).fqdn)


class _BlankSpacy(SpacyNlpEngine):  # type: ignore[misc]
    """Cuts texts into words and knows nothing about them."""

    def load(self) -> None:
        self.nlp = {"en": spacy.blank("en")}


class Presidio:
    """Finds personal data through presidio."""

    def __init__(self, analyzer: AnalyzerEngine | None = None, *, least_score: float = 0.4) -> None:
        """Choose the analyzer.

        Args:
            analyzer: one of the caller's own, for example with a model that finds names.
            least_score: 0 to 1; findings below are dropped.
        """
        self._analyzer = analyzer or _patterns_only()
        self._least_score = least_score

    def find(self, text: str) -> list[Detection]:
        """Return findings in order, none overlapping another; unknown entities are left out."""
        results = self._analyzer.analyze(text, language="en", score_threshold=self._least_score)
        return disjoint(
            [
                Detection(
                    kind=KINDS_OF_ENTITIES[result.entity_type],
                    start=result.start,
                    end=result.end,
                    score=result.score,
                    validator="presidio",
                )
                for result in results
                if result.entity_type in KINDS_OF_ENTITIES
            ]
        )


def _patterns_only() -> AnalyzerEngine:
    recognizers = [_MailRecognizer(), *(recognizer() for recognizer in _RECOGNIZERS)]
    return AnalyzerEngine(
        registry=RecognizerRegistry(recognizers),
        nlp_engine=_BlankSpacy(),
        supported_languages=["en"],
    )
