"""Messages become totals: sums by level, whoever carried the messages, in the open or under masks."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.contract import Tree
from tacit.privacy.mechanisms.release import Message, Totals
from tacit.privacy.plan import Plan


def no_messages(plan: Plan, upload: Tree) -> Totals:
    """The sum of no message, for uploads of these shapes."""
    levels = len(plan.setting.choices.menu.levels)
    body = tree.each(lambda leaf: torch.zeros(levels, *leaf.shape, dtype=leaf.dtype), plan.release.blank(upload))
    return Totals(body, torch.zeros(levels), torch.zeros(levels), torch.zeros(levels))


def add(one: Totals, other: Totals) -> Totals:
    """The totals of two chunks of a cohort together."""
    return Totals(tree.add(one.body, other.body), *(a + b for a, b in zip(one[1:], other[1:], strict=True)))


def of_messages(blank: Totals, messages: Mapping[int, Message], level: np.ndarray) -> Totals:
    """Of single messages, in the order of the clients' places: it does not depend on who was first."""
    body = tree.each(lambda leaf: leaf.clone() if leaf.is_floating_point() else leaf.long(), blank.body)
    bit, power, members = (part.double() for part in blank[1:])
    for place in sorted(messages):
        j, message = int(level[place]), messages[place]
        for name, leaf in body.items():
            leaf[j] += message.body[name]
        bit[j] += message.bit
        power[j] += message.power
        members[j] += 1
    return Totals(body, bit, power, members)


def of_masked_sum(blank: Totals, total: Tensor | None, members: Tensor) -> Totals:
    """Of a sum by secure aggregation: the row of the first level has it all. None: too few came for a sum."""
    if total is None:
        return blank._replace(members=members)
    ((name, rows),) = blank.body.items()
    body = torch.zeros_like(rows)
    body[0] = total
    return blank._replace(body={name: body}, members=members)
