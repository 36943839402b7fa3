"""coordinator.yaml as a frozen record.

Unknown keys and wrong types are refused, every mistake at once; paths come out absolute, so nothing
later depends on the folder that a program was started in.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from audit.audit_log import AuditSettings
from host.starting_files import starting_values
from protos.plan.configuration_fields import Address, LocalAddress, PathText
from protos.plan.documents import Document, read_document
from protos.plan.plan import Plan

_CONSEQUENCE = "The coordinator did not start."
AUTHORITY_VARIABLE: Final = "GLOBAL_LAYERS_AUTHORITY"


class CoordinatorConfiguration(Document):
    """The settings of one coordinator. Paths are relative to the file.

    Attributes:
        listen: where sites reach the federation, host:port.
        enrolment_listen: where a site without a certificate asks for one; leave it out to close
            enrolment.
        authority: the directory that `pki init` made.
        state: where runs are recorded; created with mode 0700.
        plans: the studies to run, one after another; with none, sites can enrol and nothing runs.
        starting_files: the folder of the files that plans name as starting_file.
        metrics_listen: where this computer's own monitoring asks over HTTP, on loopback or a Unix socket.
        health_listen: where it asks with gRPC's health check.
        stay_seconds: when all studies are over, how long at most it stays for sites that have not heard so.
        audit: how long the audit log's files are, and how long they are kept.
    """

    listen: Address
    enrolment_listen: Address | None = None
    authority: PathText
    state: PathText
    plans: tuple[PathText, ...] = ()
    starting_files: PathText = "starting-files"
    metrics_listen: LocalAddress | None = None
    health_listen: LocalAddress | None = None
    stay_seconds: Annotated[float, Field(ge=0, le=30 * 86400)] = 86400.0
    audit: AuditSettings = AuditSettings()


def read_configuration(path: Path) -> CoordinatorConfiguration:
    """Read the configuration. Paths become absolute. The authority's place may come from the environment.

    Raises:
        ConfigurationError: the file is wrong; every mistake is named.
    """
    configuration = read_document(path, CoordinatorConfiguration, consequence=_CONSEQUENCE)
    base = path.resolve().parent
    return configuration.model_copy(
        update={
            "authority": str(base / (os.environ.get(AUTHORITY_VARIABLE) or configuration.authority)),
            "state": str(base / configuration.state),
            "starting_files": str(base / configuration.starting_files),
            "plans": tuple(str(base / plan) for plan in configuration.plans),
        }
    )


def read_plans(configuration: CoordinatorConfiguration) -> tuple[Plan, ...]:
    """Read the plans that the configuration names. The alternatives of a sweep follow one another.

    Raises:
        ConfigurationError: a plan is wrong, and every mistake is named; or its starting file is.
    """
    plans = [read_document(Path(plan), Plan, consequence=_CONSEQUENCE) for plan in configuration.plans]
    for plan in plans:
        starting_values(Path(configuration.starting_files), plan)
    return tuple(alternative for plan in plans for alternative in plan.alternatives)
