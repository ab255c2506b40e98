import io
from base64 import b64encode

import pytest

from waltzrl.store.audit.note import (
    Checkpoint,
    NoteError,
    PublicKey,
    SigningKey,
    read_notes,
    read_signed_text,
)

# The example of Go's note package, which the specification grew from.
EXAMPLE_KEY = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
EXAMPLE = (
    "This is an example message.\n\n"
    "— example.com/foo Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n"  # noqa: E501
)
# The checkpoint in the specification: a real one, signed by Go's module mirror.
GO_KEY = "sum.golang.org+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8"
GO = (
    "go.sum database tree\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
    "— sum.golang.org Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"  # noqa: E501
)
KEY = SigningKey.generate("waltzrl.audit/test")
CHECKPOINT = Checkpoint(origin="waltzrl.audit/test", size=12, root=bytes(range(32)))


def test_the_notes_of_others_verify():
    assert (
        read_signed_text(EXAMPLE, PublicKey.parse(EXAMPLE_KEY)) == "This is an example message.\n"
    )
    checkpoint = Checkpoint.parse(read_signed_text(GO, PublicKey.parse(GO_KEY)))
    assert checkpoint.origin == "go.sum database tree"
    assert checkpoint.size == 20852163


def test_keys_and_checkpoints_survive_their_spelling():
    assert str(PublicKey.parse(GO_KEY)) == GO_KEY
    assert SigningKey.parse(KEY.written()).public == KEY.public
    assert PublicKey.parse(f"{KEY.public}\n") == KEY.public
    assert Checkpoint.parse(CHECKPOINT.text) == CHECKPOINT
    assert read_signed_text(KEY.sign(CHECKPOINT.text), KEY.public) == CHECKPOINT.text


def test_a_private_key_is_not_shown_by_accident():
    assert b64encode(KEY.secret.private_bytes_raw()).decode()[:8] not in repr(KEY)


def test_a_changed_text_is_not_signed():
    note = KEY.sign(CHECKPOINT.text).replace("\n12\n", "\n13\n")
    with pytest.raises(NoteError, match="does not match"):
        read_signed_text(note, KEY.public)


def test_signatures_of_others_are_passed_over_and_count_for_nothing():
    other = SigningKey.generate("witness.example/w")
    foreign = other.sign(CHECKPOINT.text)
    ours = KEY.sign(CHECKPOINT.text)
    cosigned = ours + foreign.splitlines(keepends=True)[-1]
    assert read_signed_text(cosigned, KEY.public) == CHECKPOINT.text
    assert read_signed_text(cosigned, other.public) == CHECKPOINT.text
    with pytest.raises(NoteError, match="not signed by"):
        read_signed_text(foreign, KEY.public)
    namesake = SigningKey.generate(KEY.name)
    with pytest.raises(NoteError, match="not signed by"):
        read_signed_text(namesake.sign(CHECKPOINT.text), KEY.public)


@pytest.mark.parametrize(
    "text",
    ["", "name", "a+b+c", GO_KEY[:-1], GO_KEY.replace("033de0ae", "033de0af"), KEY.written()],
    ids=["empty", "a-name", "not-base64", "cut", "altered", "private"],
)
def test_what_is_no_public_key_is_refused(text):
    with pytest.raises(NoteError, match="not a public key"):
        PublicKey.parse(text)


@pytest.mark.parametrize("text", ["", "origin\n", "origin\n1\nAAAA\n", "\n1\n" + "A" * 43 + "=\n"])
def test_what_is_no_checkpoint_is_refused(text):
    with pytest.raises(NoteError, match="not a checkpoint"):
        Checkpoint.parse(text)


@pytest.mark.parametrize("size", ["-1", "012", "1e3", "٣", "9" * 5000])
def test_a_size_is_a_plain_number(size):
    with pytest.raises(NoteError, match="not a checkpoint"):
        Checkpoint.parse(CHECKPOINT.text.replace("12", size))


def test_notes_in_a_file_are_told_apart_and_a_torn_one_is_left_out():
    first, second = KEY.sign(CHECKPOINT.text), KEY.sign(CHECKPOINT.text.replace("12", "13"))
    for glue in ("", "\n", "\n\n"):
        whole = f"{first}{glue}{second}".encode()
        assert list(read_notes(io.BytesIO(whole), len(whole))) == [first, second]
        for cut in range(len(whole) - len(second.encode()), len(whole)):
            torn = whole[:cut]
            assert list(read_notes(io.BytesIO(torn), len(torn))) == [first]
    assert list(read_notes(io.BytesIO(whole), len(first.encode()))) == [first]
