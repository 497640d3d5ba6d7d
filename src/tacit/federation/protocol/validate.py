"""What the server takes from a message: the right leaves, finite, and no larger than an honest client's can be."""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch

from tacit.core import tree
from tacit.core.contract import Tree
from tacit.federation.protocol import messages as schema
from tacit.federation.protocol.messages import Rejected
from tacit.privacy.mechanisms.distributed import Distributed
from tacit.privacy.mechanisms.release import Grouped, Local, Message, Totals, admit, admit_integers
from tacit.privacy.plan import Plan

_OPEN_LIMIT: Final = 1e6  # norm of an upload without a bound: far above any that training gives
_SIGMAS: Final = 12.0  # an honest client's noise is farther out with a chance below 1e-30
_ROUNDING: Final = 1e-3


def blank(plan: Plan, upload: Tree) -> Tree:
    """The leaves of an answer."""
    zero = torch.zeros((), dtype=torch.float64)
    return tree.prefix("body", plan.release.blank(upload)) | {"bit": zero, "power": zero}


def admitted(plan: Plan, public: Tree, tensors: Tree, like: Tree, level: int) -> Message:
    """The message in an answer, or `Rejected`. Under a trusted server's plans it is clipped again all the same.

    Integers of exact noise have a norm that can be known exactly: they keep to it or are refused.
    """
    good = schema.fitted(tensors, like)
    message = Message(tree.strip("body", good), good["bit"], good["power"])
    release = plan.release
    if isinstance(release, Distributed):
        return _integers(message, release)
    if isinstance(release, Grouped) and release.exact is not None:
        if (whole := admit_integers(message, release, level, public["bound"])) is None:
            raise Rejected("huge", "integers of a norm above their limit")
        return whole
    known = release.read(public, message.body, torch.tensor(level))
    schema.norm_at_most(known, _most(plan, public, message.body))
    if not isinstance(release, Grouped):
        return message
    again = admit(message, tree.strip("body", like), public["bound"])
    if again is None:
        raise Rejected("shape", "the message does not fit")
    return again


def _integers(message: Message, release: Distributed) -> Message:
    """Residues. Whether they are an honest client's cannot be seen: that is what they are for."""
    if any(bool(((leaf < 0) | (leaf >= 1 << release.coding.bits)).any()) for leaf in message.body.values()):
        raise Rejected("huge", f"numbers outside 0 to 2^{release.coding.bits}")
    return message._replace(bit=torch.zeros_like(message.bit), power=torch.zeros_like(message.power))


def _most(plan: Plan, public: Tree, body: Tree) -> float:
    release, size = plan.release, max(tree.size(body), 1)
    if isinstance(release, Grouped):
        return float(public["bound"]) * (1 + _ROUNDING)
    if isinstance(release, Local) and plan.steps is None:
        std = max(2 * release.clip.multiplier(z) for z in release.multipliers) * float(public["bound"])
        return (float(public["bound"]) + std * (math.sqrt(size) + _SIGMAS)) * (1 + _ROUNDING)
    return _OPEN_LIMIT


def summed(nothing: Totals, messages: Mapping[int, Message], level: np.ndarray) -> Totals:
    """The sum by level, in the order of the clients' places: it does not depend on who was first."""
    body = tree.each(lambda leaf: leaf.clone() if leaf.is_floating_point() else leaf.long(), nothing.body)
    bit, power, members = (part.double() for part in nothing[1:])
    for place in sorted(messages):
        j, message = int(level[place]), messages[place]
        for name, leaf in body.items():
            leaf[j] += message.body[name]
        bit[j] += message.bit
        power[j] += message.power
        members[j] += 1
    return Totals(body, bit, power, members)


def gathered(plan: Plan, public: Tree, upload: Tree, messages: Mapping[int, Message], clients: int) -> Tree:
    """A row for each client's message, zero where none came."""
    rows = tree.each(lambda leaf: leaf.new_zeros(clients, *leaf.shape), upload)
    for place, message in messages.items():
        known = plan.release.read(public, message.body, torch.tensor(plan.setting.choices.level[place]))
        for name, leaf in rows.items():
            leaf[place] = known[name]
    return rows
