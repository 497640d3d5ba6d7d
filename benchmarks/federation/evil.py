"""A member's node in wrong hands: it answers each turn with another kind of lie. Started in the place of `own_code`."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supernode.runtime import run_clientapp

from tacit.deployment import own_code
from tacit.deployment.home import Home
from tacit.engine.flower.grid import KEY, RECORD
from tacit.engine.flower.schema import Answer, Ask, pack, unpack

KINDS = (
    "none",
    "nan",
    "huge",
    "wrong shape",
    "old round",
    "replayed",
    "other run",
    "duplicate",
    "not a message",
    "1 GB",
)
SEEN_AS = {
    "nan": "not finite",
    "huge": "huge",
    "wrong shape": "shape",
    "old round": "round",
    "replayed": "round",
    "other run": "run",
    "not a message": "malformed",
}
app = ClientApp()


@app.train()
def answer(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    home = Home(Path(str(context.node_config["home"])))
    blob: Any = message.content.config_records[RECORD][KEY]
    ask = unpack(Ask, blob)
    honest = home.client().answer(blob)
    kind = KINDS[ask.turn] if ask.kind == "train" else "none"
    if kind == "duplicate":
        _send_twice()
    old = home.folder / "old"
    if kind == "none":
        old.write_bytes(honest)
    lie = lied(honest, kind, old)
    return Message(RecordDict({RECORD: ConfigRecord({KEY: lie})}), reply_to=message)


def lied(blob: bytes, kind: str, old: Path) -> bytes:
    reply = unpack(Answer, blob)
    bodies = [name for name in reply.tensors if name.startswith("body/")]
    first, leaf = (bodies[0], reply.tensors[bodies[0]]) if bodies else ("body/", torch.zeros(1))
    tensors = {"nan": leaf * torch.nan, "huge": leaf * 0 + 1e12, "wrong shape": leaf.reshape(-1)[:3]}
    headers = {"old round": {"round": 77}, "other run": {"run": "another-run"}}
    if kind in tensors:
        return pack(replace(reply, tensors=reply.tensors | {first: tensors[kind]}))
    if kind in headers:
        return pack(replace(reply, **headers[kind]))
    raw = {"replayed": lambda: old.read_bytes(), "not a message": lambda: b"\x00" * 999, "1 GB": lambda: bytes(2**30)}
    return raw[kind]() if kind in raw else blob


def _send_twice() -> None:
    once = run_clientapp.push_message

    def twice(client: Any, message: Message, context: Context) -> None:
        once(client, message, context)
        once(client, message, context)

    setattr(run_clientapp, "push_message", twice)  # noqa: B010


if __name__ == "__main__":
    own_code.use(app)
    own_code.nursery(Path(sys.argv[1]))
