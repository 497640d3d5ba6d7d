"""`tacit estimate`: personal rates and means from a table, privately if asked."""

import inspect
import math
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from tacit.errors import TacitError

if TYPE_CHECKING:
    from tacit.estimation.messages import Message
    from tacit.estimation.table_files import Dialect
    from tacit.estimation.tables import Questions, TableEstimates

Send = Literal["exact", "randomised-response", "gaussian", "central"]

estimate = typer.Typer(
    help="Personal estimates for many small clients: each keeps its own and borrows from all.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Table = Annotated[Path, typer.Argument(help="A table: CSV, Excel or Parquet.")]
Name = Annotated[str, typer.Option("--id", help="The column that names the client.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Where the estimates go, by its ending; pictures beside it.")]
Epsilon = Annotated[float | None, typer.Option(help="Privacy of each client, for its one message.")]
Delta = Annotated[float | None, typer.Option(help="Below 1 / (number of clients); for Gaussian noise.")]
Sent = Annotated[Send | None, typer.Option("--message", help="What each client sends to the server.")]
Bits = Annotated[int | None, typer.Option(help="Send this many bits a number instead (no privacy).")]
PriorMean = Annotated[float | None, typer.Option(help="Known mean of the clients' truths.")]
PriorVariance = Annotated[float | None, typer.Option(help="Known variance of the clients' truths.")]
Seed = Annotated[int | None, typer.Option(help="Repeatable messages, for simulation; default: secure randomness.")]
LedgerFile = Annotated[
    Path | None, typer.Option("--ledger", help="What was asked of these clients; default: TABLE.ledger.sqlite.")
]
Limit = Annotated[float | None, typer.Option("--budget", help="Epsilon of all questions together: refuse to pass it.")]
Force = Annotated[bool, typer.Option("--force", help="Write over files that are there; never over TABLE.")]
Pictures = Annotated[bool, typer.Option("--pictures/--no-pictures", help="Write a PNG and an HTML beside the table.")]
Purpose = Annotated[str | None, typer.Option(help="What the estimates are for; stands on the page.")]

Separator = Annotated[str | None, typer.Option("--sep", help="Between columns, or `tab`; guessed if left out.")]
Decimal = Annotated[str | None, typer.Option(help="Point or comma in numbers; guessed if left out.")]
Thousands = Annotated[str | None, typer.Option(help="Between groups of three digits; guessed if left out.")]
Encoding = Annotated[str | None, typer.Option(help="For instance utf-8 or cp1252; guessed if left out.")]
Sheet = Annotated[str | None, typer.Option(help="Of an Excel file; default: the first.")]
Json = Annotated[bool, typer.Option("--json", help="Print what was found as one JSON object.")]


class Request(NamedTuple):
    """The options of every estimate."""

    table: Table
    id_: Name
    out: Out
    epsilon: Epsilon = None
    delta: Delta = None
    message: Sent = None
    bits: Bits = None
    prior_mean: PriorMean = None
    prior_variance: PriorVariance = None
    ledger: LedgerFile = None
    budget: Limit = None
    seed: Seed = None
    pictures: Pictures = True
    force: Force = False
    purpose: Purpose = None
    sep: Separator = None
    decimal: Decimal = None
    thousands: Thousands = None
    encoding: Encoding = None
    sheet: Sheet = None
    json: Json = False

    @property
    def dialect(self) -> "Dialect":
        from tacit.estimation.table_files import Dialect

        separator = {"tab": "\t", "\\t": "\t"}.get(self.sep or "", self.sep)
        return Dialect(separator, self.decimal, self.thousands, self.encoding, self.sheet)


def _command(example: str) -> Callable[[Callable[..., None]], None]:
    """A command whose options are those of the function, after its first argument, and those of a `Request`."""

    def register(run: Callable[..., None]) -> None:
        options = [*inspect.signature(run).parameters.values()][1:]
        shared = [*inspect.signature(Request).parameters.values()]
        ordered = sorted([*shared[:2], *options, *shared[2:]], key=lambda option: option.default is not option.empty)

        @wraps(run)
        def command(**values: Any) -> None:
            run(Request(**{name: values.pop(name) for name in Request._fields}), **values)

        command.__annotations__ = {option.name: option.annotation for option in ordered}
        command.__dict__["__signature__"] = inspect.Signature(
            [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in ordered]
        )
        estimate.command(epilog=f"Example: `tacit estimate {example}`")(command)

    return register


@_command("rates counts.csv --id county --successes wins --trials n -o o.csv")
def rates(
    request: Request,
    successes: Annotated[str, typer.Option(help="The column of successes.")],
    trials: Annotated[str, typer.Option(help="The column of trials.")],
) -> None:
    """A rate for each client from its successes and trials; with --epsilon, by randomised response."""
    from tacit.estimation import tables
    from tacit.estimation.bernoulli import BernoulliRates

    message = _message(request, "randomised-response")
    mean = request.prior_mean
    if mean is not None and not 0 <= mean <= 1:
        raise TacitError(f"--prior-mean {mean:g}: give a mean of rates, from 0 to 1")
    questions = _questions(request, message)
    estimator = BernoulliRates(
        prior_mean=mean, prior_variance=request.prior_variance, message=message, seed=request.seed
    )
    pay = partial(questions.pay, message) if questions else None
    result = tables.rates(estimator, request.table, request.id_, successes, trials, request.out, pay, request.dialect)
    _print(result, request, questions)


@_command("means scores.csv --id school --value score -o out.csv")
def means(
    request: Request,
    value: Annotated[list[str], typer.Option(help="A column of values; may be repeated.")],
    size: Annotated[str | None, typer.Option(help="Rows are clients' means of this column's many samples.")] = None,
    noise_variance: Annotated[float | None, typer.Option(help="Variance of one sample around its client.")] = None,
    radius: Annotated[float | None, typer.Option(help="Public bound on the norm of a client's mean.")] = None,
) -> None:
    """A mean for each client: from samples (a row each), or with --size from means; with --epsilon, Gaussian noise."""
    from tacit.estimation import tables
    from tacit.estimation.shrinkage import GaussianMeans

    message = _message(request, "gaussian")
    mean, variance = request.prior_mean, request.prior_variance
    _check_needed(message, size, noise_variance, radius, mean is not None and variance is not None)
    questions = _questions(request, message)
    estimator = GaussianMeans(
        prior_mean=mean,
        prior_variance=variance,
        noise_variance=noise_variance,
        message=message,
        radius=radius,
        seed=request.seed,
    )
    pay = partial(questions.pay, message) if questions else None
    result = tables.means(estimator, request.table, request.id_, value, size, request.out, pay, request.dialect)
    _print(result, request, questions)


def _check_needed(
    sent: "Message", size: str | None, noise_variance: float | None, radius: float | None, known: bool
) -> None:
    """What a table of means, or a message that is not exact, cannot tell."""
    from tacit.estimation.messages import Exact

    exact = isinstance(sent, Exact)
    if noise_variance is None and (size is not None or not exact):
        which = "a table of means (--size)" if exact else "a message that is not exact"
        raise TacitError(f"{which} does not tell how samples vary: add --noise-variance, that of one sample")
    if radius is None and not exact and not known:
        raise TacitError(
            "a message that is not exact needs a public bound on the norm of a client's mean: add --radius"
        )


def _questions(request: Request, message: "Message") -> "Questions | None":
    """What was asked of the table before; None where nothing is private. Refuses what must not be written or asked."""
    from tacit.estimation.table_files import check_places
    from tacit.estimation.tables import Questions, beside

    table, out, ledger, budget = request.table, request.out, request.ledger, request.budget
    place = beside(table) if ledger is None else ledger
    pictures = [out.with_suffix(end) for end in (".png", ".html") if request.pictures]
    check_places(table, place, out, [out, *pictures], request.force)
    if math.isinf(message.epsilon):
        if budget is not None or ledger is not None:
            raise TacitError("an exact message keeps no budget and no ledger: add --epsilon, or leave them out")
        return None
    if budget is not None and not 0 < budget < math.inf:
        raise TacitError(f"--budget {budget:g} is no budget: give a number above 0")
    questions = Questions(place, budget)
    questions.check(message)
    return questions


def _message(request: Request, private: Send) -> "Message":
    """What a client sends; without --message, `private` if there is an epsilon. No option goes unused."""
    from tacit.estimation import messages

    epsilon, delta = request.epsilon, request.delta
    _check_budget(epsilon, delta)
    if request.bits is not None:
        _check_bits(request.bits, request.message, epsilon)
    _check_numbers(request.seed, request.prior_variance)
    if request.bits is not None:
        return messages.Quantized(request.bits)
    kind = request.message or ("exact" if epsilon is None else private)
    if kind == "exact":
        if epsilon is not None:
            raise TacitError(f"--epsilon {epsilon:g}: an exact message has none: leave it out, or another --message")
        return messages.Exact()
    if epsilon is None:
        raise TacitError(f"a {kind} message needs --epsilon, for instance 1")
    if kind == "randomised-response":
        if delta is not None:
            raise TacitError(f"--delta {delta:g}: randomised response has none: leave it out, or --message gaussian")
        return messages.RandomisedResponse(epsilon)
    if delta is None:
        raise TacitError(f"a {kind} message needs --delta, well below 1 / (number of clients)")
    return (messages.LocalGaussian if kind == "gaussian" else messages.Central)(epsilon, delta)


def _check_numbers(seed: int | None, prior_variance: float | None) -> None:
    if seed is not None and seed < 0:
        raise TacitError(f"--seed {seed}: give a whole number of at least 0, or leave it out for secure randomness")
    if prior_variance is not None and not 0 <= prior_variance < math.inf:
        raise TacitError(f"--prior-variance {prior_variance:g}: give a number of at least 0, or leave it out")


def _check_budget(epsilon: float | None, delta: float | None) -> None:
    """A delta alone was meant to protect somebody."""
    if epsilon is not None and not 0 < epsilon < math.inf:
        raise TacitError(f"--epsilon {epsilon:g}: give a finite number above 0, or leave it out for exact messages")
    if delta is not None and not 0 < delta < 1:
        raise TacitError(f"--delta {delta:g}: give a number between 0 and 1, well below 1 / (number of clients)")
    if epsilon is None and delta is not None:
        raise TacitError(f"--delta {delta:g} without --epsilon: give both for privacy, or neither for exact messages")


def _check_bits(bits: int, kind: Send | None, epsilon: float | None) -> None:
    if epsilon is not None:
        raise TacitError("--bits makes a message short, not private: give it or --epsilon")
    if kind is not None:
        raise TacitError(f"--bits {bits} and --message {kind}: give one of the two")
    if not 1 <= bits <= 52:
        raise TacitError(f"--bits {bits}: give 1 to 52")


def _print(result: "TableEstimates", request: Request, questions: "Questions | None") -> None:
    from rich.console import Console

    asked = questions if result.estimator.sends else None
    files = {"table": request.out, **_pictures(result, request, questions)}
    if request.json:
        _print_json(result, files, asked)
        return
    console = Console(highlight=False, markup=False)
    if result.dialect.separator is not None and not result.dialect.plain:
        console.print(f"Read, and written, with {result.dialect}.")
    console.print(result.comparison)
    console.print(f"{result.clients:,} clients around {_centre(result)}, which differ by {_spread(result)}.")
    console.print(
        f"Sent: {result.estimator.privacy_}. The table has each client's own estimate: give each its row only."
    )
    if asked is not None:
        console.print(f"{asked.summary()}; ledger: {asked.path}.")
    for name, path in files.items():
        typer.echo(f"{name + ':':6} {path}")


def _centre(result: "TableEstimates") -> str:
    return ", ".join(f"{each:.4g}" for each in result.estimator.centre_[:6])


def _spread(result: "TableEstimates") -> str:
    """The prior's standard deviation, and what it may be where it was learned."""
    low, high = (each**0.5 for each in result.estimator.prior_variance_interval_)
    doubt = f": {low:.2g} to {high:.2g} with 95%" if high > low else ""
    return f"{result.estimator.prior_variance_**0.5:.4g} (standard deviation{doubt})"


def _pictures(result: "TableEstimates", request: Request, questions: "Questions | None") -> dict[str, Path]:
    from tacit.estimation import comparison, estimate_page

    if not request.pictures:
        return {}
    image, page = (request.out.with_suffix(end) for end in (".png", ".html"))
    estimate_page.write_html(result, request.table, questions, page, request.purpose)
    return {"image": comparison.write_png(result.moves, image), "page": page}


def _print_json(result: "TableEstimates", files: dict[str, Path], questions: "Questions | None") -> None:
    """All that the words say; the epsilon is the ledger's."""
    import json
    from dataclasses import asdict

    found = result.estimator
    told = {
        "clients": result.clients,
        "centre": found.centre_.tolist(),
        "prior_variance": found.prior_variance_,
        "prior_variance_interval": found.prior_variance_interval_,
        "comparison": [asdict(row) for row in result.comparison.rows],
        "verdict": result.comparison.verdict,
        "sent": found.privacy_,
        "spent": None if questions is None else questions.account(),
        "read_as": asdict(result.dialect),
        "files": {name: str(path) for name, path in files.items()},
    }
    typer.echo(json.dumps(told, indent=2))
