"""What each check says of a reply that is right, and of one that is not."""

import json

import pytest

from waltzrl.errors import InputError
from waltzrl_specialists.checks import find_check, find_problems

LINES = "Severity: major\nArea: usability\nRename the button."
INVOICE = {
    "invoice": "17",
    "lines": [{"item": "saws", "quantity": 3, "price": 20, "amount": 60}],
    "net": 60,
    "tax": 6,
    "total": 66,
}
ARTICLE = "# Night trains\n\n## Costs\nThey cost 40,000 euros.\n\n## Results\nUse grew."
UNIT = "[Unit]\nAfter=a.b\n[Service]\nExecStart=/opt/a\nUser=a"


def change(**values):
    return json.dumps(INVOICE | values)


RIGHT = [
    ("lines", {"Severity": "major", "Area": "usability"}, LINES),
    ("lines", {"Severity": "minor"}, " Severity: Minor "),
    ("lines", {"Severity": "major"}, "Severity: major\nSeverity: minor"),  # the first one counts
    ("line_facts", {"Area": ["usability"]}, LINES),
    ("characters", {"Area": [9, 9]}, LINES),
    ("facts", ["rename", "the BUTTON"], LINES),
    ("facts", ["184"], "Pay 1,184 or 1841 or 184."),
    ("words", [3, 3], "one two three"),
    ("frame", {"begins": "Dear", "ends": "us"}, "Dear you, love us\n"),
    ("tone", {"has": ["thanks"], "lacks": ["we'll"]}, "Many thanks"),
    ("sections", {"Costs": ["40,000"], "Results": []}, ARTICLE),
    ("json", {"lines": [{"item": "saws"}], "net": 60}, change()),
    ("json", {"net": 60}, f"Here it is:\n```json\n{change()}\n```"),
    ("sums", {"tax_percent": 10}, change()),
    (
        "ini",
        {"Unit": {"After": "a.b"}, "Service": {"ExecStart": "/opt/a", "User": "a"}},
        UNIT,
    ),
    ("tests", ["f(2) == 4", "f(0) == 0"], "def f(x):\n    return x * 2"),
]
WRONG = [
    ("lines", {"Severity": "major"}, "severity: major", "Severity is None, not 'major'"),
    ("lines", {"Area": "speed"}, LINES, "Area is 'usability', not 'speed'"),
    ("line_facts", {"Area": ["button"]}, LINES, "Area: 'button' is missing"),
    ("characters", {"Area": [10, 20]}, LINES, "Area has 9 characters, not 10 to 20"),
    ("facts", ["use"], LINES, "'use' is missing"),  # only a part of a word
    ("words", [4, 9], "one two three", "3 words, not 4 to 9"),
    ("frame", {"begins": "Dear", "ends": "us"}, "To us", "it does not begin with 'Dear'"),
    ("frame", {"begins": "Dear", "ends": "us"}, "Dear", "it does not end with 'us'"),
    ("tone", {"has": ["thanks", "!"], "lacks": []}, "Good day", "it has none of thanks, !"),
    ("tone", {"has": ["thanks"], "lacks": ["we'll"]}, "Thanks, we\u2019ll", 'it has "we\'ll"'),
    ("sections", {"Costs": [], "Results": ["8"]}, ARTICLE, "Results: '8' is missing"),
    ("sections", {"Costs": []}, ARTICLE, "its headings are Costs, Results, not Costs"),
    ("sections", {"Costs": []}, "## Costs\n", "it does not begin with a title"),
    ("json", {"lines": [1]}, change(lines=[]), "lines is [], not [1]"),
    ("json", {"lines": [{"item": "axes"}]}, change(), "lines[0].item is 'saws', not 'axes'"),
    ("json", {}, "net: 60", "it is not JSON"),
    ("sums", {"tax_percent": 20}, change(), "tax is 6, not 12"),
    ("sums", {"tax_percent": 10}, change(total=67), "total is 67, not 66"),
    ("sums", {"tax_percent": 10}, change(net=50), "net is 50, not 60"),
    ("ini", {"Service": {"User": "b"}}, "[Service]\nUser=a", "Service.User is 'a', not 'b'"),
    ("ini", {}, "[Service]\nUser=a", "Service.User is 'a', not None"),
    ("ini", {}, "User=a", "File contains no section headers."),
    ("tests", ["f(3) == 9"], "def f(x):\n    return x * 2", "not true: f(3) == 9"),
    (
        "tests",
        ["f()"],
        "Sure!",
        "the program failed: SyntaxError: invalid syntax (reply.py, line 1)",
    ),
    ("tests", ["f()"], "f = print", "not true: f()"),
    (
        *("tests", ["f()"], "open('/etc/passwd')"),
        "the program was stopped, files: it tried open /etc/passwd",
    ),
    (
        *("tests", ["f()"], "import socket\nsocket.socket()"),
        "the program was stopped, network: it tried socket.__new__",
    ),
]


@pytest.mark.promise("Specialists", "A check says what is wrong with a reply")
@pytest.mark.parametrize(("name", "argument", "reply"), RIGHT)
def test_a_check_says_nothing_of_a_reply_that_is_right(name, argument, reply):
    assert find_check(name)(reply, argument) is None


@pytest.mark.promise("Specialists", "A check says what is wrong with a reply")
@pytest.mark.parametrize(("name", "argument", "reply", "problem"), WRONG)
def test_a_check_says_what_is_wrong(name, argument, reply, problem):
    assert find_check(name)(reply, argument) == problem


def test_sums_of_an_invoice_without_a_number_are_named():
    problems = find_problems(change(net="much"), {"sums": {"tax_percent": 10}})
    assert problems == {"sums": "Expected `float`, got `str` - at `$.net`"}


@pytest.mark.parametrize(
    ("checks", "message"),
    [
        ({"colour": []}, r"there is no check 'colour'; use lines, .*, or module:function"),
        ({"nowhere:check": []}, "check nowhere:check: No module named 'nowhere'"),
        ({"json:nothing": []}, "check json:nothing: module 'json' has no attribute 'nothing'"),
        ({"words": 3}, "check words got 3: Expected `array`, got `int`"),
        ({"sums": {}}, "check sums got {}: Object missing required field `tax_percent`"),
    ],
)
def test_a_check_that_cannot_be_made_is_named(checks, message):
    with pytest.raises(InputError, match=message):
        find_problems("Hello.", checks)
