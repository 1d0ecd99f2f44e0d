"""Messages: the same content has the same bytes, and hostile bytes are refused, cheaply."""

import contextlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpfedc.deployment.messages import (
    MAGIC,
    Answer,
    OtherVersion,
    Receipt,
    Request,
    digest,
    packed,
    unpacked,
)
from dpfedc.errors import InvalidInput
from dpfedc.privacy.exact_sums import Upload
from dpfedc.privacy.ledger import Head

RUN = "ab" * 32
HEAD = Head(7, "cd" * 32)
REQUEST = Request(
    RUN, "berlin", "lloyd", 2, {"b": np.arange(6.0).reshape(2, 3), "a": np.array(1.5)},
    Receipt(HEAD, "ef" * 64),
)  # fmt: skip
ANSWER = Answer(
    RUN, "berlin", "lloyd", 2, "01" * 32, HEAD, Upload(np.arange(4, dtype=np.uint64), 0.5)
)


def message(head, body=b""):
    text = json.dumps(head).encode()
    return MAGIC + struct.pack("<I", len(text)) + text + body


@given(
    st.dictionaries(
        st.text(max_size=5),
        hnp.arrays(st.sampled_from([np.float64, np.uint64]), hnp.array_shapes(min_dims=0)),
        max_size=4,
    )
)
def test_arrays_come_back(arrays):
    arrays = {name: values for name, values in arrays.items() if values.ndim <= 3}
    head, back = unpacked(packed({"x": 1}, arrays))
    assert head == {"x": 1}
    assert back.keys() == arrays.keys()
    for name, values in arrays.items():
        assert back[name].dtype == values.dtype
        np.testing.assert_array_equal(back[name], values)


def test_requests_and_answers_come_back():
    again = Request.from_bytes(REQUEST.to_bytes())
    assert (again.site, again.stage, again.t, again.receipt) == (
        "berlin", "lloyd", 2, REQUEST.receipt,
    )  # fmt: skip
    assert again.to_bytes() == REQUEST.to_bytes()
    answer = Answer.from_bytes(ANSWER.to_bytes())
    assert answer.ledger == HEAD
    assert answer.upload.kind == ANSWER.upload.kind
    np.testing.assert_array_equal(answer.upload.values, ANSWER.upload.values)


def test_the_digest_does_not_depend_on_the_order_of_arrays():
    arrays = dict(reversed(REQUEST.arrays.items()))
    again = Request(RUN, "berlin", "lloyd", 2, arrays, REQUEST.receipt)
    assert digest(again.to_bytes()) == digest(REQUEST.to_bytes())
    later = Request(RUN, "berlin", "lloyd", 3, arrays, REQUEST.receipt)
    assert digest(later.to_bytes()) != digest(REQUEST.to_bytes())


@pytest.mark.parametrize("read", [Request.from_bytes, Answer.from_bytes])
def test_no_part_of_a_message_is_one(read):
    data = REQUEST.to_bytes() if read == Request.from_bytes else ANSWER.to_bytes()
    for n in range(len(data)):
        with pytest.raises(InvalidInput):
            read(data[:n])
    with pytest.raises(InvalidInput):
        read(data + b"\0")


@given(st.binary(max_size=300), st.booleans())
@settings(max_examples=200)
def test_any_bytes_are_refused(data, framed):
    if framed:
        data = MAGIC + struct.pack("<I", len(data)) + data
    for read in (Request.from_bytes, Answer.from_bytes):
        with pytest.raises(InvalidInput):
            read(data)


@given(st.data())
@settings(max_examples=200)
def test_a_flipped_byte_gives_a_message_or_a_refusal(data):
    raw = bytearray(REQUEST.to_bytes())
    i = data.draw(st.integers(0, len(raw) - 1))
    raw[i] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(InvalidInput):  # anything else fails the test
        again = Request.from_bytes(bytes(raw))
        assert sum(values.nbytes for values in again.arrays.values()) <= len(raw)


PLACE = {
    "kind": "request", "run": RUN, "site": "a", "stage": "b", "t": 1, "receipt": None,
    "step": "upload", "attempt": "",
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"arrays": [["a", "<f8", [2**40]]]},
        {"arrays": [["a", "<f8", [2**62, 2**62]]]},
        {"arrays": [["a", "<f8", [-1]]]},
        {"arrays": [["a", "<f8", [True]]]},
        {"arrays": [["a", "<f8", [0, 0, 0, 0]]]},
        {"arrays": [["a", "|O8", [0]]]},
        {"arrays": [["a", "<f8", [0]]] * 2},
        {"arrays": [[f"{i}", "<f8", [0]] for i in range(17)]},
        {"arrays": [["a", "<f8"]]},
        {"arrays": [[1, "<f8", [0]]]},
        {"arrays": {"a": 1}},
        {"arrays": None},
        {"t": 0},
        {"t": True},
        {"t": 1.0},
        {"run": "no"},
        {"site": ""},
        {"stage": 3},
        {"receipt": [1, "no", "no"]},
        {"receipt": [1]},
        {"receipt": "abc"},
        {"more": 1},
        {"kind": "answer"},
        {"arrays": [["a", "<f8", "00"]]},
        {"arrays": [["a" * 300, "<f8", [0]]]},
        {"site": "a" * 300},
        {"stage": "b" * 300},
    ],
)
def test_a_head_that_is_not_as_it_must_be(change):
    with pytest.raises(InvalidInput):
        Request.from_bytes(message({**PLACE, "arrays": [], **change}))
    assert Request.from_bytes(message({**PLACE, "arrays": []})).t == 1


@pytest.mark.parametrize("magic", [b"dpfedc 1", b"dpfedc 2", b"dpfedc 9", b"dpfedc \x1b"])
def test_another_version_is_refused_with_both_named(magic):
    """Whatever follows: a newer head may look like anything."""
    for rest in (REQUEST.to_bytes()[len(MAGIC) :], b"", b"x" * 100):
        with pytest.raises(OtherVersion) as refused:
            Request.from_bytes(magic + rest)
        assert f"must be {MAGIC.decode()}, " in str(refused.value)
        assert f"got {magic.decode()!r}: have the older side upgraded" in str(refused.value)


def test_what_is_no_version_of_this_protocol_is_not_called_one():
    for magic in (b"dpfed", b"PK\x03\x04abcd", b"dpfedcc3"):
        with pytest.raises(InvalidInput, match=r"must start with|head") as refused:
            Request.from_bytes(magic + REQUEST.to_bytes()[len(MAGIC) :])
        assert not isinstance(refused.value, OtherVersion)


def test_deep_and_huge_heads_are_refused():
    for text in (b"[" * 60_000, b"9" * 60_000, b'{"a":' * 9_000):
        with pytest.raises(InvalidInput):
            unpacked(MAGIC + struct.pack("<I", len(text)) + text)
    with pytest.raises(InvalidInput, match="head"):
        unpacked(MAGIC + struct.pack("<I", 2**32 - 1) + b" " * 70_000)
    with pytest.raises(InvalidInput, match="at most"):
        unpacked(b"x" * 101, most=100)


def test_a_declared_size_allocates_nothing():
    # More than any machine can address: who makes room for it before looking finds no memory.
    data = message({**PLACE, "arrays": [["a", "<f8", [2**26, 2**26]]]})
    with pytest.raises(InvalidInput, match="cut off"):
        Request.from_bytes(data)
