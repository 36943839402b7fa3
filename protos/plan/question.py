"""Defines the question that a study answers, in words for a clinician and an ethics board."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import StringConstraints

from protos.plan.documents import Document

Sentence: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=400, pattern=r"^[^\x00-\x1f]+$")]
Answers: TypeAlias = Literal["same", "related", "other"]  # whether a site's outcome is that of the question


class Question(Document):
    """The question of a study: outcome, patients, time, purpose and responsible person.

    Attributes:
        time: the time of the prediction, and how far ahead it looks.
        responsible: the person, with the institution.
        approval_number: the number from the ethics board or authority.
    """

    outcome: Sentence
    population: Sentence
    time: Sentence
    use: Sentence
    responsible: Sentence
    approval_number: Sentence
