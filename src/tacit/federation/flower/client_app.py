"""What a SuperNode runs for every message: the client of the folder that its owner named."""
# pyright: reportMissingImports=false

import os
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from tacit.federation.flower import session
from tacit.federation.flower.transport import KEY, RECORD
from tacit.federation.protocol import messages
from tacit.federation.protocol.client import nothing, refused

app = ClientApp()


@app.train()
def answer(message: Message, context: Context) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord({KEY: reply_to(message, context)})}), reply_to=message)


def reply_to(message: Message, context: Context) -> bytes:
    """Flower would send the text of an exception to the server: whatever goes wrong, there is one plain refusal."""
    try:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        blob = message.content.config_records[RECORD][KEY]
        if not isinstance(blob, bytes):
            raise TypeError("the message holds no bytes")
        return session.answer(Path(str(context.node_config["home"])), blob)
    except Exception as error:
        return messages.pack(refused(nothing(""), error))
