"""Trained models on disk: saved as safetensors beside a program that runs without the code they came from.

    config.json          what is here, and how rows must look
    model.safetensors    the shared model's parameters and buffers
    model.pt2            the network itself, by `torch.export`: no class has to be imported
    personal/ID.*        each client's own: what differs from the shared model's parameters, or a program where a method
                         predicts with several networks
    README.md            the model card: what was promised to whom, replayed from the ledger

A personal model is the client's own. No guarantee covers handing it to others: it has seen the client's rows.
"""

import copy
import hashlib
import importlib
import json
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor, nn

from tacit.core.checked import checked
from tacit.core.columns import Columns, Rows, arguments, call
from tacit.core.files import storage, write_atomically
from tacit.data.loaders import read_arrays
from tacit.data.tables import NO_NAMES, Encoding
from tacit.errors import StorageError, TacitError
from tacit.models.metrics import Kind, predicted
from tacit.rounds.predict import MethodModule, personal_module, rows_like, shared_module
from tacit.simulation.client_program import ClientProgram

FORMAT: Final = 1
_LONGEST: Final = 160  # letters of a file's name that every file system takes
CONFIG, WEIGHTS, PROGRAM, CARD, PERSONAL = "config.json", "model.safetensors", "model.pt2", "README.md", "personal"


@dataclass(frozen=True)
class ModelConfig:
    """What a folder of saved models holds."""

    format: int
    version: str
    network: str  # the class, for readers
    method: str
    input_shape: tuple[int, ...]
    input_dtype: str  # of training rows, as they were given: bytes are scaled to [0, 1]
    classes: int
    clients: tuple[str, ...]  # those whose personal models are here
    program: bool = True  # whether the network could be exported
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...] = ()  # of several: name, type, shape of a row
    named: bool = False  # whether the network takes several inputs by name
    kind: Kind = "classes"  # what is predicted
    encoding: Encoding = NO_NAMES  # public: what columns and classes are called

    @classmethod
    def of(cls, engine: ClientProgram, model: nn.Module, clients: Sequence[str] | None = None) -> "ModelConfig":
        data = engine.federation
        inputs = data.x if isinstance(data.x, Columns) else None
        return cls(
            format=FORMAT,
            version=version("tacit-fl"),
            network=type(model).__name__,
            method=type(engine.method).__name__,
            input_shape=data.input_shape if inputs is None else (),
            input_dtype="" if inputs is not None else str(data.x.dtype).removeprefix("torch."),
            classes=data.classes,
            clients=tuple(data.ids if clients is None else clients),
            inputs=() if inputs is None else tuple(inputs.described),
            named=inputs is not None and inputs.names is not None,
            kind=engine.task.kind,
            encoding=data.encoding,
        )


def save_models(
    folder: Path, config: ModelConfig, card: str, shared: nn.Module, personal: Iterable[tuple[str, nn.Module]]
) -> Path:
    """Writes a folder that `load_model` reads. What is there already is never touched."""
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise TacitError(f"{folder} is not empty: give a new folder to save the model in")
        (folder / PERSONAL).mkdir()
    template = _template(config)
    _write_weights(folder / WEIGHTS, shared)
    exported = _write_program(folder / PROGRAM, shared, template)
    for client, module in personal:
        if not isinstance(module, MethodModule):
            _write_weights(_personal(folder, client), module, beside=shared)
        elif not _write_program(_personal(folder, client).with_suffix(".pt2"), module, template):
            raise TacitError(f"the personal model of '{client}' cannot be exported: save without clients")
    write_atomically(folder / CARD, card.encode())
    content = asdict(config) | {"program": exported}
    write_atomically(folder / CONFIG, (json.dumps(content, indent=2) + "\n").encode())
    return folder


def model_card(config: ModelConfig, title: str, promises: Iterable[str]) -> str:
    """What was promised to whom, with a header that model hubs read."""
    listed = "\n".join(f"- {sentence}" for sentence in promises)
    return (
        f"---\nlibrary_name: tacit\ntags: [federated-learning, differential-privacy]\n---\n\n"
        f"# {title}\n\n"
        f"{config.network}, trained with {config.method} on {config.classes} classes.\n\n"
        f"## Privacy\n\n{listed}\n\nThe guarantees are those of the shared model. A personal model belongs to "
        "its client: it has seen the client's rows, and no guarantee covers handing it to others.\n\n"
        f'## Use\n\n```python\nimport tacit\n\nmodel = tacit.load_model(".")\n```\n'
    )


@checked
def load_model(folder: Path | str, client: str | None = None, model: nn.Module | None = None) -> nn.Module:
    """A saved model, ready to predict.

    Args:
        folder: what `Result.save` or `tacit export` wrote.
        client: whose personal model; None for the shared one.
        model: an instance of the network's class, which gets the parameters. Without it the exported program is
            loaded, which needs no code of yours and cannot be trained further.

    Returns:
        A module whose parameters are those that were saved, bit for bit.

    Raises:
        TacitError: if the folder or the client is not there, or the network cannot be had without `model`.

    Example:
        >>> import tacit, tempfile
        >>> data = tacit.load("digits", clients=20, classes_each=2)
        >>> network = tacit.models.SoftmaxRegression(64, classes=10)
        >>> result = tacit.train(data, network, tacit.FedAvg(), training=tacit.Training(rounds=1), progress=False)
        >>> folder = result.save(tempfile.mkdtemp() + "/saved")
        >>> tacit.load_model(folder, model=network)(data.x[:3]).shape
        torch.Size([3, 10])
    """
    folder = Path(folder)
    config = read_config(folder)
    if client is not None and client not in config.clients:
        some = ", ".join(config.clients[:3]) or "none"
        raise TacitError(f"{folder} has no personal model of '{client}': it has {len(config.clients)} ({some} ...)")
    weights = folder / WEIGHTS if client is None else _personal(folder, client)
    if client is not None and not weights.exists():
        return _program(weights.with_suffix(".pt2"))
    if model is None and not config.program:
        raise TacitError(f"{config.network} could not be exported when it was saved: give model={config.network}(...)")
    module = _program(folder / PROGRAM) if model is None else copy.deepcopy(model).eval()
    return _load_weights(module, *dict.fromkeys((folder / WEIGHTS, weights)))


def read_config(folder: Path) -> ModelConfig:
    """What a folder of saved models says of itself."""
    try:
        content: Any = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TacitError(f"{folder} holds no saved model: give a folder that `Result.save` wrote") from None
    except ValueError as error:
        raise StorageError(f"{folder / CONFIG} is damaged ({error}): save the model again") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise TacitError(f"{folder} is of another format, and this version reads {FORMAT}: save the model again")
    try:
        known: dict[str, Any] = content | {key: tuple(content[key]) for key in ("input_shape", "clients")}
        inputs = tuple((name, dtype, tuple(shape)) for name, dtype, shape in content.get("inputs", ()))
        encoding = Encoding.from_json(content.get("encoding", {}))
        return ModelConfig(**known | {"inputs": inputs, "encoding": encoding})
    except (TypeError, LookupError, ValueError, AttributeError) as error:
        raise StorageError(f"{folder / CONFIG} is damaged ({error!r}): save the model again") from None


@dataclass(frozen=True, eq=False)
class Models:
    """The models of a run that has ended, wherever they lie: `module` gives the shared one or a client's own."""

    config: ModelConfig
    module: Callable[[str | None], nn.Module]

    def outputs(self, x: Any, client: str | None = None) -> Tensor:
        """Outputs for rows that look like the training rows."""
        with torch.no_grad():
            return call(self.module(client), rows_like(x, _template(self.config)))


def open_models(path: Path) -> Models:
    """Of a folder that `Result.save` wrote, or of a run that `tacit run` started; nothing is trained or charged."""
    if (path / CONFIG).is_file():
        return Models(read_config(path), lambda client: load_model(path, client))
    from tacit.experiments.train import reopen_run

    run, model = reopen_run(path)

    def module(client: str | None) -> nn.Module:
        return shared_module(run, model) if client is None else personal_module(run, model, client)

    return Models(ModelConfig.of(run.engine, model), module)


def read_rows(path: Path, config: ModelConfig) -> Any:
    """The rows of a CSV file with a header, in the shape of the training rows; or the arrays of an `.npz` file: by the
    names of a model's inputs (x0, x1, ... if they have none), "x" where there is one."""
    import pandas as pd

    several = [name if config.named else f"x{name}" for name, _, _ in config.inputs]
    if path.suffix == ".npz":
        found = read_arrays(path, several or ["x"])
        return found if config.named else tuple(found.values()) if several else found["x"]
    if several:
        raise TacitError(f"the model has several inputs: give an .npz file with the arrays {', '.join(several)}")

    try:
        with storage(path):
            table = pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise TacitError(f"{path} is no CSV file with a header ({error}): give one row for each example") from None
    if not isinstance(table.index, pd.RangeIndex):
        raise TacitError(f"{path}: rows have more values than the header has names: give as many")
    if config.encoding.columns:
        return config.encoding.features(table, str(path)).reshape(len(table), *config.input_shape)
    if wrong := [str(name) for name, column in table.items() if column.dtype.kind not in "biuf"]:
        raise TacitError(f"{path}: column '{wrong[0]}' holds no numbers: leave it out")
    if not bool(np.isfinite(table.to_numpy(dtype=float)).all()):
        raise TacitError(f"{path} has cells that are empty or no finite numbers: fill them")
    wanted = math.prod(config.input_shape)
    if table.shape[1] != wanted:
        raise TacitError(f"{path} has {table.shape[1]} columns, and the model takes {wanted} numbers a row")
    return table.to_numpy().reshape(len(table), *config.input_shape)


def export_file(module: nn.Module, config: ModelConfig, path: Path, kind: str) -> Path:
    """One model as one file: "state-dict" (torch.save), "torch-export" (a program), or "onnx"."""
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            raise TacitError(f"{path} is there already: give another file")
    if kind == "state-dict":
        torch.save(module.state_dict(), path)
    elif kind == "torch-export":
        torch.export.save(_exported(module, _template(config)), path)
    else:
        _write_onnx(module, _template(config), path)
    return path


def _write_onnx(module: nn.Module, template: Rows, path: Path) -> None:
    """By `torch.onnx` from an exported program: the number of rows is free, and nothing is downloaded."""
    try:
        for name in ("onnx", "onnxscript"):
            importlib.import_module(name)
    except ImportError as error:
        raise TacitError(f"ONNX needs two packages more ({error}): pip install 'tacit-fl[onnx]'") from None
    try:
        with warnings.catch_warnings():  # torch's own, about itself
            warnings.simplefilter("ignore")
            program = torch.onnx.export(_exported(module, template), dynamo=True, verbose=False)
    except Exception as error:  # of an operation that ONNX has not, in many kinds
        reason = " ".join(str(error).split())[:200]
        raise TacitError(f"this network has no ONNX form ({reason}): use the format torch-export") from error
    if program is None:
        raise TacitError("this network has no ONNX form: use the format torch-export")
    program.save(str(path))


def _template(config: ModelConfig) -> Rows:
    if not config.inputs:
        return torch.zeros((2, *config.input_shape), dtype=getattr(torch, config.input_dtype))
    zeros = {name: torch.zeros((2, *shape), dtype=getattr(torch, dtype)) for name, dtype, shape in config.inputs}
    return Columns.of(zeros if config.named else [*zeros.values()])  # pyright: ignore[reportReturnType]


def _personal(folder: Path, client: str) -> Path:
    """A file that is named by any id, on any file system."""
    name = quote(client, safe="")
    short = name if len(name) <= _LONGEST else f"{name[:40]}-{hashlib.sha256(client.encode()).hexdigest()}"
    return folder / PERSONAL / f"{short}.safetensors"


def _write_weights(path: Path, module: nn.Module, beside: nn.Module | None = None) -> None:
    """All of them; or those that differ from the ones of `beside`, for a large network is mostly frozen."""
    from safetensors.torch import save

    same = {} if beside is None else beside.state_dict()
    leaves = {
        name: leaf.detach().contiguous().clone()
        for name, leaf in module.state_dict().items()
        if name not in same or not torch.equal(leaf, same[name])
    }
    write_atomically(path, save(leaves))


def _load_weights(module: nn.Module, *paths: Path) -> nn.Module:
    """Of all these files; the last that has a leaf wins."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    leaves, path = {}, paths[-1]
    for path in paths:
        try:
            with storage(path):
                leaves |= load(path.read_bytes())
        except SafetensorError as error:
            raise StorageError(f"{path} is damaged ({error}): save the model again") from None
    try:
        module.load_state_dict(leaves)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise TacitError(f"the parameters of {path} do not fit the network ({reason[:200]}): give model=...") from None
    return module


def _exported(module: nn.Module, template: Rows) -> torch.export.ExportedProgram:
    positional, named = arguments(rows_like(template, template))
    batch = {0: torch.export.Dim("rows", min=1)}
    shapes: Any = dict.fromkeys(named, batch) or (batch,) * len(positional)
    with warnings.catch_warnings():  # an LSTM's weights are assigned while it is exported, and put back
        warnings.simplefilter("ignore")
        return torch.export.export(module, positional, named, dynamic_shapes=shapes, strict=False)


def _write_program(path: Path, module: nn.Module, template: Rows) -> bool:
    try:
        program = _exported(module, template)
    except Exception:
        return False
    torch.export.save(program, path)
    return True


def _program(path: Path) -> nn.Module:
    try:
        return torch.export.load(path).module()
    except Exception as error:  # whatever torch makes of a damaged archive
        raise StorageError(f"{path} cannot be read ({error}): give model=..., or save the model again") from None


def prediction_table(outputs: Tensor, config: ModelConfig) -> Any:
    """A frame with a row for each prediction: its class and the probability of every class, labels, or numbers."""
    import pandas as pd

    if config.kind == "classes":
        return class_table(outputs, config.encoding.classes)
    predictions = predicted(outputs, config.kind).numpy()
    if predictions.ndim == 1:
        return pd.DataFrame({"prediction": predictions})
    flat = predictions.reshape(len(predictions), -1)
    return pd.DataFrame({f"prediction {at}": flat[:, at] for at in range(flat.shape[1])})


def class_table(outputs: Tensor, names: Sequence[str] = ()) -> Any:
    """A frame with a row for each prediction: its class, and the probability of every class."""
    import pandas as pd

    chances = outputs.softmax(-1).numpy()
    labels: Any = np.array(names, dtype=object) if names else np.arange(chances.shape[1])
    return pd.DataFrame({"prediction": labels[chances.argmax(-1)]} | {
        f"p({label})": chances[:, column] for column, label in enumerate(labels)
    })  # fmt: skip
