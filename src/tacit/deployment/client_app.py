"""What a SuperNode runs for every message: the client of the folder that its owner named."""
# pyright: reportMissingImports=false

import os
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from tacit.deployment.home import Home
from tacit.engine.flower.grid import KEY, RECORD

app = ClientApp()


@app.train()
def answer(message: Message, context: Context) -> Message:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    home = Home(Path(str(context.node_config["home"])))
    blob = message.content.config_records[RECORD][KEY]
    if not isinstance(blob, bytes):
        raise TypeError("the message holds no bytes")
    reply = home.client().answer(blob)
    return Message(RecordDict({RECORD: ConfigRecord({KEY: reply})}), reply_to=message)
