"""Files that people write: every mistake is reported with its place, and no file has any other effect."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Annotated, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter, ValidationError, model_validator

from protos.errors import ConfigurationError
from protos.plan import analyses, concepts
from protos.plan.documents import LARGEST_DOCUMENT_BYTES, Address, Document, parse_document, refuse_for
from protos.plan.plan import plan_from_yaml


class Cat(Document):
    """One choice of a union."""

    name: Literal["cat"]
    whiskers: int = 0


class Dog(Document):
    """The other one."""

    name: Literal["dog"]
    tail: float = 0.0


class Bird(Document):
    """A union inside a union, whose word is also a key."""

    name: Literal["bird"]
    kind: Literal["songs", "calls"]
    songs: tuple[str, ...] = ()
    between: Literal[";", " "] = ";"


class Parrot(Document):
    """The other bird."""

    name: Literal["bird"]
    kind: Literal["words"]


Pet = Annotated[Cat | Annotated[Bird | Parrot, Field(discriminator="kind")], Field(discriminator="name")]


class Household(Document):
    """A record with every kind of value."""

    street: str = "none"
    number: int = 0
    gate: Address = "elm:1"
    rent: float = 0.0
    is_open: bool = False
    pets: tuple[Cat | Dog, ...] = ()
    favourite: Cat | Dog | None = Field(default=None, discriminator="name")
    guests: tuple[Pet, ...] = ()
    heating: Literal["gas", "oil", "none"] = "none"

    @model_validator(mode="after")
    def _check(self) -> Household:
        if self.street == "Nowhere":  # one reason is found twice
            refuse_for(["no such street", "no house without a street", "no such street"])
        return self


def parse(text: str | bytes) -> Household:
    """A household from YAML."""
    raw = text.encode() if isinstance(text, str) else text
    return parse_document(raw, Household, source="house.yaml", consequence="Nobody moved in.")


def mistakes(text: str | bytes) -> list[str]:
    """The lines in which a refused file's mistakes are reported."""
    with pytest.raises(ConfigurationError) as refusal:
        parse(text)
    return re.findall(r"^    house\.yaml:(.*)$", refusal.value.what, re.MULTILINE)


def test_every_mistake_is_told_at_once_in_the_order_of_the_file() -> None:
    """Three mistakes in one file are three lines, each with its line and column."""
    text = "number: many\nstret: Elm\nfavourite:\n  name: cat\n  whisker: 3\n"

    told = mistakes(text)

    assert told == [
        "1:9: number: input should be a valid integer",
        "2:1: stret: unknown key; did you mean street?",
        "5:3: favourite.whisker: unknown key; did you mean whiskers?",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("favourite: {name: dgo}", "1:19: favourite.name: there is no dgo; did you mean dog?"),
        ("favourite: {name: CAT}", "1:19: favourite.name: there is no CAT; did you mean cat?"),
        ("favourite:\n  name: qqq\n", "2:9: favourite.name: there is no qqq; known are cat, dog"),
        ("gate: elm", "1:7: gate: write HOST:PORT or [IPv6]:PORT without http://; a proxy's login is in proxy-login"),
        ("heating: oll", "1:10: heating: there is no oll; did you mean oil?"),
        ("favourite: {tail: 1.0}", "1:12: name: this key is missing in favourite"),
    ],
)
def test_a_name_that_nobody_knows_is_answered_with_the_nearest(text: str, told: str) -> None:
    """A choice's name or a word from a list: where it stands, that there is none such, and which is like it."""
    assert mistakes(text) == [told]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("colour: red", "1:48: guests.bird.colour: unknown key; known are between, kind, name, songs"),
        ('between: "+"', '1:57: guests.bird.between: there is no +; known are " ", ";"'),
        ("songs: [1]", "1:44: guests.bird.songs.0: 1 must be a text: put it in quotes"),
    ],
)
def test_a_mistake_in_a_union_inside_a_union_has_its_own_place(keys: str, told: str) -> None:
    """A word that chooses a record is not taken for the key of the same name."""
    before = "" if keys.startswith("songs") else "songs: [a], "

    found = mistakes(f"guests: [{{name: bird, kind: songs, {before}{keys}}}]")

    assert found == [told]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("number: 1\nnumber: 2\n", "2:1: number is given twice"),
        ("favourite: {name: cat, name: dog}\n", "1:24: name is given twice"),
        ("street: &here Elm\n", "1:9: anchors and aliases are not allowed"),
        ("street: *here\n", "1:9: anchors and aliases are not allowed"),
        ("street: !!python/object:os.system x\n", "1:9: the tag tag:yaml.org,2002:python/object:os.system is not"),
        ("street: !!str 5\n", "1:9: the tag tag:yaml.org,2002:str is not allowed"),
        ("is_open: !!bool perhaps\n", "1:10: the tag tag:yaml.org,2002:bool is not allowed"),
        ("number: !!int ''\n", "1:9: the tag tag:yaml.org,2002:int is not allowed"),
        ("street: !secret x\n", "1:9: the tag !secret is not allowed"),
        ("? [1, 2]\n: 3\n", "1:3: a key has to be a plain word"),
        ("rent: .nan\n", "1:7: a number must be finite"),
        ("rent: -.inf\n", "1:7: a number must be finite"),
        ("rent: 1e999\n", "1:7: a number must be finite"),
        ("number: 1\n---\nnumber: 2\n", "2:1: not YAML: but found another document"),
        ("street: 'Elm\n", "2:1: not YAML: found unexpected end of stream"),
        ("street:\tElm\n", "1:8: not YAML: found character '\\t' that cannot start any token"),
        ("", "1:1: the file is empty"),
        ("# nothing\n", "1:1: the file is empty"),
        ("- street\n", "1:1: the file: input should be an object"),
        ("street\n", "1:1: the file: input should be an object"),
        (b"\xff\xfe\x00", "1:1: the file is not UTF-8 text"),
        (b"\x7fELF\x02\x01\x00", "1:1: not YAML"),
        (b"street: \x00", "1:1: not YAML"),
    ],
)
def test_what_surprises_is_refused_where_it_stands(text: str | bytes, told: str) -> None:
    """Duplicates, anchors, tags, infinities, second documents and binary are refused by name and place."""
    lines = mistakes(text)

    assert len(lines) == 1
    assert lines[0].startswith(told)


@pytest.mark.parametrize("written", ["010", "1_000", "0x1F", "0b11", "1:30", "1:30:00", "2026-03-01", "+", "1.2.3"])
def test_a_number_is_only_what_a_reader_takes_for_one(written: str) -> None:
    """YAML 1.1's octal, hexadecimal, base-60 and dated words stay words: refused as numbers, kept as text."""
    told = mistakes(f"number: {written}")

    assert told == ["1:9: number: input should be a valid integer"]
    assert parse(f"street: {written}").street == written


@pytest.mark.parametrize("word", ["yes", "no", "on", "off"])
def test_a_word_that_old_yaml_takes_for_a_truth_is_a_text(word: str) -> None:
    """The country code no and the word off are texts, with and without quotes, and not truth values."""
    assert parse(f"street: {word}").street == word
    assert parse(f"street: '{word}'").street == word
    assert len(mistakes(f"is_open: {word}")) == 1


def test_a_huge_file_is_refused_before_it_is_read() -> None:
    """One byte above the limit is refused, whatever the bytes are."""
    told = mistakes(b"#" * (LARGEST_DOCUMENT_BYTES + 1))

    assert told == [f"1:1: the file is larger than {LARGEST_DOCUMENT_BYTES} bytes; comments count too"]


@pytest.mark.parametrize("digits", [4301, 100_000])
def test_a_number_of_thousands_of_digits_is_a_mistake(digits: int) -> None:
    """A number too long to be read is reported like any other mistake."""
    told = mistakes("number: " + "9" * digits)

    assert told == ["1:9: this number cannot be read"]


_WORDS = st.sampled_from(
    (
        *("study", "sites", "method", "name", "schedule", "tensors", "global-layers", "fedavg", "named-tensors"),
        *(": ", "\n", "\n  ", "- ", "{", "}", "[", "]", ", ", "'", '"', "!", "&a", "*a", "? ", "|", ">", "1", "-1"),
        *(".nan", "~", "true", "no", "#", "%", "---\n", "...\n", "\t", "<<", "=", "\N{SNOWMAN}", "\x85", "1e9"),
    )
)


@settings(max_examples=100)
@given(words=st.lists(_WORDS, max_size=40))
def test_almost_yaml_is_a_plan_or_a_configuration_error(words: list[str]) -> None:
    """Files that are nearly right make the reader of plans fail in no other way than by its own error."""
    with suppress(ConfigurationError):
        plan_from_yaml("".join(words).encode(), source="plan.yaml", consequence="Nothing began.")


TEXTS_THAT_PEOPLE_READ = [concepts.Text, concepts.Definition, analyses.AnalysisName]
WITH_ANOTHER_EFFECT = [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *"\u061c\u200e\u200f\u2028\u2029"]
WITH_ANOTHER_EFFECT += [*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))]


@pytest.mark.parametrize("kind", TEXTS_THAT_PEOPLE_READ)
def test_a_text_that_people_read_shows_what_it_contains(kind: object) -> None:
    """No character moves the cursor, starts a line or turns the direction of writing. Every script is allowed."""
    text = TypeAdapter[str](kind)

    for character in WITH_ANOTHER_EFFECT:
        for spoilt in (character, f"Age{character}", f"{character}Age", f"A{character}ge"):
            with pytest.raises(ValidationError):
                text.validate_python(spoilt)
    for good in ("Größe (mm²)", "年齢", "العمر", "גיל", "ηλικία", "a\xa0b \u202f – “½” 🫀"):
        assert text.validate_python(good) == good


TIES = "ties", "entry", "per", "weight", "start", "cluster"


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        ("cox: {time: t, event: e, terms: [x], splins: {}}", "cox.splins: unknown key; did you mean splines?"),
        ("regresion: {}", "the file: an analysis has "),
        *((f"cox: {{time: t, event: e, terms: [x], {one}: a}}", f"cox.{one}: no such") for one in TIES),
        *((f"cox: {{time: t, event: e, terms: {one}}}", "cox.terms: list ") for one in ("age + sex", "3", "{a: b}")),
        *((f'cox: {{time: t, event: e, terms: ["{one}"]}}', "cox.terms.0: list ") for one in ("Age", "a*b", "rcs(a)")),
        *(
            (f"cox: {{time: t, event: e, terms: [weight], splines: {{weight: {knots}}}}}", "cox.splines.weight: list ")
            for knots in ("4", "[1, 5]", "[1, 2, 3, 4, 5, 6, 7, 8]", '"1 5 9"')
        ),
        *((f"curve: {{time: t, event: e, to: 9, grid: {one}}}", "curve.grid: write ") for one in ("week", "0", "[1]")),
        *((f"table_one: {{columns: {one}}}", "table_one.columns: list ") for one in ("[]", "age")),
    ],
)
def test_a_mistake_in_an_analysis_is_one_sentence_at_its_place(analysis: str, told: str) -> None:
    """It says what to write instead, also to users of R, or which keys the kind of analysis has."""
    model = TypeAdapter[analyses.Analysis](analyses.Analysis)
    with pytest.raises(ConfigurationError) as refusal:
        parse_document(f"name: a\n{analysis}".encode(), model, source="plan.yaml", consequence="Nothing.")

    (words,) = re.findall(r"^    plan\.yaml:\d+:\d+: (.*)$", refusal.value.what, re.MULTILINE)
    assert words.startswith(told)
