"""Simulates several hospitals in one process, and computes how much each hospital would gain.

The code that hospitals run reads, splits, encodes and trains the data, and builds and adds all contributions. There is
no network. Masks cancel in every sum, so without them all bits of a result are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd
from sklearn.metrics import roc_auc_score

from global_layers.frames import FEWEST_SITES, tables_of
from global_layers.one_process import plan_among, run_rounds
from protos.plan.network_plan import NetworkPlan
from protos.plan.prior_plan import PriorPlan
from site_agent.desk.results.joining_models import fit_own_models
from site_agent.desk.results.prior_report import joined_with
from site_agent.desk.results.simple_models import best_simple_model, simple_scores
from site_agent.hospital import Split
from site_agent.trainer.data.dataset import SplitRows, prepare_rows, split_rows
from site_agent.trainer.data.tables import Table
from site_agent.trainer.prior.prior_study import PriorStudy
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.study import Study

_LATENT: Final = 16  # of the networks: small, so that a simulation takes seconds


class _Member:
    """A simulated site: its table, its split into training and test rows, and its encoded data."""

    def __init__(self, table: Table, seed: int) -> None:
        self.table = table
        self.rows: SplitRows = split_rows(table, Split(seed=seed))
        self.dataset, self.preprocessing = prepare_rows(table, self.rows)

    def auroc(self, scores: Any) -> float:  # Any: any array of shape (test rows,)
        return float(roc_auc_score(self.dataset.test.targets, scores))


def simulate(
    sites: Mapping[str, pd.DataFrame],
    outcome: str,
    *,
    networks: Sequence[str] = ("fedavg",),
    rounds: int = 20,
    seed: int = 0,
) -> pd.DataFrame:
    """Return the AUROC of each site's test rows under the best local model, federated-prior and other methods.

    Equal names of columns mean the same at all sites; a site may lack columns. One split of one seed shows little.
    Repeat over seeds before you draw conclusions.

    Args:
        sites: a frame of patients for each site, three or more. A third of its rows is the test set.
        outcome: the column to predict, with two values; the larger one is the positive class.
        networks: further methods of the catalogue, each with its defaults.
        rounds, seed: of these methods; of splits, folds, forests and networks.

    Returns:
        a row for each site. `best local` is the regression, forest or boosting that the site would choose on its
        training rows. `others brought` is federated-prior minus the same model without the other sites.

    Raises:
        OperatorError: sites, outcome, a table or a method do not fit; the message names it.
    """
    tables, concepts = tables_of(sites, outcome)
    members = {name: _Member(table, seed) for name, table in tables.items()}
    local = {name: _best_local(member, name, seed) for name, member in members.items()}
    networked = {method: _of_networks(members, method, rounds, seed) for method in networks}
    return pd.DataFrame({"best local": local, **networked, **_of_prior(members, concepts, seed)})


def _best_local(member: _Member, site: str, seed: int) -> float:
    seeds = Seeds.published(seed, site)
    scores = dict(simple_scores(member.dataset, member.preprocessing, seeds.own("simple models")))
    chosen = scores[best_simple_model(member.dataset, seeds.own("best local"))]
    return member.auroc(chosen[:, -1] if chosen.ndim > 1 else chosen)


def _of_prior(
    members: Mapping[str, _Member], concepts: Sequence[Mapping[str, Any]], seed: int
) -> dict[str, dict[str, float]]:
    plan = plan_among(members, {}, kind="prior", concepts=concepts, fewest_sites=FEWEST_SITES, rows_per_unknown=1.0)
    assert isinstance(plan, PriorPlan)
    studies = {
        name: PriorStudy(plan, one.dataset, one.table, one.rows, site=name, secret=bytes(32), fewest=0)
        for name, one in members.items()
    }
    run_rounds(plan, studies)
    joined, others = dict[str, float](), dict[str, float]()
    for name, member in members.items():
        known = studies[name].known_by_others()
        own = fit_own_models(member.dataset, Seeds.published(seed, name).own("join"))
        join = joined_with(studies[name], known, member.preprocessing, own)
        design = known.design(studies[name].part("test"), len(member.dataset.test)).astype("float32")
        inputs = member.dataset.test.features
        joined[name], alone = (member.auroc(one.outputs(inputs, design)[:, 0]) for one in (join.model, join.alone))
        others[name] = joined[name] - alone
    return {"federated-prior": joined, "others brought": others}


def _of_networks(members: Mapping[str, _Member], method: str, rounds: int, seed: int) -> dict[str, float]:
    own = {name: member.dataset.columns for name, member in members.items()}
    columns = [
        {"name": column, "recorded_by": [name for name, recorded in own.items() if column in recorded]}
        for column in dict.fromkeys(column for recorded in own.values() for column in recorded)
    ]
    plan = plan_among(
        members,
        {},
        kind="network",
        start={"name": "equal", "seed": seed},
        method={"name": method},
        architecture={"name": "global-layers-network", "latent": _LATENT, "gate": False, "input_normalisation": False},
        optimiser={"name": "adamw", "learning_rate": 0.001, "weight_decay": 0.0001},
        schedule={"aggregate": "every-epoch", "epochs": rounds, "batches_per_epoch": 5},
        weighting={"name": "equal"},
        checkpoint="local",
        **({} if method == "global-layers" else {"columns": columns, "outputs": 1}),
    )
    assert isinstance(plan, NetworkPlan)
    studies = {name: Study(plan, member.dataset, seeds=Seeds.published(seed, name)) for name, member in members.items()}
    run_rounds(plan, studies)
    return {name: member.auroc(studies[name].conclude().test_outputs[:, 0]) for name, member in members.items()}
