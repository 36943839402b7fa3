"""Converts records to bytes and back. Only this file handles both records and generated messages.

Whatever cannot become a record raises MalformedMessage, and nothing else.
"""

from __future__ import annotations

from typing import Final, TypeVar, assert_never

from google.protobuf.message import DecodeError

from protos.wire.chunk_frame import chunk_header, decode_chunk, encode_chunk
from protos.wire.generated import federation_pb2 as generated
from protos.wire.messages import (
    LARGEST_MESSAGE_BYTES,
    Announcement,
    Bind,
    Chunk,
    CoordinatorMessage,
    CoordinatorReason,
    Done,
    Farewell,
    Finish,
    Hello,
    Join,
    KeyAdvert,
    KeySessionAcknowledgement,
    KeySessionOpen,
    KeySessionRoster,
    KeySessionSeal,
    MalformedMessage,
    Offer,
    Ready,
    Refusal,
    Saved,
    SiteMessage,
    SiteReason,
    Stage,
)
from protos.wire.upkeep_codec import from_upkeep, to_upkeep
from protos.wire.upkeep_messages import (
    EnrolmentReply,
    EnrolmentRequest,
    LogCosignature,
    LogGrowth,
    LogStanding,
    RenewalAnswered,
    RenewalAsked,
    Upkeep,
)

# The numbers that chunks have in federation.proto.
_CHUNK_OF_SITE: Final = generated.SiteMessage.CHUNK_FIELD_NUMBER
_CHUNK_OF_COORDINATOR: Final = generated.CoordinatorMessage.CHUNK_FIELD_NUMBER

Named = TypeVar("Named", SiteReason, CoordinatorReason, Stage)


def encode_site_message(message: SiteMessage | Upkeep) -> bytes:
    """Encode a message from a site."""
    match message:
        case LogStanding() | LogGrowth() | LogCosignature() | RenewalAsked() | RenewalAnswered():
            outer = generated.SiteMessage(upkeep=to_upkeep(message))
        case Chunk():
            return encode_chunk(message, _CHUNK_OF_SITE)
        case Hello():
            hello = generated.Hello(
                protocol=message.protocol,
                software=message.software,
                upkeep=message.upkeep,
                away_from=message.away_from,
                away_until=message.away_until,
            )
            outer = generated.SiteMessage(hello=hello)
        case Join():
            outer = generated.SiteMessage(
                join=generated.Join(
                    run=message.run,
                    plan_digest=message.plan_digest,
                    manifest_digest=message.manifest_digest,
                    key_session=message.key_session,
                    next_round=_from_round(message.next_round),
                    saved=[generated.SavedState(round=state.round, resample=state.resample) for state in message.saved],
                )
            )
        case Ready():
            outer = generated.SiteMessage(ready=generated.Ready(round=message.round, attempt=message.attempt))
        case Done():
            outer = generated.SiteMessage(done=generated.Done(run=message.run))
        case Refusal():
            outer = generated.SiteMessage(
                refusal=generated.Refusal(run=message.run, reason=message.reason, tensor=message.tensor)
            )
        case KeyAdvert():
            outer = generated.SiteMessage(advert=_advert(message))
        case KeySessionAcknowledgement():
            outer = generated.SiteMessage(acknowledgement=_acknowledgement(message))
        case _:
            assert_never(message)
    return outer.SerializeToString(deterministic=True)


def site_chunk_header(chunk: Chunk) -> bytes:
    """Return the bytes before a chunk's body. Header and body together are one message from a site."""
    return chunk_header(chunk, _CHUNK_OF_SITE)


def decode_site_message(raw: bytes) -> SiteMessage | Upkeep:
    """Decode a message from a site.

    Raises:
        MalformedMessage: the bytes are none, or say what no site of this version says.
    """
    chunk = _quickly(raw, _CHUNK_OF_SITE)
    if chunk is not None:
        return chunk
    outer = generated.SiteMessage()
    content = _parse(outer, raw)
    match content:
        case "chunk":
            return _from_chunk(outer.chunk)
        case "hello":
            hello = outer.hello
            return Hello(hello.protocol, hello.software, hello.upkeep, hello.away_from, hello.away_until)
        case "join":
            join = outer.join
            saved = tuple(Saved(state.round, state.resample) for state in join.saved)
            following = _to_round(join.next_round)
            return Join(join.run, join.plan_digest, join.manifest_digest, join.key_session, following, saved)
        case "ready":
            return Ready(outer.ready.round, outer.ready.attempt)
        case "done":
            return Done(outer.done.run)
        case "refusal":
            return Refusal(outer.refusal.run, _enumerated(SiteReason, outer.refusal.reason), outer.refusal.tensor)
        case "advert":
            return _from_advert(outer.advert)
        case "acknowledgement":
            return _from_acknowledgement(outer.acknowledgement)
        case "upkeep":
            return from_upkeep(outer.upkeep)
        case _:
            raise MalformedMessage("empty or unknown message")


def encode_coordinator_message(message: CoordinatorMessage | Upkeep) -> bytes:
    """Encode a message from the coordinator."""
    match message:
        case LogStanding() | LogGrowth() | LogCosignature() | RenewalAsked() | RenewalAnswered():
            outer = generated.CoordinatorMessage(upkeep=to_upkeep(message))
        case Chunk():
            return encode_chunk(message, _CHUNK_OF_COORDINATOR)
        case Announcement():
            outer = generated.CoordinatorMessage(
                announcement=generated.Announcement(run=message.run, plan=message.plan)
            )
        case Offer():
            outer = generated.CoordinatorMessage(
                offer=generated.Offer(
                    round=message.round,
                    attempt=message.attempt,
                    parameters_digest=message.parameters_digest,
                    stage=message.stage,
                    layers=message.layers,
                    best_round=_from_round(message.best_round),
                    saves=message.saves,
                    oldest=message.oldest,
                    returned_to=_from_round(message.returned_to),
                )
            )
        case Bind():
            outer = generated.CoordinatorMessage(
                bind=generated.Bind(
                    round=message.round,
                    attempt=message.attempt,
                    sites=message.sites,
                    first_chunk=message.first_chunk,
                    resample=message.resample,
                )
            )
        case Finish():
            outer = generated.CoordinatorMessage(
                finish=generated.Finish(
                    round=message.round,
                    parameters_digest=message.parameters_digest,
                    layers=message.layers,
                    best_round=_from_round(message.best_round),
                    returned_to=_from_round(message.returned_to),
                    alternative=_from_round(message.alternative),
                )
            )
        case Farewell():
            outer = generated.CoordinatorMessage(
                farewell=generated.Farewell(reason=message.reason, detail=message.detail)
            )
        case KeySessionOpen():
            outer = generated.CoordinatorMessage(
                key_session_open=generated.KeySessionOpen(key_session=message.key_session, sites=message.sites)
            )
        case KeySessionRoster():
            adverts = [_advert(advert) for advert in message.adverts]
            outer = generated.CoordinatorMessage(
                key_session_roster=generated.KeySessionRoster(key_session=message.key_session, adverts=adverts)
            )
        case KeySessionSeal():
            entries = [_acknowledgement(entry) for entry in message.acknowledgements]
            outer = generated.CoordinatorMessage(
                key_session_seal=generated.KeySessionSeal(key_session=message.key_session, acknowledgements=entries)
            )
        case _:
            assert_never(message)
    return outer.SerializeToString(deterministic=True)


def decode_coordinator_message(raw: bytes | memoryview) -> CoordinatorMessage | Upkeep:
    """Decode a message from the coordinator.

    Raises:
        MalformedMessage: the bytes are none, or say what no coordinator of this version says.
    """
    chunk = _quickly(raw, _CHUNK_OF_COORDINATOR)
    if chunk is not None:
        return chunk
    outer = generated.CoordinatorMessage()
    content = _parse(outer, raw)
    match content:
        case "chunk":
            return _from_chunk(outer.chunk)
        case "announcement":
            return Announcement(outer.announcement.run, outer.announcement.plan)
        case "offer":
            offer = outer.offer
            stage, best = _enumerated(Stage, offer.stage), _to_round(offer.best_round)
            digest, layers, returned = offer.parameters_digest, offer.layers, _to_round(offer.returned_to)
            return Offer(offer.round, offer.attempt, digest, stage, layers, best, offer.saves, offer.oldest, returned)
        case "bind":
            bind = outer.bind
            return Bind(bind.round, bind.attempt, tuple(bind.sites), bind.first_chunk, bind.resample)
        case "finish":
            finish = outer.finish
            best, returned = _to_round(finish.best_round), _to_round(finish.returned_to)
            chosen = _to_round(finish.alternative)
            return Finish(finish.round, finish.parameters_digest, finish.layers, best, returned, chosen)
        case "farewell":
            return Farewell(_enumerated(CoordinatorReason, outer.farewell.reason), outer.farewell.detail)
        case "key_session_open":
            return KeySessionOpen(outer.key_session_open.key_session, tuple(outer.key_session_open.sites))
        case "key_session_roster":
            roster = outer.key_session_roster
            return KeySessionRoster(roster.key_session, tuple(_from_advert(advert) for advert in roster.adverts))
        case "key_session_seal":
            seal = outer.key_session_seal
            return KeySessionSeal(
                seal.key_session, tuple(_from_acknowledgement(entry) for entry in seal.acknowledgements)
            )
        case "upkeep":
            return from_upkeep(outer.upkeep)
        case _:
            raise MalformedMessage("empty or unknown message")


def encode_enrolment_request(message: EnrolmentRequest) -> bytes:
    """Encode a request for a certificate."""
    return generated.EnrolmentRequest(
        token=message.token,
        signing_request=message.signing_request,
        identity_key=message.identity_key,
        signature=message.signature,
    ).SerializeToString(deterministic=True)


def decode_enrolment_request(raw: bytes) -> EnrolmentRequest:
    """Decode a request for a certificate. Raises MalformedMessage."""
    outer = generated.EnrolmentRequest()
    _parse(outer, raw, oneof=None)
    return EnrolmentRequest(outer.token, outer.signing_request, outer.identity_key, outer.signature)


def encode_enrolment_reply(message: EnrolmentReply) -> bytes:
    """Encode the answer to an enrolment."""
    return generated.EnrolmentReply(
        chain=message.chain, fingerprint=message.fingerprint, refusal=message.refusal
    ).SerializeToString(deterministic=True)


def decode_enrolment_reply(raw: bytes) -> EnrolmentReply:
    """Decode the answer to an enrolment. Raises MalformedMessage."""
    outer = generated.EnrolmentReply()
    _parse(outer, raw, oneof=None)
    return EnrolmentReply(outer.chain, outer.fingerprint, outer.refusal)


_Outer = generated.SiteMessage | generated.CoordinatorMessage | generated.EnrolmentRequest | generated.EnrolmentReply


def _parse(outer: _Outer, raw: bytes | memoryview, oneof: str | None = "content") -> str | None:
    if len(raw) > LARGEST_MESSAGE_BYTES:
        raise MalformedMessage("message size")
    try:
        outer.ParseFromString(bytes(raw))
    except DecodeError as cause:
        raise MalformedMessage("not a message of this protocol") from cause
    return outer.WhichOneof(oneof) if oneof else None


def _quickly(raw: bytes | memoryview, field: int) -> Chunk | None:
    if len(raw) > LARGEST_MESSAGE_BYTES:
        raise MalformedMessage("message size")
    return decode_chunk(raw, field)


def _from_chunk(chunk: generated.Chunk) -> Chunk:
    return Chunk(chunk.round, chunk.attempt, chunk.index, chunk.body)


def _advert(message: KeyAdvert) -> generated.KeyAdvert:
    return generated.KeyAdvert(
        site=message.site,
        key_session=message.key_session,
        exchange_key=message.exchange_key,
        nonce=message.nonce,
        identity_key=message.identity_key,
        signature=message.signature,
    )


def _from_advert(advert: generated.KeyAdvert) -> KeyAdvert:
    return KeyAdvert(
        advert.site, advert.key_session, advert.exchange_key, advert.nonce, advert.identity_key, advert.signature
    )


def _acknowledgement(message: KeySessionAcknowledgement) -> generated.KeySessionAcknowledgement:
    return generated.KeySessionAcknowledgement(
        site=message.site, key_session=message.key_session, transcript=message.transcript, signature=message.signature
    )


def _from_acknowledgement(entry: generated.KeySessionAcknowledgement) -> KeySessionAcknowledgement:
    return KeySessionAcknowledgement(entry.site, entry.key_session, entry.transcript, entry.signature)


def _from_round(round_number: int | None) -> int:
    return 0 if round_number is None else 1 + round_number


def _to_round(number: int) -> int | None:
    return number - 1 if number else None


def _enumerated(kind: type[Named], value: int) -> Named:
    try:
        return kind(value)
    except ValueError as cause:
        raise MalformedMessage("unknown reason or stage") from cause
