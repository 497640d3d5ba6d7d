"""A device that is not there: its tensors hold numbers of this machine, and refuse to meet tensors that lie here.

It stands in for one that the test machine lacks. It calls itself "meta", a name that torch knows, and follows CUDA's
rules but is stricter with indices: a number may meet its tensors in element-wise operations, nothing else may; and only
`.to(...)`, `.cpu()`, `.tolist()` and single numbers lead back. What it computes is to the bit what the CPU would.
"""

from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "meta"
aten: Any = torch.ops.aten
_CROSSES = (aten._to_copy.default, aten.copy_.default)


class There(Tensor):
    """A tensor of the pretended device."""

    here: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    @staticmethod
    def __new__(cls, here: Tensor) -> "There":
        made = Tensor._make_wrapper_subclass(
            cls,
            here.shape,
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=torch.device(NAME),
        )
        made.here = here
        return made

    def tolist(self) -> Any:
        return self.here.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class Elsewhere(TorchDispatchMode):
    """Within, the device is there. Counts the operations that it did."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self._makes = 0, list[_Makes]()

    def __enter__(self) -> "Elsewhere":
        self._makes.append(_Makes())
        self._makes[-1].__enter__()
        return super().__enter__()

    def __exit__(self, *why: Any) -> None:
        super().__exit__(*why)
        self._makes.pop().__exit__(*why)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        met = any(isinstance(leaf, There) for leaf in pytree.tree_leaves((args, kwargs)))
        self.operations += met
        if met and func.namespace == "tacit":  # an operation of ours gets the tensors as they are, as on any device
            with self:
                return OPDEFS[func._schema.name]._init_fn(*args, **kwargs or {})
        return _run(func, args, kwargs or {})


class _Makes(TorchFunctionMode):
    """Tensors of given numbers: torch would make them on "meta" without asking, and without the numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        device = options.get("device")
        if func not in (torch.tensor, torch.as_tensor) or device is None or torch.device(device).type != NAME:
            return func(*args, **options)
        if isinstance(args[0], Tensor):
            return args[0].to(**options)
        return func(*args, **options | {"device": "cpu"}).to(NAME)


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = any(isinstance(leaf, There) for leaf in tensors)
    if there and func not in _CROSSES:
        _refuse(func, tensors)
    if func is aten.copy_.default:
        there = isinstance(args[0], There)
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]).type == NAME
        kwargs = {**kwargs, "device": torch.device("cpu")}
    given, options = pytree.tree_map_only(There, lambda leaf: leaf.here, (args, kwargs))
    made = func(*given, **options)
    if there and torch.Tag.inplace_view in func.tags:  # the shape of what was given changes, too
        with no_dispatch():
            return func(*args, **kwargs)
    return pytree.tree_map_only(Tensor, There, made) if there else made


def _refuse(func: Any, tensors: list[Tensor]) -> None:
    for leaf in tensors:
        number = leaf.dim() == 0 and torch.Tag.pointwise in func.tags
        if not isinstance(leaf, There) and not number:
            raise RuntimeError(f"{func} was given a tensor of shape {tuple(leaf.shape)} that is not on the device")
