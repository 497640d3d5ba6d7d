"""Two things that a recorded program must keep and no clip can mend, tested on its numbers before it is used.

*Clients are apart.* The privacy room clips every row of the uploads; that bounds what a client does to a sum if row k
was computed from client k alone. Other data of one client must not move another's row by a bit.

*Noisy steps are all there is.* Under `Stepwise` noise is added within the program, by an operation of the privacy room
(`guarded_steps`) that passes cannot look into. They could still lead data around it. So the program is run with steps
that are the same whatever the data: then no bit of an upload may depend on the data. The plain program was asked the
same (`rounds/preflight.py`).
"""

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter
from torch.utils import _pytree as pytree

from tacit.compile.acceptance import Program
from tacit.compile.handover import operands
from tacit.compile.replay import Recording
from tacit.core import tree
from tacit.core.contract import Tree
from tacit.privacy.mechanisms.clipped_upload_sum import stored
from tacit.privacy.mechanisms.stepwise import GUARDED_STEPS
from tacit.simulation.chunks import Inputs


def keeps_clients_apart(program: Program, view: Any, public: Tree, round: Tensor, inputs: Inputs) -> bool:
    """Whether other data of the first client leave everybody else's upload and state as they are, bit by bit."""
    changed = _changed(inputs, torch.arange(len(inputs.real)) == 0)
    before, after = (pytree.tree_map(stored, program(view, public, round, each)[:2]) for each in (inputs, changed))
    leaves = zip(pytree.tree_leaves(before), pytree.tree_leaves(after), strict=True)
    return all(_same(a[1:], b[1:]) for a, b in leaves)


def moves_by_guarded_steps(
    recording: Recording, plain: GraphModule, uploads: int, view: Any, public: Tree, round: Tensor, inputs: Inputs
) -> bool:
    """Whether data reach the uploads, the first results of a program, through `guarded_steps` alone.

    What a client keeps counts as data, too, unless the plain program sends it on (SCAFFOLD's control variate, which
    follows from noisy steps): `plain` is its graph, before any pass.
    """
    everybody = torch.ones(len(inputs.real), dtype=torch.bool)
    other_rows = _changed(inputs, everybody)._replace(state=inputs.state)
    other_states = inputs._replace(state=_changed(inputs, everybody).state)

    def same(graph: GraphModule, changed: Inputs) -> bool:
        def handed_over(each: Inputs) -> list[Tensor]:
            results = _SameSteps(graph).run(*recording.lay_out(view, public, round, each))
            return [stored(leaf) for leaf in operands(graph, list(results))[:uploads]]

        return all(map(_same, handed_over(inputs), handed_over(changed)))

    passed = recording.graph
    return same(passed, other_rows) and (same(passed, other_states) or not same(plain, other_states))


class _SameSteps(Interpreter):
    """Runs a graph with guarded steps that depend on nothing but their number."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is not GUARDED_STEPS:
            return super().call_function(target, args, kwargs)
        steps, *_, call, _ = args
        return (0.01 * torch.sin(torch.arange(steps.shape[1]) + call)).to(steps.dtype).expand(steps.shape).clone()


def _changed(inputs: Inputs, who: Tensor) -> Inputs:
    """The same levels, keys and numbers of steps; other rows, fewer of them, and another state for these clients."""

    def other(leaf: Tensor, new: Tensor) -> Tensor:
        return torch.where(who.view(-1, *[1] * (leaf.dim() - 1)), new, leaf)

    def turned(leaf: Tensor) -> Tensor:
        return other(leaf, leaf.roll(1, 0))

    return inputs._replace(
        state=tree.each(lambda leaf: other(leaf, leaf * 1.5 if leaf.is_floating_point() else leaf), inputs.state),
        rows=turned(inputs.rows),
        mask=other(inputs.mask, inputs.mask & (torch.arange(inputs.mask.shape[-1]) == 0)),
        client=turned(inputs.client),
    )


def _same(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | ((a != a) & (b != b))).all())
