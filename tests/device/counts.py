"""What the pretend GPU counts: kernels, and the memory that tensors hold."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Memory:
    """Bytes of all storages that a pretend tensor holds, and their peak."""

    now: int = 0
    peak: int = 0
    peak_line: str = ""
    holders: dict[int, list[int]] = field(default_factory=dict)

    def hold(self, tensor: Any) -> None:
        """Count a tensor's storage until its last tensor is gone."""
        storage = tensor.held.untyped_storage()
        entry = self.holders.setdefault(storage._cdata, [0, storage.nbytes()])
        if entry[0] == 0:
            self.now += entry[1]
            if self.now > self.peak:
                self.peak, self.peak_line = self.now, line()
        entry[0] += 1
        weakref.finalize(tensor.held, self._release, storage._cdata)

    def _release(self, key: int) -> None:
        entry = self.holders[key]
        entry[0] -= 1
        if entry[0] == 0:
            self.now -= entry[1]
            del self.holders[key]


@dataclass(frozen=True)
class Kernel:
    """One launch: where, which operation, bytes read and written, floating-point operations, widest float type."""

    line: str
    name: str
    bytes: int
    flops: int
    dtype: str


def line() -> str:
        """The innermost line of the package on the stack."""
        return line()

    def wait(self, name: str) -> None:
        """Count a wait of the host for the device at the current line."""
        self.waits[line(), name] += 1

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(op, args, kwargs or {})

    def run(self, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """One operation."""
        name = op._schema.name.split("::")[1]
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        ours = [x for x in tensors if isinstance(x, PretendTensor)]
        goal = kwargs.get("device")
        here = bool(ours) if goal is None else torch.device(goal).type == DEVICE
        if not ours and not here:
            return op(*args, **kwargs)
        if here and goal is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if name in ("_to_copy", "copy_"):
            result = self._transfer(name, args, kwargs, here)
            if result is not None:
                return result
        else:
            self._check_devices(name, args, tensors)
        if name in WAITING or self._waits_for_indices(name, args):
            self.wait(name)
        out = self._call(op, name, args, kwargs, here)
        if name not in FREE:
            self._count(op, name, args, kwargs, ours, out)
        return out

    def _transfer(self, name: str, args: Any, kwargs: dict[str, Any], here: bool) -> Any:
        """Copies between devices wait unless they are asked not to; None for a copy on one device."""
        source = args[1] if name == "copy_" else args[0]
        arrives = isinstance(args[0], PretendTensor) if name == "copy_" else here
        if isinstance(source, PretendTensor) == arrives:
            return None
        blocking = not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
        if blocking or not arrives:
            self.wait("to the GPU" if arrives else "to the CPU")
        if arrives:
            self.copied[line()] += source.numel() * source.element_size()
        if name == "copy_":
            goal, given = held(args[0]), held(source)
            if "meta" not in (goal.device.type, given.device.type):
                goal.copy_(given)
            return args[0]
        return None

    def _check_devices(self, name: str, args: Any, tensors: list[Tensor]) -> None:
        """Raise where a tensor of the CPU meets one of the GPU; scalars and indices may lie on the CPU."""
        checked = [args[0], *args[2:3]] if name in INDEXING else tensors
        ours = [isinstance(x, PretendTensor) for x in checked if isinstance(x, Tensor) and x.dim() > 0]
        if any(isinstance(x, PretendTensor) for x in tensors) and not all(ours):
            raise RuntimeError(f"{line()}: {name} of tensors on the CPU and on the GPU")

    @staticmethod
    def _waits_for_indices(name: str, args: Any) -> bool:
        """Boolean indices and indices on the CPU make the host wait."""
        if name not in INDEXING:
            return False
        given = [index for index in args[1] if index is not None]
        return any(index.dtype in (torch.bool, torch.uint8) or not isinstance(index, PretendTensor) for index in given)

    def _count(
        self, op: Any, name: str, args: Any, kwargs: dict[str, Any], ours: list[PretendTensor], out: Any
    ) -> None:
        made = [x for x in tree_leaves(out) if isinstance(x, PretendTensor)]
        touched = [*ours, *made]
        flops = 0
        if op._overloadpacket in flop_registry:
            bare = tree_map(held, (args, kwargs, out))
            flops = flop_registry[op._overloadpacket](*bare[0], **bare[1], out_val=bare[2])
        self.kernels.append(Kernel(line(), name, sum(map(_bytes, touched)), flops, _widest(touched)))
        if args and isinstance(args[0], (list, tuple)) and name.startswith(("_foreach", "_fused")):
            more = (len(args[0]) - 1) // TENSORS_PER_LAUNCH
            self.kernels += [Kernel(line(), name, 0, 0, "f32")] * more

    def _call(self, op: Any, name: str, args: Any, kwargs: dict[str, Any], here: bool) -> Any:
        bare, options = tree_map(held, args), tree_map(held, kwargs)
        if any(x.device.type == "meta" for x in tree_leaves((bare, options)) if isinstance(x, Tensor)):
            return self._call_on_shapes(op, name, (args, bare), options, here)
        own = {id(x.held): x for x in tree_leaves((args, kwargs)) if isinstance(x, PretendTensor)}

        def landed(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            if id(x) in own:
                return own[id(x)]
            return PretendTensor(x) if here else x

        return tree_map(landed, op(*bare, **options))

    def _call_on_shapes(self, op: Any, name: str, args: tuple[Any, Any], options: dict[str, Any], here: bool) -> Any:
        """An operation on tensors without numbers; integer results are zeros."""
        given, bare = args
        if name == "_local_scalar_dense":
            return 1.0 if bare[0].is_floating_point() else 0
        if options.get("device") is not None:
            options = {**options, "device": torch.device("meta")}
        if name in INDEXING:
            bare = (bare[0], _integer_indices(bare[1]), *bare[2:])
        goal = given[0] if name.endswith("_") and not name.endswith("__") else None
        if isinstance(goal, list):  # foreach and fused operations of optimizers
            return None
        if goal is not None:
            if held(goal).device.type == "meta":
                op(*tree_map(_shape, bare), **tree_map(_shape, options))
            return goal

        def landed(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            if not x.is_floating_point():
                x = torch.zeros(x.shape, dtype=x.dtype)
            return PretendTensor(x) if here else x

        return tree_map(landed, op(*tree_map(_shape, bare), **tree_map(_shape, options)))


def held(x: Any) -> Any:
    """What a pretend tensor holds; anything else unchanged."""
    return x.held if isinstance(x, PretendTensor) else x


def on_gpu(module: nn.Module) -> nn.Module:
    """A module with its parameters and buffers on the pretend GPU, also if they have no numbers."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(PretendTensor(parameter.detach()), parameter.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = PretendTensor(buffer)
    return module


def line() -> str:
    """The innermost line of the package on the stack."""
    frame: Any = sys._getframe(1)
    while frame is not None and "/di4c_cli/" not in frame.f_code.co_filename:
        frame = frame.f_back
    if frame is None:
        return "autograd or optimizer"
    return f"{frame.f_code.co_filename.rpartition('/di4c_cli/')[2]}:{frame.f_lineno}"


def touched_bytes(x: Tensor) -> int:
    """Bytes of memory behind a tensor; expanded dimensions count once."""
    count = 1
    for size, stride in zip(x.shape, x.stride()):
        count *= size if stride else 1
    return count * x.element_size()


def widest(tensors: Sequence[Tensor]) -> str:
    kinds = {x.dtype for x in tensors if x.is_floating_point()}
    for dtype, name in ((torch.float64, "f64"), (torch.float32, "f32")):
        if dtype in kinds:
            return name
    return "bf16" if kinds else "int"


