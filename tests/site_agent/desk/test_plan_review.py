"""The page by which a person approves a plan: it names everything that may be sent, in words."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import pytest

from benchmarks.prior.prior_gain import CONCEPTS, plan_of_tables, uci_tables
from protos.plan.manifest import manifest_of, most_bytes
from protos.plan.plan import Plan, plan_from_json
from protos.plan.statistics_plan import StatisticsPlan
from site_agent.desk.analyses_in_words import analysis_section
from site_agent.desk.plan_in_words import in_words
from site_agent.desk.plan_review import OCCASIONS, Section, Table, as_lines, review_page, review_sections
from site_agent.desk.sets_of_plans import compared_with_others, plan_differences
from tests.federation import masked_plan
from tests.plan_changes import changed
from tests.protos.examples import METHODS, listed, plan_of_method, plan_with, table_one_of
from tests.protos.privacy.test_private_statistics import private_statistics_plan
from tests.site_agent.trainer.prior.prior_federation import concepts_of, prior_plan

ROWS: dict[str, Any] = {"weighting": {"name": "rows", "largest_rows": 64}}
MEASURING: dict[str, Any] = {"checkpoint": "global"}
FILE: dict[str, Any] = {"name": "file", "seed": 7, "sha256": "5" * 64}
OWN: dict[str, Any] = {
    "name": "named-tensors",
    "tensors": [
        {"name": "trunk.weight", "shape": [2, 3], "bound": 0.1, "frozen": True},
        {"name": "last.weight", "shape": [1, 2], "bound": 0.1},
    ],
}
by_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method["name"])


def sections(plan: Plan) -> list[Section]:
    """The page in its parts."""
    return list(review_sections(plan, manifest_of(plan)))


def page(plan: Plan) -> str:
    """The whole page as a terminal shows it."""
    return "\n".join(as_lines(sections(plan)))


def table(plan: Plan, heading: str) -> tuple[tuple[str, ...], ...]:
    """The rows of one section's table."""
    (found,) = [section.table for section in sections(plan) if section.heading == heading]
    return found.rows if found else ()


def widest(method: dict[str, Any], **keys: Any) -> Plan:
    """A plan of the method in which as much travels as it can bear."""
    measuring = {} if method["name"] == "local" else MEASURING
    return plan_of_method(method, **measuring | ({} if method["name"] == "scaffold" else ROWS) | keys)


@by_method
@pytest.mark.parametrize("masking", ["required", "off"])
def test_everything_that_may_leave_is_named(method: dict[str, Any], masking: str) -> None:
    """Each tensor with shape, type and bytes, each number with a meaning and a bound, the bytes in all."""
    plan = widest(method, masking={"required": masking == "required"})
    manifest = manifest_of(plan)

    assert table(plan, "Updates of parameters") == tuple(
        (t.name, "x".join(map(str, t.shape)), "32-bit integers", str(4 * t.number_count)) for t in manifest.tensors
    )
    numbers = table(plan, "Other numbers")
    assert [row[0] for row in numbers] == [scalar.name for scalar in manifest.scalars]
    for row, scalar in zip(numbers, manifest.scalars, strict=True):
        assert len(row[1]) > 20
        assert float(row[2].replace(",", "")) == pytest.approx(scalar.bound / scalar.scale, rel=1e-5)
        assert "e" not in row[2]
        assert row[3].startswith(f"{OCCASIONS[scalar.stage]} (")
    text = page(plan)
    assert f"at most {most_bytes(plan, manifest)} bytes." in text
    assert method["name"] in text
    assert plan.digest.hex() in text
    for site in plan.sites:
        assert site.identity in text


def test_frozen_layers_changed_images_and_the_risk_of_a_starting_file_are_named() -> None:
    """What is trained and from where is on the page that a person approves, and what a file's author could do."""
    frozen = plan_of_method({"name": "fedavg"}, architecture=OWN, columns=[], outputs=None, start=FILE)

    assert (
        "These layers of the model are frozen, so this plan does not train them and does not send them: trunk."
        in page(frozen)
    )
    worst = [sentence for sentence in in_words(frozen, manifest_of(frozen)).sentences if "starting file" in sentence]
    assert worst == [
        "At worst: the author of the starting file chose values that make a sum reveal rows of single patients."
    ]


def test_a_plan_of_statistics_says_what_each_result_is_and_how_many_hospitals_it_has() -> None:
    """Columns that three of four hospitals record have three in their rows, whatever the plan's smallest number is."""
    three = [site["name"] for site in listed(4)[:3]]
    numbers = {"name": "age", "low": 0.0, "high": 120.0, "recorded_by": three}
    columns = (numbers, {"name": "sex", "codes": ["F", "M"], "recorded_by": three})
    plan = plan_with(**table_one_of(*columns), sites=listed(4), smallest_cell=12)
    assert isinstance(plan, StatisticsPlan)

    section = analysis_section(plan)

    assert section.table is not None
    assert [row[3:] for row in section.table.rows] == [(name, f"3 ({', '.join(three)})") for name in ("age", "sex")]
    larger = plan_with(**table_one_of(*columns), sites=listed(4), smallest_cell=12, largest_rows=99_999)
    assert [key for key, *_ in plan_differences(plan, larger)] == ["largest_rows"]
    assert not {"train", "predict"} & {word[:5] for word in page(plan).lower().split()}


def test_private_statistics_say_what_one_patient_counts_and_that_noise_is_added() -> None:
    """Its page has the influence of a patient, and no sentence about small groups that are left out."""
    plan = private_statistics_plan({"clip": 2.0})
    text, in_short = page(plan), " ".join(in_words(plan, manifest_of(plan)).sentences)

    assert "All rows of one patient together have at most the influence of 2 complete rows." in text
    assert "Therefore the results of small groups of patients are sent too." in text
    assert "epsilon 1, delta 1e-05 for each patient" in in_short
    assert "The sites send one noisy sum of counts and moments" in in_short
    assert not {"Other", "37"} & set(in_short.split())  # the next section has the numbers, and an example is no count


class Reader(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag begins."""
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        """Text."""
        self.text += data


def test_the_printed_page_is_complete_and_fetches_nothing() -> None:
    """Every word of the terminal is on it, there is a line for each signature, and nothing points elsewhere."""
    plan, reader = widest({"name": "fedavg"}), Reader()
    reader.feed(review_page("heart", sections(plan), signatures=2))

    for section in sections(plan):
        for text in (
            section.heading,
            *section.sentences,
            *(cell for row in (section.table or Table((), ())).rows for cell in row),
        ):
            assert text in reader.text
    assert not reader.tags & {"script", "link", "img", "iframe", "form", "object", "a"}
    assert not {name for name, _ in reader.attributes} & {"src", "href", "onload", "style"}
    assert "Signatures" in reader.text


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '"><img src=x onerror=y>', "&lt;b&gt;", "</style><b>"])
def test_whatever_a_plan_says_is_text_on_the_page(text: str) -> None:
    """A word that looks like markup is shown as it stands."""
    section, reader = Section(text, (text,), Table((text,), ((text,),))), Reader()
    reader.feed(review_page(text, [section], signatures=1))

    assert reader.text.count(text) == 6
    assert not reader.tags & {"script", "img", "b"}


def test_differences_name_each_key_and_what_follows_for_what_leaves() -> None:
    """A changed schedule, a further site and another method are reported key by key, with their tensors."""
    before = plan_of_method({"name": "fedper"}, weighting={"name": "equal"})
    assert plan_differences(before, before) == ()

    after = plan_of_method({"name": "fedper"}, version=2, **ROWS)
    found = {key: (was, now) for key, was, now in plan_differences(before, after)}
    assert found["version"] == ("1", "2")
    assert found["weighting.name"] == ("equal", "rows")
    assert found["weighting.largest_rows"] == ("absent", "64")
    assert found["what is sent: number rows"] == ("absent", "every training round, at most 64")
    sites = before.model_dump(mode="json")["sites"]
    other = [*sites[:-1], sites[-1] | {"identity": "-".join(["2222"] * 8)}]
    (change,) = plan_differences(before, plan_of_method({"name": "fedper"}, sites=other, weighting={"name": "equal"}))
    assert change[0] == f"sites.{sites[-1]['name']}"


def test_the_short_words_have_the_plans_question() -> None:
    """What is predicted, for what use and in whom stand first; a risk that the plan allows is named."""
    question = {
        "outcome": "death within a year", "population": "adults after a stroke", "time": "at discharge",
        "use": "to plan visits", "responsible": "A. Jones, St Mary", "approval_number": "2026-1",
    }  # fmt: skip
    plan = widest({"name": "fedavg"}, question=question)

    sentences = in_words(plan, manifest_of(plan)).sentences

    assert sentences[0].endswith("to predict this outcome together: death within a year.")
    assert sentences[1] == "Use: to plan visits."
    assert "Patients: adults after a stroke." in sentences


def test_receivers_are_named_and_not_counted() -> None:
    """The page says that they send nothing, and the sum is over the contributors only."""
    content = plan_of_tables(uci_tables(CONCEPTS.parent), 3).model_dump(mode="json")
    content["sites"].append({"name": "westbrook", "identity": "-".join(["aaaw"] * 8), "tier": "receiving"})
    plan = plan_from_json(json.dumps(changed(content, {"masking": {"required": True}})))

    told, words = page(plan), " ".join(in_words(plan, manifest_of(plan)).sentences)

    assert "1 of the listed sites only receive results. Such a receiving site sends no number" in told
    assert "westbrook" in told
    assert "These hospitals only receive results: westbrook." in words
    assert "Task: 4 hospitals (cleveland, hungarian, switzerland, va)" in words


FOUR = masked_plan("abcd")


def _shown(plan: Plan, other: Plan) -> str:
    section = compared_with_others(plan, [other], ())
    assert section is not None
    assert other.run_name in section.sentences[0]
    return section.sentences[0]


@pytest.mark.parametrize("sites", ["abc", "abcde", "abce"])
def test_a_plan_with_other_sites_is_named_with_the_difference(sites: str) -> None:
    """One site fewer, one more or another one, under whatever study's name and seed."""
    assert ", ".join(sorted(set("abcd") ^ set(sites))) in _shown(masked_plan(sites, study="another"), FOUR)


def _prior(**first: Any) -> Plan:
    concept = concepts_of("breast-cancer")[0] | first
    content = prior_plan("breast-cancer", concepts=[concept]).model_dump(mode="json")
    sites = [*content["sites"], {"name": "essen", "identity": "-".join(["aaae"] * 8)}]
    return plan_from_json(json.dumps(content | {"sites": sites, "masking": {"required": True}}))


@pytest.mark.parametrize(
    ("first", "named"),
    [
        ({"recorded_by": ["ahus", "berlin", "cluj", "delft"]}, ": essen"),
        ({"high": 99.0}, "beyond the changed limit"),
        ({"unit": "mm", "conversions": [{"unit": "cm", "factor": 10.0}]}, "the changed unit"),
        ({"name": "age"}, "concepts.age (only in "),
    ],
)
def test_a_changed_rule_is_named_with_its_concept_and_sites(first: dict[str, Any], named: str) -> None:
    """Recorders, ranges and conversions decide what a site contributes besides its rows."""
    shown = _shown(_prior(**first), _prior())

    assert named in shown
    assert "mean-radius" in shown
    assert ("without a value" in shown) == ("name" in first)
    assert ("unit" in shown) == ("unit" in first)
    assert ": ;" not in shown


def test_equal_rules_and_runs_that_are_allowed_need_nothing() -> None:
    """Also no plan without masks, of which no sum hides anything."""
    unmasked = masked_plan("abc", masking={"required": False})

    assert compared_with_others(masked_plan("abcd", study="another"), [FOUR], ()) is None
    assert compared_with_others(FOUR, [unmasked], ()) is None
    allowed = compared_with_others(masked_plan("abc"), [FOUR], [FOUR.run_name])
    assert allowed is not None
    assert "--beside" not in " ".join(allowed.sentences)
