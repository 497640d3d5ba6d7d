"""Small operations of a recorded program: for all steps at once, on rows copied once, and exact where steps pad."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tacit.compile.ir import trace
from tacit.compile.pipeline import simplify

aten = torch.ops.aten
CLIENTS, STEPS, BATCH, INPUTS, OUTPUTS = 3, 5, 4, 6, 2


def simplified(program: Callable[..., Any], *inputs: Tensor) -> tuple[Any, Counter[Any]]:
    """What the simplified program gives, and how often it does what."""
    with torch.no_grad():
        graph = simplify(trace(program, *inputs))
        return graph(*inputs)[0], Counter(node.target for node in graph.graph.nodes)


def test_what_every_step_does_to_its_mask_is_one_operation() -> None:
    def program(mask: Tensor, x: Tensor) -> Tensor:
        for step in range(STEPS):
            x = x.sin() / mask[:, step].sum(1).clamp(min=1).unsqueeze(1)
        return x

    mask, x = torch.rand(CLIENTS, STEPS, BATCH) > 0.5, torch.rand(CLIENTS, INPUTS)
    got, calls = simplified(program, mask, x)
    assert torch.equal(got, program(mask, x))
    assert calls[aten.sum.dim_IntList] == calls[aten.clamp.default] == 1


def test_what_is_drawn_is_drawn_in_every_step() -> None:
    def program(mask: Tensor) -> Tensor:
        return torch.stack([torch.bernoulli(mask[:, step]) for step in range(STEPS)])

    _, calls = simplified(program, torch.rand(CLIENTS, STEPS, BATCH))
    assert calls[aten.bernoulli.default] == STEPS


def test_rows_of_a_constant_are_copied_whole() -> None:
    everybody = torch.rand(50, 2, INPUTS)

    def program(rows: Tensor) -> Tensor:
        return torch.stack([everybody[rows[:, step]].sin() for step in range(STEPS)])

    rows = torch.randint(50, (CLIENTS, STEPS, BATCH))
    got, calls = simplified(program, rows)
    assert torch.equal(got, program(rows))
    assert calls[aten.index_select.default] == STEPS


def test_a_step_that_pads_changes_no_bit_whatever_its_gradient() -> None:
    def program(live: Tensor, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        for step in range(STEPS):
            gradient = (x[step] * b.sum(1).view(-1, 1, 1)).exp()  # not finite where a client has large numbers
            left = gradient[:, :, :OUTPUTS].contiguous()
            new_w = torch.add(w, torch.bmm(left.transpose(1, 2), x[step]), alpha=-0.1)
            new_b = torch.add(b, left.sum(1), alpha=-0.1)
            w = torch.where(live[:, step].view(-1, 1, 1), new_w, w)
            b = torch.where(live[:, step].view(-1, 1), new_b, b)
        return torch.cat([w.flatten(1), b], 1)

    live = torch.arange(STEPS) < torch.tensor([[STEPS], [2], [0]])
    x = torch.rand(STEPS, CLIENTS, BATCH, INPUTS)
    x[:, 2] = 1e6
    w, b = torch.rand(CLIENTS, OUTPUTS, INPUTS), torch.rand(CLIENTS, OUTPUTS)
    got, calls = simplified(program, live, x, w, b)
    assert calls[aten.where.self] == 0
    assert not (x[0, 2] * b[2].sum()).exp().isfinite().any()
    assert torch.equal(got[2], torch.cat([w[2].flatten(), b[2]]))
    assert torch.allclose(got, program(live, x, w, b), rtol=1e-4)
