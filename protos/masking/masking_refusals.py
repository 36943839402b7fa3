"""Lists every reason for which a site refuses to mask.

The reasons are fixed texts without received values, keys or names. So a refusal can be logged, audited and sent to the
coordinator unchanged.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """The reason of a refusal, as a fixed text."""

    OTHER_SITES = "the sites are not exactly those of the plan"
    WRONG_KEY_SESSION = "an advert is from another key session"
    WRONG_IDENTITY_KEY = "an identity key is not the one that the plan lists for its site"
    ADVERT_NOT_SIGNED = "an advert is not signed by its site for this run, key session and plan"
    KEY_TWICE = "two sites have the same key"
    EXCHANGE_KEY_UNFIT = "an exchange key is not in its only valid form"
    OWN_ADVERT_CHANGED = "the roster does not contain this site's own advert unchanged"
    ACKNOWLEDGEMENTS_INCOMPLETE = "the acknowledgements are not from exactly the sites of the roster"
    ANOTHER_TRANSCRIPT = "a site has acknowledged another roster"
    ACKNOWLEDGEMENT_NOT_SIGNED = "an acknowledgement is not signed by its site"
    LOW_ORDER_KEY = "an exchange key gives the same result whoever uses it"
    NOT_INCREASING = "the step or attempt is not after the last one that was masked"
    OTHER_POSITION = "the step was already masked with other received bytes"
    OTHER_SETS = "this sum and the sums of another plan would together isolate too few sites"
    OTHER_RULES = "this plan and another one count the same sites by different rules, so a difference isolates sites"
    OTHER_VECTOR = "the vector is not the one that was masked for this step"


class MaskingRefused(ValueError):
    """The site masks nothing. The text of `reason` may be shown to anybody."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


def require(is_right: bool, reason: Reason) -> None:
    """Raise MaskingRefused with this reason if the condition is false."""
    if not is_right:
        raise MaskingRefused(reason)
