"""Models that people bring, each under each plan; `python -m tests.conformance.models_of_the_field` writes the page.

They are written here from descriptions, as one writes them in torch, and cut to tiny widths.
"""

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import tacit
from tacit.errors import TacitError
from tacit.models import MLP, AlexNet, FiveLayerCNN, SoftmaxRegression, TwoConvCNN, params, seeded
from tacit.models.losses import IGNORE
from tests.worlds import PLANS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "which-models.md"
COLUMNS = ("open", "central", "record", "distributed")
TOKENS, LENGTH, WIDTH, CLASSES, SIDE = 9, 5, 8, 3, 8
CLIENTS, ROWS = 5, 4
_VMAP = re.compile(r" \(vmap: .*\)(?=:)")  # torch's own words, which change with its version


# inputs and targets


@dataclass(frozen=True)
class Kind:
    """Inputs and targets for a number of rows."""

    words: str
    draw: Callable[[np.random.Generator, int], tuple[Any, Any]]
    classes: int | None = CLASSES


def _class(draw: np.random.Generator, rows: int) -> np.ndarray:
    return draw.integers(CLASSES, size=rows)


def _numbers(draw: np.random.Generator, *shape: int) -> np.ndarray:
    return draw.normal(size=shape).astype(np.float32)


def _images(channels: int, side: int = SIDE) -> Kind:
    return Kind("image, class", lambda draw, rows: (_numbers(draw, rows, channels, side, side), _class(draw, rows)))


def _tokens(draw: np.random.Generator, rows: int) -> np.ndarray:
    return draw.integers(1, TOKENS, size=(rows, LENGTH))


def _next_tokens(draw: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    ids = _tokens(draw, rows)
    y = np.roll(ids, -1, 1)
    y[:, -1] = IGNORE
    return ids, y


def _masked(draw: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    real = np.arange(LENGTH) < draw.integers(2, LENGTH + 1, size=(rows, 1))
    return {"input_ids": np.where(real, _tokens(draw, rows), 0), "attention_mask": real.astype(np.int64)}


def _masked_next(draw: np.random.Generator, rows: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    x = _masked(draw, rows)
    y = np.roll(np.where(x["attention_mask"] > 0, x["input_ids"], IGNORE), -1, 1)
    y[:, -1] = IGNORE
    return x, y


def _copied(draw: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    x = _numbers(draw, rows, WIDTH)
    return x, x


def _graph(draw: np.random.Generator, rows: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    edges = (draw.random((rows, LENGTH, LENGTH)) < 0.5).astype(np.float32)
    return {"nodes": _numbers(draw, rows, LENGTH, 4), "edges": edges}, _class(draw, rows)


GREY, COLOUR, LARGE = _images(1), _images(3), _images(1, 16)
TABLE = Kind("table, class", lambda draw, rows: (_numbers(draw, rows, WIDTH), _class(draw, rows)))
NUMBER = Kind("table, number", lambda draw, rows: (_numbers(draw, rows, WIDTH), _numbers(draw, rows)), None)
NUMBERS = Kind("table, 3 numbers", lambda draw, rows: (_numbers(draw, rows, WIDTH), _numbers(draw, rows, 3)), None)
LABELS = Kind("table, 3 labels", lambda draw, rows: (_numbers(draw, rows, WIDTH), _numbers(draw, rows, 3) > 0), None)
COPY = Kind("table, itself", _copied, None)
SIGNAL = Kind("signal, class", lambda draw, rows: (_numbers(draw, rows, 2, 16), _class(draw, rows)))
TEXT = Kind("tokens, class", lambda draw, rows: (_tokens(draw, rows), _class(draw, rows)))
LANGUAGE = Kind("tokens, next tokens", _next_tokens, TOKENS)
MASKED_TEXT = Kind("dict of tokens and mask, class", lambda draw, rows: (_masked(draw, rows), _class(draw, rows)))
MASKED_LANGUAGE = Kind("dict of tokens and mask, next tokens", _masked_next, TOKENS)
IMAGE_AND_TABLE = Kind(
    "dict of image and table, class",
    lambda draw, rows: (
        {"image": _numbers(draw, rows, 1, SIDE, SIDE), "table": _numbers(draw, rows, 4)},
        _class(draw, rows),
    ),
)
PAIR = Kind(
    "tuple of tables, class",
    lambda draw, rows: ((_numbers(draw, rows, 4), _numbers(draw, rows, 6)), _class(draw, rows)),
)
GRAPH = Kind("dict of nodes and edges, class", _graph)
SEGMENTS = Kind(
    "image, class of each pixel",
    lambda draw, rows: (_numbers(draw, rows, 1, SIDE, SIDE), draw.integers(CLASSES, size=(rows, SIDE * SIDE))),
)


# images


def two_convolutions(channels: int, side: int, classes: int) -> nn.Module:
    """Of pfl-research for CIFAR-10, of FedJAX for EMNIST: in both, 32 and 64 channels, 128 wide, dropout."""
    last = (side - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(64 * last * last, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, classes),
    )  # fmt: skip


def normed(norm: Callable[[int], nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), norm(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), norm(4), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES),
    )  # fmt: skip


class Residual(nn.Module):
    """Two convolutions and a shortcut; it adds and rectifies in place, as torchvision's does."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.GroupNorm(2, after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.GroupNorm(2, after)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = (
            nn.Identity()
            if (before, stride) == (after, 1)
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(2, after))
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        out += self.shortcut(x)
        return self.relu(out)


class StochasticDepth(Residual):
    def forward(self, x: Tensor) -> Tensor:
        kept = (torch.rand(x.shape[0], 1, 1, 1) < 0.8).to(x.dtype)
        return x + kept * self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))


def resnet(block: type[Residual] = Residual, widths: Sequence[int] = (4, 4, 8, 8)) -> nn.Module:
    """ResNet-18's shape for small images: a stem, four stages of two blocks, a mean, a head."""
    stages: list[nn.Module] = []
    for stage, (before, after) in enumerate(zip((widths[0], *widths), widths, strict=False)):
        stages += [block(before, after, 1 if stage == 0 else 2), block(after, after, 1)]
    stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.GroupNorm(2, widths[0]), nn.ReLU())
    return nn.Sequential(stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], CLASSES))


def separable() -> nn.Module:
    """MobileNet's: each channel by itself, then 1x1."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU6(), nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.GroupNorm(2, 4), nn.ReLU6(),
        nn.Conv2d(4, 8, 1), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES),
    )  # fmt: skip


class Attend(nn.Module):
    """A layer of a vision transformer, norm first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)
        self.body = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.body(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 1 + (SIDE // 4) ** 2, WIDTH) * 0.02)
        self.layers = nn.Sequential(Attend(WIDTH), Attend(WIDTH), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.layers(x)[:, 0])


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.low = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.up, self.head = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.down(x).relu()
        low = self.low(functional.max_pool2d(high, 2)).relu()
        return self.head(torch.cat([high, self.up(low)], 1)).flatten(2).transpose(1, 2)


# sequences


class Recurrent(nn.Module):
    """An embedding, a recurrent network, and a head on its last output or on each."""

    def __init__(self, over: nn.Module, outputs: int, each: bool = False, wide: int = WIDTH) -> None:
        super().__init__()
        self.embedding, self.over, self.head, self.each = (
            nn.Embedding(TOKENS, WIDTH),
            over,
            nn.Linear(wide, outputs),
            each,
        )

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.over(self.embedding(x))[0]
        return self.head(hidden if self.each else hidden[:, -1])


class Packed(Recurrent):
    def forward(self, x: Tensor) -> Tensor:
        sequence = nn.utils.rnn.pack_padded_sequence(self.embedding(x), (x > 0).sum(1).cpu(), True, False)
        return self.head(self.over(sequence)[1][0][-1])


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell, self.head = nn.Embedding(TOKENS, 4), nn.RNNCell(4, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.zeros(x.shape[0], 6, dtype=self.head.weight.dtype)
        for now in self.embedding(x).unbind(1):
            hidden = self.cell(now, hidden)
        return self.head(hidden)


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.1, batch_first=True), 2)


class Tagger(nn.Module):
    """As pfl-research's for StackOverflow: embeddings of tokens and places, two layers, a label at each position."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.1)
        self.layers, self.head = encoder(), nn.Linear(WIDTH, TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        return self.head(self.layers(self.tokens(x) + self.places, mask=mask.to(self.places.dtype)))


class PaddedClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.layers, self.head = nn.Embedding(TOKENS, WIDTH), encoder(), nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.layers(self.tokens(input_ids), src_key_padding_mask=attention_mask == 0)
        real = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return self.head((hidden * real).sum(1) / real.sum(1))


class Tied(nn.Module):
    """The matrix of the embedding is the head's, too."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.over = nn.Embedding(TOKENS, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.over(self.tokens(x))[0])


class Bag(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(TOKENS, WIDTH, mode="mean", **options), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bag(x))


def signal() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 4, 5, stride=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(4, 6, 3), nn.ELU(), nn.AdaptiveAvgPool1d(1),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(6, CLASSES),
    )  # fmt: skip


# several inputs, and others


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.table, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 4), nn.Linear(8, CLASSES)

    def forward(self, image: Tensor, table: Tensor) -> Tensor:
        return self.head(torch.cat([self.image(image).relu().mean((2, 3)), self.table(table).relu()], 1))


class TwoTables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, CLASSES), nn.Bilinear(4, 6, CLASSES)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.first(a) + self.second(a, b)


class GraphNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        mean = edges / edges.sum(-1, keepdim=True).clamp(min=1)
        return self.head((mean @ self.second((mean @ self.first(nodes)).relu())).relu().mean(1))


class Experts(nn.Module):
    """A mixture of experts; all are computed, and a gate weighs the two best."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, 3), nn.ModuleList(nn.Linear(WIDTH, CLASSES) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        gates = self.gate(x)
        least = gates.topk(2, -1).values[:, -1:]
        weights = gates.masked_fill(gates < least, float("-inf")).softmax(-1)
        return torch.einsum("be,bec->bc", weights, torch.stack([expert(x) for expert in self.experts], 1))


class Scaled(nn.Module):
    """A buffer with public means of the inputs."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.linspace(-1, 1, WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x - self.mean)


class Counting(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return super().forward(x)


class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 4), nn.Linear(2, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        mean, scale = self.inner(x).chunk(2, -1)
        return self.outer(mean + scale.exp() * torch.randn_like(mean))


class Early(nn.Module):
    """Leaves after its first layer where that is sure."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, CLASSES), nn.Linear(CLASSES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out = self.first(x)
        return out if out.max() > 0.9 else self.second(out)


def dense(*layers: nn.Module, outputs: int = CLASSES) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *layers, nn.Linear(WIDTH, outputs))


def frozen() -> nn.Module:
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(backbone.requires_grad_(False), nn.Linear(4, CLASSES))


def frozen_encoder() -> nn.Module:
    model = PaddedClassifier().requires_grad_(False)
    model.head.requires_grad_(True)
    return model


def pinball(outputs: Tensor, y: Tensor) -> Tensor:
    """A loss of one's own: of the 0.9-quantile."""
    error = y - outputs.squeeze(-1)
    return torch.maximum(0.9 * error, -0.1 * error)


# of transformers and peft


class Logits(nn.Module):
    """A network of transformers gives an object with its outputs; a model gives a tensor."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.network(**inputs).logits


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification  # pyright: ignore

    small = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=TOKENS, max_position_embeddings=LENGTH, num_labels=CLASSES, **small)
    return Logits(BertForSequenceClassification(config))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel  # pyright: ignore

    size = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": LENGTH, "bos_token_id": 1, "eos_token_id": 1}
    return Logits(GPT2LMHeadModel(GPT2Config(vocab_size=TOKENS, use_cache=False, **size)))


def lora() -> nn.Module:
    from peft import LoraConfig, get_peft_model  # pyright: ignore

    config = LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["classifier"])
    return Logits(get_peft_model(bert().network, config))


# the table


@dataclass(frozen=True)
class Model:
    """`build` makes it, `kind` its data; `quick`: one of the handful that every run of the tests tries."""

    build: Callable[[], nn.Module]
    kind: Kind
    loss: Any = None
    needs: str = ""
    quick: bool = False


def autoencoder() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 3), nn.Tanh(), nn.Linear(3, WIDTH))


def lstm(**options: Any) -> nn.Module:
    return nn.LSTM(WIDTH, WIDTH, batch_first=True, **options)


MODELS: dict[str, Model] = {
    "softmax regression": Model(lambda: SoftmaxRegression(WIDTH, CLASSES), TABLE, quick=True),
    "MLP": Model(lambda: MLP(WIDTH, CLASSES, hidden=[6]), TABLE),
    "`FiveLayerCNN`": Model(lambda: FiveLayerCNN(1, 16, CLASSES), LARGE),
    "`TwoConvCNN`": Model(lambda: TwoConvCNN(1, SIDE, CLASSES, (4, 4, 8)), GREY),
    "`AlexNet`": Model(lambda: AlexNet(1, 16, CLASSES, (4, 4, 4, 4, 4, 8, 8)), LARGE),
    "CNN of pfl-research for CIFAR-10": Model(lambda: two_convolutions(3, SIDE, CLASSES), COLOUR, quick=True),
    "CNN of FedJAX for EMNIST": Model(lambda: two_convolutions(1, SIDE, CLASSES), GREY),
    "ResNet-18 with GroupNorm, in place": Model(resnet, COLOUR),
    "CNN with BatchNorm": Model(lambda: normed(nn.BatchNorm2d), COLOUR, quick=True),
    "CNN with InstanceNorm": Model(lambda: normed(nn.InstanceNorm2d), COLOUR),
    "CNN with InstanceNorm that tracks statistics": Model(
        lambda: normed(lambda width: nn.InstanceNorm2d(width, track_running_stats=True)), COLOUR
    ),
    "depthwise separable CNN (MobileNet)": Model(separable, COLOUR),
    "vision transformer": Model(VisionTransformer, COLOUR, quick=True),
    "U-Net": Model(UNet, SEGMENTS),
    "ResNet with stochastic depth (`torch.rand`)": Model(lambda: resnet(StochasticDepth, (4,)), COLOUR),
    "frozen backbone, new head": Model(frozen, COLOUR),
    "1-d CNN on signals": Model(signal, SIGNAL),
    "LSTM, next character": Model(lambda: Recurrent(lstm(num_layers=2, dropout=0.1), TOKENS, each=True), LANGUAGE),
    "GRU classifier": Model(lambda: Recurrent(nn.GRU(WIDTH, WIDTH, batch_first=True), CLASSES), TEXT),
    "bidirectional LSTM": Model(lambda: Recurrent(lstm(bidirectional=True), CLASSES, wide=2 * WIDTH), TEXT),
    "LSTM on packed sequences": Model(lambda: Packed(lstm(), CLASSES), TEXT),
    "loop over an `RNNCell`": Model(Cells, TEXT),
    "transformer of pfl-research for StackOverflow": Model(Tagger, LANGUAGE),
    "transformer classifier with padding mask": Model(PaddedClassifier, MASKED_TEXT),
    "the same, frozen, with a new head": Model(frozen_encoder, MASKED_TEXT, quick=True),
    "bag of words (`EmbeddingBag`)": Model(Bag, TEXT),
    "bag of words, `sparse=True`": Model(lambda: Bag(sparse=True), TEXT),
    "language model with tied weights": Model(Tied, LANGUAGE, quick=True),
    "two inputs by name": Model(TwoInputs, IMAGE_AND_TABLE),
    "two inputs in order, `Bilinear`": Model(TwoTables, PAIR),
    "graph network": Model(GraphNetwork, GRAPH),
    "mixture of experts, dense": Model(Experts, TABLE),
    "linear regression": Model(lambda: nn.Linear(WIDTH, 1), NUMBER),
    "regression with several outputs": Model(lambda: dense(nn.Tanh(), outputs=3), NUMBERS),
    "quantile regression, a loss of one's own": Model(lambda: dense(nn.SiLU(), outputs=1), NUMBER, pinball),
    "several labels": Model(lambda: dense(nn.ReLU(), outputs=3), LABELS, "binary-cross-entropy"),
    "autoencoder": Model(autoencoder, COPY, "mse"),
    "variational autoencoder (`torch.randn_like`)": Model(Variational, COPY, "mse"),
    "MLP with LayerNorm": Model(lambda: dense(nn.LayerNorm(WIDTH), nn.GELU()), TABLE),
    "MLP with RMSNorm": Model(lambda: dense(nn.RMSNorm(WIDTH), nn.GELU()), TABLE),
    "MLP with weight norm": Model(
        lambda: dense(nn.ReLU(), nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))), TABLE
    ),
    "MLP with spectral norm": Model(
        lambda: dense(nn.ReLU(), nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))), TABLE
    ),
    "a buffer": Model(Scaled, TABLE),
    "a buffer that `forward` changes": Model(Counting, TABLE),
    "early exit (`if` on values)": Model(Early, TABLE),
    "lazy layers": Model(lambda: nn.Sequential(nn.LazyLinear(CLASSES)), TABLE),
    "BERT with attention mask": Model(bert, MASKED_TEXT, needs="transformers"),
    "GPT-2, next tokens": Model(gpt2, MASKED_LANGUAGE, needs="transformers"),
    "BERT with LoRA of peft": Model(lora, MASKED_TEXT, needs="peft"),
}


def available(name: str) -> bool:
    return not MODELS[name].needs or find_spec(MODELS[name].needs) is not None


def build(name: str) -> nn.Module:
    with seeded(0):
        return MODELS[name].build()


def world(name: str) -> tacit.FederatedDataset:
    draw, kind = np.random.default_rng(0), MODELS[name].kind
    clients = {f"c{k}": (*kind.draw(draw, ROWS), *kind.draw(draw, 2)) for k in range(CLIENTS)}
    return tacit.from_clients(clients, classes=kind.classes)


def outcome(name: str, plan: str) -> str:
    """What two rounds come to: "runs", or "refused" and why. Any error but a `TacitError` is raised.

    "runs, slowly": torch has no batched form of an operation, and goes through clients one by one.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            moved, finite = _train(name, plan)
        except TacitError as error:
            return f"refused: {_VMAP.sub('', str(error))}"
    if not finite or not moved:
        return "learns nothing" if finite else "diverges"
    return "runs, slowly" if any("performance drop" in str(warning.message) for warning in caught) else "runs"


def _train(name: str, plan: str) -> tuple[bool, bool]:
    """Whether two rounds moved the model, and whether it is still finite."""
    training, model = tacit.Training(2, tacit.Poisson(0.9), batch=2), build(name)
    result = tacit.train(
        world(name),
        model,
        tacit.FedAvg(tacit.LocalSgd(0.1)),
        PLANS[plan],
        training,
        loss=MODELS[name].loss,
        progress=False,
    )
    before, after = params(model), params(result.model())
    moved = any(not torch.equal(leaf, after[key]) for key, leaf in before.items())
    return moved, all(bool(leaf.isfinite().all()) for leaf in after.values())


HEAD = """# Which models run

Models as people bring them, each cut to tiny widths: two rounds of `FedAvg` on five clients under each plan. [A
test](../../tests/conformance/test_models.py) compares this page with what happens, and for each model that runs under
`Record` the private gradient with the clipped gradients of examples one by one. "Runs, slowly": torch has no batched
form of an operation and goes through clients one by one. Why a model is refused stands below the table.
[Which layers run](which-layers.md) is a page of its own.

`python -m tests.conformance.models_of_the_field` writes this page. Networks of transformers need the extra
`pretrained`; where it is not installed, their rows stay as they were.
"""
MISSING = "needs transformers"


def read() -> dict[str, list[str]]:
    """The rows of the page: a model, what it is trained on, and what comes of it under each plan."""
    rows = [line.strip("| ").split(" | ") for line in _lines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in rows[1:]}


def read_reasons() -> dict[str, str]:
    """Of each model that is refused under some plan, the first refusal."""
    return dict(line[4:].split("**: ", 1) for line in _lines() if line.startswith("- **"))


def _lines() -> list[str]:
    return PAGE.read_text().splitlines() if PAGE.exists() else []


def row(name: str) -> tuple[list[str], str]:
    """One of the table, and the reason if the model is refused under some plan."""
    happens = [outcome(name, plan).split(": ", 1) for plan in COLUMNS]
    reasons = [told[1] for told in happens if len(told) > 1]
    return [MODELS[name].kind.words, *(told[0] for told in happens)], reasons[0] if reasons else ""


def write() -> None:
    rows, reasons, unknown = read(), read_reasons(), [MISSING] * len(COLUMNS)
    for name in MODELS:
        if available(name):
            rows[name], reasons[name] = row(name)
    titles = ["model", "inputs, targets", *(f"`{plan.title()}`" for plan in COLUMNS)]
    table = [titles, *([name, *rows.get(name, [model.kind.words, *unknown])] for name, model in MODELS.items())]
    lines = [f"| {' | '.join(cells)} |" for cells in table]
    lines.insert(1, "|---" * len(titles) + "|")
    refused = [f"- **{name}**: {reasons[name]}" for name in MODELS if reasons.get(name)]
    PAGE.write_text("\n".join([HEAD, *lines, "", "## Why models are refused", "", *refused, ""]))


if __name__ == "__main__":
    write()
