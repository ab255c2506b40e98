import hashlib
import hmac

import pytest

from waltzrl.errors import InputError
from waltzrl.store.privacy.digest import key_in, subject_digest


def test_a_digest_is_the_first_half_of_the_keyed_hash():
    expected = hmac.new(b"key", b"ada", hashlib.sha256).hexdigest()[:32]
    assert subject_digest(b"key")("ada") == expected


def test_the_same_person_has_another_digest_under_another_key():
    assert subject_digest(b"key")("ada") == subject_digest(b"key")("ada")
    assert subject_digest(b"key")("ada") != subject_digest(b"yek")("ada")
    assert len(subject_digest(b"key")("\ud800")) == 32


def test_a_key_is_made_once_for_its_owner_only(tmp_path):
    path = tmp_path / "new" / "subject.key"
    key = key_in(path)
    assert len(key) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert key_in(path) == key
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_holds_no_key_is_refused(tmp_path):
    path = tmp_path / "subject.key"
    path.write_bytes(b"short")
    with pytest.raises(InputError, match="has 5 bytes"):
        key_in(path)


def test_a_place_that_cannot_hold_a_key_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot read or create the key"):
        key_in(tmp_path / "file" / "subject.key")
