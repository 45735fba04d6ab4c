"""A GPU that is not there: tensors that claim the device `gpu` and keep their numbers on the CPU, or only their shapes.

`Watch` runs every operation on them, raises where tensors of two devices meet, and counts kernels, bytes, arithmetic
and waits (the host waits for the device) by line of the package. Weights on the meta device have shapes only, so a
step of a published model takes seconds; integers and noise always have numbers, because shapes depend on them.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend
from torch.utils.flop_counter import flop_registry

from tests.device.backend import ACTIVE, DEVICE, patches
from tests.device.counts import Kernel, Memory, line, touched_bytes, widest

WAITING = {
    "nonzero",
    "masked_select",
    "_local_scalar_dense",
    "unique_consecutive",
    "_unique2",
    "unique_dim",
    "bincount",
}
WAITING |= {"repeat_interleave", "equal", "is_nonzero", "masked_scatter", "linalg_eigh", "_linalg_eigh"}
"""Operations whose result the host needs, e.g. as a shape."""
FREE = {
    "view",
    "_unsafe_view",
    "reshape",
    "expand",
    "t",
    "transpose",
    "permute",
    "select",
    "slice",
    "unsqueeze",
    "squeeze",
}
FREE |= {"detach", "alias", "as_strided", "split", "split_with_sizes", "unbind", "_reshape_alias", "chunk", "unfold"}
FREE |= {"diagonal", "lift_fresh", "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"}
"""Operations without a kernel."""
TENSORS_PER_LAUNCH = 30
"""Tensors that one launch of a fused or foreach kernel takes, at least."""
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}


class Backend(_DummyBackendModule):
    """What torch asks of a device's module."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        torch.set_rng_state(state)


_setup_privateuseone_for_python_backend(DEVICE, backend_module=Backend())


class PretendTensor(Tensor):
    """A tensor on the pretend GPU; `held` has its numbers (CPU) or only its shape (meta)."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> PretendTensor:
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(DEVICE, 0),
        )

    def __init__(self, held: Tensor) -> None:
        self.held = held
        if ACTIVE:
            ACTIVE[-1].memory.hold(self)

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"PretendTensor({tuple(self.shape)}, {self.dtype})"

    def tolist(self) -> Any:
        ACTIVE[-1].wait("tolist")
        return (self.held if self.held.device.type == "cpu" else torch.zeros(self.shape, dtype=self.dtype)).tolist()

    def numpy(self, **_: object) -> Any:
        raise TypeError("a tensor on a GPU cannot be converted to numpy")

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        new: Tensor = PretendTensor(self.held.clone())
        if isinstance(self, nn.Parameter):
            new = nn.Parameter(new, self.requires_grad)
        memo[id(self)] = new
        return new

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return ACTIVE[-1].run(op, args, kwargs or {})


class Watch(TorchDispatchMode):
    """Runs operations of pretend tensors, checks their devices and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[tuple[str, str]] = Counter()
        self.kernels: list[Kernel] = []
        self.copied: Counter[str] = Counter()
        """Bytes from the CPU, by line."""
        self.cast: Counter[str] = Counter()
        """Bytes of weights and activations that autocast converted, by line."""
        self.unfused: Counter[str] = Counter()
        """Calls of attention that no fused kernel takes."""
        self.indexed_from_cpu: Counter[str] = Counter()
        """Indices that torch itself copies from the CPU in every call, by line."""
        self.memory = Memory()
        self._stack = ExitStack()

    def __enter__(self) -> Watch:
        ACTIVE.append(self)
        self._stack.enter_context(patches())
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()
        ACTIVE.pop()

    def clear(self) -> None:
        """Forget what was counted; memory stays."""
        for counts in (self.waits, self.kernels, self.copied, self.cast, self.unfused, self.indexed_from_cpu):
            counts.clear()
        self.memory.peak = self.memory.now

    @staticmethod
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

    def _waits_for_indices(self, name: str, args: Any) -> bool:
        """Boolean indices and indices on the CPU make the host wait."""
        if name not in INDEXING:
            return False
        given = [index for index in args[1] if index is not None]
        foreign = sum(not isinstance(index, PretendTensor) for index in given)
        self.indexed_from_cpu[line()] += foreign
        return foreign > 0 or any(index.dtype in (torch.bool, torch.uint8) for index in given)

    def _count(
        self, op: Any, name: str, args: Any, kwargs: dict[str, Any], ours: list[PretendTensor], out: Any
    ) -> None:
        made = [x for x in tree_leaves(out) if isinstance(x, PretendTensor)]
        touched = [*ours, *made]
        flops = 0
        if op._overloadpacket in flop_registry:
            bare = tree_map(held, (args, kwargs, out))
            flops = flop_registry[op._overloadpacket](*bare[0], **bare[1], out_val=bare[2])
        self.kernels.append(Kernel(line(), name, sum(map(touched_bytes, touched)), flops, widest(touched)))
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


def _shape(x: Any) -> Any:
    return x.to("meta") if isinstance(x, Tensor) and x.device.type != "meta" else x


def _integer_indices(indices: list[Tensor | None]) -> list[Tensor | None]:
    out: list[Tensor | None] = []
    for index in indices:
        out += list(index.nonzero(as_tuple=True)) if index is not None and index.dtype == torch.bool else [index]
    return out
