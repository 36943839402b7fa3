"""One example of everything that is sent or agreed on. A new message or key is added here once."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from pydantic import TypeAdapter

from protos.fingerprints import fingerprint
from protos.plan.architecture import Architecture, network_tensors
from protos.plan.methods import NETWORK_METHODS, MethodChoice
from protos.plan.plan import Plan, plan_from_json
from protos.wire import messages
from protos.wire.upkeep_messages import (
    EnrolmentReply,
    EnrolmentRequest,
    KeptHead,
    LogHeads,
    RenewalAnswered,
    RenewalAsked,
    Upkeep,
)
from tests.plan_changes import changed

GLOBAL_LAYERS: Final = {"name": "global-layers"}
FEDERATED_AVERAGING: Final = {"name": "fedavg"}
LOCAL_ONLY: Final = {"name": "local"}
METHODS: Final[tuple[dict[str, Any], ...]] = tuple({"name": name} for name in NETWORK_METHODS)
NETWORK: Final = {
    "name": "global-layers-network",
    "latent": 8,
    "gate": False,
    "input_normalisation": False,
    "transformer_blocks": 1,
}
COLUMNS: Final = ("age", "chol", "cp")
TWO_EXTRACTORS: Final = {"name": "parallel", "common": [4, 3], "unique": [3]}
TWO_COLUMNS: Final = {"name": "columns", "hidden": [5, 4], "lateral": 0.5}
NORMALISED: Final = {
    "name": "convolutional", "image": {"height": 4, "width": 4, "channels": 1}, "blocks": [2], "hidden": [],
    "normalisation": True,
}  # fmt: skip
PLAIN_DESCENT: Final = {"name": "sgd", "learning_rate": 0.1}
BY_KEY_SESSION: Final = {"aggregate": "every-epoch", "epochs": 4, "batches_per_epoch": 2}
# The settings that a method's plan must have and others need not.
COMPANIONS: Final[dict[str, dict[str, Any]]] = {
    "chfl": {"architecture": TWO_COLUMNS},
    "fenda-fl": {"architecture": TWO_EXTRACTORS},
    "perfcl": {"architecture": TWO_EXTRACTORS},
    "fedbn": {"architecture": NORMALISED},
    "scaffold": {"optimiser": PLAIN_DESCENT},
    "fedrep": {"schedule": BY_KEY_SESSION},
}


def listed(count: int) -> list[dict[str, str]]:
    """This number of sites as a plan lists them, with fingerprints of keys that do not exist."""
    keys = [hashlib.sha256(str(index).encode()).digest() for index in range(count)]
    return [{"name": f"site-{index:03d}", "identity": fingerprint(key)} for index, key in enumerate(keys)]


def table_one_of(*columns: dict[str, Any], by: str | None = None) -> dict[str, Any]:
    """The keys of a statistics plan that describes these columns, for three sites or more."""
    concepts = [
        {"kind": "codes" if "codes" in column else "number", "definition": f"{column['name']}.", **column}
        for column in columns
    ]
    described = [column["name"] for column in columns if column["name"] != by]
    analyses = [{"name": "patients", "table_one": {"columns": described} | ({"by": by} if by else {})}]
    return {"kind": "statistics", "fewest_sites": 3, "concepts": concepts, "analyses": analyses}


def plan_document(**changes: Any) -> dict[str, Any]:
    """A plan as a person would write it, with these changes."""
    document = {
        "kind": "network",
        "study": "heart",
        "version": 1,
        "method": GLOBAL_LAYERS,
        "architecture": NETWORK,
        "schedule": {"aggregate": "every-batch", "epochs": 2, "batches_per_epoch": 4},
        "optimiser": {"name": "adamw", "learning_rate": 0.001},
        "weighting": {"name": "equal"},
        "start": {"name": "equal", "seed": 7},
        "sites": listed(3),
    }
    return changed(document, changes)


def plan_with(**changes: Any) -> Plan:
    """The checked plan of `plan_document`."""
    return plan_from_json(json.dumps(plan_document(**changes)))


def plan_of_method(method: dict[str, Any], **changes: Any) -> Plan:
    """A plan of the catalogue's method, with what else such a plan has to say."""
    keys = COMPANIONS.get(method["name"], {}) | changes
    architecture = TypeAdapter[Any](Architecture).validate_json(json.dumps(keys.get("architecture", NETWORK)))
    parts = TypeAdapter[Any](MethodChoice).validate_json(json.dumps(method)).method().federated_parts

    def shapes(columns: int, outputs: int) -> list[tuple[int, ...]]:
        tensors = network_tensors(architecture, columns=columns + 1, outputs=outputs, common=columns)
        return [tensor.shape for tensor in tensors if tensor.part in parts]

    columns = {"columns": list(COLUMNS)} if shapes(2, 2) != shapes(3, 2) else {}
    outputs = {"outputs": 1} if shapes(2, 2) != shapes(2, 3) else {}
    return plan_with(**{"method": method} | columns | outputs | keys)


_ADVERTS: Final = tuple(
    messages.KeyAdvert(site, 3, bytes([number] * 32), b"n" * 32, b"i" * 32, b"s" * 64)
    for number, site in enumerate(("berlin", "lyon"), start=1)
)
_ACKNOWLEDGEMENTS: Final = tuple(
    messages.KeySessionAcknowledgement(site, 3, b"t" * 32, b"s" * 64) for site in ("berlin", "lyon")
)

SITE_MESSAGES: Final[tuple[messages.SiteMessage, ...]] = (
    messages.Hello(1, "0.1.0"),
    messages.Hello(1, "0.1.0", together=True),
    messages.Join("heart-v1-0123456789ab", b"p" * 32, b"m" * 32, 0),
    messages.Join("heart-v1-0123456789ab", b"p" * 32, b"m" * 32, 9),
    messages.Join("heart", b"p" * 32, b"m" * 32, 0, None, (0, 7, 1 << 31)),
    messages.Chunk(0, 0, 0, b""),
    messages.Chunk(1 << 31, (1 << 20) - 1, (1 << 20) - 1, bytes(range(256))),
    messages.Chunk(5, 2, 1, bytes(524_296)),
    messages.Done("heart"),
    *(messages.Refusal("heart", reason, "body.layer2.inner.weight") for reason in messages.SiteReason),
    messages.Refusal("heart", messages.SiteReason.DATA_UNFIT),
    *_ADVERTS,
    *_ACKNOWLEDGEMENTS,
)
COORDINATOR_MESSAGES: Final[tuple[messages.CoordinatorMessage, ...]] = (
    messages.Announcement("heart", b"{}"),
    messages.Offer(3, 1, b"d" * 32),
    messages.Offer(3, 1, b"d" * 32, saves=True, oldest=3),
    *(messages.Offer(1 << 31, 0, b"d" * 32, stage, b"\x05\x01", 0) for stage in messages.Stage),
    messages.Offer(9, 0, b"d" * 32, messages.Stage.TRAINING, bytes(range(256)) * 32, 8),
    messages.Bind(3, 1, ("berlin", "lyon"), 0),
    messages.Bind(3, 1, tuple(f"site-{index:03d}" for index in range(100)), 7),
    messages.Chunk(0, 0, 0, b""),
    messages.Chunk(3, 1, 2, bytes(range(256))),
    messages.Finish(4, b"d" * 32),
    messages.Finish(4, b"d" * 32, b"\x03", 3),
    *(messages.Farewell(reason, "one line for the site's operator") for reason in messages.CoordinatorReason),
    messages.KeySessionOpen(3, ("berlin", "lyon")),
    messages.KeySessionRoster(3, _ADVERTS),
    messages.KeySessionSeal(3, _ACKNOWLEDGEMENTS),
)
ENROLMENT_REQUEST: Final = EnrolmentRequest(b"t" * 24, b"request", b"k" * 32, b"s" * 64)
ENROLMENT_REPLIES: Final = (
    EnrolmentReply(b"chain", "", ""),
    EnrolmentReply(b"chain", "", "", was_member=True),
    EnrolmentReply(b"", "abcd-efgh", ""),
    EnrolmentReply(b"", "", "the invitation has expired"),
)
UPKEEP: Final[tuple[Upkeep, ...]] = (
    LogHeads(KeptHead(3, b"h" * 32, 1_772_366_400_000), KeptHead()),
    RenewalAsked("berlin", b"request", b"s" * 64),
    RenewalAnswered(b"chain", ""),
    RenewalAnswered(b"", "the site is not a member"),
)
