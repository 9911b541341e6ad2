"""Every private name of torch that is used, in one place: what to look at first when torch changes.

`pytree`                    torch.func, FSDP and DDP find a Gaussian's tensors by it; torch.utils has no public one
`has_global_module_hook`    whether calling a layer's Function is all that calling the layer does
`has_global_optimizer_hook` and `profiler_enabled`: whether anybody watches an optimizer's step
`foreach_…`                 one call for many tensors, as torch's own optimizers make it
Modules' `_parameters`, `_buffers`, `_modules`, `_forward_hooks` and the like are read directly where a look-up by
attribute would cost small networks dear; `_load_from_state_dict` is overridden in `parameter`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules import module
from torch.optim import optimizer
from torch.utils import _pytree

pytree = _pytree
has_global_module_hook = module._has_any_global_hook
profiler_enabled = torch._C._autograd._profiler_enabled

foreach_add_, foreach_addcmul_, foreach_lerp_ = torch._foreach_add_, torch._foreach_addcmul_, torch._foreach_lerp_
foreach_mul, foreach_mul_ = torch._foreach_mul, torch._foreach_mul_
foreach_div, foreach_div_ = torch._foreach_div, torch._foreach_div_
foreach_clamp_max_, foreach_norm = torch._foreach_clamp_max_, torch._foreach_norm
foreach_copy_ = torch._foreach_copy_


def has_module_hook(part: nn.Module) -> bool:
    return bool(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks)


def has_tensor_hook(tensor: Tensor) -> bool:
    """Whether its message goes elsewhere on its way to `grad`."""
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


def has_global_optimizer_hook(apart_from: object) -> bool:
    pre = [hook for hook in optimizer._global_optimizer_pre_hooks.values() if hook is not apart_from]
    return bool(pre or optimizer._global_optimizer_post_hooks)
