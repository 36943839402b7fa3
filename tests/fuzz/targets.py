"""The fuzzed decoders: every decoder of bytes that somebody else has written, with its allowed errors. A target reads
bytes and returns a word for the result. It raises only its declared errors. Accepted bytes must also satisfy a law,
such as that the same bytes are returned."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import BaseModel

from coordinator.commands.configuration import CoordinatorConfiguration
from coordinator.rounds.aggregation import RunningSum
from coordinator.rounds.course import Course
from coordinator.storage.snapshots import Snapshot, SnapshotRow, read_snapshot, write_snapshot
from pki import certificates
from pki.certificate_chain import identify_site, verified_leaf
from pki.invitation import Invitation, new_token
from pki.names import Address, FederationName, SiteName
from protos.errors import ConfigurationError, OperatorError, ProtocolError, RefusedError
from protos.numbers.chunk_layout import Layout
from protos.plan.documents import parse_document
from protos.plan.manifest import manifest_of
from protos.plan.plan import plan_from_wire, plan_from_yaml
from protos.wire.chunk_frame import decode_chunk, encode_chunk
from protos.wire.codec import (
    decode_coordinator_message,
    decode_enrolment,
    decode_site_message,
    encode_coordinator_message,
    encode_enrolment,
    encode_site_message,
    put_together,
    taken_apart,
)
from protos.wire.generated import federation_pb2 as generated
from protos.wire.messages import MOST_TOGETHER, Chunk, MalformedMessage
from protos.wire.upkeep_messages import EnrolmentReply, EnrolmentRequest
from site_agent.gate_socket import FRAMING as OF_GATE
from site_agent.hospital import Hospital
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.disk import load, save
from site_agent.trainer_socket import FRAMING as OF_TRAINER
from tests.fuzz import frames
from tests.protos.examples import (
    COORDINATOR_MESSAGES,
    ENROLMENT_REPLIES,
    ENROLMENT_REQUEST,
    METHODS,
    SITE_MESSAGES,
    plan_of_method,
)

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
LARGEST_EXAMPLE = 4096
NOW = datetime(2026, 11, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Target:
    """One decoder, and examples of right inputs, from which others are made. `decode` says in a word what bytes were,
    or raises one of `errors`. `is_text`: words are changed rather than bytes."""

    examples: Sequence[bytes]
    decode: Callable[[bytes], str]
    errors: tuple[type[Exception], ...]
    is_text: bool = False


def _message(decode: Callable[[bytes], Any], encode: Callable[[Any], bytes], raw: bytes) -> str:
    message = decode(raw)
    assert decode(encode(message)) == message
    return type(message).__name__


def _messages() -> dict[str, Target]:
    pairs: dict[str, tuple[Callable[[bytes], Any], Callable[[Any], bytes], Sequence[Any]]] = {
        "site-messages": (decode_site_message, encode_site_message, SITE_MESSAGES),
        "coordinator-messages": (decode_coordinator_message, encode_coordinator_message, COORDINATOR_MESSAGES),
        "enrolment-requests": (partial(decode_enrolment, EnrolmentRequest), encode_enrolment, (ENROLMENT_REQUEST,)),
        "enrolment-replies": (partial(decode_enrolment, EnrolmentReply), encode_enrolment, ENROLMENT_REPLIES),
    }
    return {
        name: Target(
            examples=[raw for message in examples if len(raw := encode(message)) <= LARGEST_EXAMPLE],
            decode=partial(_message, decode, encode),
            errors=(MalformedMessage,),
        )
        for name, (decode, encode, examples) in pairs.items()
    }


def _apart(raw: bytes) -> str:
    """Several messages at most, each of them decoded or refused by itself."""
    parts = taken_apart(raw)
    assert len(parts) <= MOST_TOGETHER
    for part in parts:
        with suppress(MalformedMessage):
            decode_coordinator_message(part)
    return "one" if len(parts) == 1 else "several"


def _together() -> Target:
    raw = [
        one for message in COORDINATOR_MESSAGES if len(one := encode_coordinator_message(message)) <= LARGEST_EXAMPLE
    ]
    examples = [put_together(raw[start : start + 3]) for start in range(len(raw) - 2)]
    return Target(examples=examples, decode=_apart, errors=(MalformedMessage,))


def _chunk_frame(raw: bytes) -> str:
    """A chunk that is read by hand and by protobuf is the same chunk."""
    field = generated.SiteMessage.CHUNK_FIELD_NUMBER
    chunk = decode_chunk(raw, field)
    if chunk is None:
        return "none"
    outer = generated.SiteMessage.FromString(raw)
    other = outer.chunk
    assert (chunk.round, chunk.attempt, chunk.index, bytes(chunk.body)) == (
        other.round,
        other.attempt,
        other.index,
        other.body,
    )
    assert encode_chunk(chunk, field) == raw
    return "chunk"


def _chunk_frames() -> Target:
    sizes = (0, 1, 8, 24, 200)
    chunks = [Chunk(number, number % 3, number % 5, bytes(range(size))) for number, size in enumerate(sizes)]
    field = generated.SiteMessage.CHUNK_FIELD_NUMBER
    return Target(
        examples=[encode_chunk(chunk, field) for chunk in chunks], decode=_chunk_frame, errors=(MalformedMessage,)
    )


_LAYOUT = Layout(10, 2)


def _tensors(raw: bytes) -> str:
    """A contribution's chunk is added completely or not at all."""
    total = RunningSum(_LAYOUT.parameters)
    total.reset(_LAYOUT, ("a", "b"))
    before = total.updates.copy()
    try:
        total.add("a", raw[0] if raw else 0, memoryview(raw)[1:])
    except MalformedMessage:
        assert total.arrived("a") == 0
        assert np.array_equal(total.updates, before)
        raise
    assert len(raw) == 1 + _LAYOUT.total_bytes
    return "added"


def _contributions() -> Target:
    body = bytearray(_LAYOUT.total_bytes)
    _LAYOUT.words(memoryview(body), 0)[:] = 1
    return Target(examples=[b"\0" + bytes(body)], decode=_tensors, errors=(MalformedMessage,))


def _snapshot(row: SnapshotRow, path: Path, raw: bytes) -> str:
    """Any file in its place is read as the saved state or as none."""
    path.write_bytes(raw)
    found = read_snapshot(path.parent, row)
    if found is None:
        return "damaged"
    assert np.array_equal(found.values, np.arange(50, dtype=np.float32))
    return "read"


def _snapshots(folder: Path) -> Target:
    rule_state = {"moment": np.linspace(0.0, 1.0, 9)}
    values = np.arange(50, dtype=np.float32)
    row = write_snapshot(folder, Snapshot(round=7, course=Course(), values=values, rule_state=rule_state))
    (path,) = folder.glob("*.safetensors")
    return Target(examples=[path.read_bytes()], decode=partial(_snapshot, row, path), errors=())


def _checkpoint(path: Path, raw: bytes) -> str:
    path.write_bytes(raw)
    found = load(path.parent, path.stem)
    assert np.array_equal(found.tensors["b"], np.eye(4, dtype=np.float32))
    assert found.facts == {"study": [1, "two"]}
    return "read"


def _checkpoints(folder: Path) -> Target:
    arrays = {"a": np.arange(12, dtype=np.int64), "b": np.eye(4, dtype=np.float32)}
    path = save(folder, "model", arrays, {"study": [1, "two"]})
    return Target(examples=[path.read_bytes()], decode=partial(_checkpoint, path), errors=(ConfigurationError,))


def _document(model: type[BaseModel], raw: bytes) -> str:
    parse_document(raw, model, source="file", consequence="Nothing happened.")
    return model.__name__


def _plan(raw: bytes) -> str:
    plan = plan_from_yaml(raw, source="file", consequence="Nothing happened.")
    assert plan_from_wire(plan.canonical).digest == plan.digest
    assert manifest_of(plan).digest
    return plan.kind


def _documents() -> dict[str, Target]:
    kinds: dict[str, tuple[type[BaseModel], str]] = {
        "hospitals": (Hospital, "hospital"),
        "coordinators": (CoordinatorConfiguration, "coordinator"),
        "contracts": (Contract, "contract"),
    }
    plans = [json.loads(plan_of_method(method).model_dump_json(exclude_unset=True)) for method in METHODS]
    plans += [yaml.safe_load((EXAMPLES / f"plan-{kind}.yaml").read_text()) for kind in ("statistics", "prior")]
    examples = [yaml.safe_dump(plan, sort_keys=False).encode() for plan in plans]
    found = {"plans": Target(examples=examples, decode=_plan, errors=(ConfigurationError,), is_text=True)}
    for name, (model, file) in kinds.items():
        # Without its comments, since a reader written in Python takes a minute for a thousand long pages.
        content = yaml.safe_load((EXAMPLES / f"{file}.yaml").read_text())
        examples = [yaml.safe_dump(content, sort_keys=False).encode()]
        found[name] = Target(
            examples=examples, decode=partial(_document, model), errors=(ConfigurationError,), is_text=True
        )
    return found


def _wire_plan(raw: bytes) -> str:
    plan = plan_from_wire(raw)
    assert plan.canonical == raw
    assert manifest_of(plan).digest
    return "plan"


def _wire_plans() -> Target:
    examples = [plan_of_method(method).canonical for method in METHODS]
    return Target(examples=examples, decode=_wire_plan, errors=(ProtocolError,), is_text=True)


def _invitation(raw: bytes) -> str:
    invitation = Invitation.from_json(raw)
    assert Invitation.from_json(invitation.to_json()) == invitation
    assert invitation.fingerprint
    return "invitation"


class _Office:
    """A federation's certificates, made once."""

    def __init__(self) -> None:
        self.federation, now = FederationName("heart"), NOW - timedelta(days=1)
        root_key, issuing_key, self.site_key = (certificates.new_tls_key() for _ in range(3))
        root = certificates.root_certificate(root_key, self.federation, now)
        above, public = certificates.Issuer(root, root_key), self.site_key.public_key()
        issuing = certificates.issuing_certificate(issuing_key.public_key(), above, self.federation, now)
        issuer = certificates.Issuer(issuing, issuing_key)
        site = certificates.site_certificate(public, issuer, self.federation, SiteName("ahus"), now)
        own = certificates.coordinator_certificate(public, issuer, self.federation, ["localhost"], now)
        self.site, self.own, self.issuing, self.root = site, own, issuing, root

    def targets(self) -> dict[str, Target]:
        """Everything of these certificates that is read from strangers."""
        pem = certificates.certificate_pem
        leaves = [pem(self.site), pem(self.own)]
        chain = pem(self.site) + pem(self.issuing)
        return {
            "invitations": Target(
                examples=[self._invitation().to_json()], decode=_invitation, errors=(OperatorError,), is_text=True
            ),
            "certificates": Target(examples=leaves, decode=self._leaf, errors=(RefusedError,)),
            "certificate-chains": Target(examples=[chain], decode=self._chain, errors=(RefusedError,), is_text=True),
            "signing-requests": Target(
                examples=[certificates.signing_request(self.site_key)], decode=_request, errors=(RefusedError,)
            ),
            "private-keys": Target(
                examples=[certificates.key_to_pem(self.site_key)],
                decode=_key,
                errors=(ConfigurationError,),
                is_text=True,
            ),
        }

    def _invitation(self) -> Invitation:
        return Invitation(
            federation=self.federation,
            site=SiteName("ahus"),
            coordinator=Address("localhost", 8443),
            enrolment=Address("localhost", 8444),
            expires=NOW,
            root_pem=certificates.certificate_pem(self.root),
            token=new_token(),
        )

    def _leaf(self, raw: bytes) -> str:
        return f"site {identify_site(raw, self.federation, NOW).name}"

    def _chain(self, raw: bytes) -> str:
        root = certificates.certificate_pem(self.root)
        # Signed by the authority, so whatever passes has to be the one leaf that it has signed.
        assert verified_leaf(raw, root, NOW).tbs_certificate_bytes == self.site.tbs_certificate_bytes
        return "chain"


def _request(raw: bytes) -> str:
    certificates.requested_key(raw)
    return "key"


def _key(raw: bytes) -> str:
    certificates.key_from_pem(raw)
    return "key"


def _frames() -> dict[str, Target]:
    ways = {
        "gate-frames": (frames.gate_frame, OF_GATE, frames.GATE_MESSAGES),
        "trainer-frames": (frames.trainer_frame, OF_TRAINER, frames.TRAINER_MESSAGES),
    }
    return {
        name: Target(
            examples=[framing.frame(message) + bytes(message.payload) for message in messages],
            decode=decode,
            errors=(MalformedMessage,),
        )
        for name, (decode, framing, messages) in ways.items()
    }


def targets(folder: Path) -> dict[str, Target]:
    """Every target by its name; `folder` is for the files that some decoders read."""
    places = {name: folder / name for name in ("snapshots", "checkpoints")}
    for place in places.values():
        place.mkdir()
    return {
        **_messages(),
        "messages-together": _together(),
        **_frames(),
        "chunk-frames": _chunk_frames(),
        "contributions": _contributions(),
        "snapshots": _snapshots(places["snapshots"]),
        "checkpoints": _checkpoints(places["checkpoints"]),
        "plans-from-the-wire": _wire_plans(),
        **_documents(),
        **_Office().targets(),
    }
