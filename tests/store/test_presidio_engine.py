"""`privacy.engine = presidio`: its recognizers beside our patterns, as a recipe chooses."""

import subprocess
import sys
from pathlib import Path

import pytest

from waltzrl.errors import InputError, RecipeError
from waltzrl.gateway.settings import load_gateway
from waltzrl.store.privacy.opening import open_redaction
from waltzrl.store.privacy.settings import PrivacyConfig

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("presidio")]

PASSPORT = "My passport number is 912803456, write to ada@example.com."
UNDER_BOTH = "My passport number is [REDACTED:national_id], write to [REDACTED:email]."
UNDER_OURS = PASSPORT.replace("ada@example.com", "[REDACTED:email]")


def scrub(text, engine, *regions):
    return open_redaction(PrivacyConfig(regions=regions or ("US", "GB"), engine=engine)).scrub(text)


@pytest.mark.promise(
    "Personal data",
    "`privacy.engine = presidio` adds documents of the recipe's regions, and a spaCy pipeline "
    "names, without the network",
)
def test_documents_are_found_beside_what_our_patterns_find():
    assert scrub(PASSPORT, "patterns") == UNDER_OURS
    assert scrub(PASSPORT, "presidio") == UNDER_BOTH
    assert scrub(UNDER_BOTH, "presidio") == UNDER_BOTH
    licence = "her driver license is H12234567"
    assert scrub(licence, "presidio") == "her driver license is [REDACTED:national_id]"


@pytest.mark.promise(
    "Personal data",
    "`privacy.engine = presidio` adds documents of the recipe's regions, and a spaCy pipeline "
    "names, without the network",
)
def test_only_documents_of_the_regions_are_found_and_only_beside_a_word():
    assert scrub(PASSPORT, "presidio", "FR") == UNDER_OURS
    spanish = "pasaporte AAA123456 expira"
    assert scrub(spanish, "presidio", "ES") == "pasaporte [REDACTED:national_id] expira"
    assert scrub("order 912803456 is late", "presidio") == "order 912803456 is late"


@pytest.fixture
def pipeline(tmp_path):
    """Save a spaCy pipeline that knows one name."""
    import spacy

    nlp = spacy.blank("en")
    ruler = nlp.add_pipe("entity_ruler", name="ner")
    ruler.add_patterns([{"label": "PERSON", "pattern": "Ada Lovelace"}])
    nlp.to_disk(tmp_path / "names")
    return tmp_path / "names"


@pytest.mark.promise(
    "Personal data",
    "`privacy.engine = presidio` adds documents of the recipe's regions, and a spaCy pipeline "
    "names, without the network",
)
def test_a_pipeline_finds_names_that_no_word_announces(pipeline):
    text = "I met Ada Lovelace in Paris."
    assert scrub(text, "presidio") == text
    assert scrub(text, f"presidio:{pipeline}") == "I met [REDACTED:personal_name] in Paris."


def test_a_pipeline_that_is_missing_or_finds_no_names_is_told(tmp_path):
    import spacy

    with pytest.raises(InputError, match="the spaCy pipeline nowhere is not installed"):
        scrub("", "presidio:nowhere")
    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(InputError, match="blank finds no names"):
        scrub("", f"presidio:{tmp_path / 'blank'}")


@pytest.mark.parametrize("engine", ["presidio", "presidio:en_core_web_sm", "patterns"])
def test_the_engine_of_a_recipe_is_known(engine):
    recipe = load_gateway(
        None, {"upstream": {"url": "http://a/v1"}}, [f"privacy.engine={engine}"], {}
    )
    assert recipe.privacy.engine == engine


def test_another_engine_is_refused():
    changes = ["privacy.engine=magic"]
    with pytest.raises(RecipeError, match=r"privacy\.engine: got 'magic'"):
        load_gateway(None, {"upstream": {"url": "http://a/v1"}}, changes, {})


@pytest.mark.promise(
    "Personal data",
    "`privacy.engine = presidio` adds documents of the recipe's regions, and a spaCy pipeline "
    "names, without the network",
)
def test_it_asks_the_network_for_nothing():
    """Neither as an engine nor as the oracle of our scanner."""
    script = (
        "import sys\n"
        "asked = []\n"
        "sys.addaudithook(lambda event, _: event.startswith('socket.') and asked.append(event))\n"
        "from support.presidio_oracle import Presidio\n"
        "from waltzrl.store.privacy.opening import open_redaction\n"
        "from waltzrl.store.privacy.settings import PrivacyConfig\n"
        "for regions in (['FR'], ['US']):  # presidio knows no document of the first\n"
        "    rules = open_redaction(PrivacyConfig(regions=regions, engine='presidio'))\n"
        "    text = rules.scrub('passport 912803456, ada@example.com')\n"
        "print(len(Presidio().find('ada@example.com 10.1.2.3')), text,"
        " {'socket.connect', 'socket.getaddrinfo', 'socket.gethostbyname'} & {*asked})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    told = "2 passport [REDACTED:national_id], [REDACTED:email] set()\n"
    assert done.stdout == told, done.stderr
