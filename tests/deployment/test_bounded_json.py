"""JSON from elsewhere: what is too long, too deep or too much is refused before it is parsed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedc.deployment import bounded_json as module
from dpfedc.deployment.bounded_json import MAX_DEPTH, bounded_json
from dpfedc.errors import InvalidInput

MOST = 10**6
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('"\\[]{},:aä\n'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('"\\[{,a'), inner),
    max_leaves=20,
)  # fmt: skip


def depth_of(value):
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def n_items_of(value):
    """Return how many commas and opening brackets stand outside of strings."""
    if not isinstance(value, (dict, list)):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(len(value) - 1, 0) + sum(map(n_items_of, inner))


@given(VALUES, st.booleans())
def test_what_is_within_bounds_is_read_as_it_is(value, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert bounded_json(text, most=MOST) == value
    assert bounded_json(text.encode(), most=MOST) == value


@given(VALUES)
def test_depth_and_values_are_counted_exactly(value):
    """Brackets, commas and quotes in strings are none."""
    text = json.dumps(value)
    n = n_items_of(value)
    assert bounded_json(text, most=MOST, most_items=n) == value
    if n:
        with pytest.raises(InvalidInput, match=f"at most {n - 1:,} values, got {n:,}"):
            bounded_json(text, most=MOST, most_items=n - 1)
    room = MAX_DEPTH - depth_of(value)
    assert bounded_json("[" * room + text + "]" * room, most=MOST)
    with pytest.raises(InvalidInput, match=f"at most {MAX_DEPTH} deep, got {MAX_DEPTH + 1}"):
        bounded_json("[" * (room + 1) + text + "]" * (room + 1), most=MOST)


@given(st.text('[]{},:"\\0 \nu', max_size=60) | st.text(max_size=20) | st.binary(max_size=60))
def test_any_text_is_read_or_refused(text):
    """As the parser reads it, where that reads it at all."""
    try:
        found = bounded_json(text, most=MOST)
    except InvalidInput:
        return
    assert found == json.loads(text)


HOSTILE = {
    "long": b"[" + b" " * MOST + b"]",
    "deep": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "deep behind a string": b'["\\\\",' + b"[" * 1000,
    "deep behind an escaped quote": rb'["\"",' + b"[" * 1000 + b"]" * 1001,
    "twice": b'{"a":1,"a":2}',
    "twice by an escape": rb'{"a":1,"\u0061":2}',
    "NaN": b"[NaN]",
    "infinity": b"[-Infinity]",
    "infinity in digits": b"[1e999]",
    "digits without end": b"9" * 100_000,
    "utf-16": "[1]".encode("utf-16"),
    "utf-16 without a mark": "[1]".encode("utf-16-le"),
    "no text": b"[\xff]",
    "with a mark": b"\xef\xbb\xbf[1]",
    "two": b"[1][2]",
    "nothing": b"",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_what_is_beyond_bounds_or_read_in_two_ways_is_refused(data):
    with pytest.raises(InvalidInput, match="not JSON within bounds"):
        bounded_json(data, most=MOST)


@pytest.mark.parametrize("which", ["long", "deep", "wide"])
def test_the_parser_never_sees_what_is_beyond_bounds(monkeypatch, which):
    def loads(*_, **__):
        raise AssertionError("parsed")

    monkeypatch.setattr(module.json, "loads", loads)
    data = {"long": b"[" + b" " * MOST, "deep": b"[" * 1000, "wide": b"[" + b"0," * 1000}[which]
    with pytest.raises(InvalidInput, match="must"):
        bounded_json(data, most=MOST, most_items=999)
