"""Converts records to bytes and back. Only this file handles both records and generated messages.

A record and its generated message have fields of the same names. These fields differ:

* a missing round is 0 on the wire. Any other round is sent as its number plus one.

Bytes that are no valid record raise MalformedMessage, and no other error.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import IntEnum
from functools import cache, partial
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.message import DecodeError, Message

from protos.wire.chunk_frame import chunk_header, decode_chunk, encode_chunk
from protos.wire.generated import federation_pb2 as generated
from protos.wire.messages import (
    LARGEST_MESSAGE_BYTES,
    MOST_TOGETHER,
    Chunk,
    CoordinatorMessage,
    MalformedMessage,
    SiteMessage,
)
from protos.wire.upkeep_messages import EnrolmentReply, EnrolmentRequest, RenewalAnswered, RenewalAsked, Upkeep

# The numbers that chunks have in federation.proto.
_CHUNK_OF_SITE: Final = generated.SiteMessage.CHUNK_FIELD_NUMBER
_CHUNK_OF_COORDINATOR: Final = generated.CoordinatorMessage.CHUNK_FIELD_NUMBER
_TOGETHER: Final = bytes([generated.CoordinatorMessage.TOGETHER_FIELD_NUMBER << 3 | 2])
# By the name of the generated message, which is that of the record except for renewals.
_RECORDS: Final[Mapping[str, type]] = {
    kind.__name__: kind for kind in get_args(SiteMessage | CoordinatorMessage | Upkeep)
} | {"RenewalRequest": RenewalAsked, "RenewalReply": RenewalAnswered}
_ON_ENROLMENT_PORT: Final[Mapping[type, type[Message]]] = {
    EnrolmentRequest: generated.EnrolmentRequest, EnrolmentReply: generated.EnrolmentReply,
    RenewalAsked: generated.RenewalRequest, RenewalAnswered: generated.RenewalReply,
}  # fmt: skip


def _contents_of(outer: type[Message]) -> dict[str, type]:
    found = {field.name: field.message_type for field in outer.DESCRIPTOR.oneofs_by_name["content"].fields}
    return {name: _RECORDS[kind.name] for name, kind in found.items() if kind is not None and kind.name != "Upkeep"}


_OF_SITE: Final = _contents_of(generated.SiteMessage)
_OF_COORDINATOR: Final = _contents_of(generated.CoordinatorMessage)
_OF_UPKEEP: Final = _contents_of(generated.Upkeep)
_NAMES: Final = {kind: name for table in (_OF_SITE, _OF_COORDINATOR, _OF_UPKEEP) for name, kind in table.items()}
_ROUNDS: Final = frozenset({"next_round", "best_round"})
_NEWEST_TOGETHER: Final = deque[tuple[tuple[bytes, ...], bytes]](maxlen=2)
_NEWEST: Final = deque[tuple[CoordinatorMessage | Upkeep, bytes]](maxlen=8)
_AS_THEY_ARE: Final = frozenset({bool, bytes, int, str})  # most values; the checks behind this one cost more

Record = TypeVar("Record")
Outer = TypeVar("Outer", bound=Message)


def encode_site_message(message: SiteMessage | Upkeep) -> bytes:
    """Encode a message from a site."""
    if isinstance(message, Chunk):
        return encode_chunk(message, _CHUNK_OF_SITE)
    return _encoded(generated.SiteMessage(**_content(message)))


def site_chunk_header(chunk: Chunk) -> bytes:
    """Return the bytes before a chunk's body. Header and body together are one message from a site."""
    return chunk_header(chunk, _CHUNK_OF_SITE)


def decode_site_message(raw: bytes) -> SiteMessage | Upkeep:
    """Decode a message from a site.

    Raises:
        MalformedMessage: the bytes are no message that a site of this version sends.
    """
    chunk = _chunk(raw, _CHUNK_OF_SITE)
    return chunk if chunk is not None else _inner(_parsed(generated.SiteMessage(), raw), _OF_SITE)


def encode_coordinator_message(message: CoordinatorMessage | Upkeep) -> bytes:
    """Encode a message from the coordinator."""
    if isinstance(message, Chunk):
        return encode_chunk(message, _CHUNK_OF_COORDINATOR)
    for known, raw in _NEWEST:  # most messages go to all sites of a run
        if known is message:
            return raw
    raw = _encoded(generated.CoordinatorMessage(**_content(message)))
    _NEWEST.append((message, raw))
    return raw


def put_together(messages: Sequence[bytes]) -> bytes:
    """Join several encoded messages from the coordinator into one message. A single message stays unchanged."""
    if len(messages) == 1:
        return messages[0]
    for known, raw in _NEWEST_TOGETHER:  # most sites get the same messages
        if len(known) == len(messages) and all(map(operator.is_, known, messages)):
            return raw
    raw = _encoded(generated.CoordinatorMessage(together=messages))
    _NEWEST_TOGETHER.append((tuple(messages), raw))
    return raw


def taken_apart(raw: bytes | memoryview) -> Sequence[bytes | memoryview]:
    """Divide a joined message from the coordinator into its encoded messages. No encoded message is joined again.

    Raises:
        MalformedMessage: the messages are too many, or are mixed with other content.
    """
    if bytes(raw[:1]) != _TOGETHER:
        return (raw,)
    outer = _parsed(generated.CoordinatorMessage(), raw)
    if not 1 < len(outer.together) <= MOST_TOGETHER or outer.WhichOneof("content") is not None:
        raise MalformedMessage("messages that are joined in a wrong way")
    return tuple(outer.together)


def decode_coordinator_message(raw: bytes | memoryview) -> CoordinatorMessage | Upkeep:
    """Decode a message from the coordinator.

    Raises:
        MalformedMessage: the bytes are no message that a coordinator of this version sends.
    """
    chunk = _chunk(raw, _CHUNK_OF_COORDINATOR)
    return chunk if chunk is not None else _inner(_parsed(generated.CoordinatorMessage(), raw), _OF_COORDINATOR)


def encode_enrolment(message: EnrolmentRequest | EnrolmentReply | RenewalAsked | RenewalAnswered) -> bytes:
    """Encode a request or a reply on the enrolment port."""
    return _encoded(_ON_ENROLMENT_PORT[type(message)](**_facts(message)))


def decode_enrolment(kind: type[Record], raw: bytes) -> Record:
    """Decode a request or a reply of this kind on the enrolment port. Raises MalformedMessage."""
    return _record(kind, _parsed(_ON_ENROLMENT_PORT[kind](), raw))


def _encoded(outer: Message) -> bytes:
    return outer.SerializeToString(deterministic=True)


# Any: every type that protobuf accepts
def _content(message: SiteMessage | CoordinatorMessage | Upkeep) -> dict[str, Any]:
    inner = {_NAMES[type(message)]: _facts(message)}
    return {"upkeep": inner} if isinstance(message, Upkeep) else inner


def _facts(record: object) -> dict[str, Any]:
    kind: Any = type(record)
    return {name: _written(name, getattr(record, name)) for name, _ in _readers(kind)}


def _written(name: str, value: Any) -> Any:
    if name in _ROUNDS:
        return 0 if value is None else 1 + value
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, tuple):
        return [_written("", one) for one in value]
    return _facts(value) if is_dataclass(value) else value


def _parsed(outer: Outer, raw: bytes | memoryview) -> Outer:
    if len(raw) > LARGEST_MESSAGE_BYTES:
        raise MalformedMessage("message size")
    try:
        outer.ParseFromString(bytes(raw))
    except DecodeError as cause:
        raise MalformedMessage("not a message of this protocol") from cause
    return outer


def _chunk(raw: bytes | memoryview, field: int) -> Chunk | None:
    if len(raw) > LARGEST_MESSAGE_BYTES:
        raise MalformedMessage("message size")
    return decode_chunk(raw, field)


def _inner(outer: Any, kinds: Mapping[str, type[Record]]) -> Record | Upkeep:
    name = outer.WhichOneof("content")
    if name == "upkeep":
        return _inner(outer.upkeep, _OF_UPKEEP)
    if name not in kinds:
        raise MalformedMessage("empty or unknown message")
    return _record(kinds[name], getattr(outer, name))


def _record(kind: Callable[..., Record], message: Any) -> Record:
    return kind(**{name: read(getattr(message, name)) for name, read in _readers(kind)})


@cache
def _readers(kind: Any) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    """Return the fields of a kind of record, each with the function that converts its generated value."""
    hints = get_type_hints(kind)
    return tuple((field.name, _reader(field.name, hints[field.name])) for field in fields(kind))


def _reader(name: str, hint: Any) -> Callable[[Any], Any]:
    if name in _ROUNDS:
        return lambda number: number - 1 if number else None
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return partial(_enumerated, hint)
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        return partial(_records, inner) if is_dataclass(inner) else tuple
    if isinstance(hint, type) and is_dataclass(hint):
        return partial(_record, hint)
    return lambda value: value


def _records(kind: Any, messages: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(_record(kind, message) for message in messages)


def _enumerated(kind: type[IntEnum], value: int) -> IntEnum:
    try:
        return kind(value)
    except ValueError as cause:
        raise MalformedMessage("unknown reason or stage") from cause
