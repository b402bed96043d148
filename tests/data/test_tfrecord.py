"""TFRecord files: what is written is read, compressed in any way; each kind of damage is one line with a number."""

import gzip
import io
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contexture.data import tfrecord
from contexture.data.errors import DataError
from contexture.data.protobuf import message_field, message_fields, packed, unpacked
from contexture.data.tfrecord import begins_as_records, masked_crc32c, read_records, write_record
from tests.helpers.original_instances import masked_crc

RECORDS = [b"", b"one", bytes(range(256)) * 256]


def content_of(records: list[bytes]) -> bytes:
    file = io.BytesIO()
    for record in records:
        write_record(file, record)
    return file.getvalue()


WHOLE = content_of(RECORDS)
FORMS = {
    "plain": ("a.tfrecord", WHOLE),
    "gzip by its name": ("a.tfrecord.gz", gzip.compress(WHOLE)),
    "gzip without a name": ("part-0", gzip.compress(WHOLE)),
    "zlib": ("a.tfrecord", zlib.compress(WHOLE)),
    "zlib at its fastest": ("a.tfrecord", zlib.compress(WHOLE, 1)),
    "two members": ("a", gzip.compress(WHOLE[:20]) + gzip.compress(WHOLE[20:])),
}


@pytest.mark.parametrize("form", FORMS)
def test_records_are_read_as_they_were_written(form: str, tmp_path: Path):
    name, content = FORMS[form]
    (tmp_path / name).write_bytes(content)
    seen = bytearray()
    assert begins_as_records(tmp_path / name)
    assert list(read_records(tmp_path / name, seen.extend)) == RECORDS and seen == content


def test_a_length_that_looks_compressed_is_a_length(tmp_path: Path):
    """0x8b1f bytes: the file begins with the first two bytes of gzip."""
    (tmp_path / "a").write_bytes(content_of([bytes(0x8B1F)]))
    assert (tmp_path / "a").read_bytes()[:2] == b"\x1f\x8b"
    assert begins_as_records(tmp_path / "a") and list(read_records(tmp_path / "a")) == [bytes(0x8B1F)]


def _flipped(at: int, content: bytes = WHOLE) -> bytes:
    return content[:at] + bytes([content[at] ^ 8]) + content[at + 1 :]


DAMAGED = {
    # The first record has 16 bytes; the second begins behind it.
    "no records": (b"This is text, and no record.", "record 1 is no TFRecord; copy the file again, or write it"),
    "length": (_flipped(16), "record 2 is damaged \\(the check sum of its length differs\\); copy"),
    "content": (_flipped(29), "record 2 is damaged \\(its check sum differs\\); copy"),
    "last check sum": (_flipped(len(WHOLE) - 1), "record 3 is damaged"),
    "cut in a header": (WHOLE[:20], "record 2 is cut off; copy the file again, or write it again"),
    "cut in a record": (WHOLE[:30], "record 2 is cut off"),
    "cut gzip": (gzip.compress(WHOLE)[:-12], "the compressed data are damaged or cut off; copy the file again"),
    "damaged zlib": (_flipped(40, zlib.compress(WHOLE)), "the compressed data are damaged or cut off|record . is "),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_one_line_with_file_and_record(name: str, tmp_path: Path):
    content, line = DAMAGED[name]
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(DataError, match=f"^{tmp_path}/a: ({line})"):
        list(read_records(tmp_path / "a"))


def test_a_record_of_a_huge_length_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tfrecord, "LONGEST", 1000)
    (tmp_path / "a").write_bytes(WHOLE)
    with pytest.raises(DataError, match="record 3 has 65,536 bytes, more than 1,000; give records of single sequences"):
        list(read_records(tmp_path / "a"))
    length = struct.pack("<Q", 1 << 62)
    (tmp_path / "a").write_bytes(length + struct.pack("<I", masked_crc32c(length)) + b"x")
    with pytest.raises(DataError, match="record 1 has 4,611,"):
        list(read_records(tmp_path / "a"))


def test_text_and_what_is_absent_are_no_records(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"\x1f\x8b text that begins oddly")
    assert not begins_as_records(tmp_path / "a") and not begins_as_records(tmp_path / "b")


@given(st.binary(max_size=300))
def test_check_sums_are_those_of_the_polynomial(content: bytes):
    assert masked_crc32c(content) == masked_crc(content)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_packed_numbers_are_unpacked(numbers: list[int]):
    assert unpacked(packed(numbers)).tolist() == numbers


@pytest.mark.parametrize("content", [b"\x80", b"\x01\xff", b"\xff" * 10 + b"\x01"])
def test_bytes_that_are_no_numbers_are_refused(content: bytes):
    with pytest.raises(ValueError, match="cut off|more than 64 bits"):
        unpacked(content)


@given(st.lists(st.tuples(st.integers(1, 2**20), st.one_of(st.integers(0, 2**60), st.binary(max_size=200)))))
def test_fields_of_a_message_are_read_as_written(fields: list[tuple[int, int | bytes]]):
    assert list(message_fields(b"".join(message_field(*each) for each in fields))) == fields
