"""A member's node in wrong hands: it answers each turn with another kind of lie. Started in the place of `own_code`."""

import sys
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import torch
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supernode.runtime import run_clientapp

from tacit.federation.flower import no_remote_code
from tacit.federation.flower.transport import KEY, RECORD
from tacit.federation.protocol.messages import Answer, Ask, pack, unpack
from tacit.federation.service.client_dir import ClientFolder

SEEN_AS = {
    "none": "",
    "nan": "not finite",
    "floats": "shape",
    "huge": "huge",
    "wrong shape": "shape",
    "old round": "round",
    "replayed": "round",
    "other run": "run",
    "duplicate": "",
    "not a message": "malformed",
    "1 GB": "size",
}
KINDS = tuple(SEEN_AS)
UNDER_MASKS = ("none", "wrong shape", "old round", "replayed", "other run", "duplicate", "not a message", "1 GB")
"""What can be seen of a message that only a sum will show."""
SERVER: list[str] = []
app = ClientApp()


def kinds(plan: str) -> tuple[str, ...]:
    return UNDER_MASKS if plan == "distributed" else KINDS


@app.train()
def answer(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    home = ClientFolder(Path(str(context.node_config["home"])))
    blob: Any = message.content.config_records[RECORD][KEY]
    ask = unpack(Ask, blob)
    honest = home.client().answer(blob)
    kind = kinds(home.agreement.plan)[ask.turn] if _uploads(ask) else "none"
    if kind == "duplicate":
        _send_twice()
    if kind == "1 GB":
        _flood(home.folder)
    old = home.folder / "old"
    if kind == "none" and _uploads(ask):
        old.write_bytes(honest)
    return Message(RecordDict({RECORD: ConfigRecord({KEY: lied(honest, kind, old)})}), reply_to=message)


def _uploads(ask: Ask) -> bool:
    """Whether this is the message whose answer holds what was learned: with masks, the stage that brings the model."""
    return ask.kind != "close" and any(name.startswith("view/") for name in ask.tensors)


def lied(blob: bytes, kind: str, old: Path) -> bytes:
    reply = unpack(Answer, blob)
    bodies = [name for name in reply.tensors if name.startswith("body/") or name == "mask"]
    first, leaf = (bodies[0], reply.tensors[bodies[0]]) if bodies else ("body/", torch.zeros(1))
    tensors = {
        "nan": lambda: {"bit": torch.full_like(reply.tensors["bit"], torch.nan)},
        "floats": lambda: {first: leaf.double()},  # bodies are integers of a lattice: nothing else may come there
        "huge": lambda: {first: torch.full_like(leaf, torch.iinfo(torch.int32).max)},
        "wrong shape": lambda: {first: leaf.reshape(-1)[: leaf.numel() // 2]},
    }
    headers = {"old round": {"round": 77}, "other run": {"run": "another-run"}}
    if kind in tensors:
        return pack(replace(reply, tensors=reply.tensors | tensors[kind]()))
    if kind in headers:
        return pack(replace(reply, **headers[kind]))
    raw = {"replayed": lambda: old.read_bytes(), "not a message": lambda: b"\x00" * 999}
    return raw[kind]() if kind in raw else blob


def _flood(home: Path) -> None:
    """A gigabyte at the door, in the member's own name: Flower's own node would not take it from its application.

    What the node says afterwards comes too late: the server has heard of it.
    """
    key: Any = load_ssh_private_key((home / "node.key").read_bytes(), None)
    when = datetime.now(UTC).isoformat()
    headers = {
        "flwr-public-key": b64encode(public_key_to_bytes(key.public_key())).decode(),
        "flwr-timestamp": when,
        "flwr-signature": b64encode(sign_message(key, when.encode())).decode(),
        "content-type": "application/protobuf",
    }

    def gigabyte() -> Iterator[bytes]:
        for _ in range(1024):
            yield bytes(2**20)

    try:
        answer = httpx.post(f"https://{SERVER[0]}/v1/fleet/push-object", content=gigabyte(), headers=headers,
                            verify=False, timeout=60, trust_env=False)  # fmt: skip
        sys.stderr.write(f"1 GB: {answer.status_code}\n")
    except httpx.TransportError as error:
        sys.stderr.write(f"1 GB: {type(error).__name__}\n")


def _send_twice() -> None:
    once = run_clientapp.push_message

    def twice(client: Any, message: Message, context: Context) -> None:
        once(client, message, context)
        once(client, message, context)

    setattr(run_clientapp, "push_message", twice)  # noqa: B010


if __name__ == "__main__":
    SERVER.append(sys.argv[2])
    no_remote_code.use(app)
    no_remote_code.nursery(Path(sys.argv[1]))
