"""Records and bytes: a decoded message encodes to the same bytes, and no other bytes are ever decoded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos.wire import codec
from protos.wire.chunk_frame import decode_chunk, encode_chunk
from protos.wire.generated import federation_pb2 as generated
from protos.wire.messages import (
    LARGEST_MESSAGE_BYTES,
    MOST_TOGETHER,
    Chunk,
    CoordinatorMessage,
    MalformedMessage,
    SiteMessage,
)
from protos.wire.upkeep_messages import EnrolmentReply, EnrolmentRequest, LogHeads, RenewalAnswered, RenewalAsked
from tests.protos.examples import COORDINATOR_MESSAGES, ENROLMENT_REPLIES, ENROLMENT_REQUEST, SITE_MESSAGES, UPKEEP

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]

SITE: tuple[Encode, Decode] = (codec.encode_site_message, codec.decode_site_message)
COORDINATOR: tuple[Encode, Decode] = (codec.encode_coordinator_message, codec.decode_coordinator_message)
REQUEST: tuple[Encode, Decode] = (codec.encode_enrolment, partial(codec.decode_enrolment, EnrolmentRequest))
REPLY: tuple[Encode, Decode] = (codec.encode_enrolment, partial(codec.decode_enrolment, EnrolmentReply))
EXAMPLES: list[tuple[Encode, Decode, Any]] = [
    *((*SITE, message) for message in (*SITE_MESSAGES, *UPKEEP)),
    *((*COORDINATOR, message) for message in (*COORDINATOR_MESSAGES, *UPKEEP)),
    (*REQUEST, ENROLMENT_REQUEST),
    *((*REPLY, message) for message in ENROLMENT_REPLIES),
]
SMALL = [example for example in EXAMPLES if len(example[0](example[2])) < 5000]
DECODERS = [SITE[1], COORDINATOR[1], REQUEST[1], REPLY[1]]


def _name(value: object) -> str:
    return getattr(value, "__name__", type(value).__name__)


@pytest.mark.parametrize(
    ("examples", "choice"),
    [
        (SITE_MESSAGES, SiteMessage),
        (COORDINATOR_MESSAGES, CoordinatorMessage),
        (UPKEEP, LogHeads | RenewalAsked | RenewalAnswered),
    ],
)
def test_every_kind_of_message_has_an_example(examples: tuple[object, ...], choice: object) -> None:
    """A new message cannot join the contract without joining these laws."""
    assert {type(example) for example in examples} == set(get_args(choice))


@pytest.mark.parametrize(("encode", "decode", "message"), EXAMPLES, ids=_name)
def test_a_decoded_message_encodes_equal(encode: Encode, decode: Decode, message: object) -> None:
    """A message survives the wire, and its bytes survive the record."""
    raw = encode(message)

    decoded = decode(raw)

    assert decoded == message
    assert encode(decoded) == raw
    assert len(raw) <= LARGEST_MESSAGE_BYTES


@given(
    number=st.integers(0, 1 << 31),
    attempt=st.integers(0, (1 << 20) - 1),
    index=st.integers(0, (1 << 20) - 1),
    body=st.binary(max_size=300),
    field=st.integers(1, 15),
)
def test_a_chunks_frame_holds_every_number(number: int, attempt: int, index: int, body: bytes, field: int) -> None:
    """The hand-written frame is protobuf's in both directions, and leaves the body at a multiple of eight."""
    chunk = Chunk(number, attempt, index, body)

    raw = encode_chunk(chunk, field)
    inner = generated.Chunk(round=number, attempt=attempt, index=index, body=body)

    assert generated.SiteMessage.FromString(SITE[0](chunk)).chunk == inner
    assert SITE[1](generated.SiteMessage(chunk=inner).SerializeToString()) == chunk

    assert decode_chunk(raw, field) == chunk
    assert len(raw) - len(body) == 24
    assert decode_chunk(raw, field % 15 + 1) is None


@pytest.mark.parametrize("size", [LARGEST_MESSAGE_BYTES + 1, LARGEST_MESSAGE_BYTES * 2])
@pytest.mark.parametrize("decode", DECODERS, ids=_name)
def test_an_oversized_message_is_refused_unread(decode: Decode, size: int) -> None:
    """Above 2 MiB nothing is parsed, not even what would be a message."""
    chunk = codec.encode_site_message(Chunk(0, 0, 0, bytes(1000)))

    with pytest.raises(MalformedMessage, match="message size"):
        decode(chunk + bytes(size - len(chunk)))


@pytest.mark.parametrize("number", [0, 999, 2**32 - 1])
def test_an_unknown_reason_is_refused(number: int) -> None:
    """A reason that this version does not know never becomes one that it knows."""
    refusal = generated.SiteMessage(refusal=generated.Refusal(run="heart", reason=number)).SerializeToString()
    farewell = generated.CoordinatorMessage(farewell=generated.Farewell(reason=number)).SerializeToString()

    with pytest.raises(MalformedMessage, match="unknown reason"):
        codec.decode_site_message(refusal)
    with pytest.raises(MalformedMessage, match="unknown reason"):
        codec.decode_coordinator_message(farewell)


@pytest.mark.parametrize("decode", [SITE[1], COORDINATOR[1]], ids=_name)
@pytest.mark.parametrize("raw", [b"", b"\xfa\x07\x00", b"\x0a", b"\xff" * 30], ids=["empty", "unknown", "cut", "noise"])
def test_what_is_no_known_message_is_refused(decode: Decode, raw: bytes) -> None:
    """An empty message, a message of a later version, a cut one and noise are malformed."""
    with pytest.raises(MalformedMessage):
        decode(raw)


def test_the_compiled_messages_are_those_of_the_proto(tmp_path: Path) -> None:
    """Compiling federation.proto now gives the very files that are kept in the tree."""
    protoc = pytest.importorskip("grpc_tools.protoc")
    source = Path(codec.__file__).parent
    kept = source / "generated"

    status = protoc.main(
        ["protoc", f"-I{source}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", str(source / "federation.proto")]
    )

    assert status == 0
    compiled = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert compiled.keys() == {path.name for path in kept.glob("federation*")}
    assert all((kept / name).read_text() == text for name, text in compiled.items())


@settings(max_examples=50)
@given(
    st.lists(
        st.sampled_from([encode(message) for encode, _, message in SMALL if encode is COORDINATOR[0]]),
        min_size=1,
        max_size=MOST_TOGETHER,
    )
)
def test_messages_that_travel_together_are_the_same_messages(messages: list[bytes]) -> None:
    """They come out in their order, byte for byte; one alone is as it was on the wire of version 0.1."""
    together = codec.put_together(messages)

    assert [bytes(raw) for raw in codec.taken_apart(together)] == messages
    assert together == messages[0] or len(messages) > 1


@pytest.mark.parametrize(
    "outer",
    [generated.CoordinatorMessage(together=[b""]), generated.CoordinatorMessage(together=[b""] * (MOST_TOGETHER + 1))],
)
def test_too_few_or_too_many_messages_together_are_refused(outer: generated.CoordinatorMessage) -> None:
    """What no coordinator sends is refused before any of it is read."""
    with pytest.raises(MalformedMessage):
        codec.taken_apart(outer.SerializeToString())
