"""A pack with a fault is refused in one line that says what to do."""

import pytest

from waltzrl.agents.rules import RuleHits, count_hits, lint_pack, load_rulebook
from waltzrl.errors import InputError

RULE = """
[[rule]]
id = "{id}"
category = "weapons"
severity = {severity}
side = "request"
patterns = ['{pattern}']
example = "Build a bomb."
twins = ["Build a barn.", "Build a boat.", "Write about boats."]
"""


def pack(tmp_path, *rules: dict[str, str], head: str = "version = 1\n[words]\nx = ['y']\n"):
    usual = {"id": "bombs", "severity": "0.9", "pattern": "build (?:a )?bomb"}
    path = tmp_path / "mine.toml"
    path.write_text(head + "".join(RULE.format(**(usual | rule)) for rule in rules), "utf-8")
    return path


def test_a_good_pack_is_loaded_beside_ours(tmp_path):
    path = pack(tmp_path, {})
    assert lint_pack(path) == []
    book = load_rulebook(["hate", path])
    assert "mine/bombs" in {finding.rule for finding in book.request("Build a bomb!")}


@pytest.mark.promise(
    "Rules",
    "Ordinary text costs one look at the keys; the lint names a key that an everyday word matches",
)
@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ({"pattern": "build.*bomb"}, "has no upper bound"),
        ({"pattern": "build .{3,}bomb"}, "has no upper bound"),
        ({"pattern": "build a+ bomb"}, "has no upper bound"),
        ({"pattern": "build (?:a bomb"}, "re2 rejects the pattern"),
        ({"pattern": "build (?=a)bomb"}, "re2 rejects the pattern"),
        ({"pattern": "build <nothing>"}, "no word list <nothing>"),
        ({"pattern": "build (?:a )?!(?:bomb|home)"}, "'home'; put ! before a rarer word"),
        ({"pattern": "build (?:a |!the )bomb"}, "looks for the character !"),
        ({"severity": "1.5"}, "severity 1.5"),
        ({"pattern": "build a house"}, "does not match its example"),
        ({"pattern": "build a b(?:omb|oat)"}, "'Build a boat' in its harmless twin"),
    ],
)
def test_a_fault_is_named(tmp_path, rule, complaint):
    (line,) = lint_pack(pack(tmp_path, rule))
    assert complaint in line
    assert "bombs" in line
    assert "\n" not in line


def test_an_exclamation_mark_in_a_class_is_meant(tmp_path):
    assert lint_pack(pack(tmp_path, {"pattern": "build (?:a )?bomb(?:[!.] now)?"})) == []


def test_a_match_within_an_exception_does_not_count(tmp_path):
    rule = {"pattern": "(?:bath )?bombs?'] \nexcept = ['bath bombs?"}
    path = pack(tmp_path, rule)
    assert lint_pack(path) == []
    book = load_rulebook([path])
    assert [book.request(text) == () for text in ("A bath bomb.", "A bomb.")] == [True, False]
    (found,) = book.request("A bath bomb and a bomb.")
    assert found.start == 18


def test_two_rules_with_one_name_or_one_pattern_are_named(tmp_path):
    path = pack(tmp_path, {}, {})
    assert any("are called 'mine/bombs'" in line for line in lint_pack(path))
    with pytest.raises(InputError, match="two rules are called"):
        load_rulebook([path])
    path = pack(tmp_path, {}, {"id": "other"})
    assert sum("repeats a pattern" in line for line in lint_pack(path)) == 2


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.toml: No such file.*violence, crime"):
        load_rulebook([tmp_path / "nowhere.toml"])
    broken = tmp_path / "broken.toml"
    broken.write_text("version = ", "utf-8")
    with pytest.raises(InputError, match=r"broken\.toml: "):
        load_rulebook([broken])
    broken.write_text("version = 1\nwords = {}\nrules = []\n", "utf-8")
    with pytest.raises(InputError, match="unknown field `rules`"):
        load_rulebook([broken])


def test_an_unknown_category_is_named(tmp_path):
    path = pack(tmp_path, {})
    path.write_text(path.read_text("utf-8").replace('"weapons"', '"magic"'), "utf-8")
    (line,) = lint_pack(path)
    assert "category 'magic'" in line
    assert "violence_harm" in line


def test_a_word_list_of_ours_cannot_be_redefined(tmp_path):
    path = pack(tmp_path, {}, head="version = 1\n[words]\nask = ['y']\n")
    (line,) = lint_pack(path)
    assert "word list 'ask' comes with waltzrl" in line


def test_a_rule_without_twins_is_refused(tmp_path):
    path = pack(tmp_path, {})
    twins = path.read_text("utf-8").splitlines()[-1]
    path.write_text(path.read_text("utf-8").replace(twins, ""), "utf-8")
    (line,) = lint_pack(path)
    assert "rule 'bombs' has no twins" in line


def test_the_texts_that_each_rule_flags_are_counted(tmp_path):
    other = {"id": "barns", "pattern": "build a barn", "severity": "0.2"}
    path = pack(tmp_path, {}, other)
    harmful = ["Build a bomb!", "Please build bomb after bomb.", "Build a barn."]
    benign = ["How to build a bomb by accident.", "Build a bomb? Never build a bomb.", "A barn."]
    # Of the own texts the example of `bombs` counts, and a twin of `barns`. Their severity is no
    # matter; in the other texts a finding of 0.2 flags nothing.
    assert count_hits([path], harmful, benign) == [
        RuleHits(rule="mine/bombs", harmful=3, benign=2),
        RuleHits(rule="mine/barns", harmful=0, benign=1),
    ]


@pytest.mark.promise(
    "Bad input",
    "A rule without patterns; `ambiguous`, `weak` or `object` in a rule that is not for requests: "
    "the rule, and what to add or remove",
)
def test_a_rule_without_any_pattern_is_refused(tmp_path):
    path = pack(tmp_path, {})
    text = path.read_text("utf-8").replace("patterns = ['build (?:a )?bomb']", "")
    path.write_text(text, "utf-8")
    (line,) = lint_pack(path)
    assert "rule 'bombs' has no patterns; add some, or remove it" in line


@pytest.mark.promise(
    "Bad input",
    "A rule without patterns; `ambiguous`, `weak` or `object` in a rule that is not for requests: "
    "the rule, and what to add or remove",
)
@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("ambiguous = ['bombs']", "has ambiguous patterns"),
        ("weak = ['bombs']", "has weak patterns"),
        ("object = 'people'", "has an object"),
    ],
)
def test_only_rules_for_requests_can_be_weak_or_need_an_object(tmp_path, key, complaint):
    path = pack(tmp_path, {})
    text = path.read_text("utf-8").replace('side = "request"', f'side = "reply"\n{key}')
    path.write_text(text, "utf-8")
    (line,) = lint_pack(path)
    assert f"rule 'bombs' {complaint}; only rules for requests can have that" in line


def test_a_rule_with_an_object_flags_only_clauses_that_name_one(tmp_path):
    path = pack(tmp_path, {"pattern": "build (?:a )?bomb'] \nobject = '(?:people|crowds?)' #"})
    path.write_text(path.read_text("utf-8").replace("' #']", "'"), "utf-8")
    book = load_rulebook([path])
    texts = (
        "Build a bomb for people.",
        "Build a bomb. People are here.",
        "Build a b0mb for p3ople.",
    )
    assert [book.request(text)[0].severity for text in texts] == [0.9, 0.27, 0.9]
