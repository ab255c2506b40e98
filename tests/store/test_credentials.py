"""Keys are put together here, so that no file holds anything that looks like one."""

import pytest

from waltzrl.store.privacy.scanner import PersonalDataScanner

SCANNER = PersonalDataScanner(["secret"])
BODY = "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zA1bC3dE5"
LETTERS = "QwErTyUiOpAsDfGhJkLzXcVbNmPlOkMiJnUhBy"
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
    "hugging face of letters": "hf_" + LETTERS[:34], "openai of letters": "sk-" + LETTERS,
    "npm of letters": "npm_" + LETTERS[:36], "github of letters": "gho_" + LETTERS[:36],
    "google of letters": "AIza" + LETTERS[:35], "slack of letters": "xoxb-" + LETTERS[:24],
    "cut pem": PEM.format("", BODY).rpartition("\n")[0],
}  # fmt: skip


def found(text):
    return [text[f.start : f.end] for f in SCANNER.find(text)]


@pytest.mark.promise(
    "Personal data",
    "A vendor's key is found by its published form, also if it is all letters, and a placeholder "
    "is none",
)
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_key_is_known_by_its_prefix(key):
    assert found(f"use {key} for it") == [key]
    assert found(f'{{"value": "{key}"}}') == [key]


@pytest.mark.promise("Rules", "Test values of providers are no secrets")
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


HEX = "0a1b2c3d4e5f60718293a4b5c6d7e8f9" * 4
VENDORS = {
    "1password": "A3-A1B2C3-D4E5F6G7H8J-K9L1M-N2P3Q-R4S5T",
    "age": "AGE-SECRET-KEY-1" + "Q2W3E4R5T6" * 5 + "Y7U8A9S2",
    "airtable": "pat" + BODY[:14] + "." + HEX[:64],
    "alibaba": "LTAI" + BODY[:20],
    "atlassian": "ATATT3" + BODY * 4,
    "brevo": "xkeysib-" + HEX[:64] + "-" + BODY[:16],
    "contentful": "CFPAT-" + (BODY * 2)[:43],
    "databricks": "dapi" + HEX[:32],
    "digitalocean": "dop_v1_" + HEX[:64],
    "docker": "dckr_pat_" + BODY[:27],
    "doppler": "dp.pt." + (BODY * 2)[:43],
    "dynatrace": "dt0c01." + BODY[:24].upper() + "." + (BODY * 2)[:64].upper(),
    "easypost": "EZAK" + (BODY * 2)[:54],
    "figma": "figd_" + (BODY * 2)[:40],
    "flutterwave": "FLWSECK-" + HEX[:32] + "-X",
    "fly.io": "fo1_" + (BODY * 2)[:43],
    "google client": "GOCSPX-" + BODY[:28],
    "grafana": "glsa_" + BODY[:32] + "_" + HEX[:8],
    "groq": "gsk_" + (BODY * 2)[:52],
    "heroku": "HRKU-AA" + (BODY * 2)[:58],
    "linear": "lin_api_" + (BODY * 2)[:40],
    "mailchimp": HEX[:32] + "-us12",
    "mailgun": "key-" + HEX[:32],
    "netlify": "nfp_" + BODY[:36],
    "new relic": "NRAK-" + BODY[:27].upper(),
    "notion": "ntn_" + (BODY * 2)[:46],
    "openai": "sk-proj-" + BODY,
    "perplexity": "pplx-" + (BODY * 2)[:48],
    "planetscale": "pscale_tkn_" + (BODY * 2)[:43],
    "postman": "PMAK-" + HEX[:24] + "-" + HEX[:34],
    "pulumi": "pul-" + HEX[:40],
    "replicate": "r8_" + BODY[:37],
    "rubygems": "rubygems_" + HEX[:48],
    "sentry": "sntryu_" + HEX[:64],
    "shippo": "shippo_live_" + HEX[:40],
    "shopify": "shpat_" + HEX[:32],
    "slack app": "xapp-1-A1B2C3D4E-" + BODY,
    "sourcegraph": "sgp_" + HEX[:40],
    "square": "sq0atp-" + BODY[:22],
    "stripe webhook": "whsec_" + BODY[:32],
    "supabase": "sbp_" + HEX[:40],
    "tailscale": "tskey-auth-" + BODY[:17] + "-" + BODY[:32],
    "terraform": BODY[:14] + ".atlasv1." + (BODY * 2)[:67],
    "twilio": "SK" + HEX[:32],
    "vault": "hvs." + (BODY * 3)[:95],
    "xai": "xai-" + (BODY * 3)[:80],
    "discord": "M" + BODY[:25] + "." + BODY[:6] + "." + BODY[:38],
}
WEBHOOKS = {
    "https://hooks.slack.com/services/{}": "T0A1B2C3D/B0A1B2C3D/" + BODY[:24],
    "https://discord.com/api/webhooks/{}": "123456789012345678/" + (BODY * 2)[:68],
    "https://acme.webhook.office.com/webhookb2/{}": (
        "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9@0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
        f"/IncomingWebhook/{HEX[:32]}/0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
    ),
    "https://hooks.zapier.com/hooks/catch/{}/": "1234567/b3k9xq",
    "https://maker.ifttt.com/trigger/door/with/key/{}": BODY[:22],
    "https://hook.eu1.make.com/{}": HEX[:32],
    "https://chat.googleapis.com/v1/spaces/AAAA/messages?{}": f"key={BODY}&token={BODY}",
    "https://x.logic.azure.com/workflows/1/triggers/manual/invoke?sig={}": (BODY * 2)[:43],
}  # fmt: skip


@pytest.mark.promise(
    "Personal data",
    "A vendor's key is found by its published form, also if it is all letters, and a placeholder "
    "is none",
)
@pytest.mark.parametrize("key", VENDORS.values(), ids=VENDORS)
def test_keys_of_forty_vendors_are_known_by_their_published_form(key):
    assert found(f"use {key} for it") == [key]


@pytest.mark.promise(
    "Personal data", "Whoever knows a webhook's address may post there, so it is a secret"
)
@pytest.mark.parametrize("url", WEBHOOKS)
def test_what_makes_a_webhook_secret_is_found_and_its_host_stays(url):
    assert found(f"post to {url.format(WEBHOOKS[url])} please") == [WEBHOOKS[url]]


@pytest.mark.promise(
    "Personal data",
    "A vendor's key is found by its published form, also if it is all letters, and a placeholder "
    "is none",
)
@pytest.mark.parametrize(
    "text",
    ["ghp_" + "x" * 36, "npm_" + "0" * 36, "AKIA" + "X" * 16, "hf_" + "a" * 34,
     "sk-a-rather-long-name-of-a-package", "sk-Donaudampfschifffahrtsgesellschaft",
     "https://hooks.slack.com/services/T00000000/B00000000/" + "X" * 24, "pypi-" + "-" * 60],
)  # fmt: skip
def test_a_placeholder_in_the_form_of_a_key_is_no_secret(text):
    assert found(f"use {text} for it") == []
