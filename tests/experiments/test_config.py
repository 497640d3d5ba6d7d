import tomllib
from pathlib import Path

import pytest

from tacit.errors import TacitError
from tacit.experiments.build import build, build_method, build_privacy, build_training, method_of
from tacit.experiments.config import (
    decisive,
    fingerprint,
    first_difference,
    full,
    load,
    parse,
    with_overrides,
)
from tacit.experiments.toml import dumps
from tacit.methods import (
    Ditto,
    FedAvg,
    FineTuned,
    KeepLocal,
    LocalOnly,
    LocalSgd,
    Mixture,
    Personal,
    Scaffold,
    ServerAdam,
)
from tacit.privacy.evaluation import Evaluation
from tacit.privacy.mechanisms import Grouped, Local, Open, Record
from tacit.privacy.mechanisms.clipping import Fixed, Quantile
from tacit.privacy.mechanisms.stepwise import Stepwise
from tacit.sampling.cohorts import FixedSize, Poisson
from tests.experiments.tiny import CONTENT, TEXT, tiny

PRIVATE = "[levels]\na = { epsilon = 1.0, delta = 1e-3 }"


def complaint(text: str) -> str:
    """What a user is told about a file."""
    with pytest.raises(TacitError) as caught:
        build(parse(tomllib.loads(text)))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rouns = 3", "unknown key 'rouns': did you mean 'rounds'?"),
        ("[privacy]\nclipp = 1.0", "unknown key 'privacy.clipp': did you mean 'clip'?"),
        ("[privacy.clip]\nstrat = 1.0", "unknown key 'privacy.clip.strat': did you mean 'start'?"),
        ("[levels]\na = { eps = 3.0 }", "unknown key 'levels.a.eps': did you mean 'epsilon'?"),
        ("[method.server]\nmomentun = 0.1", "unknown key 'method.server.momentun': did you mean 'momentum'?"),
        ("lr = 0.1", "unknown key 'lr': did you mean 'method.lr'?"),
        ("[method]\nname = 'dito'", "method.name is 'dito': did you mean 'ditto'?"),
        ("[privacy]\nplan = 'groupd'", "privacy.plan is 'groupd': did you mean 'grouped'?"),
        ("[data]\nsource = 'digit'", "data.source is 'digit': did you mean 'digits'?"),
        ("[model]\nname = 'mpl'", "model.name is 'mpl': did you mean 'mlp'?"),
    ],
)
def test_a_misspelt_word_is_met_with_the_nearest_one(text: str, said: str) -> None:
    assert complaint(text) == said


def test_a_word_like_no_other_is_met_with_all_of_them() -> None:
    assert complaint("[run]\nzzz = 1") == "unknown key 'run.zzz': use one of checkpoint_every, dtype, track, origin"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rounds = 0", "rounds is 0: give at least 1"),
        ("rounds = 1.5", "rounds is 1.5: give a whole number"),
        ("rounds = 'many'", "rounds is 'many': give a whole number"),
        ("rounds = true", "rounds is True: give a whole number"),
        ("rate = 2", "rate is 2: give at most 1"),
        ("rate = 0.0", "rate is 0.0: give a number above 0"),
        ("rate = nan", "rate is nan: give at most 1"),
        ("rate = 0.1\ncohort = 3", "rate is 0.1 and cohort is 3: give one of the two"),
        ("seed = -1", "seed is -1: give at least 0"),
        ("name = 'a/b'", "name is 'a/b': use letters"),
        ("data = 3", "data is 3: write a table"),
        ("levels = 3", "levels is 3: write a table"),
        ("[levels]\na = 3", "levels.a is 3: write a table"),
        ("[levels]\na = { epsilon = -1 }", "levels.a.epsilon is -1: give a number above 0"),
        ("[levels]\na = { epsilon = 1.0 }", "delta of level 'a' must lie between 0 and 1, not None"),
        ("[levels]\na = { epsilon = 1.0, delta = 2 }", "levels.a.delta is 2: give a number between 0 and 1"),
        ("[choices]\nopen = 2", "choices.open is 2: give at most 1"),
        ("[method]\nlr = -1", "method.lr is -1: give a number above 0"),
        ("[method]\nlr = inf", "method.lr is inf: give a finite number"),
        ("[method]\nkeep = []", "method.keep is []: give at least one"),
        ("[method]\nstrength = 1.0", "method.strength is 1.0, and 'fedavg' does not use it"),
        ("[method]\nname = 'ditto'\nstrength = [1.0, -2]", "method.strength is [1.0, -2.0]: give at least 0"),
        ("[method]\nname = 'ditto'\nbase = 'dito'", "method.base is 'dito'"),
        ("[method]\nname = 'scaffold'\nmomentum = 0.5", "method.momentum is 0.5, and 'scaffold' does not use it"),
        ("[method]\nname = 'ditto'\nbase = 'scaffold'\ndecay = 0.9", "method.decay is 0.9, and scaffold does not"),
        ("[method]\nname = 'scaffold'\nserver = { name = 'adam' }", "method.server.name is 'adam'"),
        (
            "[method]\nserver = { name = 'adam', momentum = 0.1 }",
            "method.server.momentum is 0.1, and 'adam' does not use",
        ),
        ("[method]\nname = 'keep-local'", "keep-local needs the parameters to keep"),
        ("[method]\nfirst = 0.5", "method.first is 0.5, and nothing is kept"),
        ("[method]\npace = 0.1", "method.pace is 0.1, and nothing is kept"),
        (f"[privacy]\nclip = -1\n{PRIVATE}", "privacy.clip is -1: give a number above 0"),
        ("[privacy]\nclip = 'a'", "privacy.clip is 'a': give a number"),
        (f"[privacy]\nclip = {{ target = 2 }}\n{PRIVATE}", "privacy.clip.target is 2: give a number between 0 and 1"),
        ("[privacy]\nclip = 1", "privacy.clip is 1.0, and plan 'open' does not use it"),
        ("[privacy]\nplan = 'grouped'", "privacy.plan is 'grouped', but no level has an epsilon"),
        ("[privacy]\nplan = 'open'\n[levels]\na = { epsilon = 1.0, delta = 1e-3 }", "privacy.plan is 'open', which"),
        (
            "[privacy]\nplan = 'central'\nratio = 0.5\n[levels]\na = { epsilon = 1.0, delta = 1e-3 }",
            "privacy.ratio is 0.5, and plan 'central' does not use it: leave it out, or use grouped",
        ),
        ("[model]\nhidden = [0]", "model.hidden is [0]: give a whole number of at least 1"),
        ("[model]\nhidden = 3", "model.hidden is 3: give a list"),
        ("[model]\nname = 'softmax'\nhidden = [3]", "model.hidden is [3], and 'softmax' does not use it"),
        ("[data]\nclients = 0", "data.clients is 0: give at least 1"),
        ("[data]\ntest_fraction = 1", "data.test_fraction is 1: give a number below 1"),
        ("[run]\ndtype = 'float16'", "run.dtype is 'float16'"),
        ("[evaluate]\nevery = 0", "evaluate.every is 0: give at least 1"),
        ("[evaluate]\ndeployment = 'plain'", "evaluate.deployment is 'plain'"),
        ("[evaluate]\ndeployment = 'noisy'\nshare = 1.0", "evaluate.share is 1"),
        ("[evaluate]\nshare = 0.2", "evaluate.share is 0.2, which needs evaluate.deployment = 'noisy'"),
    ],
)
def test_a_bad_value_is_named_with_its_key_and_a_remedy(text: str, said: str) -> None:
    assert complaint(text).startswith(said)


def test_an_empty_file_is_an_experiment() -> None:
    parts = build(parse({}))
    assert parts.federation.clients == 200
    assert parts.training.sampler == Poisson(0.1)
    assert parts.privacy.plan == Open()


def test_what_is_said_is_what_is_built() -> None:
    parts = build(tiny("cohort=5", "epochs=2", "seed=3", "run.dtype=float64", "evaluate.sample=7"))
    assert parts.training.sampler == FixedSize(5)
    assert (parts.training.epochs, parts.training.seed, parts.training.rounds) == (2, 3, 8)
    assert (parts.schedule.evaluate_every, parts.schedule.checkpoint_every, parts.schedule.sample) == (2, 3, 7)
    assert next(parts.model.parameters()).dtype.itemsize == 8
    assert [level.private for level in parts.privacy.levels] == [True, False]


@pytest.mark.parametrize(
    ("changes", "method"),
    [
        (["method.name=fedavg"], FedAvg(LocalSgd(0.5))),
        (["method.name=fedavg", "method.server={name='adam', lr=0.2}"], FedAvg(LocalSgd(0.5), ServerAdam(0.2))),
        (["method.personal_lr=0.1"], Ditto(FedAvg(LocalSgd(0.5)), personal=LocalSgd(0.1))),
        (["method.strength=[1.0, 2.0]"], Ditto(FedAvg(LocalSgd(0.5)), (1.0, 2.0), LocalSgd(0.5))),
        (["method.base=scaffold"], Ditto(Scaffold(0.5), personal=LocalSgd(0.5))),
        (["method.name=fine-tuned"], FineTuned(FedAvg(LocalSgd(0.5)), LocalSgd(0.5))),
        (["method.name=local-only"], LocalOnly(LocalSgd(0.5))),
        (["method.name=keep-local", "method.keep=['bias']"], KeepLocal(("bias",), FedAvg(LocalSgd(0.5)))),
        (
            ["method.name=keep-local", "method.keep=['head']", "method.first=0.5"],
            KeepLocal(("head",), FedAvg(LocalSgd(0.5)), 0.5),
        ),
        (["method.keep=['bias']"], KeepLocal(("bias",), Ditto(FedAvg(LocalSgd(0.5)), personal=LocalSgd(0.5)))),
    ],
)
def test_methods_are_built_by_name(changes: list[str], method: object) -> None:
    assert method_of(tiny(*changes)) == method


@pytest.mark.parametrize(
    ("changes", "plan"),
    [
        ([], Grouped()),
        (["privacy.clip=0.2", "privacy.ratio=0.5"], Grouped(Fixed(0.2), 0.5)),
        (["privacy.plan=local", "privacy.clip={start=2.0}"], Local(Quantile(2.0))),
        (["privacy.plan=record", "privacy.bound=0.5", "privacy.participations=3"], Record(0.5, 3)),
        (["privacy.plan=open", "method.name=local-only"], Open()),
    ],
)
def test_plans_are_built_by_name(changes: list[str], plan: object) -> None:
    assert build_privacy(tiny(*changes)).plan == plan


def test_overrides_are_as_if_the_file_had_said_so() -> None:
    config = tiny("rounds=50", "privacy.clip=.2", "levels.private.epsilon=2", "choices.open=0.5", "name=other")
    assert (config.rounds, config.privacy.clip, config.name) == (50, 0.2, "other")
    assert config.levels["private"].epsilon == 2
    assert config.levels["private"].delta == 1e-2
    assert config.choices == {"open": 0.5}


def test_a_cohort_replaces_the_rate_and_an_empty_value_takes_a_key_away() -> None:
    assert tiny("cohort=5").rate is None
    assert tiny("method.lr=").method.lr is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("rounds", "'rounds' sets nothing: write key=value"),
        ("=3", "'=3' sets nothing"),
        ("rouns=3", "unknown key 'rouns'"),
        ("name=a b", "the value of name=a b is not TOML"),
    ],
)
def test_bad_overrides_are_refused(change: str, said: str) -> None:
    with pytest.raises(TacitError, match=said):
        tiny(change)


def test_the_fingerprint_sees_what_changes_the_result_and_nothing_else() -> None:
    same = ["name=other", "performance.threads=2", "performance.chunk=3", "run.checkpoint_every=1"]
    assert {fingerprint(tiny(change)) for change in same} == {fingerprint(tiny())}
    others = ["rounds=9", "seed=1", "rate=0.2", "batch=6", "levels.private.epsilon=5", "method.lr=0.4", "data.alpha=1"]
    others += ["evaluate.every=3", "run.dtype=float64", "privacy.accountant=rdp", "cohort=3", "choices.open=0.1"]
    prints = {fingerprint(tiny(change)) for change in others}
    assert len(prints) == len(others)
    assert fingerprint(tiny()) not in prints


def test_the_fingerprint_does_not_tell_a_default_from_the_same_value_given() -> None:
    assert fingerprint(tiny("epochs=1", "privacy.accountant=pld", "method.lr=0.5")) == fingerprint(tiny())


def test_the_order_of_levels_counts() -> None:
    turned = {**CONTENT, "levels": dict(reversed(list(CONTENT["levels"].items())))}
    assert fingerprint(parse(turned)) != fingerprint(tiny())
    assert first_difference(full(parse(turned)), full(tiny())) == "the order of the levels differs"


def test_the_first_difference_names_key_and_values() -> None:
    assert first_difference(full(tiny()), full(tiny("method.lr=0.4"))) == "method.lr is 0.5 there and 0.4 here"
    assert first_difference(full(tiny()), full(tiny("name=other", "performance.chunk=2"))) is None


def test_a_configuration_as_run_reads_back_the_same() -> None:
    config = tiny("privacy.clip={start=0.2}", "model.name=mlp", "model.hidden=[4, 5]")
    again = parse(tomllib.loads(dumps(full(config))))
    assert full(again) == full(config)
    assert decisive(full(again)) == decisive(full(config))


def test_a_file_takes_its_name_from_its_path(tmp_path: Path) -> None:
    path = tmp_path / "my digits.toml"
    path.write_text("rounds = 3")
    assert load(path).name == "my-digits"
    path.write_text(TEXT)
    assert load(path).run.origin == str(tmp_path)
    assert full(load(path)) | {"run": {}} == full(tiny()) | {"run": {}}


def test_what_is_no_file_or_no_toml_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TacitError, match="there is no file"):
        load(tmp_path / "none.toml")
    path = tmp_path / "bad.toml"
    path.write_text("rounds = = 3")
    with pytest.raises(TacitError, match=r"bad.toml is not TOML: [^\n]*$"):
        load(path)


def test_a_config_cannot_change_unseen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse({}).name = "other"


def test_overriding_nothing_changes_nothing() -> None:
    assert with_overrides(tiny(), []) == tiny()


def test_a_prior_is_chosen_by_name_and_takes_its_own_keys() -> None:
    method = build_method({"name": "personal", "prior": "mixture", "components": 3, "spread": 2.0})
    assert method == Personal(Mixture(3, spread=2.0))
    with pytest.raises(TacitError, match="components"):
        build_method({"name": "personal", "prior": "l1", "components": 3})


def test_the_stepwise_plan_is_built_from_its_table() -> None:
    table = {"plan": "stepwise", "bound": 0.1, "extra_bound": 0.01, "seen": "sum"}
    config = parse({"steps": 5, "privacy": table, "levels": {"private": {"epsilon": 8.0, "delta": 1e-3}}})
    assert build_privacy(config).plan == Stepwise(0.1, 0.01, "sum")
    assert build_training(config).steps == 5


def test_an_evaluation_of_members_is_built_from_its_table_and_off_by_default() -> None:
    levels = {"private": {"epsilon": 8.0, "delta": 1e-3}}
    table = {"every": 5, "deployment": "noisy", "share": 0.2}
    assert build_privacy(parse({"levels": levels, "evaluate": table})).evaluation == Evaluation(5, 0.2)
    for table in ({}, {"deployment": "off"}):
        assert build_privacy(parse({"levels": levels, "evaluate": table})).evaluation is None
