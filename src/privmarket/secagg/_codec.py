"""Frozen records as bytes. Each record has exactly one encoding, and other bytes are refused.

Every field has a fixed place. An `int` is 8 bytes, little-endian and at least 0; a `float` is 8 bytes; `bytes` and
`str` begin with their length in 4 bytes; a tuple begins with its number of items in 4 bytes; a record inside a
record is written field by field. So two different records of one kind never have the same bytes. Hashes and
signatures over them rely on that.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import fields
from functools import lru_cache
from typing import TypeVar, cast, get_args, get_origin, get_type_hints

from privmarket.secagg._errors import SumRefusal

_WHOLE = struct.Struct("<Q")
_REAL = struct.Struct("<d")
_COUNT = struct.Struct("<I")

Record = TypeVar("Record")


def encode(record: object) -> bytes:
    """The bytes of a frozen record, without its kind."""
    return b"".join(_parts(record))


def decode(kind: type[Record], data: bytes) -> Record:
    """The record of that kind that `encode` wrote.

    Raises:
        SumRefusal: these are not the bytes of such a record.
    """
    reader = _Reader(data)
    try:
        record = reader.record(kind)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise SumRefusal("message", f"{len(data)} bytes are no {kind.__name__}: {error}") from error
    if reader.place != len(data):
        raise SumRefusal("message", f"{len(data) - reader.place} bytes too many for a {kind.__name__}")
    return cast(Record, record)


def _parts(value: object) -> Iterator[bytes]:
    if isinstance(value, bool):
        raise TypeError("a truth value has no place in a message")
    if isinstance(value, int):
        yield _WHOLE.pack(value)
    elif isinstance(value, float):
        yield _REAL.pack(value)
    elif isinstance(value, str | bytes):
        text = value.encode() if isinstance(value, str) else value
        yield _COUNT.pack(len(text))
        yield text
    elif isinstance(value, tuple):
        yield _COUNT.pack(len(value))
        for item in value:
            yield from _parts(item)
    else:
        for name, _ in _field_types(cast(type, type(value))):
            yield from _parts(getattr(value, name))


@lru_cache(maxsize=64)
def _field_types(kind: type) -> tuple[tuple[str, object], ...]:
    hints = get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in fields(kind))


class _Reader:
    """Reads values one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.place = 0

    def record(self, kind: type) -> object:
        return kind(**{name: self._value(hint) for name, hint in _field_types(kind)})

    def _value(self, hint: object) -> object:
        if hint is int:
            return _WHOLE.unpack(self._take(_WHOLE.size))[0]
        if hint is float:
            return _REAL.unpack(self._take(_REAL.size))[0]
        if hint is bytes:
            return self._text()
        if hint is str:
            return self._text().decode()
        if get_origin(hint) is tuple:
            item = get_args(hint)[0]
            count = _COUNT.unpack(self._take(_COUNT.size))[0]
            if count > len(self._data) - self.place:  # every item has at least one byte
                raise IndexError(f"a list of {count} items")
            return tuple(self._value(item) for _ in range(count))
        return self.record(cast(type, hint))

    def _text(self) -> bytes:
        return self._take(_COUNT.unpack(self._take(_COUNT.size))[0])

    def _take(self, size: int) -> bytes:
        found = self._data[self.place : self.place + size]
        if len(found) != size:
            raise IndexError("the bytes end too early")
        self.place += size
        return found
