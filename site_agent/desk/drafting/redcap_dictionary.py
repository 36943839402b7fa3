"""Reads REDCap's data dictionary, so that a draft has the labels, choices, limits and rules of its forms."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from protos.errors import DataError
from site_agent.desk.drafting.column_draft import ColumnDraft
from site_agent.trainer.data.labelled_files import FileNote

# The headings of the file that the project's page downloads, and the names of the same columns from the interface.
_HEADINGS: Final = {
    "Variable / Field Name": "field_name",
    "Form Name": "form_name",
    "Field Type": "field_type",
    "Field Label": "field_label",
    "Choices, Calculations, OR Slider Labels": "select_choices_or_calculations",
    "Field Note": "field_note",
    "Text Validation Type OR Show Slider Number": "text_validation_type_or_show_slider_number",
    "Text Validation Min": "text_validation_min",
    "Text Validation Max": "text_validation_max",
    "Identifier?": "identifier",
    "Branching Logic (Show field only if...)": "branching_logic",
}
_NEEDED: Final = frozenset({"field_name", "form_name", "field_type", "field_label"})
# The missing data codes that REDCap proposes to projects. A project's own codes are not in its dictionary.
_CODES: Final = frozenset(re.findall(r"\w+", "NI INV UNK NASK ASKU NAV MSK NA NAVU NP QS QI TRC UNC DER PINF NINF OTH"))
_FIXED: Final = {"yesno": {"1": "Yes", "0": "No"}, "truefalse": {"1": "True", "0": "False"}}
_FORM_STATE: Final = "the state of a form (0 incomplete, 1 unverified, 2 complete), which says nothing of the patient"
_OWN: Final = {
    "redcap_event_name": "the event of this row",
    "redcap_repeat_instrument": "rows with a name here repeat a form, and the other forms are empty there: export or "
    "select one row for each patient first",
    "redcap_repeat_instance": "the number of a repeated form",
    "redcap_data_access_group": "the group of users that entered the row",
    "redcap_survey_identifier": "it can identify a person",
}
_TAG: Final = re.compile(r"<[^<>]*>")


def dictionary_notes(path: Path, decimal: str) -> dict[str, FileNote]:
    """Return what a data dictionary says about columns of raw data, by name. Raise DataError if it is none."""
    fields = _fields(path)
    notes: dict[str, FileNote] = {}
    for place, field in enumerate(fields):
        if field["field_type"] == "checkbox":
            notes |= {
                f"{field['field_name']}___{re.sub(r'[^a-z0-9_]', '_', code.lower())}": _note(
                    field, {"1": "checked", "0": "unchecked"}, f": {label}", ("unchecked also means not answered",)
                )
                for code, label in _choices(field).items()
            }
        elif decimal == "." and field["text_validation_type_or_show_slider_number"].endswith("comma_decimal"):
            notes[field["field_name"]] = FileNote(ignored="a decimal comma among decimal points: export all in one way")
        else:
            notes[field["field_name"]] = _note(field, _FIXED.get(field["field_type"]) or _choices(field))
        if place == 0:  # the first field of a project is the identifier of its records
            notes[field["field_name"]] = FileNote(label=notes[field["field_name"]].label)
    return notes


def export_note(column: ColumnDraft) -> FileNote | None:
    """Return what is known of a column that REDCap adds to each export, by its name, or None."""
    if column.name.endswith("_complete") and column.codes and column.codes.keys() <= {*"012"}:
        return FileNote(ignored=_FORM_STATE)
    return FileNote(ignored=_OWN[column.name]) if column.name in _OWN else None


def _fields(path: Path) -> list[dict[str, str]]:
    try:
        if path.stat().st_size > 1 << 26:
            raise _no_dictionary(path)
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [
                {_HEADINGS.get(name.strip(), name.strip()): (cell or "").strip() for name, cell in row.items() if name}
                for row in csv.DictReader(file)
            ]
    except (OSError, UnicodeError, csv.Error, AttributeError) as cause:
        raise _no_dictionary(path) from cause
    if not rows or _NEEDED - rows[0].keys():
        raise _no_dictionary(path)
    return [dict.fromkeys(_HEADINGS.values(), "") | row for row in rows]


def _no_dictionary(path: Path) -> DataError:
    return DataError(
        what=f"The file {path} is not a data dictionary of REDCap.",
        consequence="No draft of a contract was written, and nothing was sent.",
        remedy="Download the data dictionary (CSV) from the project's page Dictionary, and name this file.",
    )


def _choices(field: Mapping[str, str]) -> dict[str, str]:
    if field["field_type"] not in ("radio", "dropdown", "checkbox"):
        return {}
    parts = (part.partition(",") for part in field["select_choices_or_calculations"].split("|"))
    return {code.strip(): _TAG.sub("", label).strip() or code.strip() for code, _, label in parts if code.strip()}


def _note(
    field: Mapping[str, str], labels: Mapping[str, str], choice: str = "", told: tuple[str, ...] = ()
) -> FileNote:
    rule = " ".join(field["branching_logic"].split())
    shown = (f"asked only if {rule}: an empty cell can mean 'not asked' and not 'not known'",) if rule else ()
    ignored = ""
    if field["identifier"].lower() == "y":
        ignored = "the dictionary marks it as an identifier"
    elif field["field_type"] in ("notes", "file", "signature", "sql"):
        ignored = f"a field of the type {field['field_type']}"
    limits, note = _limits(field), field["field_note"]
    return FileNote(
        label=" ".join((_TAG.sub("", field["field_label"]) + choice).split()),
        labels=labels,
        missing=frozenset(_CODES - labels.keys()),
        unit=note if 0 < len(note) <= 15 and limits is not None else "",
        limits=limits,
        told=(*shown, *told),
        ignored=ignored,
    )


def _limits(field: Mapping[str, str]) -> tuple[float, float] | None:
    if not field["text_validation_type_or_show_slider_number"].startswith(("integer", "number")):
        return None
    try:
        low, high = (float(field[f"text_validation_{end}"].replace(",", ".")) for end in ("min", "max"))
    except ValueError:
        return None
    return (low, high) if low < high else None
