"""A chunk of clients as tensors: what differs between them, and what a program for all of them depends on."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from tacit.core import tree
from tacit.core.contract import Tree


class Inputs(NamedTuple):
    """What differs between the clients of a chunk: every leaf has one row a client."""

    state: Tree
    rows: Tensor
    mask: Tensor
    live: Tensor
    level: Tensor
    z: Tensor
    expected: Tensor
    gradient_key: Tensor
    release_key: Tensor
    client: Tensor  # its place in the federation
    real: Tensor  # False for a row that only fills the chunk up

    @property
    def full(self) -> int:
        """Leading steps that are live for every client."""
        return int(self.live.sum(1).min())


class Shape(NamedTuple):
    """All that a chunk's program depends on besides its inputs: public, and the same whenever a run is repeated."""

    clients: int
    steps: int
    full: int  # leading steps that are live for every client
    own: int = 0  # rows of a client that are fetched once, where batches come back to them

    def fill(self, inputs: Inputs) -> Inputs:
        """Rows repeated to `clients`, steps that are not live added up to `steps`."""
        several, steps = inputs.live.shape
        if (several, steps) == (self.clients, self.steps):
            return inputs
        rows = torch.arange(self.clients).clamp(max=several - 1)
        filled = Inputs(tree.each(lambda leaf: leaf[rows], inputs.state), *(leaf[rows] for leaf in inputs[1:]))
        more = self.steps - steps
        return filled._replace(
            rows=torch.cat([filled.rows, filled.rows[:, :1].expand(-1, more, -1)], 1),
            mask=pad(filled.mask, (0, 0, 0, more)),
            live=pad(filled.live, (0, more)),
            real=torch.arange(self.clients) < several,
        )
