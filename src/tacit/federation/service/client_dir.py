# pyright: reportMissingImports=false
"""What a server offers to whoever holds an invitation, what a member agrees to, and the folder that it keeps it in.

What an offer means, a member derives from the experiment's text. It may demand more of others where its guarantee rests
on them: noise is in shares, and sums are masked. The folder has its agreement and its rows, for its owner alone.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from tacit.core import columns
from tacit.core.columns import Columns
from tacit.core.files import storage, write_atomically
from tacit.data.dataset import FederatedDataset
from tacit.data.layout import NUMBERS, Layout, Shape, read_layout, read_shapes
from tacit.errors import TacitError
from tacit.experiments.build import build_privacy
from tacit.experiments.config import Config, full
from tacit.experiments.trained import CONFIG
from tacit.federation.protocol.client import Client, Refusal
from tacit.federation.protocol.client_store import ClientStore
from tacit.federation.protocol.terms import MOST_ROWS, Participant, Rows, Terms, read_terms
from tacit.federation.service.experiment import (
    Code,
    check_code,
    client_side,
    evaluates,
    experiment_of,
    foreign_names,
    identify,
    plan_name,
    public_side,
    rows_are_public,
)
from tacit.federation.service.models import save_personal
from tacit.federation.service.roster import Roster
from tacit.federation.service.tls import make_node_key
from tacit.privacy.ledger.statement import shown
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms.distributed import epsilon_alone, own_noise
from tacit.privacy.plan import Plan
from tacit.rounds.assemble import Assembled


@dataclass(frozen=True)
class Offer:
    """`inputs`: the shape of a row; `label`: the column of labels; `nodes`: how many members there will be."""

    experiment: str
    inputs: Shape
    classes: int
    nodes: int
    label: str = "label"
    permitted: tuple[str, ...] | None = ()  # code beside Tacit's own that its reader runs; None: it is one's own offer
    code: tuple[Code, ...] = ()  # what of it the server says that it has
    layout: Layout = NUMBERS  # what inputs and targets are

    @classmethod
    def on(cls, data: FederatedDataset, experiment: str, permitted: tuple[str, ...] | None = ()) -> "Offer":
        """Of an experiment on data that are all here, each client a member."""
        layout = Layout.of(data)
        return cls(experiment, data.input_shape, data.classes, data.clients, permitted=permitted, layout=layout)

    def terms(self, run: str, roster: tuple[Participant, ...]) -> Terms:
        """Of a run with these members."""
        return Terms(run, self.experiment, self.inputs, self.classes, roster, self.layout)

    @cached_property
    def config(self) -> Config:
        return experiment_of(self.experiment, self.permitted)

    @property
    def plan(self) -> str:
        return plan_name(self.config)

    @property
    def rows(self) -> bool:
        """Whether members tell how many rows they have."""
        return rows_are_public(self.config)

    @property
    def summed(self) -> bool:
        """Whether only sums of messages may be seen."""
        return build_privacy(self.config).plan.server_sees == "sum"

    @property
    def evaluated(self) -> bool:
        return evaluates(self.config)

    @property
    def levels(self) -> dict[str, Level]:
        return {level.name: level for level in build_privacy(self.config).levels}

    def planned(self, level: str) -> Plan:
        """The plan that as many members as are offered would have, all of them at one level."""
        names = [f"member {k}" for k in range(self.nodes)]
        roster = tuple(Participant(name, level, int(self.rows)) for name in names)
        return public_side(self.terms("offer", roster), names[0], self.permitted).engine.plan

    def content(self) -> dict[str, Any]:
        """For the server's file. What a member does not read there (levels, whether rows are told) is for the door."""
        levels = {name: asdict(level) for name, level in self.levels.items()}
        said = {key: value for key, value in asdict(self).items() if key != "permitted"}
        code = [list(identify(name)) for name in foreign_names(full(self.config))]
        return {**said, "levels": levels, "rows": self.rows, "code": code}

    def compare_code(self) -> None:
        """Raises a `TacitError` where the server says that it has other code than what is permitted here."""
        for theirs in self.code:
            if theirs.name in (self.permitted or ()) and (here := identify(theirs.name)) != theirs:
                raise TacitError(f"'{theirs.name}' is {here} here and {theirs} at the server: install the same")


def read_offer(content: Mapping[str, Any], permitted: tuple[str, ...] = ()) -> Offer:
    """The offer of a server, or a `TacitError`."""
    try:
        layout = read_layout(content["layout"])
        inputs = read_shapes(content["inputs"], layout)
        classes, nodes = _count(content["classes"]), _count(content["nodes"])
        code = tuple(Code(*(str(part)[:200] for part in each)) for each in content["code"])
        offer = Offer(
            str(content["experiment"]), inputs, classes, nodes, str(content["label"]), permitted, code, layout
        )
    except (KeyError, TypeError) as error:
        raise TacitError(f"the server's offer cannot be read ({error}): both sides need the same Tacit") from None
    if not inputs:
        raise TacitError("the server's offer does not say what a row is")
    return offer


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_ROWS:
        raise TacitError(f"the server's offer has {str(value)[:40]!r} where a number from 1 to 2^31 should stand")
    return value


_ROUNDING = 1e-9  # two machines may calibrate to the same noise with other last digits


@dataclass(frozen=True)
class Agreement:
    """What the owner of the data said yes to. The server's word changes nothing about it."""

    name: str
    level: str
    plan: str
    epsilon: float | None
    delta: float | None
    inputs: Shape  # of a row
    classes: int
    fresh: bool = True  # False: noise from the experiment's seed, to compare with a simulation
    sums_in_the_open: bool = False  # True: sends without a mask what only a sum should show, to compare
    evaluated: bool = False  # reports accuracies on its own test rows: with noise, or plainly if it opted out
    noise: float | None = None  # of a level that has no epsilon, or is not calibrated to it
    allow_large_delta: bool = False  # accepts a delta of 1/n and more
    members: int = 0  # where noise is in shares: so many, itself included, are taken as members at first sight
    own_noise: float = 0.0  # where noise is in shares: the least multiplier that its own share gives it
    own_noise_evaluated: float = 0.0  # the same of an evaluation
    threshold: float = 0.5  # the least share of a cohort that may unmask a sum
    permitted: tuple[str, ...] = ()  # what is not Tacit's own and may be imported, as an experiment names it
    code: tuple[Code, ...] = ()  # of the permitted, what the experiment names, as it was when this was agreed on
    layout: Layout = NUMBERS  # what inputs and targets are

    @classmethod
    def to(cls, offer: Offer, name: str, level: str) -> "Agreement":
        """What somebody agrees to who chooses this level of an offer, and nothing more."""
        chosen = offer.levels[level]
        shares, threshold = _own_shares(offer.planned(level)) if offer.summed else _NOT_SUMMED
        foreign = foreign_names(full(offer.config))
        return cls(
            name,
            level,
            offer.plan,
            chosen.epsilon,
            chosen.delta,
            offer.inputs,
            offer.classes,
            evaluated=offer.evaluated,
            noise=chosen.noise,
            allow_large_delta=offer.config.privacy.allow_large_delta,
            members=offer.nodes,
            own_noise=shares[0],
            own_noise_evaluated=shares[1],
            threshold=threshold,
            permitted=foreign if offer.permitted is None else offer.permitted,
            code=tuple(map(identify, foreign)),
            layout=offer.layout,
        )

    def check(self, terms: Terms) -> None:
        """Refuses terms that are not those of the agreement. No row is looked at."""
        check_code(terms.experiment, self.code)
        config = experiment_of(terms.experiment, self.permitted)
        level = config.levels.get(self.level)
        terms_of = {
            "level": terms.roster[terms.place(self.name)].level,
            "epsilon": level and level.epsilon,
            "delta": level and level.delta,
            "noise": level and level.noise,
            "plan": plan_name(config),
            "evaluated": evaluates(config),
            "inputs": terms.inputs,
            "classes": terms.classes,
            "layout": terms.layout,
            "allow_large_delta": config.privacy.allow_large_delta,
        }
        for what, value in terms_of.items():
            if value != getattr(self, what):
                raise Refusal("terms", f"{what} is {str(value)[:60]!r}, and {getattr(self, what)!r} was agreed on")

    def check_shares(self, plan: Plan) -> None:
        """Refuses a plan under which its own share of the noise, or the threshold, is less than was agreed on."""
        if not plan.alone:
            return
        (training, evaluation), threshold = _own_shares(plan)
        for multiplier, floor in ((training, self.own_noise), (evaluation, self.own_noise_evaluated)):
            if multiplier < floor * (1 - _ROUNDING):
                raise Refusal("terms", f"one's own share has a noise multiplier of {multiplier:.3g}, below {floor:.3g}")
        if threshold < self.threshold:
            raise Refusal(
                "terms", f"{threshold:g} of a cohort could unmask a sum, and {self.threshold:g} was agreed on"
            )


_NOT_SUMMED = ((0.0, 0.0), 0.5)


def _own_shares(plan: Plan) -> tuple[tuple[float, float], float]:
    """The noise that one's own share has in training and in evaluations, and the share of a cohort that unmasks."""
    agreed = plan.release.masked_sum
    if agreed is None:
        return _NOT_SUMMED
    evaluation = own_noise(plan) if plan.evaluation is None else own_noise(plan.evaluation.plan)
    return (own_noise(plan), evaluation), agreed.threshold


@dataclass(frozen=True)
class ClientFolder:
    folder: Path

    @property
    def agreement(self) -> Agreement:
        path = self.folder / "client.json"
        if not path.exists():
            raise TacitError(f"{self.folder} is not the folder of a client: join a federation first")
        with storage(path):
            content = json.loads(path.read_text())
        try:
            layout, code = read_layout(content["layout"]), tuple(Code(*each) for each in content.get("code", ()))
            inputs, permitted = read_shapes(content["inputs"], layout), tuple(content.get("permitted", ()))
            read = {"layout": layout, "code": code, "inputs": inputs, "permitted": permitted}
            return Agreement(**content | read)
        except (TypeError, KeyError, TacitError):
            raise TacitError(
                f"{path} is an agreement of another version of Tacit, which left something open: leave, and join again"
            ) from None

    def settle(self, agreement: Agreement, rows: Rows | None = None) -> None:
        with storage(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            os.chmod(self.folder, 0o700)
        if rows is not None:
            write_atomically(self.folder / "rows.safetensors", save(_flat(rows)))
        write_atomically(self.folder / "client.json", json.dumps(asdict(agreement), indent=2).encode())

    def rows(self) -> Rows:
        path = self.folder / "rows.safetensors"
        with storage(path):
            return _rows(load(path.read_bytes()), self.agreement.layout)

    @property
    def roster(self) -> Roster:
        return Roster(self.folder)

    @property
    def refusal(self) -> str | None:
        """Why this client refused the last time that it did."""
        path = self.folder / "refusal.txt"
        return path.read_text() if path.exists() else None

    def client(self) -> Client:
        agreement = self.agreement
        key, open_sums = self.folder / "node.key", agreement.sums_in_the_open

        def made(terms: Terms) -> Assembled:
            """Nothing of the rows is known to it before everything that could be refused has been accepted."""
            agreement.check(terms)
            public = public_side(terms, agreement.name, agreement.permitted)
            agreement.check_shares(public.engine.plan)
            if public.engine.plan.summed and not open_sums:
                self._meet(terms, agreement)
            return client_side(public, terms, agreement.name, self.rows(), agreement.permitted)

        return Client(agreement.name, ClientStore(self.folder), made, agreement.fresh, key, open_sums, self._note)

    def unsaved(self) -> list[Path]:
        """The terms of runs that have ended and whose models are not saved yet, a file each."""
        return [file for file in ClientStore(self.folder).ended() if _older(self._model(file) / CONFIG, file)]

    def save_model(self, file: Path) -> Path:
        """The shared model and this member's own of a run that has ended: a new folder, for `tacit.load_model`."""
        store, agreement = ClientStore(self.folder), self.agreement
        with storage(file):
            terms = read_terms(file.read_text())
        made, config = self.client().assemble(terms), experiment_of(terms.experiment, agreement.permitted)
        return save_personal(self._model(file), made, config, terms, agreement.name, store)

    def _model(self, file: Path) -> Path:
        return self.folder / "models" / file.parent.name

    def _meet(self, terms: Terms, agreement: Agreement) -> None:
        """The other members are those that are known here, and this client's own key is its own."""
        public_key = make_node_key(self.folder / "node.key").decode()
        if terms.roster[terms.place(agreement.name)].key.split()[:2] != public_key.split()[:2]:
            raise Refusal("terms", "the roster has another key in this member's own name")
        self.roster.meet({seat.name: seat.key for seat in terms.roster}, agreement.members)

    def _note(self, why: str) -> None:
        write_atomically(self.folder / "refusal.txt", " ".join(why.split())[:500].encode())


def _flat(rows: Rows) -> dict[str, Tensor]:
    """Several inputs by their places."""
    parts = {name: columns.leaves(part) for name, part in rows._asdict().items()}
    return {f"{name}.{at}": leaf.clone() for name, part in parts.items() for at, leaf in enumerate(part)}


def _rows(flat: Mapping[str, Tensor], layout: Layout) -> Rows:
    """What `_flat` made."""

    def inputs(name: str) -> Any:
        parts = [flat[f"{name}.{at}"] for at in range(len(layout.inputs))]
        return Columns(layout.names or None, parts) if layout.several else parts[0]

    return Rows(inputs("x"), flat["y.0"], inputs("test_x"), flat["test_y.0"])


def _older(file: Path, than: Path) -> bool:
    return not file.exists() or file.stat().st_mtime < than.stat().st_mtime


@dataclass(frozen=True)
class Demands:
    """What a member wants beyond the offer. An offer that does not meet it is not joined."""

    own_noise: float | None = None  # the least multiplier that its own share of the noise must give it
    threshold: float | None = None  # the least share of a cohort that may unmask a sum
    confirm: bool = False  # takes nobody for a member whose fingerprint was not accepted here

    def made(self, word: Agreement) -> Agreement:
        """The agreement with these demands, or a `TacitError` if the offer does not meet them."""
        wanted = (
            ("the noise of one's own share", self.own_noise, word.own_noise),
            ("the threshold", self.threshold, word.threshold),
        )
        for what, mine, offered in wanted:
            if mine is not None and not offered >= mine:
                raise TacitError(f"{what} is {offered:.3g} in this offer, below the {mine:g} that you demand")
        return replace(word, members=1) if self.confirm else word


def about_others(offer: Offer, word: Agreement) -> list[str]:
    """What a member should know who joins."""
    if not offer.summed or not (plan := offer.planned(word.level)).alone:
        return []
    level = offer.levels[word.level]
    first = "nobody is taken for a member whose fingerprint you have not accepted"
    if word.members > 1:
        first = f"the first {word.members} names are taken as they come, with their keys, and no others"
    return [
        f"Your share of the noise alone has a multiplier of {word.own_noise:.3g}. That is all that protects you if the "
        f"server, against its word, plays every other member: epsilon {shown(epsilon_alone(plan))} at delta "
        f"{level.delta:g}, not {level.guarantee}.",
        f"Members are pinned: {first}. Compare fingerprints with them: `tacit members`.",
    ]
