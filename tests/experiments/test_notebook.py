"""What a notebook shows: live progress, a result as a table with a chart, short words for data and runs."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import tacit
from tacit.experiments.progress_bar import Bar, NotebookLine

DATA = tacit.load("digits", clients=6, classes_each=2)


@pytest.fixture(scope="module")
def result() -> tacit.Result:
    training = tacit.Training(rounds=2, sampler=tacit.Poisson(0.5))
    return tacit.train(DATA, tacit.models.MLP(64, 10, (4,)), tacit.Ditto(), training=training, progress=False)


def test_a_result_is_a_table_with_a_chart_and_its_guarantees_without_a_script(result: tacit.Result) -> None:
    text = result._repr_html_()
    assert "<table>" in text
    assert "<svg" in text
    assert '<td class="bare">no guarantee' in text
    assert ".tacit-result .bare { color:" in text
    assert "<script" not in text
    assert "<iframe" not in text
    assert len(text) < 100_000


def test_charts_of_two_cells_do_not_share_their_ids(result: tacit.Result) -> None:
    first, second = ({part.split('"')[0] for part in result._repr_html_().split(' id="')[1:]} for _ in range(2))
    assert first
    assert not first & second


def test_data_runs_and_results_have_short_words_and_no_row(result: tacit.Result) -> None:
    assert repr(result.run) == "Run(Ditto, plan open: 2 of 2 rounds, 6 clients)"
    assert len(repr(result)) < 100
    assert len(repr(DATA)) < 400
    assert "tensor" not in repr(DATA)


def test_in_a_notebook_progress_is_shown_in_one_output_that_is_brought_up_to_date(
    monkeypatch: pytest.MonkeyPatch, result: tacit.Result
) -> None:
    shown: list[str] = []
    plain: list[str] = []
    handle = SimpleNamespace(update=lambda html: (shown.append(html._repr_html_()), plain.append(repr(html))))

    def display(html: Any, display_id: bool) -> Any:
        shown.append(html._repr_html_())
        return handle

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    bar = Bar(lambda plan: {}, "digits", 2, Console(force_jupyter=True, stderr=True))
    assert isinstance(bar._line, NotebookLine)
    with bar:
        bar.after_round(_report(result, 2))
    assert shown[0].startswith('<progress value="0" max="2"')
    assert shown[-1].startswith('<progress value="2" max="2"')
    assert plain[-1].startswith("digits 2/2 personal accuracy")  # where a notebook is shown as text


def _report(result: tacit.Result, round: int) -> Any:
    return SimpleNamespace(round=round, rounds=2, scores=result.scores, bound=None, plan=result.run.plan)
