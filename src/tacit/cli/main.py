"""The command line. Commands import what they need when they run, so that `tacit --help` is quick."""

import shlex
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
import typer
from typer.core import TyperGroup

from tacit.errors import TacitError
from tacit.estimation.cli import estimate
from tacit.evidence import cli as evidence
from tacit.federation.service import cli as federation

if TYPE_CHECKING:
    from rich.console import Console

    from tacit.experiments.config import Config
    from tacit.experiments.result import Result
    from tacit.report.budget import BudgetReport

INTERRUPTED = 130  # as shells say it


class Commands(TyperGroup):
    """Turns what a user can cause into one line on stderr, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TacitError as error:
            typer.echo(f"error: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            typer.echo("stopped", err=True)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=Commands,
    help="Differentially private, personalized federated learning. Start with: tacit demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    warnings.filterwarnings("default", r"run\.", DeprecationWarning)  # keys of a file that have another place now
    app()


def _console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, markup=False)


def _version(asked: bool) -> None:
    if asked:
        from tacit import __version__

        typer.echo(f"tacit {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None: ...


Out = Annotated[Path, typer.Option("--out", help="Where folders of runs are made.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs, and write nothing else.")]


@app.command(epilog="Example: `tacit run digits.toml --set rounds=50 --set privacy.clip=0.2 --seeds 3`")
def run(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the file; may be repeated.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Run with this many seeds, one after the other.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run was interrupted.")] = False,
    out: Out = Path("runs"),
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the folders of the runs and nothing else.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Print where the time went.")] = False,
) -> None:
    """Run the experiment in FILE (TOML); it goes into a new folder, OUT/name-seed.

    Ctrl-C once ends the run after its round, so that `--resume` goes on to the same result. Twice stops at once.
    """
    from tacit.experiments.config import load, with_overrides

    config = with_overrides(load(file), set_ or [])
    configs = [config.model_copy(update={"seed": config.seed + k}) for k in range(seeds)]
    findings = []
    for each in configs:
        began = time.perf_counter()
        result = _run_one(each, out, resume, seeds > 1, quiet)
        if profile:
            from tacit.report.tables import profile_table

            _console().print(profile_table(result.run.clock.seconds, time.perf_counter() - began))
        if result.interrupted:
            again = ["tacit", "run", str(file), *(part for text in set_ or [] for part in ("--set", text))]
            again += ["--seeds", str(seeds)] * (seeds > 1) + ["--out", str(out)] * (out != Path("runs"))
            typer.echo(f"{result.findings.standing} To go on: {shlex.join([*again, '--resume'])}", err=True)
            raise typer.Exit(INTERRUPTED)
        findings.append(result.findings)
    if seeds > 1 and not quiet:
        from tacit.report.tables import over_seeds

        _console().print(over_seeds(findings))


def _run_one(config: "Config", out: Path, resume: bool, maybe_new: bool, quiet: bool) -> "Result":
    from tacit.experiments import run_dir
    from tacit.experiments.config import full
    from tacit.experiments.train import run_config

    name = f"{config.name}-{config.seed}"
    resume = resume and not (maybe_new and not (out / name).exists())
    folder = run_dir.latest(out, name, full(config)) if resume else run_dir.next_free(out, name)
    result = run_config(config, folder, resume, progress=not quiet)
    if quiet:
        typer.echo(folder)
    else:
        _console().print(result)
        typer.echo(f"Kept in {folder}; see also: tacit show {folder}")
    return result


@app.command(
    epilog="Example: `tacit sweep digits.toml --set method.lr=.03,.1,.3 --set levels.private.epsilon=1,4 -j 2`"
)
def sweep(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE,...", help="Values of a key to try; may be repeated, for a grid."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each combination.")] = 1,
    jobs: Annotated[int, typer.Option("-j", "--jobs", min=1, help="Runs at a time, each in its own process.")] = 1,
    out: Out = Path("runs"),
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on this Ray cluster; OUT must be storage it shares.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the folder of the sweep and nothing else.")] = False,
) -> None:
    """Run an experiment with every combination of some settings, and compare them on one page.

    The runs go to OUT/name. The same command again goes on where it was stopped or killed: what is done is not done
    again.
    """
    from tacit.experiments.config import load
    from tacit.experiments.sweep import run_sweep, split_values

    pairs = [split_values(text) for text in set_ or []]
    if len({key for key, _ in pairs}) < len(pairs):
        raise TacitError("a key stands in two --set: give all its values in one, for example method.lr=.03,.1")
    results = run_sweep(load(file), dict(pairs), seeds, jobs, out, ray, progress=not quiet)
    if not quiet and results.measured:
        _console().print(results.table(), results.differences(), sep="\n")
        typer.echo(f"page:  {results.save_html()}")
    typer.echo(results.folder if quiet else f"runs:  {results.folder}")
    for folder, reason in results.failures.items():
        typer.echo(f"failed: {folder.name}: {reason}", err=True)
    if results.left:
        typer.echo(
            f"{len(results.left)} of {len(results.trials)} runs are left: the same command goes on with them", err=True
        )
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(int(bool(results.failures)))


@app.command(epilog="Example: `tacit show runs/digits-0 runs/local-0 --html compare.html`")
def show(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs; several are compared.")],
    html: Annotated[Path | None, typer.Option(help="Where to write the page.")] = None,
    png: Annotated[Path | None, typer.Option(help="Where to write the image.")] = None,
    json: Json = False,
) -> None:
    """Print the tables and guarantees of the runs in these folders, and write them as one page and one image."""
    from tacit.core.files import check_output
    from tacit.report.html import open_all, places, tell, write_html, write_png

    for path, suffixes in ((html, (".html", ".htm")), (png, (".png",))):
        if path is not None:
            check_output(path, suffixes, force=True)
    runs = open_all(folders)
    if json:
        from tacit.report.machine_readable import run_record

        _print_json([run_record(run, folder) for run, folder in zip(runs, folders, strict=True)])
        return
    console = _console()
    console.print(*tell(runs), sep="\n")
    page, image = places(folders)
    typer.echo(f"page:  {write_html(runs, html or page)}")
    typer.echo(f"image: {write_png(runs, png or image)}")


@app.command(epilog="Example: `tacit budget --epsilon 3.6 --delta 1e-4 --rate 0.05 --rounds 500 --population 3400`")
def budget(
    ctx: typer.Context,
    epsilon: Annotated[float, typer.Option(help="What the whole run may cost.")] = 3.6,
    delta: Annotated[float, typer.Option(help="Well below 1 / (number of clients or records).")] = 1e-4,
    rate: Annotated[float, typer.Option(help="Share of the clients asked in a round (Poisson).")] = 0.05,
    rounds: Annotated[int, typer.Option(help="Rounds of the whole run.")] = 500,
    noise_multiplier: Annotated[float | None, typer.Option(help="Given noise: print the epsilon it costs.")] = None,
    population: Annotated[int | None, typer.Option(help="Number of clients, to check delta.")] = None,
    fixed_size: Annotated[int | None, typer.Option(help="Ask this many of the population instead of a rate.")] = None,
    unit: Annotated[Literal["client", "record"], typer.Option(help="What the guarantee protects.")] = "client",
    steps: Annotated[int, typer.Option(help="For records: noisy local steps in a round.")] = 1,
    queries: Annotated[int, typer.Option(help="For records: private gradients on one step's batch.")] = 1,
    allow_large_delta: Annotated[bool, typer.Option("--allow-large-delta", help="Allow delta >= 1/n.")] = False,
    bits: Annotated[int | None, typer.Option(help="Noise in shares, on integers of so many bits.")] = None,
    parameters: Annotated[int, typer.Option(help="With --bits: numbers in an upload.")] = 100_000,
    against: Annotated[
        Literal["server", "released"], typer.Option(help="With --bits: whom epsilon holds against.")
    ] = "released",
    as_: Annotated[
        Literal["epsilon", "mu", "risk"], typer.Option("--as", help="Beside epsilon: mu, and what an attacker gets.")
    ] = "epsilon",
    at_delta: Annotated[list[float] | None, typer.Option(help="Epsilon at this delta, too; may be repeated.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw epsilon over noise, rounds and rate: .png or .html.")] = None,
    propose_rate: Annotated[
        bool, typer.Option("--propose-rate", help="The smallest rate with at most a tenth more noise than at rate 1.")
    ] = False,
    least_cohort: Annotated[int, typer.Option(help="With --propose-rate: clients to be asked in expectation.")] = 1,
    json: Json = False,
) -> None:
    """Print how much noise a budget needs, or what a given noise costs, with the derivation."""
    from tacit.report.budget import budget as reckon
    from tacit.report.budget_shares import shares

    run: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "rate": rate, "rounds": rounds}
    run |= {"population": population, "allow_large_delta": allow_large_delta}
    rest: dict[str, Any] = {"noise_multiplier": noise_multiplier, "fixed_size": fixed_size}
    _refuse_unused_options(ctx, bits)
    if propose_rate:
        run["rate"] = _proposed(run, least_cohort, unit, bits, json)
    if bits is None:
        more: dict[str, Any] = {"figures": as_, "other_deltas": at_delta or ()}
        settings = {**run, **rest, **more, "unit": unit, "steps": steps, "queries": queries}
        _tell_budget(reckon(**settings), settings, plot, json)
        return
    rest |= {"at_delta": at_delta, "as": None if as_ == "epsilon" else as_, "plot": plot, "json": json or None}
    if unit != "client" or steps != 1 or queries != 1 or any(value is not None for value in rest.values()):
        raise TacitError("noise in shares is client-level, with Poisson sampling and a budget: leave out the rest")
    _console().print(shares(**run, parameters=parameters, bits=bits, against=against))


def _proposed(run: Mapping[str, Any], least_cohort: int, unit: str, bits: int | None, json: bool) -> float:
    """The rate to be used instead, said before what it costs."""
    from tacit.report.rates import propose_rate

    if run["population"] is None or unit != "client" or bits is not None:
        raise TacitError("--propose-rate is for clients, Poisson sampling and a trusted server: give --population")
    found = propose_rate(run["epsilon"], run["delta"], run["rounds"], run["population"], least_cohort=least_cohort)
    typer.echo(found.words, err=json)
    return found.rate


def _tell_budget(report: "BudgetReport", settings: dict[str, Any], plot: Path | None, json: bool) -> None:
    from tacit.core.files import check_output

    if plot is not None:
        check_output(plot, (".png", ".html", ".htm"), force=True)
    if json:
        _print_json({"epsilon": report.epsilon, "accountant": report.accountant, **vars(report)})
    else:
        _console().print(report)
    if plot is not None:
        from tacit.report.budget_curves import curves, write

        typer.echo(f"picture: {write(curves(report, settings), plot)}", err=json)


def _refuse_unused_options(ctx: typer.Context, bits: int | None) -> None:
    """An option that would change nothing is an error: its reader would believe that it did."""
    chosen = {name for name in ctx.params if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
    pairs = [("epsilon", "noise_multiplier"), ("rate", "fixed_size")]
    pairs += [("propose_rate", other) for other in ("rate", "fixed_size", "noise_multiplier")]
    for one, other in pairs:
        if {one, other} <= chosen:
            first, second = (f"--{each.replace('_', '-')}" for each in (one, other))
            raise TacitError(f"{first} and {second} are both given: leave out one of them")
    for name in ("against", "parameters"):
        if bits is None and name in chosen:
            raise TacitError(f"--{name} is for noise in shares: add --bits, or leave it out")
    if "least_cohort" in chosen and "propose_rate" not in chosen:
        raise TacitError("--least-cohort is for a proposed rate: add --propose-rate, or leave it out")


@app.command(epilog="Example: `tacit ledger runs/digits-0`, `tacit ledger my-federation --verify --heads heads.txt`")
def ledger(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run, a federation's server or member.")
    ],
    all_: Annotated[bool, typer.Option("--all", help="List every account, however many there are.")] = False,
    client: Annotated[str | None, typer.Option(metavar="ID", help="Only the account of this client.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the chain, every epsilon, and the heads that were kept; 1 if not.")
    ] = False,
    heads: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="With --verify: the other side's folder or ledger, or a list of heads."),
    ] = None,
    json: Json = False,
    as_: Annotated[
        Literal["epsilon", "mu", "risk"], typer.Option("--as", help="Beside epsilon: mu, and what an attacker gets.")
    ] = "epsilon",
    at_delta: Annotated[list[float] | None, typer.Option(help="Epsilon at this delta, too; may be repeated.")] = None,
) -> None:
    """Print what every account of the run in a folder has spent, replayed from the charges on disk.

    With `--verify`: is the ledger the one it was? One that was edited, shortened or restored is found.
    """
    if verify or heads:
        from tacit.report.verify import verify as check

        lines = check(folder, heads or [], client)
        if json:
            _print_json(lines)
        for line in [] if json else lines:
            typer.echo(str(line))
        raise typer.Exit(int(any(line.passed is False for line in lines)))
    from tacit.privacy.ledger.statement import SIMULATION
    from tacit.report.budget import changes_table, ledger_figures, ledger_table
    from tacit.report.run_folder import Folder

    parts = [changes_table(folder, all_, client)]
    if client is None or parts == [None]:
        parts = [ledger_table(folder, all_, client), *parts]
    figures = ledger_figures(folder, as_, at_delta or (), client) if as_ != "epsilon" or at_delta else []
    if json:
        from tacit.report.machine_readable import ledger_record

        _print_json(ledger_record(parts, SIMULATION if Folder(folder).facts.is_file() else None, figures))
        return
    if Folder(folder).facts.is_file():
        typer.echo(SIMULATION)
    _console().print(*(part for part in parts if part is not None))
    if figures:
        _console().print(*map(str, figures), sep="\n")


@app.command(epilog="Example: `tacit predict runs/digits-0 rows.csv --client 17 --out predictions.csv`")
def predict(
    source: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or one that `Result.save` wrote.")],
    rows: Annotated[Path, typer.Argument(help="A CSV file with a header, or an .npz of arrays.")],
    client: Annotated[str | None, typer.Option(metavar="ID", help="By this client's personal model.")] = None,
    out: Annotated[Path | None, typer.Option(help="A CSV file to write; the screen if left out.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over OUT, if that is a CSV file and not ROWS.")] = False,
) -> None:
    """Predict the class (or the number) of each row of a file, by the shared model or by a client's own."""
    from tacit.core.files import check_output
    from tacit.experiments.trained import open_models, prediction_table, read_rows

    if out is not None:
        check_output(out, (".csv",), force, inputs=(rows,))
    models = open_models(source)
    table = prediction_table(models.outputs(read_rows(rows, models.config), client), models.config)
    if out is None:
        typer.echo(table.to_csv(index=False), nl=False)
    else:
        table.to_csv(out, index=False)
        typer.echo(f"{len(table):,} predictions: {out}")


@app.command(epilog="Example: `tacit export runs/digits-0 model.pt2 --format torch-export`")
def export(
    source: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or one that `Result.save` wrote.")],
    file: Annotated[Path, typer.Argument(help="The file to write; must not exist.")],
    client: Annotated[str | None, typer.Option(metavar="ID", help="This client's personal model.")] = None,
    kind: Annotated[
        Literal["state-dict", "torch-export", "onnx"],
        typer.Option("--format", "--kind", help="Parameters alone, a program for PyTorch, or ONNX (extra `onnx`)."),
    ] = "state-dict",
) -> None:
    """Write a trained model as one file for other programs: the shared one, or a client's own."""
    from tacit.experiments.trained import export_file, open_models

    models = open_models(source)
    typer.echo(f"{kind}: {export_file(models.module(client), models.config, file, kind)}")


@app.command(epilog='Example: `tacit encode images.npz features.npz`, then `[data] source = "features"`')
def encode(
    images: Annotated[Path, typer.Argument(help="An .npz with x and y, or x_train, y_train, x_test, y_test.")],
    features: Annotated[Path, typer.Argument(help="The .npz to write.")],
    model: Annotated[
        str, typer.Option(help="A CLIP of the hub, or a local folder; efficientnet-lite0; or package.module:function.")
    ] = "openai/clip-vit-base-patch32",
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Write mean and std of the features alone, of public images.")
    ] = False,
) -> None:
    """Turn images into the features of a frozen encoder that was trained elsewhere, for a small head."""
    from tacit.data.encoders import encode_file, find_encoder

    shapes = encode_file(images, features, find_encoder(model), statistics)
    typer.echo(f"{features}: {', '.join(f'{name} {shape}' for name, shape in shapes.items())}")


@app.command(epilog="Example: `tacit demo --out /tmp/tacit`")
def demo(out: Out = Path("runs")) -> None:
    """Train 200 clients on digits, nine in ten of them privately, and write a page to look at; under a minute."""
    from tacit.experiments.demo import demo as play

    if play(out, _console()):
        raise typer.Exit(INTERRUPTED)


@app.command(epilog='Example: `tacit data`, then in the experiment: `[data] source = "digits"`')
def data(
    action: Annotated[Literal["fetch"] | None, typer.Argument(help="To have an open data set.")] = None,
    name: Annotated[str | None, typer.Argument(help="With fetch: which one.")] = None,
    to: Annotated[Path | None, typer.Option(help="With fetch: its folder; default: TACIT_DATA.")] = None,
    json: Json = False,
) -> None:
    """List where data can come from and how it can be divided among clients; or fetch an open data set."""
    if action == "fetch":
        from tacit.data.fetch import fetch

        if name is None or json:
            raise TacitError("give the name of one data set, for instance: tacit data fetch mnist --to data")
        path, note = fetch(name, to)
        typer.echo(f"{name}: {path}{f' ({note})' if note else ''}")
        return
    from tacit.experiments.config import data_tables

    _print(data_tables, json)


@app.command(epilog='Example: `tacit methods`, then in the experiment: `[method] name = "ditto"`')
def methods(json: Json = False) -> None:
    """List the methods, a line each, with the keys that they use."""
    from tacit.experiments.config import section_table

    _print(lambda: [section_table("method")], json)


@app.command(epilog='Example: `tacit models`, then in the experiment: `[model] name = "mlp"`')
def models(json: Json = False) -> None:
    """List the models, a line each, with the keys that they use."""
    from tacit.experiments.config import section_table

    _print(lambda: [section_table("model")], json)


@app.command(epilog='Example: `tacit plans`, then in the experiment: `[privacy] plan = "grouped"`')
def plans(json: Json = False) -> None:
    """List the privacy plans, a line each, with the keys that they use."""
    from tacit.experiments.config import section_table

    _print(lambda: [section_table("privacy")], json)


app.command(epilog="Example: `tacit serve digits.toml --local 5`")(federation.serve)
app.command(epilog="Example: `tacit join hospital.example:8443 INVITATION --data my.csv --name ward-7`")(
    federation.join
)
app.command(epilog="Example: `tacit leave --folder my-federation`")(federation.leave)
app.command(epilog="Example: `tacit members --folder my-federation`")(federation.members)
app.command(epilog="Example: `tacit certify runs/digits-0`")(evidence.certify)
app.command(epilog="Example: `tacit verify certificate.json --ledger ledger.sqlite --models saved --key SHA256:...`")(
    evidence.verify
)
app.command(epilog="Example: `tacit audit digits.toml --canaries 400`")(evidence.audit)
app.command(epilog="Example: `tacit erase my-federation`")(evidence.erase)
app.command(epilog="Example: `tacit tune digits.toml --try method.lr=0.1,0.3,1 --mean 5`")(evidence.tune)
app.command(epilog="Example: `tacit attack runs/digits-0`")(evidence.attack)
app.add_typer(estimate, name="estimate")


def _print(tables: Callable[[], Sequence[Any]], json: bool) -> None:
    if json:
        from tacit.report.machine_readable import records

        _print_json([row for table in tables() for row in records(table)])
        return
    _console().print(*tables(), sep="\n")


def _print_json(value: Any) -> None:
    from tacit.report.machine_readable import to_json

    typer.echo(to_json(value))
