"""Keys are put together here, so that no file holds anything that looks like one."""

import pytest

from waltzrl.privacy.scanner import PersonalDataScanner

SCANNER = PersonalDataScanner(["secret"])
BODY = "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zA1bC3dE5"
PEM = "-----BEGIN {0}PRIVATE KEY-----\n{1}\n{1}\n-----END {0}PRIVATE KEY-----"
KEYS = {
    "openai": "sk-" + BODY, "anthropic": "sk-ant-api03-" + BODY, "stripe": "sk_live_" + BODY[:24],
    "github": "ghp_" + BODY[:36], "fine-grained": "github_pat_" + BODY[:22] + "_" + BODY,
    "gitlab": "glpat-" + BODY[:20], "aws": "AKIA" + BODY[:16].upper(), "google": "AIza" + BODY[:35],
    "slack": "xoxb-123456789012-" + BODY[:24], "hugging face": "hf_" + BODY[:34],
    "npm": "npm_" + BODY[:36], "sendgrid": "SG." + BODY[:22] + "." + BODY + BODY[:4],
    "telegram": "123456789:AA" + BODY[:33], "jwt": f"eyJ{BODY[:20]}.eyJ{BODY[:30]}.{BODY}",
    "pem": PEM.format("RSA ", BODY), "pkcs8": PEM.format("", BODY),
    "ssh": PEM.format("OPENSSH ", BODY),
    "escaped pem": PEM.format("EC ", BODY).replace("\n", "\\n"),
    "cut pem": PEM.format("", BODY).rpartition("\n")[0],
}  # fmt: skip


def found(text):
    return [text[f.start : f.end] for f in SCANNER.find(text)]


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_key_is_known_by_its_prefix(key):
    assert found(f"use {key} for it") == [key]
    assert found(f'{{"value": "{key}"}}') == [key]


@pytest.mark.parametrize(
    "text",
    ["AKIA" + "IOSFODNN7EXAMPLE", "secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
     "sk_test_" + BODY[:24], "api_key: pk_test_" + BODY[:24]],
)  # fmt: skip
def test_a_key_of_the_documentation_or_of_a_test_account_is_no_secret(text):
    assert found(f"use {text} for it") == []


@pytest.mark.parametrize(
    "text",
    ["sk-learn-is-a-library-for-python", "AKIA is a prefix", "-----BEGIN PUBLIC KEY-----",
     "a line with -----BEGIN PRIVATE KEY----- begins such a key.", "eyJ", "ghp_short"],
)  # fmt: skip
def test_a_prefix_alone_is_no_key(text):
    assert found(text) == []


@pytest.mark.parametrize(
    ("text", "password"),
    [
        ("password: hunter2", "hunter2"),
        ("Password=swordfish", "swordfish"),
        ("my password is hunter2.", "hunter2"),
        ("DB_PASSWORD='two words'", "two words"),
        ('{"password": "tr0ub4dor&3", "user": "ada"}', "tr0ub4dor&3"),
        ("Passwort: geheim", "geheim"),
        ("postgres://ada:s3cret@db.example.com/x", "s3cret"),
    ],
)
def test_what_follows_the_word_password_is_taken(text, password):
    assert found(text) == [password]


@pytest.mark.parametrize(
    "text",
    ["The password is wrong.", "password: must be long", "password = get_password()", "pwd: $PWD",
     "password: <secret>", "password: ********", "password: null", "password=new_password",
     "password = settings.mail.key",
     "def login(password: str) -> None", "password = os.environ['PASSWORD']"],
)  # fmt: skip
def test_a_placeholder_a_sentence_or_code_is_no_password(text):
    assert found(text) == []


@pytest.mark.parametrize("hint", ["api_key=", "API key: ", '"token": "', "client_secret = '"])
def test_a_random_value_is_taken_behind_a_hint_only(hint):
    assert found(hint + BODY[:20]) == [BODY[:20]]
    assert found("a value: " + BODY[:20]) == []


def test_a_value_that_is_not_random_is_no_token():
    assert found("token: aaaaaaa1, max_tokens: 4096, token = None, secret: everybody knows") == []


def test_a_bearer_token_is_taken():
    assert found(f"Authorization: Bearer {BODY}") == [BODY]
