"""Counts how often `site-agent data describe --concepts` proposes the right column for the four UCI heart clinics.

Each clinic's file gets a header in one of four styles. The clinic's contract gives the right answer. If the contract
has no column for a concept (cholesterol in Switzerland), the right answer is no proposal. Run:

    python -m benchmarks.prior.proposed_concepts
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

import yaml

from benchmarks.prior.prior_gain import CENTRES, CONCEPTS
from protos.plan.concepts import Concept, read_concepts
from site_agent.desk.drafting.describe import describe
from site_agent.trainer.data.contract import read_contract

# The names of a well-known merged copy of these files, German names as a clinic's export has them, and no names.
STYLES: Final = {
    "original": "age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal num",
    "merged copy": "Age Sex ChestPainType RestingBP Cholesterol FastingBS RestingECG MaxHR ExerciseAngina Oldpeak "
    "ST_Slope Vessels Thallium HeartDisease",
    "German": "Alter Geschlecht Brustschmerz RR_syst_Ruhe Gesamtcholesterin NBZ_erhoeht Ruhe_EKG HF_max "
    "Belastungsangina ST_Senkung ST_Steigung Gefaesse Thalliumszinti Diagnose",
    "numbered": "V1 V2 V3 V4 V5 V6 V7 V8 V9 V10 V11 V12 V13 outcome",
}


def counted(style: str, concepts: tuple[Concept, ...]) -> Counter[str]:
    """Return the number of concepts, over four clinics, with the right, a wrong, or a missing proposal of a column.

    Args:
        style: of the names.
        concepts: of the plan.
    """
    found: Counter[str] = Counter()
    for centre in CENTRES:
        contract = read_contract(CONCEPTS.parent / f"{centre}.yaml")
        names = dict(zip(STYLES["original"].split(), STYLES[style].split(), strict=True))
        right = {feature.concept: names[feature.name] for feature in contract.features if feature.concept is not None}
        proposed = _proposed(CONCEPTS.parent / f"{centre}.data", STYLES[style].split(), concepts)
        for concept in concepts:
            said, true = proposed.get(concept.name), right.get(concept.name)
            found["right" if said == true else "none" if said is None else "wrong"] += 1
    return found


def _proposed(table: Path, names: list[str], concepts: tuple[Concept, ...]) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        path.write_text(",".join(names) + "\n" + table.read_text())
        draft = yaml.safe_load(describe(path, concepts=concepts).text)
    return {one["proposed_concept"]: one["name"] for one in draft["columns"] if "proposed_concept" in one}


def main() -> None:
    """Print the counts for each style, with and without the plan's synonyms."""
    concepts = read_concepts(CONCEPTS, consequence="Nothing was measured.")
    bare = tuple(one.model_copy(update={"synonyms": ()}) for one in concepts)
    print("names        synonyms  right  wrong  none")
    for style in STYLES:
        for label, listed in (("plan's", concepts), ("without", bare)):
            found = counted(style, listed)
            print(f"{style:12} {label:8}  {found['right']:5}  {found['wrong']:5}  {found['none']:4}")


if __name__ == "__main__":
    main()
