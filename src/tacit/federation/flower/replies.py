"""A SuperNode that sends every answer when it is ready.

Flower's SuperNode looks for answers only after it has received a message, and then for any. If a server is killed
between a question and its answer, the node is left with one answer too many: from then on it sends each answer when the
next question comes, which is a round too late. Here it also looks when there was nothing to receive.
"""
# pyright: reportMissingImports=false

from typing import Any

from tacit.federation.flower.patch import Patch

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
