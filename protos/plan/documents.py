"""Reads YAML files that people write. Returns a checked frozen record, or an error that lists all mistakes.

The error gives file, line and column of each mistake, and the nearest known name for an unknown one. Anchors, tags,
duplicate keys, deep nesting and files above a megabyte are refused. No configuration needs them, and each can mislead a
reader. Numbers have the meaning that a reader expects: 010, 1_000, 0x1F and 1:30 are words here, not the 8, 1000, 31
and 90 of YAML 1.1.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Final, Self, TypeAlias, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from protos.errors import ConfigurationError

LARGEST_DOCUMENT_BYTES: Final = 1 << 20
DEEPEST_NESTING: Final = 32
_LONGEST_NAME_SHOWN: Final = 80
# A similar name has half of its letters in place. If no name is similar, the message lists all known names.
_LIKENESS: Final = 0.5


class Document(BaseModel):
    """The base class of every record that people write. Records are frozen, and unknown settings are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a new record with other values. The cached properties of the new record are computed again."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied


Record = TypeVar("Record", bound=BaseModel)
Model: TypeAlias = type[Record] | TypeAdapter[Record]  # an adapter reads a union of records


def _with_a_real_port(address: str) -> str:
    if not 0 < int(address.rpartition(":")[2]) < 1 << 16:
        raise ValueError("a port must be between 1 and 65535")
    return address


# A character of a text that people read before they approve something. Control characters, line separators and the
# characters that change the direction of writing are refused. They could hide a text, or show another one.
READABLE: Final = r"[^\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
COMPOSED: Final = AfterValidator(partial(unicodedata.normalize, "NFC"))  # an accent and its letter are one sign

# Addresses and paths in configurations. Nothing checks that they exist.
PathText: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=4000)]
NAME: Final = r"^[a-z][a-z0-9-]{0,39}$"  # of a site, a concept, a study
_ADDRESS: Final = r"^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$"
Address: TypeAlias = Annotated[
    str, StringConstraints(pattern=_ADDRESS, max_length=260), AfterValidator(_with_a_real_port)
]
# An address for programs of this computer only.
LocalAddress: TypeAlias = Annotated[
    str, StringConstraints(pattern=r"^(127\.0\.0\.1|\[::1\]|localhost):[0-9]{1,5}$"), AfterValidator(_with_a_real_port)
]


class Reasons(ValueError):
    """Raised with all errors of a record, each as one clause. The error of a file shows each clause on its own line."""

    def __init__(self, found: Sequence[str]) -> None:
        super().__init__("; ".join(found))
        self.found = tuple(found)


def refuse_for(reasons: Iterable[str]) -> None:
    """Raise `Reasons` with all distinct reasons. Without reasons, do nothing."""
    if found := tuple(dict.fromkeys(reasons)):
        raise Reasons(found)


class _PlainLoader(yaml.SafeLoader):
    """Reads YAML with decimal numbers only. Dates, yes and no stay words."""


_REPLACED: Final = {f"tag:yaml.org,2002:{kind}" for kind in ("timestamp", "int", "float", "bool")}
_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, expression) for tag, expression in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# Accept only true and false. With YAML 1.1's yes, no, on and off, a code `no` would be a truth value.
_PlainLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))
_WHOLE: Final = r"[-+]?(?:0|[1-9][0-9]*)"
_PlainLoader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(f"^{_WHOLE}$"), list("-+0123456789"))
_PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        rf"^(?:{_WHOLE}(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|[-+]?\.[0-9]+(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+.0123456789"),
)
_PLAIN_TAGS: Final = {f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null")}


def read_document(path: Path, model: Model[Record], *, consequence: str) -> Record:
    """Return the record that a YAML file describes.

    Args:
        path: the file, at most a megabyte of UTF-8.
        consequence: the middle sentence of the error, such as "The command did nothing."

    Raises:
        ConfigurationError: the file cannot be read, or is wrong. The error lists every mistake.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_DOCUMENT_BYTES + 1)
    except OSError as cause:
        raise ConfigurationError(
            what=f"{path} cannot be read: {cause.strerror}.",
            consequence=consequence,
            remedy="Give the path of an existing file that your user account may read.",
        ) from cause
    return parse_document(raw, model, source=str(path), consequence=consequence)


def parse_document(
    raw: bytes, model: Model[Record], *, source: str, consequence: str, has_lines: bool = True
) -> Record:
    """Return the record that these bytes of YAML describe. Errors have `source`, and places if a person `has_lines`."""
    try:
        root = _compose(raw)
        data = _construct(root)
        text = json.dumps(data, allow_nan=False)
        return model.validate_json(text) if isinstance(model, TypeAdapter) else model.model_validate_json(text)
    except _Mistakes as mistakes:
        found = mistakes.found
    except ValidationError as error:
        schema, details = _schema(model), error.errors(include_url=False)
        found = [mistake for detail in details for mistake in _describe(dict(detail), root, schema)]
    found = sorted(set(found))
    shown = [
        f"{source}:{one[0]}:{one[1]}: {one[2]}" if has_lines else one[2].removeprefix("the file: ") for one in found
    ]
    lines = "\n".join(f"    {one}" for one in shown)
    count = "one mistake" if len(found) == 1 else f"{len(found)} mistakes"
    raise ConfigurationError(
        what=f"{source} has {count}:\n{lines}",
        consequence=consequence,
        remedy="Correct what is named above, then try again.",
        code="E010",
    )


@cache
def _schema(model: Model[Any]) -> Mapping[str, Any]:
    """Return the JSON schema of a record. It is cached, because a plan's schema takes a tenth of a second."""
    return model.json_schema() if isinstance(model, TypeAdapter) else model.model_json_schema()


class _Mistakes(Exception):  # has the mistakes, and is never shown
    def __init__(self, found: list[tuple[int, int, str]]) -> None:
        super().__init__(found)
        self.found = found


def _compose(raw: bytes) -> Node:
    """Parse a YAML file to a tree of nodes. Each node has its line and column."""
    if len(raw) > LARGEST_DOCUMENT_BYTES:
        raise _Mistakes([(1, 1, f"the file is larger than {LARGEST_DOCUMENT_BYTES} bytes; comments count too")])
    try:
        text = raw.decode("utf-8-sig")
        _refuse_surprises(text)
        root = yaml.compose(text, Loader=_PlainLoader)
    except UnicodeDecodeError as cause:
        raise _Mistakes([(1, 1, "the file is not UTF-8 text")]) from cause
    except yaml.MarkedYAMLError as cause:
        mark = cause.problem_mark or cause.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise _Mistakes([(line, column, f"not YAML: {cause.problem or cause.context}")]) from cause
    except (yaml.YAMLError, RecursionError) as cause:
        raise _Mistakes([(1, 1, "not YAML: it has unprintable characters or is nested too deeply")]) from cause
    if root is None:
        raise _Mistakes([(1, 1, "the file is empty")])
    return root


def _refuse_surprises(text: str) -> None:
    """Refuse YAML with anchors, aliases, tags or deep nesting, before any value is built from the text."""
    depth = 0
    for event in yaml.parse(text, Loader=_PlainLoader):
        start = event.start_mark
        line, column = (start.line + 1, start.column + 1) if start else (1, 1)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _Mistakes([(line, column, "anchors and aliases are not allowed")])
        if tag := getattr(event, "tag", None):
            raise _Mistakes([(line, column, f"the tag {tag} is not allowed")])
        # Depth is counted here and not in the finished tree, because the reader's time grows with the square of the
        # depth: 20,000 brackets took a minute.
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST_NESTING:
            raise _Mistakes([(line, column, "nested too deeply")])


def _construct(node: Node) -> Any:
    line, column = node.start_mark.line + 1, node.start_mark.column + 1
    if node.tag not in _PLAIN_TAGS:
        raise _Mistakes([(line, column, f"the tag {node.tag} is not allowed")])
    if isinstance(node, MappingNode):
        return _construct_mapping(node)
    if isinstance(node, SequenceNode):
        return [_construct(item) for item in node.value]
    try:
        value = _PlainLoader("").construct_object(node)
    except ValueError as cause:
        raise _Mistakes([(line, column, "this number cannot be read")]) from cause
    if isinstance(value, float) and not math.isfinite(value):
        raise _Mistakes([(line, column, "a number must be finite")])
    return 0.0 if value == 0.0 and isinstance(value, float) else value  # minus zero has a different digest


def _construct_mapping(node: MappingNode) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in node.value:
        line, column = key.start_mark.line + 1, key.start_mark.column + 1
        if not isinstance(key, ScalarNode):
            raise _Mistakes([(line, column, "a key has to be a plain word")])
        if key.value in values:
            raise _Mistakes([(line, column, f"{key.value} is given twice")])
        values[key.value] = _construct(value)
    return values


def _describe(detail: Mapping[str, Any], root: Node, schema: Mapping[str, Any]) -> list[tuple[int, int, str]]:
    """Convert an error of pydantic to one or more entries. Each entry has a line, a column and a text."""
    location: Sequence[str | int] = detail["loc"]
    kind, context = detail["type"], detail.get("ctx", {})
    # Point to the wrong word, or to the place where it is missing.
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        location = (*location, context["discriminator"].strip("'"))
    keys, _ = _walk(schema, location)
    place, node, path = root, root, []
    for step in keys:
        if (entry := _entry(node, step)) is not None:  # else the key is missing, or the step names a type
            key, node = entry
            path.append(_called(step, node))
            place = key if kind == "extra_forbidden" else node
    name = ".".join(path)
    match kind:
        case "too_short" if isinstance(node, SequenceNode) and len(node.value) > context["actual_length"]:
            texts = []  # items with mistakes are not counted, and each has its own text
        case _ if told := _instead(kind, location):
            texts = [f"{name}: {told}"]
        case "extra_forbidden":
            texts = [f"{name}: unknown key; {did_you_mean(str(location[-1]), _keys(_walk(schema, location[:-1])[1]))}"]
        case "missing" | "union_tag_not_found":
            owner = f" in {name}" if name else ""
            texts = [f"{location[-1]}: this key is missing{owner}"]
        case "union_tag_invalid":
            texts = [f"{name}: {_unknown(context['tag'], context['expected_tags'])}"]
        case "literal_error" if isinstance(detail["input"], str):
            texts = [f"{name}: {_unknown(detail['input'], context['expected'])}"]
        case "string_type" if isinstance(detail["input"], int | float):
            texts = [f"{name}: {json.dumps(detail['input'])} must be a text: put it in quotes"]
        case "string_pattern_mismatch" if context["pattern"] == NAME:
            texts = [f"{name}: write 1 to 40 small letters, digits and hyphens, the first a letter"]
        case "string_pattern_mismatch" if context["pattern"] == _ADDRESS:
            texts = [f"{name}: write HOST:PORT or [IPv6]:PORT without http://; a proxy's login is in proxy-login"]
        case _:
            reasons = context.get("error")
            said = reasons.found if isinstance(reasons, Reasons) else [detail["msg"].removeprefix("Value error, ")]
            texts = [f"{name or 'the file'}: {each[:1].lower()}{each[1:]}" for each in said]
    return [(place.start_mark.line + 1, place.start_mark.column + 1, text) for text in texts]


def _instead(kind: str, location: Sequence[str | int]) -> str:
    """Return what to write in place of what a user of other programs has written, or nothing."""
    others, is_unknown = "weights weight entry start strata cluster id ties offset per scale", kind == "extra_forbidden"
    if is_unknown and {"cox", "regression"} & {*location} and location[-1] in others.split():
        told = "no such key: strata are hospitals, ties Efron's, an offset an `exposure`, clusters `robust: true`"
        return f"{told}; ratios are for one unit of a number; weights and entry times are not offered"
    if is_unknown and location[-1] == "competing":
        return "a contract has it at the column with `role: follow-up`"
    if "grid" in location and {"splines", "references"}.isdisjoint(location):
        return "write monthly, or the length of an interval in the unit of the time, such as 7"
    if "splines" in location and kind in ("tuple_type", "too_short", "too_long"):
        return "list 3 to 7 knots that rise, such as [45, 57, 63, 75]"
    if "terms" in location and kind in ("tuple_type", "string_pattern_mismatch"):
        return "list concepts in small letters, or products such as age:sex: a*b is a, b, a:b, and curves are `splines`"
    return "list one or more in brackets, such as [a, b]" if kind in ("tuple_type", "too_short") else ""


def _unknown(word: str, known: str) -> str:
    words = re.findall(r"'([^']*)'", known)
    hint = did_you_mean(word, [each if each[:1].isalnum() else f'"{each}"' for each in words])
    return f"there is no {word[:_LONGEST_NAME_SHOWN]}; {hint}"


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to this name, ignoring case, or None if no name is similar."""
    by_small_letters = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_small_letters, n=1, cutoff=_LIKENESS)
    return by_small_letters[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `did you mean fedprox?`, or `known are fedavg, fedprox` if no known name is similar."""
    names = list(known)
    near = nearest_name(name, names)
    return f"did you mean {near}?" if near is not None else f"known are {', '.join(sorted(names))}"


def _entry(node: Node, step: str | int) -> tuple[Node, Node] | None:
    """Return the key and the value of an entry, or None if there is no such entry. An item's key is the list itself."""
    if isinstance(node, MappingNode):
        return next(((key, value) for key, value in node.value if key.value == step), None)
    if isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node, node.value[step]
    return None


def _walk(schema: Mapping[str, Any], location: Sequence[str | int]) -> tuple[list[str | int], list[Mapping[str, Any]]]:
    """Follow the location in a pydantic error through the JSON schema of the model.

    Returns:
        the steps that are keys or list positions, without the words that choose a record of a union; and the
        records at the end.
    """

    def resolve(entry: Mapping[str, Any] | str) -> list[Mapping[str, Any]]:
        if isinstance(entry, str):
            return resolve(schema["$defs"][entry.rsplit("/", 1)[-1]])
        if "$ref" in entry:
            return resolve(entry["$ref"])
        if "discriminator" in entry:
            return [entry]
        choices = [*entry.get("anyOf", ()), *entry.get("oneOf", ()), *entry.get("allOf", ())]
        return [found for choice in choices for found in resolve(choice)] if choices else [entry]

    keys: list[str | int] = []
    current = resolve(schema)
    for step in location:
        # A union may contain a union: a feature of the type codes. The key of that record may be `codes` too.
        choices = [entry["discriminator"]["mapping"] for entry in current if "discriminator" in entry]
        inner = [mapping[step] for mapping in choices if step in mapping]
        inner = inner or [entry for entry in current if len(current) > 1 and step in _tags(entry)]
        # In a union without such a word, the step is first the key that only one of the records has.
        having = [entry for entry in current if step in entry.get("properties", ())]
        inner = inner or (having if len(having) < sum("properties" in entry for entry in current) else [])
        if not inner:
            keys.append(step)
            inner = [entry["properties"][step] for entry in current if step in entry.get("properties", {})]
            inner += [entry["items"] for entry in current if isinstance(step, int) and "items" in entry]
            inner += [entry["additionalProperties"] for entry in current if entry.get("additionalProperties")]
        current = [found for entry in inner for found in resolve(entry)]
    return keys, current


def _called(step: str | int, item: Node) -> str:
    """Return what a person calls this entry: its key, the name of an item of a list, or its place there."""
    named = _entry(item, "name") if isinstance(step, int) else None
    return named[1].value[:_LONGEST_NAME_SHOWN] if named and named[1].tag.endswith(":str") else str(step)


def _keys(records: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for record in records for key in record.get("properties", ())))


def _tags(entry: Mapping[str, Any]) -> list[Any]:
    return [field["const"] for field in entry.get("properties", {}).values() if "const" in field]
