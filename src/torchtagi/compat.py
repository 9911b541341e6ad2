"""Every private name of torch that is used, in one place: what to look at first when torch changes.

`pytree`                    torch.func, FSDP and DDP find a Gaussian's tensors by it; torch.utils has no public one
`has_global_module_hook`    whether calling a layer's Function is all that calling the layer does
`has_global_optimizer_hook` and `profiler_enabled`: whether anybody watches an optimizer's step
The `_foreach_` functions   one call for many tensors, as torch's own optimizers make it
Modules' `_forward_hooks` and the like, tensors' `_backward_hooks`: whether anybody is hooked to them
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook as has_global_module_hook
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils import _pytree as pytree

__all__ = [
    "foreach_add",
    "foreach_add_",
    "foreach_addcmul_",
    "foreach_clamp_max_",
    "foreach_div",
    "foreach_div_",
    "foreach_lerp_",
    "foreach_mul",
    "foreach_mul_",
    "foreach_norm",
    "has_global_module_hook",
    "has_global_optimizer_hook",
    "has_module_hook",
    "has_tensor_hook",
    "profiler_enabled",
    "pytree",
]

foreach_add, foreach_add_ = torch._foreach_add, torch._foreach_add_
foreach_mul, foreach_mul_ = torch._foreach_mul, torch._foreach_mul_
foreach_div, foreach_div_ = torch._foreach_div, torch._foreach_div_
foreach_addcmul_, foreach_lerp_ = torch._foreach_addcmul_, torch._foreach_lerp_
foreach_clamp_max_, foreach_norm = torch._foreach_clamp_max_, torch._foreach_norm
profiler_enabled = torch._C._autograd._profiler_enabled


def has_module_hook(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def has_tensor_hook(tensor: Tensor) -> bool:
    """Whether its message goes elsewhere on its way to `grad`."""
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


def has_global_optimizer_hook(apart_from: object) -> bool:
    pre = [hook for hook in _global_optimizer_pre_hooks.values() if hook is not apart_from]
    return bool(pre or _global_optimizer_post_hooks)
