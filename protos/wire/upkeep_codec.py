"""Converts messages beside the rounds to generated messages and back. `codec.py` puts them into the streams.

Whatever cannot become a record raises MalformedMessage, and nothing else.
"""

from __future__ import annotations

from typing import Final, assert_never

from google.protobuf.message import DecodeError

from protos.wire.generated import federation_pb2 as generated
from protos.wire.log_checkpoints import CheckpointRefused, Cosignature, LogCheckpoint
from protos.wire.messages import LARGEST_MESSAGE_BYTES, MalformedMessage
from protos.wire.upkeep_messages import (
    LogCosignature,
    LogGrowth,
    LogStanding,
    RenewalAnswered,
    RenewalAsked,
    Upkeep,
)

_LEAF_BYTES: Final = 32


def to_upkeep(message: Upkeep) -> generated.Upkeep:
    """Convert a record to a generated message."""
    match message:
        case LogStanding(key=key, checkpoint=checkpoint):
            return generated.Upkeep(
                standing=generated.LogStanding(key=key, checkpoint=_checkpoint(checkpoint) if checkpoint else None)
            )
        case LogGrowth(checkpoint=checkpoint, start=start, leaves=leaves):
            growth = generated.LogGrowth(checkpoint=_checkpoint(checkpoint), start=start, leaves=b"".join(leaves))
            return generated.Upkeep(growth=growth)
        case LogCosignature(size=size, given=given):
            signed = generated.LogCosignature(
                size=size, witness=given.witness, time=given.time, key=given.key, signature=given.signature
            )
            return generated.Upkeep(cosignature=signed)
        case RenewalAsked():
            return generated.Upkeep(renewal=_renewal(message))
        case RenewalAnswered():
            return generated.Upkeep(renewed=_renewed(message))
        case _:
            assert_never(message)


def from_upkeep(outer: generated.Upkeep) -> Upkeep:
    """Convert a generated message to a record. Raises MalformedMessage."""
    try:
        match outer.WhichOneof("content"):
            case "standing":
                standing = outer.standing
                return LogStanding(
                    standing.key, _from_checkpoint(standing.checkpoint) if standing.HasField("checkpoint") else None
                )
            case "growth":
                return _from_growth(outer.growth)
            case "cosignature":
                found = outer.cosignature
                given = Cosignature(found.witness, found.time, found.key, found.signature)
                return LogCosignature(found.size, given)
            case "renewal":
                return _from_renewal(outer.renewal)
            case "renewed":
                return _from_renewed(outer.renewed)
            case _:
                raise MalformedMessage("empty or unknown upkeep")
    except CheckpointRefused as cause:
        raise MalformedMessage(f"a checkpoint of a log: {cause}") from cause


def encode_renewal(message: RenewalAsked) -> bytes:
    """Encode a request on the enrolment port."""
    return _renewal(message).SerializeToString(deterministic=True)


def decode_renewal(raw: bytes) -> RenewalAsked:
    """Decode a request on the enrolment port. Raises MalformedMessage."""
    outer = generated.RenewalRequest()
    _parse(outer, raw)
    return _from_renewal(outer)


def encode_renewed(message: RenewalAnswered) -> bytes:
    """Encode an answer on the enrolment port."""
    return _renewed(message).SerializeToString(deterministic=True)


def decode_renewed(raw: bytes) -> RenewalAnswered:
    """Decode an answer on the enrolment port. Raises MalformedMessage."""
    outer = generated.RenewalReply()
    _parse(outer, raw)
    return _from_renewed(outer)


def _parse(outer: generated.RenewalRequest | generated.RenewalReply, raw: bytes) -> None:
    if len(raw) > LARGEST_MESSAGE_BYTES:
        raise MalformedMessage("message size")
    try:
        outer.ParseFromString(raw)
    except DecodeError as cause:
        raise MalformedMessage("not a message of this protocol") from cause


def _checkpoint(signed: LogCheckpoint) -> generated.LogCheckpoint:
    return generated.LogCheckpoint(
        owner=signed.owner,
        generation=signed.generation,
        size=signed.size,
        hash=bytes.fromhex(signed.hash),
        time=signed.time,
        key=signed.key,
        signature=signed.signature,
    )


def _from_checkpoint(outer: generated.LogCheckpoint) -> LogCheckpoint:
    texts = (outer.owner, outer.time)
    if not all(text.isascii() and text.isprintable() for text in texts):
        raise MalformedMessage("a checkpoint of a log")
    return LogCheckpoint(
        outer.owner, outer.generation, outer.size, outer.hash.hex(), outer.time, outer.key, outer.signature
    )


def _from_growth(outer: generated.LogGrowth) -> LogGrowth:
    leaves = outer.leaves
    if len(leaves) % _LEAF_BYTES:
        raise MalformedMessage("leaf size")
    parts = tuple(leaves[place : place + _LEAF_BYTES] for place in range(0, len(leaves), _LEAF_BYTES))
    return LogGrowth(_from_checkpoint(outer.checkpoint), outer.start, parts)


def _renewal(message: RenewalAsked) -> generated.RenewalRequest:
    return generated.RenewalRequest(
        site=message.site,
        signing_request=message.signing_request,
        signature=message.signature,
        chain=message.chain,
    )


def _from_renewal(outer: generated.RenewalRequest) -> RenewalAsked:
    return RenewalAsked(outer.site, outer.signing_request, outer.signature, outer.chain)


def _renewed(message: RenewalAnswered) -> generated.RenewalReply:
    return generated.RenewalReply(chain=message.chain, roots=message.roots, refusal=message.refusal)


def _from_renewed(outer: generated.RenewalReply) -> RenewalAnswered:
    return RenewalAnswered(outer.chain, outer.roots, outer.refusal)
