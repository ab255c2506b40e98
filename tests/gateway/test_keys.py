import logging
import os
import re
import resource
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest
from typer.testing import CliRunner

from support.timing import FakeClock
from waltzrl.errors import InputError
from waltzrl.gateway.access import KeyRing, read_presented_key
from waltzrl.gateway.commands.keys import keys as keys_command
from waltzrl.gateway.keys import ANONYMOUS, add_key, read_keys, revoke_keys
from waltzrl.gateway.listener import check_bind, listener_url, open_listener


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keys.toml"


def following(path):
    """Return a ring, and a function that lets it look at its file again."""
    clock = FakeClock(50.0)

    def look():
        clock.now += 1.0

    return KeyRing(path, clock=clock), look


def run(*arguments):
    outcome = CliRunner().invoke(keys_command, [str(argument) for argument in arguments])
    assert outcome.exit_code == 0, outcome.output
    return outcome


@pytest.mark.promise("Legal duties", "GDPR 32: security")
def test_a_key_opens_and_its_file_holds_only_the_hash(path):
    key = add_key(path, {"name": "ada", "requests_per_minute": 60, "may_see_drafts": True})
    assert re.fullmatch(r"wz-[\w-]{43}", key)  # 256 bits
    caller = KeyRing(path).find(key)
    assert (caller.name, caller.requests_per_minute, caller.may_see_drafts) == ("ada", 60, True)
    text = path.read_text()
    assert key not in text
    assert sha256(key.encode()).hexdigest() in text


def test_a_key_file_is_its_owners_only(path):
    add_key(path, {"name": "ada"})
    assert path.stat().st_mode & 0o777 == 0o600


def test_every_key_that_is_added_can_be_read(path):
    add_key(path, {"name": "\U00020bb7野家", "policies": ("\U0001f512",)})
    add_key(path, {"name": "ada", "usd_per_day": float("inf"), "allow_fields": ("\x7f",)})
    first, second = read_keys(path)
    assert (first.name, first.policies) == ("\U00020bb7野家", ("\U0001f512",))
    assert (second.usd_per_day, second.allow_fields) == (float("inf"), ("\x7f",))


def test_keys_that_several_add_at_once_are_all_there(path):
    names = [f"client-{number}" for number in range(16)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: add_key(path, {"name": name}), names))
    assert sorted(key.name for key in read_keys(path)) == sorted(names)


def test_a_key_is_revoked_through_a_link_to_its_file(path, tmp_path):
    key = add_key(path, {"name": "ada"})
    ring, look = following(path)
    (tmp_path / "link").symlink_to(path)
    revoke_keys(tmp_path / "link", "ada")
    look()
    assert ring.find(key) is None


@pytest.mark.parametrize("days", ["0", "-1", "nan", "inf", "1e9", "1e7"])
def test_an_expiry_that_cannot_be_is_refused(path, days):
    options = ["add", "ada", "--file", str(path), "--expires-in-days", days]
    error = CliRunner().invoke(keys_command, options).exception
    assert isinstance(error, InputError)
    assert str(error).endswith("need days above 0, such as 90")
    assert not path.exists()


def test_what_is_not_a_key_opens_nothing(path):
    key = add_key(path, {"name": "ada"})
    ring = KeyRing(path)
    digest = sha256(key.encode()).hexdigest()
    for wrong in ("", key[:-1], key.upper(), f"{key} ", digest, "ada", "é"):
        assert ring.find(wrong) is None


def test_a_gateway_without_a_key_file_is_open_to_everybody():
    ring = KeyRing(None)
    assert ring.is_open
    assert ring.find("") is ring.find("whatever") is ANONYMOUS
    assert not ANONYMOUS.may_see_drafts


def test_an_empty_key_file_opens_to_nobody(path):
    path.write_text("")
    ring = KeyRing(path)
    assert not ring.is_open
    assert len(ring) == 0
    assert ring.find("") is None


def test_a_key_opens_until_it_expires(path):
    now = datetime.now(UTC)
    gone = add_key(path, {"name": "ada", "expires": now - timedelta(seconds=1)})
    good = add_key(path, {"name": "bob", "expires": now + timedelta(days=1)})
    ring = KeyRing(path)
    assert ring.find(gone) is None
    assert ring.find(good).name == "bob"
    assert len(ring) == 1


def test_keys_rotate_while_the_gateway_runs(path):
    old = add_key(path, {"name": "ada"})
    ring, look = following(path)
    new = add_key(path, {"name": "ada"})
    assert ring.find(new) is None  # the file is looked at once a second
    look()
    assert ring.find(new).name == ring.find(old).name == "ada"
    revoke_keys(path, sha256(old.encode()).hexdigest()[:8])
    look()
    assert ring.find(old) is None
    assert ring.find(new).name == "ada"


def test_a_name_revokes_all_its_keys(path):
    keys = [add_key(path, {"name": name}) for name in ("ada", "ada", "bob")]
    assert [key.name for key in revoke_keys(path, "ada")] == ["ada", "ada"]
    ring = KeyRing(path)
    assert [ring.find(key) is None for key in keys] == [True, True, False]


def test_a_key_that_is_not_there_cannot_be_revoked(path):
    add_key(path, {"name": "ada"})
    with pytest.raises(InputError, match=r"no key 'eve'; it has ada \([0-9a-f]{8}\)"):
        revoke_keys(path, "eve")


@pytest.mark.parametrize("spoil", ["[[keys]", "[[keys]]\nname = 3\n", None])
def test_a_spoilt_file_keeps_the_old_keys_and_says_so_once(path, caplog, spoil):
    key = add_key(path, {"name": "ada"})
    ring, look = following(path)
    good = path.read_text()
    if spoil is None:
        path.unlink()
    else:
        path.write_text(spoil)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            look()
            assert ring.find(key).name == "ada"
    assert ring.stale
    (line,) = caplog.messages
    assert str(path) in line
    assert "stay valid" in line
    path.write_text(good + "\n")
    look()
    assert ring.find(key).name == "ada"
    assert not ring.stale


def test_keys_that_could_not_be_read_for_a_moment_are_read_later(path, caplog):
    key = add_key(path, {"name": "ada"})
    ring, look = following(path)
    revoke_keys(path, "ada")
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))  # no file can be opened
    try:
        for _ in range(3):
            look()
            assert ring.find(key).name == "ada"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    look()
    assert ring.find(key) is None
    assert [message for message in caplog.messages if "stay valid" in message] == [
        f"{path} cannot be read as a key file: [Errno 24] Too many open files: '{path}'; "
        "the keys read before stay valid"
    ]


def test_a_change_that_keeps_size_and_time_of_the_file_is_seen(path):
    old = add_key(path, {"name": "ada"})
    ring, look = following(path)
    before = path.stat()
    path.unlink()
    new = add_key(path, {"name": "bob"})
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    look()
    assert ring.find(old) is None
    assert ring.find(new).name == "bob"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keys = 1", r"keys\.toml: need \[\[keys\]\] tables"),
        ("[search]\nname = 1", r"need \[\[keys\]\] tables and nothing else, got \['search'\]"),
        ("\n[[keys]\n", r"keys\.toml cannot be read as a key file: .*line 2"),
        ('[[keys]]\nname = "a"\nrequest_per_minute = 1', r"key 1: .*request_per_minute"),
        ('[[keys]]\nname = "a"\nsha256 = "abc"', r"key 1: .*sha256"),
        ('[[keys]]\nname = "a b"', r"key 1: .*name"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(path, text, message):
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        KeyRing(path)


def test_a_time_without_a_zone_is_refused(path):
    add_key(path, {"name": "ada"})
    path.write_text(path.read_text() + "expires = 2030-01-01T00:00:00\n")
    with pytest.raises(InputError, match=r"key 1: .*expires"):
        KeyRing(path)


def test_one_key_twice_is_refused(path):
    add_key(path, {"name": "ada"})
    text = path.read_text()
    path.write_text(text + text[text.index("[[keys]]") :])
    with pytest.raises(InputError, match="two keys have the same sha256"):
        KeyRing(path)


def test_everything_that_is_written_is_read_back(path):
    expires = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    fields = {
        "name": "ada@example.org",
        "requests_per_minute": 7,
        "burst": 2,
        "may_see_drafts": True,
        "stream_modes": ["audit", "window"],
        "expires": expires,
    }
    add_key(path, fields)
    add_key(path, {"name": "bob"})
    ada, bob = read_keys(path)
    assert {name: getattr(ada, name) for name in fields} == fields | {
        "stream_modes": ("audit", "window")
    }
    assert (bob.requests_per_minute, bob.stream_modes) == (None, ("buffer",))


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([(b"authorization", b"Bearer wz-1")], "wz-1"),
        ([(b"authorization", b"bearer  wz-1 ")], "wz-1"),
        ([(b"host", b"x"), (b"x-api-key", b"wz-2")], "wz-2"),
        ([(b"authorization", b"Basic abc"), (b"x-api-key", b"wz-2")], "wz-2"),
        ([(b"authorization", b"Bearer")], ""),
        ([(b"authorization", b"Bearer \xff")], "ÿ"),
        ([], ""),
        ([(b"api-key", b" k ")], "k"),
        ([(b"x-api-key", b" "), (b"authorization", b"Bearer k")], "k"),
        ([(b"authorization", b"Bearer "), (b"x-api-key", b"k")], "k"),
    ],
)
def test_keys_come_as_a_bearer_or_as_x_api_key(headers, key):
    assert read_presented_key(headers) == key


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_the_url_of_a_gateway_can_be_opened(host, shown):
    with open_listener(host, 0) as listener:
        port = listener.getsockname()[1]
        assert listener_url(listener, has_tls=False) == f"http://{shown}:{port}"
        assert listener_url(listener, has_tls=True) == f"https://{shown}:{port}"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_this_machine_needs_no_keys(host):
    check_bind(host, KeyRing(None), open_to_all=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.5", "gateway.example.org"])
def test_the_network_needs_keys_or_a_clear_word(host, path):
    with pytest.raises(InputError, match="waltzrl keys add NAME --file"):
        check_bind(host, KeyRing(None), open_to_all=False)
    check_bind(host, KeyRing(None), open_to_all=True)
    add_key(path, {"name": "ada"})
    check_bind(host, KeyRing(path), open_to_all=False)


def test_the_commands_add_list_and_revoke(path):
    key = run("add", "ada", "--file", path, "--requests-per-minute", 60).stdout.strip()
    assert KeyRing(path).find(key).requests_per_minute == 60
    shown = run("list", "--file", path).stdout
    assert re.search(r"ada +[0-9a-f]{8} +valid .* 60 +no", shown)
    assert key not in shown
    assert "is revoked" in run("revoke", "ada", "--file", path).stdout
    assert KeyRing(path).find(key) is None
    assert "disabled" in run("list", "--file", path).stdout


def test_a_key_can_be_made_for_some_days(path):
    key = run("add", "ada", "--file", path, "--expires-in-days", 2).stdout.strip()
    left = KeyRing(path).find(key).expires - datetime.now(UTC)
    assert timedelta(days=1.99) < left <= timedelta(days=2)


def test_a_key_can_have_a_role_at_the_desk(path):
    key = run("add", "ada", "--file", path, "--role", "reviewer").stdout.strip()
    run("add", "client", "--file", path)
    assert KeyRing(path).find(key).role == "reviewer"
    shown = run("list", "--file", path).stdout
    assert re.search(r"ada .* reviewer", shown)
    assert re.search(r"client .* no +tenant *$", shown, re.MULTILINE)


def test_a_key_says_what_its_requests_may_hold(path):
    fields = ("--allow-field", "guided_json", "--allow-field", "logit_bias")
    key = run("add", "ada", "--file", path, "--media", "refuse", *fields).stdout.strip()
    caller = KeyRing(path).find(key)
    assert (caller.media, caller.allow_fields) == ("refuse", ("guided_json", "logit_bias"))
    other = run("add", "bob", "--file", path).stdout.strip()
    plain = KeyRing(path).find(other)
    assert (plain.media, plain.allow_fields) == ("pass", ())


def test_a_key_says_whose_its_system_turns_are(path):
    ours = run("add", "ours", "--file", path, "--system-turns", "operator").stdout.strip()
    theirs = run("add", "theirs", "--file", path).stdout.strip()
    ring = KeyRing(path)
    assert [ring.find(key).system_turns for key in (ours, theirs)] == ["operator", "tenant"]
    assert re.search(r"ours .* operator *$", run("list", "--file", path).stdout, re.MULTILINE)


def test_valid_keys_are_named_by_their_ids(path):
    key = add_key(path, {"name": "ada"})
    key_id = sha256(key.encode()).hexdigest()[:8]
    ring, look = following(path)
    assert [key.name for key in ring.named(key_id)] == ["ada"]
    assert ring.named("0" * 8) == KeyRing(None).named(key_id) == []
    revoke_keys(path, "ada")
    look()
    assert ring.named(key_id) == []


def test_the_policies_of_a_key_are_listed(path):
    run("add", "team", "--file", path, "--policy", "strict", "--policy", "trial")
    assert "strict, trial" in " ".join(run("list", "--file", path).stdout.split())


def test_a_key_that_is_no_longer_valid_may_have_a_policy_that_is_gone(path):
    add_key(path, {"name": "ada", "policies": ("gone",)})
    expired = datetime.now(UTC) - timedelta(days=1)
    add_key(path, {"name": "bob", "policies": ("gone",), "expires": expired})
    revoke_keys(path, "ada")
    assert len(KeyRing(path, policies=("strict",))) == 0


def test_a_key_can_have_a_budget(path):
    options = ("--tokens-per-day", 20000, "--usd-per-day", 1.5)
    key = run("add", "ada", "--file", path, *options).stdout.strip()
    caller = KeyRing(path, has_ledger=True).find(key)
    assert (caller.tokens_per_day, caller.usd_per_day) == (20000, 1.5)
    assert "20,000" in run("list", "--file", path).stdout
