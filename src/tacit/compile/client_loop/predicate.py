"""Which operations of a run (`fuse.py`) a client may pass over in a step that only pads it.

Such a step masks a gradient's factor with zeros (`mask_padding.py`), so that what it adds is exactly nothing. An
operation is passed over where it adds nothing to what lies there already, which then stands for its result,
or where all who read it are passed over, too.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch.fx import Node

from tacit.compile.client_loop.lower import Draft, Read
from tacit.compile.kernels.native_client_loop import Kind


class Mask(NamedTuple):
    """One byte for each client, true where a step pads it."""

    root: Node
    offset: int
    step: int


_ZERO_OF: dict[Kind, tuple[int, ...]] = {
    Kind.MULTIPLE: (0,),
    Kind.TOTAL: (0,),
    Kind.GATED: (0,),
    Kind.FILLED: (0,),
    Kind.PRODUCT: (0, 1),
    Kind.MATRIX: (0, 1),
}
"""Operands of which one that is zero makes the result zero, where nothing is added."""
_ADDED: dict[Kind, tuple[int, tuple[int, ...]]] = {
    Kind.SUM: (0, (1,)),
    Kind.MATRIX: (2, (0, 1)),
    Kind.PUT: (2, (1,)),
}
"""The operand that is added to, and those of which one that is zero adds nothing."""


def skips(members: dict[Node, Draft], asked: Sequence[Node], in_place: set[Node]) -> dict[Node, Mask]:
    """The mask under which each may be passed over, of those that may; `in_place` write over what they add to."""
    zeros = _zeros(members)
    readers: dict[Node, list[Node]] = {}
    for node, draft in members.items():
        for read in draft.reads:
            readers.setdefault(read.root, []).append(node)
    found: dict[Node, Mask] = {}
    stand_in: set[Node] = set()  # what others that are passed over leave as it is
    for node, draft in reversed(members.items()):
        masks = {found.get(reader) for reader in readers.get(node, ())}
        unread = masks.pop() if len(masks) == 1 and node not in asked and node not in stand_in else None
        idle = _adds_nothing(draft, zeros) if node in in_place else set()
        if unread:
            found[node] = unread
        elif idle and draft.over:
            found[node] = min(idle, key=lambda mask: mask.offset)
            stand_in.add(draft.over)
    return found


def _zeros(members: dict[Node, Draft]) -> dict[Node, set[Mask]]:
    """Under which masks each is zero."""
    zeros: dict[Node, set[Mask]] = {}
    for node, draft in members.items():
        adds = draft.kind is Kind.MATRIX and draft.beta != 0
        parts = () if adds else _ZERO_OF.get(draft.kind, ())
        zeros[node] = {mask for at in parts for mask in zeros.get(draft.reads[at].root, ())}
        if draft.kind is Kind.FILLED and draft.alpha == 0 and (mask := _of_clients(draft.reads[1])):
            zeros[node].add(mask)
    return zeros


def _of_clients(read: Read) -> Mask | None:
    return None if any(read.strides) else Mask(read.root, read.offset, read.step)


def _adds_nothing(draft: Draft, zeros: dict[Node, set[Mask]]) -> set[Mask]:
    if draft.kind not in _ADDED or draft.beta != 1:
        return set()
    to, parts = _ADDED[draft.kind]
    if len(draft.reads) <= to or draft.reads[to].root is not draft.over:
        return set()
    return {mask for at in parts for mask in zeros.get(draft.reads[at].root, ())}
