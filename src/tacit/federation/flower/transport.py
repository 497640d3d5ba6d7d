# pyright: reportMissingImports=false
"""Flower as a carrier of blobs: who is asked by node, who answered by the question that it answers.

A SuperNode that sends every answer when it is ready.

Flower's SuperNode looks for answers only after it has received a message, and then for any. If a server is killed
between a question and its answer, the node is left with one answer too many: from then on it sends each answer when the
next question comes, which is a round too late. Here it also looks when there was nothing to receive.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from tacit.federation.flower.patch import Patch
from tacit.federation.protocol.messages import Arrived, Rejected

RECEIVED = Patch(
    "flwr.supernode.start_client_internal",
    "_pull_and_store_message",
    (
        *("state", "object_store", "node_config", "receive", "get_run", "get_fab"),
        *("pull_object", "confirm_message_received", "trusted_entities"),
    ),
    "start_client_internal",
)


def send_when_ready() -> None:
    """The SuperNode of this process does so."""
    receive = RECEIVED.check()._pull_and_store_message

    def receive_or_answer(*, state: Any, **more: Any) -> int | None:
        """The run of what was received; None if there is nothing to do, after which Flower waits and asks again."""
        run = receive(state=state, **more)
        return 0 if run is None and _ready(state) else run

    RECEIVED.put(receive_or_answer)


def _ready(state: Any) -> bool:
    with state.lock_msg_store:
        waiting = [entry.message for entry in state.msg_store.values() if not entry.is_retrieved]
    return any(message.metadata.reply_to_message_id for message in waiting)


RECORD: Final = "tacit"
KEY: Final = "blob"
_PAUSE: Final = 0.5  # seconds between looks; nodes look every three


class FlowerTransport:
    """`nodes`: the node of every registered client. A node that is offline gets its message if it returns in time.

    `turned_away`: the names of those whose messages, since a time, were too large to be let in.
    """

    def __init__(self, grid: Grid, nodes: Mapping[str, int], turned_away: Callable[[float], set[str]]) -> None:
        self._grid, self._nodes, self._turned_away = grid, nodes, turned_away
        self.until = 0.0  # when the answers to the last question are due, by the monotonic clock

    def ask(self, asks: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, Arrived]]:
        end, began = time.monotonic() + seconds, time.time()
        self.until, pending = end, self._push(asks, seconds)
        while pending and time.monotonic() < end:
            for name in self._turned_away(began) & set(pending.values()):
                pending = {number: other for number, other in pending.items() if other != name}
                yield name, Rejected("size", "turned away at the door")
            for reply in self._grid.pull_messages(list(pending)):
                name = pending.pop(reply.metadata.reply_to_message_id, None)
                if name is not None and reply.has_content():
                    yield name, _blob(reply)
            if pending:
                time.sleep(_PAUSE)

    def _push(self, asks: Mapping[str, bytes], seconds: float) -> dict[str, str]:
        """The names that an answer is awaited from, by message."""
        names = [name for name in asks if name in self._nodes]
        messages = [
            Message(RecordDict({RECORD: ConfigRecord({KEY: asks[name]})}), self._nodes[name], "train", ttl=seconds)
            for name in names
        ]
        sent = self._grid.push_messages(messages)
        return {number: name for number, name in zip(sent, names, strict=False) if number}


def _blob(reply: Message) -> bytes:
    """The bytes in a reply; none where it holds something else, which no check lets through."""
    try:
        blob = reply.content.config_records[RECORD][KEY]
    except (KeyError, TypeError, AttributeError):
        return b""
    return blob if isinstance(blob, bytes) else b""
