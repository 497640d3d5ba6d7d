"""A promise is kept or refused, in Python as in a file; what a folder says of the data cannot be tested by others."""

import stat
from pathlib import Path

import pytest

import tacit
from tacit.data.dataset import FederatedDataset
from tacit.errors import TacitError
from tacit.experiments.build import build
from tacit.privacy import mechanisms as plans
from tacit.report.run_folder import Folder
from tacit.rounds.assemble import assemble
from tacit.simulation.fingerprint import data_parts, digest
from tests.experiments.tiny import tiny
from tests.worlds import net, ragged

PROMISE = tacit.Level("private", epsilon=4, delta=1e-2)
TRAINING = tacit.Training(rounds=2, sampler=tacit.Poisson(0.5), batch=5)


def train(privacy: tacit.Privacy, data: FederatedDataset | None = None, **options: object) -> tacit.Result:
    given = ragged() if data is None else data
    method = options.pop("method", tacit.FedAvg())
    return tacit.train(given, net(), method, privacy, TRAINING, progress=False, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("level", [PROMISE, tacit.Level("private", delta=1e-2, noise=1.0)])
def test_levels_that_promise_something_are_private_without_a_plan(level: tacit.Level) -> None:
    result = train(tacit.Privacy(levels=(level,)))
    assert result.findings.facts.plan == "grouped"
    assert result.findings.epsilons["private"]["pld"] > 0
    assert "no guarantee" not in str(result)


def test_python_takes_the_plan_that_a_file_takes() -> None:
    for changes in ((), ("choices=", "levels.open=")):
        parts = build(tiny(*changes))
        assert parts.privacy.plan == tacit.Privacy(levels=parts.privacy.levels).plan == plans.Grouped()
    parts = build(tiny("choices=", "levels.private="))
    assert parts.privacy.plan == tacit.Privacy(levels=parts.privacy.levels).plan == tacit.Privacy().plan == plans.Open()


@pytest.mark.parametrize("level", [PROMISE, tacit.Level("private", delta=1e-2, noise=1.0)])
def test_a_promise_under_an_open_plan_is_refused(level: tacit.Level) -> None:
    privacy = tacit.Privacy(tacit.Open(), (level, tacit.Level("open")))
    with pytest.raises(TacitError, match=r"level 'private' promises .* and the plan Open adds no noise: leave out the"):
        assemble(ragged(), net(), tacit.FedAvg(), privacy, TRAINING)
    with pytest.raises(TacitError, match="adds no noise"):
        train(privacy)


def test_where_nothing_is_uploaded_a_promise_is_kept_without_noise() -> None:
    result = train(tacit.Privacy(tacit.Open(), (PROMISE,)), method=tacit.LocalOnly())
    assert result.guarantees()[-1] == "The federation as a whole: nothing is uploaded, so nothing is spent."


def other_data() -> FederatedDataset:
    return ragged(scale=1.001)


def test_a_folder_shows_no_digest_by_which_a_guess_could_be_tested(tmp_path: Path) -> None:
    for name in ("a", "b"):
        train(tacit.Privacy(levels=(PROMISE,)), folder=tmp_path / name).save_html(tmp_path / name / "page.html")
    one, other = Folder(tmp_path / "a"), Folder(tmp_path / "b")
    assert one.content()["data"]["digest"] != other.content()["data"]["digest"]
    plain, key = digest(data_parts(ragged()), size=8), one.key.read_bytes()
    kept = [path.read_bytes() for path in one.path.iterdir() if path.name != "digest.key"]
    assert not any(plain.encode() in content for content in kept)
    assert not any(each in content for content in kept for each in (key, key.hex().encode()))
    assert one.content()["data"]["digest"] == digest(data_parts(ragged()), key, size=8)
    assert stat.S_IMODE(one.key.stat().st_mode) == 0o600


def test_changed_data_are_noticed_on_resuming(tmp_path: Path) -> None:
    privacy = tacit.Privacy(levels=(PROMISE,))
    train(privacy, folder=tmp_path / "a")
    with pytest.raises(TacitError, match=r"already holds this run"):
        train(privacy, folder=tmp_path / "a")
    with pytest.raises(TacitError, match=r"data\.digest is '\w+' there and '\w+' here"):
        train(privacy, other_data(), folder=tmp_path / "a", resume=True)
    assert train(privacy, folder=tmp_path / "a", resume=True).stopped is None
    (tmp_path / "a" / "digest.key").unlink()
    with pytest.raises(TacitError, match=r"holds no digest\.key.*restore it"):
        train(privacy, folder=tmp_path / "a", resume=True)
