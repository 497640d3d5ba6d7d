"""A client of Flower's simulation: trains, clips, replies. Its actors import this module, so that data stay warm."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
from functools import cache

import protocol
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch_loop import make_clients, make_layers, train_locally

torch.set_num_threads(1)
app = ClientApp()


@cache
def everything(model: str) -> tuple[Tensor, Tensor, nn.Module]:
    return *make_clients(model), nn.Sequential(*make_layers(model))


@app.train()
def train(message: Message, context: Context) -> Message:
    model = str(message.content["config"]["model"])
    images, labels, network = everything(model)
    start = message.content["arrays"].to_torch_state_dict()
    network.load_state_dict(start)
    client = int(context.node_config["partition-id"])
    train_locally(network, images[client], labels[client], protocol.training(model))
    update = {name: leaf.detach() - start[name] for name, leaf in network.state_dict().items()}
    norm = float(torch.stack([leaf.norm() for leaf in update.values()]).norm())
    clipped = {name: leaf * min(1.0, protocol.training(model).clip / max(norm, 1e-12)) for name, leaf in update.items()}
    sizes = MetricRecord({"num-examples": len(labels[client])})
    return Message(RecordDict({"arrays": ArrayRecord(clipped), "metrics": sizes}), reply_to=message)
