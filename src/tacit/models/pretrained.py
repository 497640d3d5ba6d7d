"""Foundation models: a pre-trained network of `transformers`, frozen, with LoRA adapters of `peft` and a head to train.

Only adapters and head are trained, sent, clipped and covered with noise. The frozen network must not have been trained
on the clients' data: what it learned before is covered by no guarantee.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from tacit.core.checked import checked
from tacit.core.rng import key
from tacit.data.validate import at_least
from tacit.errors import TacitError

Task = Literal["classification"]
PROJECTIONS: Final = ("query", "value", "q_proj", "v_proj", "q_lin", "v_lin", "c_attn", "query_key_value", "qkv")
"""What the projections of queries and values are called: those that Hu et al. (2022) adapt."""


class Pretrained(nn.Module):
    """A frozen backbone with adapters, the mean of its last hidden states over real places, and a linear head.

    Inputs: token ids [rows, length], of which `padding` is no word, with an attention mask or without (a dict of
    `input_ids` and `attention_mask`); or images [rows, channels, side, side].
    """

    def __init__(self, backbone: nn.Module, classes: int, padding: int | None) -> None:
        super().__init__()
        self.backbone, self.padding = backbone, padding
        self.causal = backbone.main_input_name == "input_ids" and _looks_back_only(backbone)
        self.head = nn.Linear(_width(backbone), classes)

    def forward(self, x: Tensor | Mapping[str, Tensor]) -> Tensor:
        if isinstance(x, Mapping):
            return self.head(self._read(x["input_ids"].long(), x["attention_mask"].bool()))
        if self.backbone.main_input_name != "input_ids":
            return self.head(self.backbone(pixel_values=x).last_hidden_state.mean(1))
        ids = x.long()
        return self.head(self._read(ids, ids != (-1 if self.padding is None else self.padding)))

    def _read(self, ids: Tensor, real: Tensor) -> Tensor:
        """A mask of four dimensions: of one of two, `transformers` asks whether all of it is true."""
        length = ids.shape[1]
        mask = real[:, None, None, :].expand(-1, 1, length, -1)
        if self.causal:
            mask = mask & torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
        states, weight = self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state, real.unsqueeze(-1)
        return (states * weight).sum(1) / weight.sum(1).clamp(min=1)


@checked
def pretrained(
    source: Path | str,
    task: Task = "classification",
    lora: int = 8,
    *,
    classes: int = 2,
    targets: tuple[str, ...] = (),
    dropout: bool = False,
    seed: int = 0,
) -> nn.Module:
    """A pre-trained network to fine-tune: frozen, with low-rank adapters and a new head, which alone are trained.

    Parameters of adapters have `lora` in their names and those of the head `head`: with `KeepLocal("lora")` every
    client has an adapter of its own, which never leaves it. Nothing is downloaded for a folder, and no code that comes
    with the weights is run.

    Args:
        source: a folder with `config.json` and `model.safetensors`, or a name on the Hugging Face hub.
        task: "classification", of texts or of images, as the network takes them.
        lora: the rank of the adapters; 0 for none, and only the head is trained.
        classes: how many the head tells apart.
        targets: ends of the names of the linear layers that get an adapter; by default the projections of queries and
            values, or all linear layers where there are none of the usual names.
        dropout: whether the network drops out in training as its configuration says.
        seed: of the head and the adapters, the same for every member of a federation.

    Returns:
        A torch module from token ids or images to one output for each class.

    Raises:
        TacitError: if the extra `pretrained` is not installed, or there is no network at `source`.

    Example:
        >>> tacit.models.pretrained("distilbert", classes=4)  # doctest: +SKIP
    """
    at_least(lora, 0, "the rank of the adapters")
    at_least(classes, 1, "the number of classes")
    backbone = _load(str(source), dropout).requires_grad_(False)
    with _seeded(seed):
        adapted = _adapt(backbone, lora, targets) if lora else backbone
        return Pretrained(adapted, classes, getattr(backbone.config, "pad_token_id", None)).eval()


def _load(source: str, dropout: bool) -> Any:
    try:
        from transformers import AutoConfig, AutoModel  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise _missing(error) from None
    offline = Path(source).is_dir()
    try:
        config = AutoConfig.from_pretrained(source, local_files_only=offline)
        for name in vars(config).copy() if not dropout else ():
            if "drop" in name and isinstance(getattr(config, name), float):
                setattr(config, name, 0.0)
        with _silent() if offline else nullcontext():
            return AutoModel.from_pretrained(source, config=config, local_files_only=offline, dtype=torch.float32)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise TacitError(
            f"there is no network at '{source}' ({reason}): give a folder that save_pretrained wrote, or a hub's name"
        ) from error


@contextmanager
def _silent() -> Iterator[None]:
    """Without the bar of a file that is read in a moment, and the thread that it leaves; downloads keep theirs."""
    from transformers.utils import logging  # pyright: ignore[reportMissingImports]

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _adapt(backbone: Any, rank: int, targets: tuple[str, ...]) -> Any:
    try:
        from peft import LoraConfig, inject_adapter_in_model  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise _missing(error) from None
    kinds = {name: type(layer).__name__ for name, layer in backbone.named_modules()}
    linear = [name for name, kind in kinds.items() if kind in ("Linear", "Conv1D")]  # GPT-2 calls it Conv1D
    wanted = [name for name in linear if name.rpartition(".")[2] in (targets or PROJECTIONS)]
    if targets and not wanted:
        some = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
        raise TacitError(f"no linear layer is called {' or '.join(targets)}: the network has {some}")
    transposed = "Conv1D" in kinds.values()
    options = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=wanted or linear, fan_in_fan_out=transposed)
    return inject_adapter_in_model(options, backbone)


def _missing(error: ImportError) -> TacitError:
    return TacitError(f"pre-trained networks need transformers and peft ({error}): pip install 'tacit-fl[pretrained]'")


def _looks_back_only(backbone: Any) -> bool:
    """Whether a place sees none that follow, as in GPT: by changing the last of three tokens."""
    with torch.no_grad():
        first, other = (backbone(input_ids=torch.tensor([[2, 3, last]])).last_hidden_state[:, :2] for last in (2, 4))
    return bool(torch.equal(first, other))


def _width(backbone: Any) -> int:
    return next(
        int(value)
        for name in ("hidden_size", "dim", "d_model", "n_embd")
        if (value := getattr(backbone.config, name, 0))
    )


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(seed, "pretrained")[0])
        yield
