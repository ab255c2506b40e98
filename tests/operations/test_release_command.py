import json

import msgspec
import pytest
from typer.testing import CliRunner

from waltzrl.agents.rules import load_rulebook
from waltzrl.errors import InputError
from waltzrl.evaluation.sample_correction import LabelledSample
from waltzrl.gateway.bundles import describe_bundle
from waltzrl.gateway.settings import BundleRecipe, bundle_table
from waltzrl.operations.commands.bundle import bundle as bundle_commands
from waltzrl.operations.commands.release import release as commands
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.state import Observation
from waltzrl.policies.settings import UpstreamConfig
from waltzrl.store.database import open_database

NAMES = ("show", "propose", "advance", "hold", "resume", "roll-back", "history", "plans")
ENVIRONMENT = {"COLUMNS": "200", "LOGNAME": "grace"}


@pytest.fixture
def book(tmp_path):
    """A memory whose gateway serves a bundle of rules."""
    engine = open_database(f"sqlite:///{tmp_path}/memory.db")
    book = ReleaseBook(engine)
    recipe = BundleRecipe(upstream=UpstreamConfig(url="http://localhost:8000/v1"))
    table = msgspec.json.encode(bundle_table(recipe)).decode()
    id_, description = describe_bundle(recipe, load_rulebook(recipe.rules))
    book.add_bundle(id_, table, description, is_base=True)
    yield book
    engine.dispose()


@pytest.fixture
def run(tmp_path):
    """Run a command on the memory and return what it prints; its errors are raised."""

    def run(*arguments):
        place = () if "--help" in arguments else ("--memory", f"sqlite:///{tmp_path}/memory.db")
        result = CliRunner().invoke(
            commands, [*arguments, *place], env=ENVIRONMENT, catch_exceptions=False
        )
        assert result.exit_code == 0, result.output
        return result.output

    return run


@pytest.fixture
def candidate(tmp_path):
    file = tmp_path / "candidate.toml"
    file.write_text("threshold = 0.9\n")
    return str(file)


def proposed(run, candidate, *arguments):
    return run("propose", candidate, "--plan", "quick", "--override", "a test", *arguments)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_of_release_explains_itself_with_an_example(name, run):
    shown = run(name, "--help")
    assert "Example" in shown
    assert f"waltzrl release {name}" in shown


def test_a_release_is_steered_from_the_command_line(book, run, candidate):
    assert "there is no release yet" in run("show")
    assert ": shadow; candidate" in proposed(run, candidate)
    assert ": canary 10 %;" in run("advance")
    assert ": canary 10 %, held;" in run("hold")
    with pytest.raises(InputError, match="is held; resume it"):
        run("advance")
    assert ": canary 50 %;" in (run("resume"), run("advance"))[1]
    assert ": full;" in run("advance")
    assert ": rolled back;" in run("roll-back", "--why", "complaints", "--by", "ada")
    last = book.history(book.latest().id)[-1]
    assert (last.by, last.why) == ("ada", "complaints")


def test_the_candidate_is_what_serves_with_what_the_file_and_set_change(book, run, candidate):
    proposed(run, candidate, "--set", "max_rounds=2")
    recipe = json.loads(book.bundle(book.latest().candidate))
    assert (recipe["threshold"], recipe["max_rounds"]) == (0.9, 2)
    assert recipe["upstream"]["url"] == "http://localhost:8000/v1"


def test_who_moves_a_release_is_the_login_name_unless_it_is_said(book, run, candidate):
    proposed(run, candidate)
    assert book.history(book.latest().id)[0].by == "grace"


def test_a_reason_is_kept_without_personal_data(book, run, candidate):
    run("propose", candidate, "--plan", "quick", "--override", "ada@example.com wants it")
    run("roll-back", "--why", "ada@example.com complains")
    history = run("history", "--json")
    assert "ada@" not in history
    assert history.count("[REDACTED:email]") == 2


def test_show_tells_rates_e_values_and_what_it_waits_for(book, run, candidate):
    proposed(run, candidate)
    assert "nothing was counted yet" in run("show")
    release = book.latest()
    outcomes = {"unsafe": False, "overrefusal": True, "slow": False}
    book.observe([Observation(release=release.id, arm="shadow", outcomes=outcomes)] * 2)
    book.tick({}, release.since)
    shown = run("show")
    assert ": shadow\n" in shown
    assert "2 of 2" in shown
    assert "wait: needs 48 more judged answers" in shown  # quick wants 50 in the shadow
    decision = json.loads(run("show", "--json"))
    assert (decision["state"], decision["healthy"]) == ("shadow", True)
    assert decision["rates"]["shadow"]["overrefusal"]["bad"] == 2


def test_show_tells_which_rates_are_corrected(book, run, candidate):
    proposed(run, candidate)
    release = book.latest()
    good = Observation(release=release.id, arm="shadow", outcomes={"overrefusal": False})
    book.observe([good] * 2)
    book.tick({}, release.since)
    assert "corrected for the judge's error: none" in run("show")
    sample = LabelledSample(true_negatives=2)  # all that there are
    book.tick({"shadow": {"overrefusal": sample}}, release.since)
    assert "corrected for the judge's error: over-refusals" in run("show")


@pytest.mark.promise("Evidence of a release", "The release card says when few users dominate")
def test_show_notes_how_far_the_evidence_can_be_trusted(book, run, candidate):
    proposed(run, candidate)
    release = book.latest()
    for arm in ("serving", "shadow"):
        outcomes = {"unsafe": False}
        book.observe(
            [Observation(release=release.id, arm=arm, outcomes=outcomes, subject="u")] * 40
        )
    book.tick({}, release.since)
    shown = " ".join(run("show").split())
    assert "note: few users dominate: the 40 answers of arm shadow weigh as much as" in shown
    assert "note: no answer was rejudged" in shown
    assert len(json.loads(run("show", "--json"))["notes"]) == 3


def test_show_tells_who_ended_a_release_and_why(book, run, candidate):
    proposed(run, candidate)
    run("roll-back", "--why", "complaints", "--by", "ada")
    assert run("show").endswith("\nrolled back by ada: complaints\n")  # and counted nothing
    proposed(run, candidate)
    book.tick({}, book.latest().since)
    for _ in ("canary 10 %", "canary 50 %", "full"):
        run("advance", "--by", "bob")
    assert run("show").endswith("\nfull by bob: advanced by hand\n")


def test_show_tells_when_a_person_has_to_advance_it(book, run, candidate, tmp_path):
    plan = tmp_path / "own.toml"
    plan.write_text(
        'name = "own"\nautomatic = false\ntargets = { unsafe = 1, overrefusal = 1 }\n'
        "limits = { unsafe = 1, overrefusal = 1 }\n"
        "canary = [{ percentage = 5, seconds = 0, samples = 0 }]\n"
    )
    run("propose", candidate, "--plan", str(plan), "--override", "a test")
    book.tick({}, book.latest().since)
    assert "waits for a person to advance it: unsafe replies" in run("show")


def test_history_tells_every_move(book, run, candidate):
    proposed(run, candidate, "--by", "ada")
    run("roll-back", "--why", "complaints [/7] of users[red]", "--by", "bob")
    shown = run("history")
    assert "without the gate: a test" in shown
    assert "complaints [/7] of users[red]" in shown
    moves = json.loads(run("history", book.latest().id, "--json"))
    assert [(move["by"], move["after"]) for move in moves] == [
        ("ada", "shadow"), ("bob", "rolled_back")
    ]  # fmt: skip
    with pytest.raises(InputError, match="there is no release other"):
        run("history", "other")


def test_moves_and_history_need_a_release(book, run):
    for arguments in (["advance"], ["history"], ["roll-back", "--why", "x"]):
        with pytest.raises(InputError, match="there is no release yet"):
            run(*arguments)


def test_a_proposal_without_a_gate_says_what_the_gate_needs(book, run, candidate):
    with pytest.raises(InputError, match="--before RUN --after RUN"):
        run("propose", candidate)


def test_plans_are_listed_with_their_steps():
    result = CliRunner().invoke(commands, ["plans"], env=ENVIRONMENT)
    assert result.exit_code == 0
    assert "5 %, 2 d, 300 judged" in result.output
    assert "weekly" in result.output


def test_moves_by_hand_are_given_a_reason(book, run, candidate):
    proposed(run, candidate)
    run("advance", "--why", "enough was seen")
    run("hold", "--why", "ada@example.com asked for it")
    run("resume")
    whys = [move.why for move in book.history(book.latest().id)[1:]]
    assert whys == ["enough was seen", "[REDACTED:email] asked for it", "resumed by hand"]


def test_show_tells_what_the_candidate_changes(book, run, candidate):
    proposed(run, candidate, "--set", "max_rounds=2")
    shown = run("show")
    assert "changed: threshold 0.7 -> 0.9\nchanged: max_rounds 1 -> 2\n" in shown
    told = json.loads(run("show", "--json"))
    assert told["changes"] == ["threshold 0.7 -> 0.9", "max_rounds 1 -> 2"]


def bundles(tmp_path, *arguments):
    memory = ("--memory", f"sqlite:///{tmp_path}/memory.db")
    result = CliRunner().invoke(
        bundle_commands, [*arguments, *memory], env=ENVIRONMENT, catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.output


def test_a_bundle_is_shown_listed_and_compared(book, run, candidate, tmp_path):
    proposed(run, candidate, "--by", "ada")
    release = book.latest()
    listed = bundles(tmp_path, "list")
    assert listed.index(release.candidate) < listed.index(release.serving)
    shown = " ".join(bundles(tmp_path, "show", release.candidate[:5]).split())
    assert f"bundle {release.candidate} made by ada, added 20" in shown
    assert "threshold 0.9" in shown
    assert "upstream.url http://localhost:8000/v1" in shown
    assert f"{release.id} candidate propose shadow 0 ada without the gate: a test" in shown
    assert f"bundle {release.serving}" in bundles(tmp_path, "show")  # what serves
    assert bundles(tmp_path, "diff") == (
        f"{release.serving} -> {release.candidate}\nthreshold 0.7 -> 0.9\n"
    )
    told = json.loads(bundles(tmp_path, "diff", release.candidate, release.candidate, "--json"))
    assert told["differences"] == []
    rules = json.loads(bundles(tmp_path, "show", release.candidate, "--json"))["description"]
    assert len(rules["rules"]) == len(load_rulebook().rules)


def test_a_bundle_of_a_gateway_without_memory_is_told_in_one_line(book, run, candidate, tmp_path):
    proposed(run, candidate)
    with pytest.raises(InputError) as unknown:
        bundles(tmp_path, "show", "x")
    assert str(unknown.value) == (
        "this memory has no bundle 'x': a gateway keeps the description of its bundle in its "
        "memory.url, and without one nowhere; see waltzrl bundle list"
    )
    with pytest.raises(InputError) as missing:
        bundles(tmp_path / "none", "show", "x")
    assert str(missing.value) == (
        f"{tmp_path}/none/memory.db does not exist; give the gateway's memory.url; a gateway "
        "without a memory keeps neither bundles nor releases"
    )


def test_a_bundle_that_differs_in_its_rules_says_which(book, run, tmp_path):
    file = tmp_path / "fewer.toml"
    file.write_text('rules = ["violence", "crime", "hate", "refusals"]\n')
    run("propose", str(file), "--plan", "quick", "--override", "a test")
    told = bundles(tmp_path, "diff")
    assert "rules: removed self_harm, sexual, misinformation, malicious, privacy and 1 more" in told
    assert " rules removed: self_harm/" in told


def test_a_policy_has_a_release_of_its_own(run, book, candidate):
    with pytest.raises(InputError, match="told this memory of a policy 'clinic'"):
        proposed(run, candidate, "--policy", "clinic")
    recipe = BundleRecipe(upstream=UpstreamConfig(url="http://localhost:8000/v1"), threshold=0.8)
    table = msgspec.json.encode(bundle_table(recipe)).decode()
    id_, description = describe_bundle(recipe, load_rulebook(recipe.rules), "clinic")
    book.add_bundle(id_, table, description, is_base=True)
    own = book.base()
    proposed(run, candidate, "--policy", "clinic")
    release = book.latest()
    assert (release.policy, release.serving, own != id_) == ("clinic", id_, True)
    assert book.stored_bundle(release.candidate).description.policy == "clinic"
    for _ in range(4):
        if book.latest().is_open:
            run("advance")
    assert book.latest().state == "full"
    assert (book.serving("clinic"), book.serving()) == (release.candidate, None)
    assert "policy clinic" in run("show")
