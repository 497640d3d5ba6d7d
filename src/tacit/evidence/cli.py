"""The commands for those who do not take our word. What they need is imported when they run."""

from pathlib import Path
from typing import Annotated

import typer

Key = Annotated[
    Path | None, typer.Option(help="Your private key, as ssh-keygen -t ed25519 writes it; else one is made.")
]


def certify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or of a federation's server.")],
    out: Annotated[Path | None, typer.Option(help="Where to write; the run's own folder if left out.")] = None,
    key: Key = None,
    countersign: Annotated[
        Path | None, typer.Option(metavar="JSON", help="RUN is a member's folder: sign this certificate, too.")
    ] = None,
) -> None:
    """Write what a run promised, to whom and against whom, signed: as JSON, as a page, and for a model card."""
    from tacit.evidence import certificate, certificate_page, signing

    if countersign is not None:
        certificate.write(certificate.countersign_file(countersign, run), countersign)
        typer.echo(f"countersigned: {countersign}")
        return
    secret = signing.make_key(key or Path(typer.get_app_dir("tacit")) / "certificate.key")
    content = certificate.certify(run, secret)
    place = out or run
    typer.echo(f"certificate: {certificate.write(content, place / 'certificate.json')}")
    for name, text in (("html", certificate_page.page(content)), ("md", certificate_page.model_card(content))):
        certificate.write_text(text, place / f"certificate.{name}")
    typer.echo(f"page:        {place / 'certificate.html'}")
    typer.echo(f"model card:  {place / 'certificate.md'}")
    typer.echo(f"signed by:   {signing.fingerprint(content['signature']['key'])}; tell it over another line")


def verify(
    certificate: Annotated[Path, typer.Argument(metavar="JSON", help="What `tacit certify` wrote.")],
    ledger: Annotated[Path, typer.Option(help="The ledger's file, or the folder that holds it.")],
    models: Annotated[Path | None, typer.Option(help="A folder of models that you received.")] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="FINGERPRINT", help="Whose signature it must be; or a file with the public key."),
    ] = None,
) -> None:
    """Derive every figure of a certificate again, and check chain, signatures, hashes and models; 1 if one fails.

    Needs no torch, and none of the code that made the claim but the reading of the ledger's chain.
    """
    from tacit.evidence.verify import verify as check

    lines = check(certificate, ledger, models, key)
    for line in lines:
        typer.echo(str(line))
    raise typer.Exit(int(any(line.passed is False for line in lines)))


def audit(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    canaries: Annotated[int, typer.Option(min=20, help="How many; each is there by the toss of a coin.")] = 400,
    level: Annotated[str | None, typer.Option(help="At which private level they are; the first if left out.")] = None,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Of the bounds.")] = 0.95,
    cohort_known: Annotated[bool, typer.Option("--cohort-known", help="The attacker knows who was drawn.")] = False,
    runs: Annotated[
        int, typer.Option(min=1, help="Trainings; more than one: a single canary, there or not, for small federations.")
    ] = 1,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the file; may be repeated.")
    ] = None,
) -> None:
    """Attack a whole run: train with canaries planted, tell from the models which were there; 1 if disproved.

    Prints a lower bound of epsilon beside the claim. A bound below the claim proves nothing. No ledger is kept.
    """
    from tacit.errors import TacitError
    from tacit.evidence.repeated_audit import audit_repeatedly
    from tacit.evidence.run_audit import audit_run
    from tacit.experiments.build import build
    from tacit.experiments.config import load, with_overrides

    if runs > 1 and cohort_known:
        raise TacitError("--cohort-known is for the attack on a single run: leave out --runs")
    parts = build(with_overrides(load(file), set_ or []))
    if runs > 1:
        result = audit_repeatedly(parts, runs, level, confidence)
    else:
        result = audit_run(parts, canaries, level, confidence, cohort_known)
    typer.echo(str(result))
    raise typer.Exit(int(result.disproved))


def erase(
    folder: Annotated[Path, typer.Argument(help="Your own folder, as `tacit join` made it.")] = Path("my-federation"),
    rows: Annotated[bool, typer.Option("--rows", help="Also the copy of your data in it.")] = False,
) -> None:
    """Delete your personal models from your own disk, with a signed receipt. Leave the federation first.

    The ledger stays: it is the proof of what was spent.
    """
    from tacit.evidence.erasure import RECEIPT
    from tacit.evidence.erasure import erase as delete

    receipt = delete(folder, rows)
    typer.echo(f"deleted {len(receipt['deleted'])} files; receipt: {folder / RECEIPT}")


def tune(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    choices: Annotated[
        list[str], typer.Option("--try", metavar="KEY=VALUE,VALUE", help="Values of a key; may be repeated.")
    ],
    mean: Annotated[float, typer.Option(help="Trials, on average: their number is random, and secret.")] = 5.0,
    score_noise: Annotated[float, typer.Option(help="Standard deviation of a score's noise, in clients.")] = 10.0,
    out: Annotated[Path, typer.Option(help="Where the winner's folder is made.")] = Path("runs"),
) -> None:
    """Search for the best settings and train them, within the budgets: the search is charged like the training.

    What is printed of the winner is the epsilon of both; that of its training alone says nothing.
    """
    from rich.console import Console

    from tacit.evidence.tuning import Search
    from tacit.evidence.tuning import tune as search
    from tacit.experiments.config import load

    config = load(file)
    values = {key: text.split(",") for key, _, text in (each.partition("=") for each in choices)}
    chosen, result = search(config, Search(values, mean, score_noise), out / f"{config.name}-tuned-{config.seed}")
    Console(highlight=False, markup=False).print(result)
    typer.echo(f"chosen: {', '.join(f'{key} = {value}' for key, value in chosen.items())}; kept in {result.folder}")


def attack(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    client: Annotated[str | None, typer.Option(metavar="ID", help="Whose data are looked for.")] = None,
    references: Annotated[
        int, typer.Option(min=0, help="Train so many models on half of the clients each, to see who is found in fact.")
    ] = 0,
    html: Annotated[
        Path | None, typer.Option(help="Where to write the page; the run's own folder if left out.")
    ] = None,
) -> None:
    """Write a page that shows what an attacker gets of a run: who can be found out, what a round shows of a client.

    For simulations: it draws a picture of a client's own data.
    """
    from tacit.evidence.attack_page import attack_page
    from tacit.evidence.certificate import write_text

    typer.echo(f"page: {write_text(attack_page(run, client, references), html or run / 'attack.html')}")
