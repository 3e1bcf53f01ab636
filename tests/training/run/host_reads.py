"""What a training step on the CPU would have a GPU's host wait for, and how many kernels it would launch."""

from collections import Counter
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

# Operators that read a value on the host, or whose shape depends on one.
READS = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "bincount", "_unique2"}
# An index of booleans is one of the places where they are true.
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
VIEWS = {
    *("alias", "as_strided", "detach", "diagonal", "expand", "permute", "select", "slice", "split"),
    *("split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze"),
    *("view", "_unsafe_view", "_reshape_alias"),
}
NO_KERNEL = VIEWS | {"empty", "empty_like", "empty_strided", "lift_fresh"}


class Launches(TorchDispatchMode):
    """Counts operators that launch kernels, by name, and lists those that read a value, with those that Python reads.

    It sees forward and backward passes that run without a compiler.
    """

    def __init__(self):
        super().__init__()
        self.kernels, self.reads = Counter(), []
        self._patches = [
            patch.object(torch.Tensor, name, self._noted(name)) for name in ("tolist", "item", "numpy", "cpu")
        ]

    def _noted(self, name):
        method = getattr(torch.Tensor, name)

        def noted(tensor, *args, **kwargs):
            self.reads.append(name)
            with _disable_current_modes():
                return method(tensor, *args, **kwargs)

        return noted

    def __enter__(self):
        for method in self._patches:
            method.start()
        return super().__enter__()

    def __exit__(self, *error):
        for method in self._patches:
            method.stop()
        return super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in READS or (name == "repeat_interleave" and function._overloadname == "Tensor"):
            self.reads.append(name)
        if name in INDEXED and any(index is not None and index.dtype == torch.bool for index in args[1]):
            self.reads.append(f"{name} by booleans")
        if name not in NO_KERNEL:
            self.kernels[name] += 1
        return function(*args, **(kwargs or {}))
