"""The field's own benchmark models in torch, for every system that takes a module.

`cifar` is pfl-research's network for CIFAR-10 (1,626,442 parameters). `words` has the shape of models of StackOverflow:
a transformer that predicts every next word. `lora` is ViT-tiny on images of 32 x 32 in patches of 4, frozen but for
adapters of its attention's projections and its head.
"""

import protocol
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


def make_layers(model: str) -> list[nn.Module]:
    if model == "cifar":
        convolutions = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
        dense = [nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)]
        return [*convolutions, nn.Dropout(0.25), nn.Flatten(), *dense]
    return [NextWord() if model == "words" else with_adapters(VisionTransformer())]


class Block(nn.Module):
    """Attention and two linear maps, both after a norm and beside the identity."""

    def __init__(self, width: int, heads: int, between: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, between), nn.GELU(), nn.Linear(between, width))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.project(self.norm1(x)).reshape(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        seen = scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.join(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.think(self.norm2(x))


class NextWord(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(protocol.WORDS, protocol.WIDTH)
        self.places = nn.Parameter(torch.randn(protocol.SENTENCE, protocol.WIDTH) * 0.02)
        sizes = protocol.WIDTH, protocol.HEADS, protocol.FEED_FORWARD
        self.blocks = nn.Sequential(*(Block(*sizes, causal=True) for _ in range(protocol.LAYERS)))
        self.norm, self.head = nn.LayerNorm(protocol.WIDTH), nn.Linear(protocol.WIDTH, protocol.WORDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.words(x) + self.places)))


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width, side = protocol.VIT_WIDTH, protocol.SIDE // protocol.PATCH
        self.patches = nn.Conv2d(3, width, protocol.PATCH, stride=protocol.PATCH)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 1 + side**2, width) * 0.02)
        layers = (Block(width, protocol.VIT_HEADS, 4 * width, causal=False) for _ in range(protocol.VIT_LAYERS))
        self.blocks, self.norm, self.head = nn.Sequential(*layers), nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


class LowRank(nn.Module):
    """A frozen linear map, and one of low rank that is trained."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, protocol.RANK, bias=False)
        self.up = nn.Linear(protocol.RANK, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))


def with_adapters(model: VisionTransformer) -> VisionTransformer:
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    for block in model.blocks.children():
        assert isinstance(block, Block)
        block.project = LowRank(block.project)  # pyright: ignore[reportAttributeAccessIssue]
    return model
