"""Runs a rehearsal of a federation: `python deploy/quickstart`, or `deploy/quickstart.sh` with an environment.

Real programs over mutual TLS on loopback train on real clinical data of sites with different columns. Each site then
sees what it would have reached alone.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Final, NoReturn

sys.path.insert(0, str(Path(__file__).parent.parent))

import click
from rich.console import Console

from protos.errors import OperatorError, UnavailableError, UsageError
from quickstart.federation import Rehearsal, prepare
from quickstart.figures import collect, odds_ratios, odds_table, sentences_of, table_of
from quickstart.hospitals import (
    BREAST_CANCER,
    HEART,
    UCI_HEART,
    UCI_HOSPITALS,
    HospitalData,
    dealt_hospitals,
    heart_hospitals,
    uci_hospitals,
)
from quickstart.image_hospitals import DIGITS, digit_hospitals
from quickstart.plans import studies_of
from quickstart.programs import run_to_the_end

_MARK: Final = "made-by-quickstart"
_LONGEST_SOCKET_PATH: Final = 107  # bytes, the kernel's limit for the name of a Unix socket
_folder = click.Path(path_type=Path)


@click.command(epilog="Example: deploy/quickstart.sh --rounds 20 --json figures.json")
@click.option(
    "--method",
    "methods",
    multiple=True,
    metavar="NAME",
    help="Method to run, from the table in docs/researcher.md, or a plan's `method` in braces. You can repeat the "
    "option. The last method is compared with the best local model. "
    "[default: fedavg, global-layers and federated-prior on uci-heart; global-layers on breast-cancer; fedavg "
    "on digits; otherwise fedavg and global-layers]",
)
@click.option(
    "--data",
    default=UCI_HEART,
    show_default=True,
    metavar="NAME|FOLDER",
    help=f"{UCI_HEART} (four heart clinics), {BREAST_CANCER} (one table divided among hospitals), {DIGITS} (images of "
    f"digits divided among hospitals), or a folder with {', '.join(HEART.values())}. The page docs/researcher.md "
    "names the sources of these data.",
)
@click.option("--masked/--unmasked", default=True, show_default=True, help="Secure aggregation.")
@click.option(
    "--rounds",
    type=click.IntRange(1, 10_000),
    default=10,
    show_default=True,
    help="Number of rounds of methods that train a network. federated-prior has its own number of rounds: at most 17.",
)
@click.option(
    "--sites",
    type=click.IntRange(3, 20),
    help="Number of hospitals. [default: 3 with breast-cancer, 5 with digits, otherwise all]",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)
@click.option("--json", "json_file", type=_folder, help="Output file for the results, in JSON.")
@click.option("--output", type=_folder, default=Path("quickstart-run"), show_default=True, help="Output folder.")
def rehearse(
    methods: tuple[str, ...],
    data: str,
    masked: bool,
    rounds: int,
    sites: int | None,
    seed: int,
    json_file: Path | None,
    output: Path,
) -> None:
    """Rehearse a federation of hospitals on this computer, with the real programs and mutual TLS on loopback."""
    has_concepts = data == UCI_HEART and sites in (None, len(UCI_HOSPITALS))
    methods = methods or _default_methods(data, has_concepts=has_concepts)
    _check_words(data=data, sites=sites, json_file=json_file, methods=methods)
    folder = _fresh(output)
    tables = folder / "tables"
    tables.mkdir()
    hospitals = _hospitals(data, sites, tables, seed)
    rehearsal = Rehearsal(
        folder=folder,
        hospitals=hospitals,
        methods=methods,
        rounds=rounds,
        seed=seed,
        is_masked=masked,
    )
    console = Console()
    _say(
        console, f"Preparing an authority, {len(hospitals)} hospitals and {_count(len(rehearsal.studies))} in {folder}"
    )
    prepare(rehearsal)
    run_to_the_end(rehearsal, console)
    figures = collect(rehearsal)
    console.print(table_of(figures))
    for sentence in sentences_of(figures):
        _say(console, sentence)
    if has_concepts and masked:
        # With states of its own: its sums have all rows, and those of the studies above only the rows for training.
        question = Rehearsal(
            folder=folder / "odds-ratios", hospitals=hospitals, methods=(), rounds=8, seed=seed, is_masked=True
        )
        question.folder.mkdir()
        prepare(question)
        run_to_the_end(question, console)
        figures["odds_ratios"] = odds_ratios(question, "va")
        console.print(odds_table(figures["odds_ratios"], "va"))
    for file in filter(None, (folder / "figures.json", json_file)):
        file.write_text(json.dumps(figures, indent=2) + "\n")
    _say(console, f"Models, reports, logs and audit logs are in {folder}")


def _default_methods(data: str, *, has_concepts: bool) -> tuple[str, ...]:
    """Return the default methods for the data.

    FedAvg shares the columns' layer, but the divided table has no common column. The images have one method, because
    each study takes about a minute: every hospital fits its simple models to the pixels again.
    """
    if data == DIGITS:
        return ("fedavg",)
    federated_average = () if data == BREAST_CANCER else ("fedavg",)
    return (*federated_average, "global-layers", *(("federated-prior",) if has_concepts else ()))


def _hospitals(data: str, sites: int | None, tables: Path, seed: int) -> list[HospitalData]:
    """Return the requested hospitals, with their tables and contracts in a folder."""
    if data == DIGITS:
        return digit_hospitals(sites or 5, tables, seed)
    if data == BREAST_CANCER:
        return dealt_hospitals(sites or 3, tables, seed)
    return (uci_hospitals(tables) if data == UCI_HEART else heart_hospitals(Path(data), tables))[:sites]


def _check_words(*, data: str, sites: int | None, json_file: Path | None, methods: tuple[str, ...]) -> None:
    """Refuse an impossible request before any file is created."""
    studies_of(methods)
    most = {BREAST_CANCER: 20, DIGITS: 20, UCI_HEART: len(UCI_HOSPITALS)}.get(data, len(HEART))
    if sites is not None and sites > most:
        raise _usage(f"--data {data} has {most} hospitals, not {sites}.", "Use a smaller number, or omit --sites.")
    if data not in (UCI_HEART, BREAST_CANCER, DIGITS):
        absent = [file for file in HEART.values() if not (Path(data) / file).is_file()]
        if absent:
            raise _usage(
                f"The folder {data} has no {', no '.join(absent)}.",
                "Put the files there; the researcher's page names their sources.",
            )
    if json_file is not None and (json_file.is_dir() or not json_file.resolve().parent.is_dir()):
        raise _usage(f"{json_file} cannot be written.", "Name a file in an existing folder with --json.")


def _fresh(output: Path) -> Path:
    """Create an empty folder, mode 0700. Only an earlier rehearsal's folder is replaced."""
    folder = output.resolve()
    if len(os.fsencode(folder / "coordinator/control.socket")) > _LONGEST_SOCKET_PATH:
        raise _usage(f"The path {folder} is too long for a socket in it.", "Name a shorter one with --output.")
    if folder.exists() and not folder.is_dir():
        raise _usage(f"{folder} is a file.", "Name a folder with --output.")
    if folder.exists() and any(folder.iterdir()):
        if not (folder / _MARK).exists():
            raise _usage(
                f"{folder} is not empty, and no rehearsal made it.", "Name another folder with --output, or empty it."
            )
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / _MARK).touch()
    return folder


def _usage(what: str, remedy: str) -> UsageError:
    return UsageError(what=what, consequence="Nothing was started or changed.", remedy=remedy)


def _count(studies: int) -> str:
    return "one study" if studies == 1 else f"{studies} studies"


def _say(console: Console, text: str) -> None:
    """Print a line unchanged: a path is neither wrapped nor read as markup."""
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def main() -> NoReturn:
    """Run the command and end the process with its exit status."""
    os.umask(0o077)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        rehearse(standalone_mode=False, prog_name="quickstart")
        sys.exit(0)
    except OperatorError as error:
        print(error.lines("quickstart"), file=sys.stderr)
        sys.exit(error.exit_status)
    except click.exceptions.Abort:
        kept = "Finished files are kept, and its programs have ended."
        print(f"quickstart: interrupted. {kept} Run the command again.", file=sys.stderr)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except OSError as cause:
        explained = UnavailableError(
            what=f"The operating system refused an operation: {cause.strerror} ({cause.filename}).",
            consequence="The rehearsal did not finish. No data left this computer.",
            remedy="Check the free space on the disk and your permissions in the folder, then try again.",
        )
        print(explained.lines("quickstart"), file=sys.stderr)
        sys.exit(explained.exit_status)


if __name__ == "__main__":
    main()
