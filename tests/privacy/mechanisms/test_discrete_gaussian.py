"""Discrete Gaussian noise is drawn exactly, in integers, and its account is that of the Gaussian it is stated as."""

import ast
import inspect
import math
from decimal import Decimal, getcontext
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import chi2

from tacit.privacy.accounting.gaussian import gaussian_delta
from tacit.privacy.mechanisms import discrete_gaussian as dg


def stream(seed: int) -> dg.WordSource:
    return dg.keyed_words(np.random.default_rng(seed))


def chances(std: float) -> tuple[np.ndarray, np.ndarray]:
    values = np.arange(-int(12 * std) - 12, int(12 * std) + 13)
    mass = np.exp(-0.5 * np.square(values / std))
    return values, mass / mass.sum()


def fit(drawn: np.ndarray, values: np.ndarray, mass: np.ndarray) -> float:
    """The p-value of a chi-square test; cells that expect fewer than 20 are one."""
    counts = np.bincount(drawn - values[0], minlength=len(values)).astype(float)
    expected = mass * len(drawn)
    rare = expected < 20
    several = [0] if rare.any() else []
    seen = np.append(counts[~rare], [counts[rare].sum() for _ in several])
    hoped = np.append(expected[~rare], [expected[rare].sum() for _ in several])
    return float(chi2.sf((np.square(seen - hoped) / hoped).sum(), len(seen) - 1))


@pytest.mark.parametrize("log_std", [0, 1, 3, 6])
def test_numbers_have_the_exact_distribution(log_std: int) -> None:
    values, mass = chances(2.0**log_std)
    assert fit(dg.sample(300_000, log_std, stream(log_std)), values, mass) > 1e-3
    assert fit(dg.sample(300_000, log_std, dg.secure_words), values, mass) > 1e-9


@pytest.mark.parametrize("log_std", [20, 26])
def test_numbers_of_a_fine_lattice_have_the_exact_distribution_in_bins_and_moments(log_std: int) -> None:
    drawn = dg.sample(400_000, log_std, stream(log_std))
    bins = drawn // (1 << log_std - 4)  # sixteen for each standard deviation
    edges = np.arange(-16 * 12, 16 * 12 + 1)
    mass = np.diff(ndtr(edges / 16))  # as fine a lattice is a normal distribution to 1e-7
    assert fit(bins, edges[:-1], mass) > 1e-3
    scaled = drawn / 2.0**log_std
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(np.mean(scaled**power) - moment) < 4 * math.sqrt(variance / len(drawn))
    assert fit(drawn & 15, np.arange(16), np.full(16, 1 / 16)) > 1e-3  # low bits, which floats would betray


def test_half_the_noise_is_noticed() -> None:
    values, mass = chances(8.0)
    assert fit(dg.sample(20_000, 2, stream(0)), values, mass) < 1e-9


def test_one_part_in_a_hundred_too_little_noise_is_noticed() -> None:
    values, mass = chances(8.0 * 1.01)
    assert fit(dg.sample(300_000, 3, stream(3)), values, mass) < 1e-3


FLOATS = {"float", "float16", "float32", "float64", "double", "math", "exp", "sqrt", "log", "log2", "mean", "normal"}
FLOATS |= {"standard_normal", "uniform", "true_divide", "divide", "power"}


def floats_in(source: str) -> list[str]:
    """What in a piece of Python could make a floating-point number."""
    bad = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            bad.append(f"constant {node.value}")
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div | ast.Pow):
            bad.append(ast.unparse(node))
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name in FLOATS:
            bad.append(name)
    return bad


class Watched(np.ndarray):
    """Refuses to take part in any computation with floats."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return self._checked(getattr(ufunc, method)(*map(_plain, inputs), **{k: _plain(v) for k, v in kwargs.items()}))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return self._checked(func(*map(_plain, args), **{k: _plain(v) for k, v in kwargs.items()}))

    def _checked(self, result: Any) -> Any:
        kind = np.asarray(result).dtype.kind
        if kind not in "iub":
            raise AssertionError(f"a result of kind {kind}")
        return result.view(Watched) if isinstance(result, np.ndarray) else result


def _plain(value: Any) -> Any:
    if isinstance(value, Watched):
        value = value.view(np.ndarray)
    if isinstance(value, tuple | list):
        return type(value)(map(_plain, value))
    if isinstance(value, float) or (isinstance(value, np.ndarray) and value.dtype.kind == "f"):
        raise AssertionError("a floating-point number")
    return value


def test_no_float_is_touched_between_random_bits_and_the_number() -> None:
    source = inspect.getsource(dg)
    powers = ["2 ** 64"]  # of integers
    assert [each for each in floats_in(source) if each not in powers] == []
    drawn = dg.sample(2_000, 20, lambda size: stream(size)(size).view(Watched))
    assert drawn.dtype == np.int64


@pytest.mark.parametrize(
    "planted",
    [
        "j = words(n) / 2",
        "u = w * 2.0**-53",
        "k = np.floor(x * 0.5)",
        "x = np.exp(-g)",
        "y = stream.normal(size)",
        "s = v.astype(float)",
    ],
)
def test_a_float_in_the_sampler_would_be_noticed(planted: str) -> None:
    assert floats_in(planted)


def test_a_float_at_work_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dg, "_below", lambda j, p, words: words(len(j)) * 2.0**-32 < j / 2**p)
    with pytest.raises(AssertionError, match=r"float|kind f"):
        dg.sample(2_000, 20, lambda size: stream(size)(size).view(Watched))


def test_thresholds_are_those_of_the_distribution_to_the_last_place() -> None:
    getcontext().prec = 120
    weights = [(Decimal(-(k * k)) / 2).exp() for k in range(40)]
    for bits in (64, 128, 192):
        found = dg._thresholds(bits)
        sums = [sum(weights[: k + 1]) / sum(weights) for k in range(len(found))]
        assert list(found) == [int(each * 2**bits) for each in sums]
        assert found[-1] == 2**bits - 1 > found[-2]


@pytest.mark.parametrize(("more", "k"), [(0, 1), (2**64 - 1, 2)])
def test_a_number_on_a_threshold_is_decided_by_more_of_its_bits(more: int, k: int) -> None:
    """The first 64 bits are those of P(k <= 1); the next ones lie below or above that number's."""
    first = dg._thresholds(64)[1]
    bits = iter([np.array([first], np.uint64), np.array([more], np.uint64)])
    assert dg._whole(1, lambda _: next(bits).view(np.uint32)).tolist() == [k]


def test_the_largest_number_is_no_threshold_but_asks_for_more_bits() -> None:
    bits = iter([np.array([2**64 - 1], np.uint64), np.array([5], np.uint64)])
    assert dg._whole(1, lambda _: next(bits).view(np.uint32))[0] >= len(dg._thresholds(64)) - 1


def test_a_chance_of_one_in_n_is_uniform_and_redraws_what_would_favour_small_numbers() -> None:
    words = iter([np.array([2**32 - 1, 3], np.uint32), np.array([1], np.uint32)])  # 2^32 - 1 is a multiple of 3
    assert dg._one_in(3, 2, lambda _: next(words)).tolist() == [False, True]


@pytest.mark.parametrize(("r", "s"), [(0.5, 1.0), (0.6, 1.0), (0.6, 2.0)])
def test_a_discrete_gaussian_is_a_rounded_gaussian_but_for_the_factor_of_the_proof(r: float, s: float) -> None:
    """The proof's integral, done numerically where its factor is large enough to be seen."""
    t = math.sqrt(s**2 - r**2)
    y = np.linspace(-14, 14, 400_001)
    theta = sum(np.exp(-np.square(i - y) / (2 * r**2)) for i in range(-30, 31))
    density = np.exp(-np.square(y) / (2 * t**2)) / (t * math.sqrt(2 * math.pi))
    values, mass = chances(s)
    h = 2.001 * math.exp(-2 * math.pi**2 * r**2)
    for x in range(-5, 6):
        rounded = np.sum(density * np.exp(-np.square(x - y) / (2 * r**2)) / theta) * (y[1] - y[0])
        ratio = rounded / mass[values == x][0]
        assert (1 - h) / (1 + h) - 1e-9 <= ratio <= (1 + h) / (1 - h) + 1e-9


def test_the_factor_of_the_proof_is_far_below_every_digit() -> None:
    c = 7 * math.exp(-2 * math.pi**2 * dg.ROUNDING**2)
    assert 3 * 2.001 <= 7
    assert c < 1e-136


@pytest.mark.parametrize("shift", [(8,), (5, 6), (3, 4, 5, 3, 2, 1)])
@pytest.mark.parametrize("log_std", [3, 4])
def test_the_exact_delta_is_at_most_the_stated_one(shift: tuple[int, ...], log_std: int) -> None:
    """By the distribution of the privacy loss itself, in up to six dimensions, at the coarsest lattices in use."""
    s, norm = 2**log_std, math.hypot(*shift)
    stated = math.sqrt(s**2 - dg.ROUNDING**2) / norm
    values, mass = chances(float(s))
    total = np.ones(1)  # distribution of the inner product of noise and shift: an integer
    for v in shift:
        spread = np.zeros(2 * v * int(values[-1]) + 1)
        spread[v * (values - values[0])] = mass
        total = np.convolve(total, spread)
    product = np.arange(len(total)) - len(total) // 2
    loss = (norm**2 + 2 * product) / (2 * s**2)
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0):
        delta = float((total * np.clip(1 - np.exp(epsilon - loss), 0, None)).sum())
        assert delta <= gaussian_delta(epsilon, stated) * (1 + 1e-9)
