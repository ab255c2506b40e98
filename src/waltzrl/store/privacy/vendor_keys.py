"""The published formats of vendors' keys, tokens and webhook addresses.

Sources: the vendors' documentation, and the rules of gitleaks (MIT licence), read for their facts.
"""

from collections.abc import Iterator, Mapping

_WORD = "[A-Za-z0-9_-]"

_PREFIXED: Mapping[str, tuple[str, str]] = {
    "1password": ("A3-[A-Z0-9]{6}-", r"[A-Z0-9-]{11,12}(?:-[A-Z0-9]{5}){3}\b"),
    "1password service": ("ops_eyJ", "[A-Za-z0-9+/]{60,}={0,3}"),
    "age": ("AGE-SECRET-KEY-1", "[02-9AC-HJ-NP-Z]{58}"),
    "airtable": (r"pat[A-Za-z0-9]{14}\.", r"[a-f0-9]{64}\b"),
    "alibaba": ("LTAI", r"[A-Za-z0-9]{12,20}\b"),
    "anthropic": ("sk-ant-", f"[a-z]+[0-9]{{2}}-{_WORD}{{20,}}"),
    "artifactory": ("AKCp", r"[A-Za-z0-9]{69}\b"),
    "atlassian": ("AT[AC]TT3", "[A-Za-z0-9_=-]{60,}"),
    "aws": ("(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)", r"[A-Z0-9]{16}\b"),
    "brevo": ("x(?:key|smtp)sib-", r"[a-f0-9]{64}-[A-Za-z0-9]{16}\b"),
    "clojars": ("CLOJARS_", r"[A-Za-z0-9]{60}\b"),
    "contentful": ("CFPAT-", f"{_WORD}{{43}}"),
    "databricks": ("dapi", r"[a-f0-9]{32}(?:-[0-9])?\b"),
    "digitalocean": ("do[opr]_v1_", r"[a-f0-9]{64}\b"),
    "docker": ("dckr_[op]at_", f"{_WORD}{{27,36}}"),
    "doppler": (r"dp\.(?:pt|st|ct|sa|scim|audit)\.", r"(?:[a-z0-9_-]+\.)?[A-Za-z0-9]{40,44}\b"),
    "duffel": ("duffel_live_", "[A-Za-z0-9_=-]{43}"),
    "dynatrace": (r"dt0[a-z][0-9]{2}\.", r"[A-Z0-9]{24}\.[A-Z0-9]{64}\b"),
    "easypost": ("EZ[AT]K", r"[A-Za-z0-9]{54}\b"),
    "facebook": ("EAA[A-Z]", "[A-Za-z0-9]{90,}"),
    "figma": ("fig[dou]r?_", f"{_WORD}{{40,60}}"),
    "firecrawl": ("fc-", r"[a-f0-9]{32}\b"),
    "flutterwave": ("FLW(?:SECK|PUBK)(?:_TEST)?-", r"[A-Za-z0-9]{32}-X\b"),
    "fly.io": ("(?:fo1|fm1[ar]|fm2)_", "[A-Za-z0-9_+/-]{43,}={0,3}"),
    "frame.io": ("fio-u-", "[A-Za-z0-9_=-]{64}"),
    "github": ("gh[oprsu]_", r"[A-Za-z0-9]{36,}\b"),
    "github fine-grained": ("github_pat_", r"[A-Za-z0-9]{22}_[A-Za-z0-9_]{22,}\b"),
    "gitlab": (
        "gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat|ffct)-",
        "[A-Za-z0-9_.-]*[A-Za-z0-9_-]{20}",
    ),
    "google": ("AIza", f"{_WORD}{{35}}"),
    "google client": ("GOCSPX-", f"{_WORD}{{28}}"),
    "google oauth": (r"ya29\.", f"{_WORD}{{20,}}"),
    "grafana": ("glsa_", r"[A-Za-z0-9]{32}_[A-Fa-f0-9]{8}\b"),
    "grafana cloud": ("glc_eyJ", "[A-Za-z0-9+/]{30,}={0,3}"),
    "groq": ("gsk_", r"[A-Za-z0-9]{48,56}\b"),
    "harness": (r"[ps]at\.", rf"{_WORD}{{22}}\.[a-f0-9]{{24}}\.[A-Za-z0-9]{{20}}\b"),
    "heroku": ("HRKU-AA", f"{_WORD}{{58}}"),
    "hugging face": ("(?:hf|api_org)_", r"[A-Za-z0-9]{30,40}\b"),
    "infracost": ("ico-", r"[A-Za-z0-9]{32}\b"),
    "linear": ("lin_(?:api|oauth)_", r"[A-Za-z0-9]{40,64}\b"),
    "mailgun": ("(?:pub)?key-", r"[a-f0-9]{32}\b"),
    "netlify": ("nf[cpu]_", r"[A-Za-z0-9]{36}\b"),
    "new relic": ("NR(?:AA|AK|II|JS)-", f"{_WORD}{{19,32}}"),
    "notion": ("ntn_", r"[A-Za-z0-9]{46}\b"),
    "notion integration": ("secret_", r"[A-Za-z0-9]{43}\b"),
    "nvidia": ("nvapi-", f"{_WORD}{{60,70}}"),
    "npm": ("npm_", r"[A-Za-z0-9]{36}\b"),
    "openai": ("sk-(?:proj|svcacct|admin)-", f"{_WORD}{{20,}}"),
    "openshift": ("sha256~", f"{_WORD}{{43}}"),
    "perplexity": ("pplx-", r"[A-Za-z0-9]{48,56}\b"),
    "planetscale": ("pscale_(?:tkn|pw|oauth)_", "[A-Za-z0-9_=.-]{31,}[A-Za-z0-9]"),
    "postman": ("PMAK-", r"[a-f0-9]{24}-[a-f0-9]{34}\b"),
    "prefect": ("pn[ub]_", r"[A-Za-z0-9]{36}\b"),
    "pulumi": ("pul-", r"[a-f0-9]{40}\b"),
    "pypi": ("pypi-", f"{_WORD}{{50,}}"),
    "readme": ("rdme_", r"[a-z0-9]{70}\b"),
    "replicate": ("r8_", r"[A-Za-z0-9]{37}\b"),
    "rubygems": ("rubygems_", r"[a-f0-9]{48}\b"),
    "sendgrid": (r"SG\.", rf"{_WORD}{{16,32}}\.{_WORD}{{16,64}}"),
    "sentry": ("sntry[su]_", "[A-Za-z0-9+/=_]{40,}"),
    "shippo": ("shippo_live_", r"[a-fA-F0-9]{40}\b"),
    "shopify": ("shp(?:at|ca|pa|ss)_", r"[0-9a-fA-F]{32}\b"),
    "slack": ("xox[abeoprs]-", "[0-9A-Za-z-]{10,}"),
    "slack app": ("xapp-[0-9]-", "[0-9A-Za-z-]{20,}"),
    "sourcegraph": ("sgp_", r"(?:(?:[a-f0-9]{16}|local)_)?[a-f0-9]{40}\b"),
    "square": ("(?:sq0(?:atp|csp)-|EAAA)", f"{_WORD}{{22,60}}"),
    "stripe": ("[rs]k_(?:live|prod)_", r"[A-Za-z0-9]{10,99}\b"),
    "stripe webhook": ("whsec_", "[A-Za-z0-9+/]{32,64}"),
    "supabase": ("sb(?:p|_secret)_", r"(?:v0_)?[A-Za-z0-9_-]{22,40}\b"),
    "tailscale": ("tskey-[a-z]+-", r"[A-Za-z0-9]{8,20}-[A-Za-z0-9]{20,40}\b"),
    "tavily": ("tvly-", r"[A-Za-z0-9-]{24,60}\b"),
    "twilio": ("SK", r"[0-9a-f]{32}\b"),
    "vault": (r"hv[bs]\.", f"{_WORD}{{24,}}"),
    "xai": ("xai-", r"[A-Za-z0-9]{70,90}\b"),
}
"""Vendor -> the prefix of its keys, and the form of the rest."""

_OTHERS: Mapping[str, tuple[str, str]] = {
    "discord": (
        rf"\.{_WORD}{{6}}\.",
        rf"\b[MNO][A-Za-z0-9_-]{{23,27}}\.{_WORD}{{6}}\.{_WORD}{{27,40}}",
    ),
    "json web token": (r"\beyJ", rf"\beyJ{_WORD}{{8,}}\.eyJ{_WORD}{{8,}}\.{_WORD}*"),
    "mailchimp": ("-us[0-9]", r"\b[a-f0-9]{32}-us[0-9]{1,2}\b"),
    "telegram": (":AA", rf"\b(?:bot)?([0-9]{{8,10}}:AA{_WORD}{{33}})"),
    "terraform cloud": (r"\.atlasv1\.", r"\b[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,70}"),
    # Webhooks: who knows the address may post there; group 1 is what must stay secret.
    "azure webhook": ("[?&]sig=", r"[?&]sig=([A-Za-z0-9%/+_-]{40,80}=?)"),
    "discord webhook": (
        "/api/webhooks/",
        rf"discord(?:app)?\.com/api/webhooks/([0-9]{{15,20}}/{_WORD}{{50,90}})",
    ),
    "google chat webhook": (
        r"chat\.googleapis\.com",
        rf"chat\.googleapis\.com/v1/spaces/{_WORD}+/messages\?([^\s\"'<>]{{30,}})",
    ),
    "ifttt webhook": (
        r"maker\.ifttt\.com",
        rf"maker\.ifttt\.com/trigger/[^/\s]+/(?:json/)?with/key/({_WORD}{{20,64}})",
    ),
    "make webhook": (r"\.make\.com/", r"hook\.[a-z]{2}[0-9]\.make\.com/([a-z0-9]{28,40})"),
    "slack webhook": (
        r"hooks\.slack\.com",
        r"hooks\.slack\.com/(?:services|workflows|triggers)/([A-Za-z0-9+/]{20,80})",
    ),
    "teams webhook": (
        r"webhook\.office\.com",
        r"webhook\.office\.com/webhookb2/([A-Za-z0-9@-]{70,80}/IncomingWebhook/[a-z0-9/-]{60,80})",
    ),
    "zapier webhook": (
        r"hooks\.zapier\.com",
        r"hooks\.zapier\.com/hooks/catch/([0-9]{4,12}/[a-z0-9]{5,12})",
    ),
}
"""Name -> a cheaper regular expression that matches wherever the form does, and the form."""

LOOSE = (r"\b[prs]k[-_](?:live_|test_)?[A-Za-z0-9_-]{20,}",)
"""Prefixes that other words have too: OpenAI's first keys, Stripe's and their likes."""


def vendor_formats() -> Iterator[tuple[str, str]]:
    """Yield the form of each kind of key, and a cheaper one that matches wherever it does."""
    for prefix, rest in _PREFIXED.values():
        yield rf"\b{prefix}{rest}", rf"\b{prefix}"
    for key, form in _OTHERS.values():
        yield form, key
