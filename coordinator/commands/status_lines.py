"""Prints `coordinator status` as text: the run, its speed, the sites that the run waits for, and each site.

For `coordinator check` it says what a plan asks of the lines of sites.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from coordinator.network.outgoing import STALLED_SECONDS
from coordinator.rounds.run import terms_of
from protos.numbers.chunk_layout import CHUNK_PARAMETERS
from protos.plan.announcing_plan import AnnouncingPlan
from protos.plan.manifest import Manifest, most_bytes
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import Plan
from protos.plan.short_wire import sums_go_down
from protos.wire.positions import DOWN_CHUNK_BYTES

_FEW_DAYS: Final = 7.0
_OTHER_COLUMNS: Final = 80  # characters besides the names


def print_status(answer: Mapping[str, Any], console: Console) -> None:  # Any: every type that JSON has
    """Print the status that a running coordinator reported."""
    for line in status_lines(answer):
        console.print(line, soft_wrap=True)
    if answer["sites"]:
        print_wide(_table(answer["sites"]), max(map(len, answer["sites"])), console)
    for text in answer.get("taken_out", ()):
        console.print(escape(text), soft_wrap=True)


def print_wide(table: Table, widest: int, console: Console) -> None:
    """Print a table to the terminal. Its first column has `widest` characters, even if the window is smaller."""
    Console(file=console.file, width=max(console.width, widest + _OTHER_COLUMNS)).print(table)


def status_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about the run that `coordinator status` prints above the table of sites."""
    run = answer["run"]
    if trouble := answer.get("trouble"):
        yield f"The coordinator accepts no site and decides nothing: {trouble} `coordinator doctor` shows the remedy."
    if run is None:
        yield f"No run is active. {answer['runs_over']} runs are over, {answer['runs_waiting']} runs wait."
        if unaware := answer.get("yet_to_hear_of_the_end"):
            yield f"All studies are over. These sites are not informed yet: {', '.join(unaware)}"
    else:
        yield from _run_lines(run, answer)
    if (days := answer.get("coordinator_certificate_days")) is not None:
        yield f"The coordinator's own certificate: {_days(days)} left"


def _run_lines(run: Mapping[str, Any], answer: Mapping[str, Any]) -> Iterator[str]:
    yield f"{run['run']} ({run['method']}): round {run['rounds_made']} of {run['rounds']}, {run['phase']}"
    if promise := run.get("privacy"):
        yield f"Privacy: {promise}"
    if pace := answer.get("pace"):
        ends = f"; ends about {pace['ends']}, in {span(pace['seconds_left'])}" if pace["ends"] else ""
        yield f"A round takes {span(pace['seconds_a_round'])}{ends}"
    if concluding := answer.get("concluding"):
        yield f"All rounds are complete. {concluding['have_result']} of {concluding['sites']} sites have the result."
    if waits := answer.get("waits_for"):
        yield f"Waits for: {', '.join(waits)}"
        yield from filter(None, (_line(name, answer["sites"].get(name, {}).get("line")) for name in waits))
    happened = answer.get("happened")
    if happened and (happened["void_attempts"] or happened["returns_to_an_earlier_round"]):
        void, back = happened["void_attempts"], happened["returns_to_an_earlier_round"]
        yield f"So far {void} attempts failed (void), and the run returned {back} times to an earlier round."
        yield "`coordinator audit show` lists them and all lost connections."
    if run["chosen_layers"] is not None:
        yield f"Shared layers, as the probe has chosen: {', '.join(run['chosen_layers'])}"
    if run["best_round"] is not None:
        lowest = f"{run['best_validation_loss']:.6g}"
        yield f"Lowest mean validation loss: {lowest}, of the model after round {run['best_round']}"


def _line(site: str, line: Mapping[str, Any] | None) -> str | None:
    """Return how far the bytes of a round are on a site's line, or None if none are under way."""
    if line is None:
        return None
    does = "receives the parameters" if line["way"] == "down" else "sends its contribution"
    left, rate = line["seconds_left"], line["kilobits_per_second"]
    pace = "" if left is None else f", {rate:g} kbit/s, {span(left)} left"  # known after the second chunk
    done, whole = line["bytes"] / 1e6, line["of_bytes"] / 1e6
    return f"{site} {does}: {done:.1f} of {whole:.1f} MB{pace}"


def line_of_a_round(plan: Plan, manifest: Manifest) -> str:
    """Return the bytes of a round for one site, and the slowest line on which no attempt becomes void."""
    has_controls = plan.ingredients.has_controls if isinstance(plan, NetworkPlan) else False
    numbers = plan.tensor.number_count if isinstance(plan, AnnouncingPlan) else manifest.parameters * (1 + has_controls)
    width = plan.bits // 8 if sums_go_down(plan) else 4  # but in the first round, and to a site that was restarted
    down, up = width * numbers, most_bytes(plan, manifest) // plan.rounds
    kilobits = 8 * max(
        min(down, DOWN_CHUNK_BYTES) / STALLED_SECONDS,
        min(up, 4 * CHUNK_PARAMETERS) / terms_of(plan, manifest.parameters).seconds,
    ) / 1000  # fmt: skip
    return (
        f"a round has {down / 1e6:.3g} MB to each site and {up / 1e6:.3g} MB back, {span((down + up) * 8e-7)} at "
        f"10 Mbit/s; the slowest line has {max(0.1, kilobits):.2g} kbit/s"
    )


def _table(sites: Mapping[str, Mapping[str, Any]]) -> Table:
    widest = max(map(len, sites))  # other commands need the whole name
    table = Table(Column("site", no_wrap=True, min_width=widest), "connected", "joined", "last contact", "certificate")
    for name, site in sites.items():
        connected = "[green]yes[/green]" if site["connected"] else "[red]no[/red]"
        days, age = site.get("certificate_days"), site.get("last_contact_seconds")
        heard = "none since the start" if age is None else f"{span(age)} ago"
        table.add_row(escape(name), connected, _part(site), heard, "none" if days is None else f"{_days(days)} left")
    return table


def _part(site: Mapping[str, Any]) -> str:
    taken_out = next((word for word in ("revoked", "withdrawn") if site.get(word)), None)
    return taken_out or ("yes" if site["joined"] else "no")


def _days(days: float) -> str:
    told = "no time" if days <= 0 else f"{days:.1f} days" if days < _FEW_DAYS else f"{days:.0f} days"
    return f"[red]{told}[/red]" if days < _FEW_DAYS else told


def span(seconds: float) -> str:
    """Format a duration in its one or two largest units: 0.25 s, 12 s, 3 min, 2 h 5 min, 4 d 3 h."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 60:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if hours < 48:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"
