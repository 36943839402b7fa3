from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SiteMessage(_message.Message):
    __slots__ = ("hello", "join", "chunk", "done", "refusal", "advert", "acknowledgement", "upkeep")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    ADVERT_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGEMENT_FIELD_NUMBER: _ClassVar[int]
    UPKEEP_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    join: Join
    chunk: Chunk
    done: Done
    refusal: Refusal
    advert: KeyAdvert
    acknowledgement: KeySessionAcknowledgement
    upkeep: Upkeep
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., join: _Optional[_Union[Join, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., advert: _Optional[_Union[KeyAdvert, _Mapping]] = ..., acknowledgement: _Optional[_Union[KeySessionAcknowledgement, _Mapping]] = ..., upkeep: _Optional[_Union[Upkeep, _Mapping]] = ...) -> None: ...

class CoordinatorMessage(_message.Message):
    __slots__ = ("announcement", "offer", "chunk", "bind", "finish", "farewell", "key_session_open", "key_session_roster", "key_session_seal", "upkeep", "together")
    ANNOUNCEMENT_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    BIND_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    FAREWELL_FIELD_NUMBER: _ClassVar[int]
    KEY_SESSION_OPEN_FIELD_NUMBER: _ClassVar[int]
    KEY_SESSION_ROSTER_FIELD_NUMBER: _ClassVar[int]
    KEY_SESSION_SEAL_FIELD_NUMBER: _ClassVar[int]
    UPKEEP_FIELD_NUMBER: _ClassVar[int]
    TOGETHER_FIELD_NUMBER: _ClassVar[int]
    announcement: Announcement
    offer: Offer
    chunk: Chunk
    bind: Bind
    finish: Finish
    farewell: Farewell
    key_session_open: KeySessionOpen
    key_session_roster: KeySessionRoster
    key_session_seal: KeySessionSeal
    upkeep: Upkeep
    together: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, announcement: _Optional[_Union[Announcement, _Mapping]] = ..., offer: _Optional[_Union[Offer, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., bind: _Optional[_Union[Bind, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., farewell: _Optional[_Union[Farewell, _Mapping]] = ..., key_session_open: _Optional[_Union[KeySessionOpen, _Mapping]] = ..., key_session_roster: _Optional[_Union[KeySessionRoster, _Mapping]] = ..., key_session_seal: _Optional[_Union[KeySessionSeal, _Mapping]] = ..., upkeep: _Optional[_Union[Upkeep, _Mapping]] = ..., together: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "software", "together", "sums")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    TOGETHER_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    software: str
    together: bool
    sums: bool
    def __init__(self, protocol: _Optional[int] = ..., software: _Optional[str] = ..., together: _Optional[bool] = ..., sums: _Optional[bool] = ...) -> None: ...

class Announcement(_message.Message):
    __slots__ = ("run", "plan")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    run: str
    plan: bytes
    def __init__(self, run: _Optional[str] = ..., plan: _Optional[bytes] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("run", "plan_digest", "manifest_digest", "key_session", "next_round", "saved", "received", "received_chunks")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PLAN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    KEY_SESSION_FIELD_NUMBER: _ClassVar[int]
    NEXT_ROUND_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    run: str
    plan_digest: bytes
    manifest_digest: bytes
    key_session: int
    next_round: int
    saved: _containers.RepeatedScalarFieldContainer[int]
    received: bytes
    received_chunks: int
    def __init__(self, run: _Optional[str] = ..., plan_digest: _Optional[bytes] = ..., manifest_digest: _Optional[bytes] = ..., key_session: _Optional[int] = ..., next_round: _Optional[int] = ..., saved: _Optional[_Iterable[int]] = ..., received: _Optional[bytes] = ..., received_chunks: _Optional[int] = ...) -> None: ...

class KeySessionOpen(_message.Message):
    __slots__ = ("key_session", "sites")
    KEY_SESSION_FIELD_NUMBER: _ClassVar[int]
    SITES_FIELD_NUMBER: _ClassVar[int]
    key_session: int
    sites: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, key_session: _Optional[int] = ..., sites: _Optional[_Iterable[str]] = ...) -> None: ...

class KeyAdvert(_message.Message):
    __slots__ = ("site", "key_session", "exchange_key", "nonce", "identity_key", "signature")
    SITE_FIELD_NUMBER: _ClassVar[int]
    KEY_SESSION_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_KEY_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    site: str
    key_session: int
    exchange_key: bytes
    nonce: bytes
    identity_key: bytes
    signature: bytes
    def __init__(self, site: _Optional[str] = ..., key_session: _Optional[int] = ..., exchange_key: _Optional[bytes] = ..., nonce: _Optional[bytes] = ..., identity_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class KeySessionRoster(_message.Message):
    __slots__ = ("key_session", "adverts")
    KEY_SESSION_FIELD_NUMBER: _ClassVar[int]
    ADVERTS_FIELD_NUMBER: _ClassVar[int]
    key_session: int
    adverts: _containers.RepeatedCompositeFieldContainer[KeyAdvert]
    def __init__(self, key_session: _Optional[int] = ..., adverts: _Optional[_Iterable[_Union[KeyAdvert, _Mapping]]] = ...) -> None: ...

class KeySessionAcknowledgement(_message.Message):
    __slots__ = ("site", "key_session", "transcript", "signature")
    SITE_FIELD_NUMBER: _ClassVar[int]
    KEY_SESSION_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    site: str
    key_session: int
    transcript: bytes
    signature: bytes
    def __init__(self, site: _Optional[str] = ..., key_session: _Optional[int] = ..., transcript: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class KeySessionSeal(_message.Message):
    __slots__ = ("key_session", "acknowledgements")
    KEY_SESSION_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGEMENTS_FIELD_NUMBER: _ClassVar[int]
    key_session: int
    acknowledgements: _containers.RepeatedCompositeFieldContainer[KeySessionAcknowledgement]
    def __init__(self, key_session: _Optional[int] = ..., acknowledgements: _Optional[_Iterable[_Union[KeySessionAcknowledgement, _Mapping]]] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("round", "attempt", "first_chunk", "parameters_digest", "stage", "layers", "best_round", "saves", "oldest", "scales", "summed_rows", "is_sum")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    BEST_ROUND_FIELD_NUMBER: _ClassVar[int]
    SAVES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    SCALES_FIELD_NUMBER: _ClassVar[int]
    SUMMED_ROWS_FIELD_NUMBER: _ClassVar[int]
    IS_SUM_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    first_chunk: int
    parameters_digest: bytes
    stage: int
    layers: bytes
    best_round: int
    saves: bool
    oldest: int
    scales: bytes
    summed_rows: int
    is_sum: bool
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., first_chunk: _Optional[int] = ..., parameters_digest: _Optional[bytes] = ..., stage: _Optional[int] = ..., layers: _Optional[bytes] = ..., best_round: _Optional[int] = ..., saves: _Optional[bool] = ..., oldest: _Optional[int] = ..., scales: _Optional[bytes] = ..., summed_rows: _Optional[int] = ..., is_sum: _Optional[bool] = ...) -> None: ...

class Bind(_message.Message):
    __slots__ = ("round", "attempt", "sites", "first_chunk")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SITES_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    sites: _containers.RepeatedScalarFieldContainer[str]
    first_chunk: int
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., sites: _Optional[_Iterable[str]] = ..., first_chunk: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("round", "attempt", "index", "body")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    index: int
    body: bytes
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., index: _Optional[int] = ..., body: _Optional[bytes] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("round", "parameters_digest", "layers", "best_round", "first_chunk", "summed_rows", "is_sum")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    BEST_ROUND_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    SUMMED_ROWS_FIELD_NUMBER: _ClassVar[int]
    IS_SUM_FIELD_NUMBER: _ClassVar[int]
    round: int
    parameters_digest: bytes
    layers: bytes
    best_round: int
    first_chunk: int
    summed_rows: int
    is_sum: bool
    def __init__(self, round: _Optional[int] = ..., parameters_digest: _Optional[bytes] = ..., layers: _Optional[bytes] = ..., best_round: _Optional[int] = ..., first_chunk: _Optional[int] = ..., summed_rows: _Optional[int] = ..., is_sum: _Optional[bool] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("run", "reason", "tensor")
    RUN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    run: str
    reason: int
    tensor: str
    def __init__(self, run: _Optional[str] = ..., reason: _Optional[int] = ..., tensor: _Optional[str] = ...) -> None: ...

class Farewell(_message.Message):
    __slots__ = ("reason", "detail")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    reason: int
    detail: str
    def __init__(self, reason: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class EnrolmentRequest(_message.Message):
    __slots__ = ("token", "signing_request", "identity_key", "signature")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SIGNING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    signing_request: bytes
    identity_key: bytes
    signature: bytes
    def __init__(self, token: _Optional[bytes] = ..., signing_request: _Optional[bytes] = ..., identity_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class EnrolmentReply(_message.Message):
    __slots__ = ("chain", "fingerprint", "refusal", "was_member")
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    WAS_MEMBER_FIELD_NUMBER: _ClassVar[int]
    chain: bytes
    fingerprint: str
    refusal: str
    was_member: bool
    def __init__(self, chain: _Optional[bytes] = ..., fingerprint: _Optional[str] = ..., refusal: _Optional[str] = ..., was_member: _Optional[bool] = ...) -> None: ...

class Upkeep(_message.Message):
    __slots__ = ("heads", "renewal", "renewed")
    HEADS_FIELD_NUMBER: _ClassVar[int]
    RENEWAL_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    heads: LogHeads
    renewal: RenewalRequest
    renewed: RenewalReply
    def __init__(self, heads: _Optional[_Union[LogHeads, _Mapping]] = ..., renewal: _Optional[_Union[RenewalRequest, _Mapping]] = ..., renewed: _Optional[_Union[RenewalReply, _Mapping]] = ...) -> None: ...

class KeptHead(_message.Message):
    __slots__ = ("count", "hash", "restored")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    count: int
    hash: bytes
    restored: int
    def __init__(self, count: _Optional[int] = ..., hash: _Optional[bytes] = ..., restored: _Optional[int] = ...) -> None: ...

class LogHeads(_message.Message):
    __slots__ = ("own", "kept")
    OWN_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    own: KeptHead
    kept: KeptHead
    def __init__(self, own: _Optional[_Union[KeptHead, _Mapping]] = ..., kept: _Optional[_Union[KeptHead, _Mapping]] = ...) -> None: ...

class RenewalRequest(_message.Message):
    __slots__ = ("site", "signing_request", "signature")
    SITE_FIELD_NUMBER: _ClassVar[int]
    SIGNING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    site: str
    signing_request: bytes
    signature: bytes
    def __init__(self, site: _Optional[str] = ..., signing_request: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class RenewalReply(_message.Message):
    __slots__ = ("chain", "refusal")
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    chain: bytes
    refusal: str
    def __init__(self, chain: _Optional[bytes] = ..., refusal: _Optional[str] = ...) -> None: ...
