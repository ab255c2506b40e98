"""Microsoft's presidio beside our patterns: documents of more kinds, and names by a model.

Presidio takes many times as long as our scanner, so it is a choice. No recognizer that asks the
network is used.
"""

import inspect
import logging
import re
from collections.abc import Iterator, Sequence

import spacy
from presidio_analyzer import (
    AnalyzerEngine,
    EntityRecognizer,
    PatternRecognizer,
    RecognizerRegistry,
    predefined_recognizers,
)
from presidio_analyzer.nlp_engine import SpacyNlpEngine
from presidio_analyzer.predefined_recognizers import SpacyRecognizer
from spacy.language import Language
from spacy.tokens import Doc

from waltzrl.errors import InputError
from waltzrl.store.privacy.detection import DEFAULT_REGIONS, Detection, Detector, disjoint

MIN_SCORE = 0.4
"""The score that a weak pattern reaches only beside a word of its context, such as "passport"."""
LANGUAGE = "en"
"""The language under which all recognizers are registered: texts are not sorted by language."""
PERSON = "PERSON"
CODES = {"UK": "GB"}
"""The names that presidio has for countries, where these are not their ISO 3166 codes."""
NOT_OF_PEOPLE = re.compile(
    "PLZ|POSTCODE|VAT|COMPANY|ORGANISATIONSNUMMER|HANDELSREGISTER|GSTIN|UEN|BRN|BANK|SSN"
)
"""The words in names of entities that are places, companies, and what our own patterns find."""


class PresidioDetector:
    """Finds national documents by presidio's patterns and, with a model, names of people."""

    def __init__(self, regions: Sequence[str] = DEFAULT_REGIONS, pipeline: str = "") -> None:
        """Load recognizers.

        Args:
            regions: ISO 3166 codes of the countries whose documents are looked for.
            pipeline: name of an installed spaCy pipeline that finds names; empty for none.

        Raises:
            InputError: the pipeline is not installed, or finds no names.
        """
        logging.getLogger("presidio-analyzer").setLevel(logging.ERROR)
        recognizers: list[EntityRecognizer] = [*_open_documents(regions)]
        if pipeline:
            names = SpacyRecognizer(supported_entities=[PERSON], supported_language=LANGUAGE)
            recognizers.append(names)
        engine = SpacyNlpEngine()
        # Set here, because the engine's own `load` downloads pipelines that are missing.
        engine.nlp = {LANGUAGE: _open_pipeline(pipeline)}  # type: ignore[assignment]
        self._analyzer = None
        if recognizers:  # without any, presidio would take all of its own
            self._analyzer = AnalyzerEngine(
                registry=RecognizerRegistry(recognizers),
                nlp_engine=engine,
                supported_languages=[LANGUAGE],
            )

    def find(self, text: str) -> list[Detection]:
        """Return detections in order of position, without overlaps."""
        if self._analyzer is None:
            return []
        results = self._analyzer.analyze(text, language=LANGUAGE, score_threshold=MIN_SCORE)
        return disjoint(
            [
                Detection(
                    kind="personal_name" if result.entity_type == PERSON else "national_id",
                    start=result.start,
                    end=result.end,
                    score=result.score,
                    validator="presidio",
                )
                for result in results
            ]
        )


class Detectors:
    """Several detectors as one; of overlapping detections one wins, see `disjoint`."""

    def __init__(self, *detectors: Detector) -> None:
        self._detectors = detectors

    def find(self, text: str) -> list[Detection]:
        """Return detections in order of position, without overlaps."""
        return disjoint([found for each in self._detectors for found in each.find(text)])


@Language.component("waltzrl_words_as_lemmas")
def _words_as_lemmas(document: Doc) -> Doc:
    """Let presidio compare words of the context where no model knows their lemmas."""
    for token in document:
        token.lemma_ = token.lower_
    return document


def _open_pipeline(name: str) -> Language:
    """Return what splits texts into words and, where it is a model, finds names.

    Raises:
        InputError: it is not installed, or finds no names.
    """
    if not name:
        pipeline = spacy.blank(LANGUAGE)
        pipeline.add_pipe("waltzrl_words_as_lemmas")
        return pipeline
    try:
        pipeline = spacy.load(name)
    except OSError:
        raise InputError(
            f"privacy.engine: the spaCy pipeline {name} is not installed; install its package, or "
            "use presidio without a pipeline"
        ) from None
    if "ner" not in pipeline.pipe_names:
        raise InputError(f"privacy.engine: the spaCy pipeline {name} finds no names")
    return pipeline


def _open_documents(regions: Sequence[str]) -> Iterator[PatternRecognizer]:
    """Yield presidio's recognizers of documents of people in some countries."""
    for _name, kind in sorted(vars(predefined_recognizers).items()):
        if not (inspect.isclass(kind) and issubclass(kind, PatternRecognizer)):
            continue
        recognizer = kind(supported_language=LANGUAGE)  # type: ignore[call-arg]
        (entity, *_) = recognizer.supported_entities
        country, _, document = entity.partition("_")
        if CODES.get(country, country) in regions and not NOT_OF_PEOPLE.search(document):
            yield recognizer
