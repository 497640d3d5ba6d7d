"""What crosses between server and client, and the checks on both sides. One message is one safetensors blob.

Its metadata holds a header of fixed keys; nothing is ever unpickled, and nothing is looked at before its size is known.
Whatever does not fit is a `Rejected` with a reason that can be counted.
"""
# pyright: reportMissingImports=false

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeVar, cast, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from tacit.core import tree
from tacit.core.contract import Tree
from tacit.errors import TacitError

VERSION: Final = 3
SLACK: Final = 65_536  # bytes that a header may take beside the numbers
_WORD: Final = re.compile(r"[a-z][a-z ]{0,39}")
Kind = Literal["train", "mask", "close", "heads"]
Reason = Literal[
    "size", "malformed", "version", "run", "round", "sender", "duplicate", "shape", "not finite", "huge", "ledger"
]


class Rejected(TacitError):
    """A message that does not fit, and why: `reason` is one of a few words, to be counted."""

    def __init__(self, reason: Reason, what: str) -> None:
        super().__init__(f"{reason}: {what}")
        self.reason: Reason = reason


@dataclass(frozen=True)
class Ask:
    """The server's request. `charged`: the turns that the server's ledger has against this client, this one included.

    A turn is one time that clients are asked. It is the round, unless a round had to be repeated, or evaluations came
    between: `evaluated` has the turns that were for an evaluation. `heads`, `seen`, `proof`: see `heads.py`.
    """

    run: str
    kind: Kind
    round: int
    turn: int
    terms: str  # the text of `Terms`
    charged: tuple[int, ...] = ()
    evaluated: tuple[int, ...] = ()
    heads: str = ""  # of the server's ledger
    seen: str = ""  # the head of the client's ledger, as the server knows it
    proof: str = ""
    tensors: Tree = field(default_factory=dict)

    @property
    def evaluation(self) -> bool:
        """Whether this turn is for an evaluation."""
        return self.turn in self.evaluated


@dataclass(frozen=True)
class Answer:
    """A client's reply. `refused`: why it did not take part, in words that depend on no data.

    `head`: of the client's ledger. `seen`: turn, head and proof of the server's, as the client has kept them.
    """

    run: str
    kind: Kind
    round: int
    turn: int
    client: str
    refused: str = ""
    head: str = ""
    seen: str = ""
    tensors: Tree = field(default_factory=dict)


Sent = TypeVar("Sent", Ask, Answer)
Arrived = bytes | Rejected
"""A message, or why it was turned away before it was one."""


def pack(message: Ask | Answer) -> bytes:
    header = {"version": VERSION, **{key: getattr(message, key) for key in _keys(type(message))}}
    return save(separate(message.tensors), {"tacit": json.dumps(header)})


def separate(leaves: Mapping[str, Tensor]) -> Tree:
    """Copies that share no memory: what safetensors takes."""
    return tree.each(lambda leaf: leaf.detach().cpu().clone(memory_format=torch.contiguous_format), leaves)


def _keys(kind: type[Ask] | type[Answer]) -> dict[str, Any]:
    return {each.name: each.type for each in fields(kind) if each.name != "tensors"}


def unpack(kind: type[Sent], blob: Arrived, limit: int | None = None) -> Sent:
    """The message in a blob of at most `limit` bytes, with a header of exactly the right keys and types."""
    if isinstance(blob, Rejected):
        raise blob
    if limit is not None and len(blob) > limit:
        raise Rejected("size", f"{len(blob):,} bytes where at most {limit:,} are possible")
    header = _header(blob)
    if header.pop("version", None) != VERSION:
        raise Rejected("version", f"this side speaks version {VERSION}: install the same Tacit on both")
    expected = _keys(kind)
    if header.keys() != expected.keys():
        raise Rejected("malformed", f"the header has {sorted(header)}, not {sorted(expected)}")
    for name, value in header.items():
        header[name] = _typed(name, value, expected[name])
    try:
        return kind(**header, tensors=load(blob))
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise Rejected("malformed", f"not safetensors ({error})") from error


def peek(blob: Arrived) -> Answer:
    """An answer without its numbers, which are not looked at."""
    if isinstance(blob, Rejected):
        raise blob
    if int.from_bytes(blob[:8], "little") > 2 * SLACK:
        raise Rejected("size", "a header that no answer has")
    header = _header(blob)
    expected = _keys(Answer)
    if header.pop("version", None) != VERSION or header.keys() != expected.keys():
        raise Rejected("malformed", "another header")
    return Answer(**{name: _typed(name, value, expected[name]) for name, value in header.items()})


def _header(blob: bytes) -> dict[str, Any]:
    try:
        size = int.from_bytes(blob[:8], "little")
        if not 2 <= size <= len(blob) - 8:
            raise ValueError(f"a header of {size} bytes in a message of {len(blob)}")
        header: Any = json.loads(json.loads(blob[8 : 8 + size])["__metadata__"]["tacit"])
        if not isinstance(header, dict):
            raise TypeError("the header is no table")
        return cast(dict[str, Any], header)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Rejected("malformed", f"no header ({type(error).__name__})") from error


def _typed(name: str, value: Any, kind: Any) -> Any:
    if kind is str and isinstance(value, str):
        return value
    if kind is int and type(value) is int and value >= 0:
        return value
    if kind == Kind and value in get_args(Kind):
        return value
    if kind == tuple[int, ...] and isinstance(value, list):
        numbers = cast(list[Any], value)
        if all(type(number) is int and number >= 0 for number in numbers):
            return tuple(numbers)
    raise Rejected("malformed", f"'{name}' of the header is {value!r}"[:200])


def fitted(tensors: Mapping[str, Tensor], template: Mapping[str, Tensor], shapes: bool = True) -> Tree:
    """The leaves of `template`, in its order; refuses other names, types, shapes, and values that are not finite."""
    if tensors.keys() != template.keys():
        raise Rejected("shape", f"leaves {sorted(tensors)[:5]}..., not {sorted(template)[:5]}...")
    for name, leaf in template.items():
        got = tensors[name]
        if got.dtype != leaf.dtype or (shapes and got.shape != leaf.shape):
            raise Rejected("shape", f"{name} is {got.dtype} {tuple(got.shape)}, not {leaf.dtype} {tuple(leaf.shape)}")
        if not bool(torch.isfinite(got).all()):
            raise Rejected("not finite", f"{name} holds NaN or infinity")
    return {name: tensors[name] for name in template}


def room(template: Mapping[str, Tensor]) -> int:
    """The most bytes that a message with these leaves can take."""
    return sum(leaf.numel() * leaf.element_size() + 300 for leaf in template.values()) + SLACK


def checked(answer: Answer, ask: Ask, client: str) -> Answer:
    """An answer to this very question by this very client."""
    if answer.run != ask.run:
        raise Rejected("run", f"of run {answer.run[:40]!r}, not {ask.run!r}")
    if (answer.round, answer.turn, answer.kind) != (ask.round, ask.turn, ask.kind):
        raise Rejected("round", f"of round {answer.round}, turn {answer.turn}, not {ask.round}, {ask.turn}")
    if answer.client != client:
        raise Rejected("sender", f"in the name of {answer.client[:40]!r}, from {client!r}")
    return answer


def word(text: str) -> str:
    """A client's reason as it may be counted and shown: a few letters, whatever it sent."""
    return text if _WORD.fullmatch(text) else "another reason"
