"""From messages to posteriors: the only place that writes parameters.

After `evidence.backward()` a parameter with mean m and variance s holds its summed message g = mean.grad,
h = var.grad. Three rules apply it:

`paper`      m⁺ = m + s g,  s⁺ = s + s² h: every observation of the batch as if it were independent of the others.

`capped`     the same, with each |Δm| and |Δs| at most √s/cap (cap 0.1 for one sample, 2 below 256, 3 from there):
             parity with the authors' code.

`coherent`   (default) the observations of a batch share weights. Along the direction s g the joint linearised
             posterior is a parabola, and its minimum is known exactly. With innovation r, predictive variance v
             and noise R of each observation,

                 α = Σ r·dm / (q + Σ R dm²),    q = Σ_θ s g²     (the variance of the outputs along s g)

             is 1 for uncorrelated observations and (v + R)/(Bv + R), the exact value, for B equal ones. Around it
             a trust region: R ≥ κ v bounds the Kalman gain; no step moves the outputs by more than τ, nor a
             weight by more than c prior standard deviations; no variance shrinks below `floor` of itself at once:

                 α ← min(1, α, τ/√q);   m⁺ = m + clip(α s g, ±c√s);   s⁺ = s · max(1 + α s h, floor)

What α needs beyond g is all in the messages that enter the network: dm = r/(v+R), dv = −1/(v+R) give
Σ r·dm = Σ dm²/(−dv) and Σ R dm² = Σ dm²/(−dv) − Σ v dm². The update therefore listens at the network's output,
and knows nothing of likelihoods.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

from torchtagi.gaussian import Gaussian
from torchtagi.parameter import GaussianParameter

RULES = ("coherent", "capped", "paper")
SMALL = 1 << 15  # below this many weights one flat tensor is faster than a list of them

Tensors = list[Tensor]


class Ledger:
    """Sums over the observations since the last step; all are additive over micro-batches and processes."""

    __slots__ = ("informative", "observations", "own_variance", "samples")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.samples = 0.0  # batch entries
        self.observations: Tensor | float = 0.0  # messages that are not zero
        self.informative: Tensor | float = 0.0  # Σ r·dm = Σ dm²/(−dv), also Σ r²/(v+R)
        self.own_variance: Tensor | float = 0.0  # Σ v dm²


class Listen(torch.autograd.Function):
    """Passes a network's output on; on the way back it bounds the gain and writes to the ledger."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, ledger: Ledger, gain_bound: float, samples: int) -> Any:
        ctx.save_for_backward(var)
        ctx.ledger, ctx.gain_bound, ctx.samples = ledger, gain_bound, samples
        return mean.view_as(mean), var.view_as(var)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dmean: Tensor, dvar: Tensor) -> tuple[Tensor | None, ...]:
        (var,) = ctx.saved_tensors
        ledger = ctx.ledger
        if ctx.gain_bound:
            # R ≥ κ v is −dv ≤ 1/((1 + κ) v); a louder message is scaled down to that
            excess = (var * dvar).mul_(-1 - ctx.gain_bound).clamp_(min=1)
            dmean, dvar = dmean / excess, dvar / excess
        squared = dmean.square()
        heard = dvar < 0
        ledger.samples += ctx.samples
        ledger.observations += heard.sum()
        ledger.informative += (squared / torch.where(heard, -dvar, 1.0)).sum()
        ledger.own_variance += (squared * var).sum()
        return dmean, dvar, None, None, None


class Tap:
    """The forward hook that puts `Listen` behind a network's outputs.

    It holds weak references: a copied or unpickled network does not report to the original's update, and a
    discarded update stops listening.
    """

    def __init__(self, module: nn.Module, update: Update) -> None:
        self.module: Callable[[], nn.Module | None] = weakref.ref(module)
        self.update: Callable[[], Update | None] = weakref.ref(update)

    def __reduce__(self) -> tuple[Any, ...]:
        return (InertTap, ())

    def __deepcopy__(self, memo: dict[int, Any]) -> InertTap:
        return InertTap()

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        update = self.update()
        if update is None or not torch.is_grad_enabled():
            return None
        if isinstance(output, Gaussian):
            return update.listen(output, len(output))
        leaves, spec = pytree.tree_flatten(output, is_leaf=lambda leaf: isinstance(leaf, Gaussian))
        unseen = next((len(leaf) for leaf in leaves if isinstance(leaf, Gaussian)), 0)
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, Gaussian):
                # several heads see the same batch entries: they count once
                leaves[i], unseen = update.listen(leaf, unseen), 0
        return pytree.tree_unflatten(leaves, spec)


class InertTap:
    """What is left of a `Tap` in a copy of its network."""

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        return None


class Update(torch.optim.Optimizer):
    """Turns the messages on each Gaussian parameter into its posterior.

        posterior = Update(net)
        likelihood(net(x), y).backward()
        posterior.step(); posterior.zero_grad()

    `net` may be wrapped in DistributedDataParallel or sharded by `fully_shard`: pass the wrapped module, whose
    averaged messages are summed again here. `groups` divides the network's parameters, e.g.
    `[{"modules": [net.body]}, {"modules": [net.head], "lr": 0.5}]`. `lr` is the fraction of the messages that
    is applied, 1 for Bayes' rule; it is there for torch's schedulers. `outputs` is the module whose output the
    likelihood sees, if that is not `net` itself.
    """

    def __init__(
        self,
        net: nn.Module,
        rule: str = "coherent",
        *,
        lr: float = 1.0,
        groups: Sequence[dict[str, Any]] | None = None,
        outputs: nn.Module | None = None,
        gain_bound: float = 0.3,
        output_bound: float = 6.0,
        weight_bound: float = 1.0,
        floor: float = 0.1,
    ) -> None:
        if rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")
        if not 0 < floor < 1:
            raise ValueError(f"floor must lie between 0 and 1, got {floor}")
        self.rule = rule
        self.gain_bound, self.output_bound, self.weight_bound = gain_bound, output_bound, weight_bound
        self.floor = floor
        self.surprise = 1.0
        self.memory = 1600.0
        import os

        self.mode = int(os.environ.get("MODE", "3"))
        self.ledger = Ledger()
        self.process_group, self.sharded, self.averaged_over = parallelism(net)
        described = groups or [{"modules": [net]}]
        super().__init__([group_of(group) for group in described], {"lr": lr})
        self.reports: list[dict[str, float]] = []
        self.tap = (outputs or net).register_forward_hook(Tap(outputs or net, self))

    def listen(self, z: Gaussian, samples: int) -> Gaussian:
        if not z.mean.requires_grad:
            return z
        bound = self.gain_bound if self.rule == "coherent" else 0.0
        var = z.variance if z.var is None else z.var
        mean, heard_var = Listen.apply(z.mean, var, self.ledger, bound, samples)
        return Gaussian.trusted(mean, heard_var)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.ledger.clear()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Apply the messages. A closure is evaluated first, with messages on; its value is returned."""
        evidence = None
        if closure is not None:
            with torch.enable_grad():
                evidence = closure()
        groups = [Group(group, self.averaged_over) for group in self.param_groups]
        if any(group.means for group in groups):
            sums = self.sums_over_processes(groups)
            if not all(math.isfinite(number) for number in sums):
                raise FloatingPointError(
                    "the messages are not finite, so no parameter was changed: an input or a target is far "
                    "out of range, or the network's variances have run off"
                )
            apply = {"paper": self.paper, "capped": self.capped, "coherent": self.coherent}[self.rule]
            self.reports = apply(groups, *sums)
            for group in groups:
                group.write_back()
        self.ledger.clear()
        return evidence

    def sums_over_processes(self, groups: list[Group]) -> tuple[float, float, float, float, float]:
        """samples, observations, Σ r·dm, Σ v dm² and q, each over everything the messages came from."""
        ledger = self.ledger
        if not ledger.samples:
            raise RuntimeError(
                "there are messages on the parameters, but none came through the output of the module given "
                "to Update: call that module itself, or name the one you call with outputs=..."
            )
        squares = sum(group.squares() for group in groups)
        numbers = [ledger.samples, ledger.observations, ledger.informative, ledger.own_variance, squares]
        if self.process_group is None:
            samples, observations, informative, own_variance, q = (float(number) for number in numbers)
            return samples, observations, informative, own_variance, q
        device = groups[0].means[0].device
        heard = torch.stack([torch.as_tensor(n, dtype=torch.float64, device=device) for n in numbers])
        if not self.sharded:  # every process holds all weights, and so q, already
            heard[4] /= dist.get_world_size(self.process_group)
        dist.all_reduce(heard, group=self.process_group)
        samples, observations, informative, own_variance, q = heard.tolist()
        return samples, observations, informative, own_variance, q

    # ---- the rules ---------------------------------------------------------------------------------------

    def paper(
        self,
        groups: list[Group],
        samples: float,
        observations: float,
        informative: float,
        own: float,
        q: float,
    ) -> list[dict[str, float]]:
        reports = []
        for group in groups:
            torch._foreach_add_(group.means, group.steps, alpha=group.lr)
            for var, dvar in zip(group.vars, group.dvars, strict=True):
                var.addcmul_(var.square(), dvar, value=group.lr)
            floored = replace_nonpositive(group.vars, torch.finfo(group.vars[0].dtype).tiny)
            reports.append(report(group.lr, informative, observations, floored))
        return reports

    def capped(
        self,
        groups: list[Group],
        samples: float,
        observations: float,
        informative: float,
        own: float,
        q: float,
    ) -> list[dict[str, float]]:
        cap = 0.1 if samples == 1 else 2.0 if samples < 256 else 3.0
        reports = []
        for group in groups:
            clipped = 0
            for mean, var, step, dvar in zip(group.means, group.vars, group.steps, group.dvars, strict=True):
                bound = var.sqrt().div_(cap)
                shrink = var.square().mul_(dvar)
                clipped += clip(step, bound) + clip(shrink, bound)
                mean.add_(step, alpha=group.lr)
                var.add_(shrink, alpha=group.lr)
            floored = replace_nonpositive(group.vars, 1e-5)
            reports.append(report(group.lr, informative, observations, floored, clipped))
        return reports

    def coherent(
        self,
        groups: list[Group],
        samples: float,
        observations: float,
        informative: float,
        own: float,
        q: float,
    ) -> list[dict[str, float]]:
        alpha = 1.0
        surprise = informative / max(observations, 1.0)
        self.surprise += min(1.0, observations / self.memory) * (surprise - self.surprise)
        inflate = max(1.0, surprise if self.mode & 1 else 0, self.surprise if self.mode & 2 else 0)
        if q > 0:
            misfit = max(inflate * informative - own, 0.0)
            alpha = min(alpha, informative / (q + misfit), self.output_bound / math.sqrt(q))
        reports = []
        for group in groups:
            fraction = alpha * group.lr
            clipped = floored = 0
            # Both bounds act seldom: one pass finds the largest entry, and only then are the others compared.
            if fraction * math.sqrt(group.peak) > self.weight_bound:
                for step, var in zip(group.steps, group.vars, strict=True):
                    clipped += clip(step, var.sqrt().mul_(self.weight_bound / fraction))
            torch._foreach_add_(group.means, group.steps, alpha=fraction)
            for var, dvar in zip(group.vars, group.dvars, strict=True):
                shrink = var * dvar
                if 1 + fraction * shrink.amin().item() < self.floor:
                    floored += int((shrink < (self.floor - 1) / fraction).sum())
                    shrink.clamp_(min=(self.floor - 1) / fraction)
                var.addcmul_(var, shrink, value=fraction)
            reports.append(report(fraction, informative, observations, floored, clipped))
        return reports


class Group:
    """One parameter group's tensors at a step: those that heard a message, as local shards, small ones flat."""

    def __init__(self, group: dict[str, Any], averaged_over: int) -> None:
        self.lr = float(group["lr"])
        pairs = [
            (mean, var)
            for mean, var in zip(group["params"][::2], group["params"][1::2], strict=True)
            if mean.grad is not None and var.grad is not None
        ]
        self.owned_means: Tensors = [local(mean) for mean, _ in pairs]
        self.owned_vars: Tensors = [local(var) for _, var in pairs]
        self.means, self.vars = self.owned_means, self.owned_vars
        dmeans = [local(mean.grad) for mean, _ in pairs]
        dvars = [local(var.grad) for _, var in pairs]
        self.flat = len(pairs) > 1 and sum(mean.numel() for mean in self.means) <= SMALL
        if self.flat:
            self.means, self.vars, dmeans, dvars = (
                [torch.cat([tensor.reshape(-1) for tensor in tensors])]
                for tensors in (self.means, self.vars, dmeans, dvars)
            )
        if averaged_over > 1:
            dmeans = list(torch._foreach_mul(dmeans, averaged_over))
            dvars = list(torch._foreach_mul(dvars, averaged_over))
        self.dmeans, self.dvars = dmeans, dvars
        self.steps: Tensors = list(torch._foreach_mul(self.vars, dmeans)) if pairs else []
        self.peak = 0.0

    def squares(self) -> float:
        """Σ s g² over the group; keeps the largest term as `peak`."""
        total = 0.0
        for step, dmean in zip(self.steps, self.dmeans, strict=True):
            terms = step * dmean
            total += terms.sum().item()
            self.peak = max(self.peak, terms.amax().item())
        return total

    def write_back(self) -> None:
        if self.flat:
            sizes = [mean.numel() for mean in self.owned_means]
            for owned, flat in ((self.owned_means, self.means), (self.owned_vars, self.vars)):
                parts = flat[0].split(sizes)
                torch._foreach_copy_(owned, [p.view_as(o) for p, o in zip(parts, owned, strict=True)])


def clip(change: Tensor, bound: Tensor) -> int:
    """Cut each entry of `change` to ± its bound, in place; how many were cut."""
    cut = int((change.abs() > bound).sum())
    torch.clamp(change, -bound, bound, out=change)
    return cut


def replace_nonpositive(variances: Tensors, value: float) -> int:
    count = 0
    for var in variances:
        dead = var <= 0
        count += int(dead.sum())
        var.masked_fill_(dead, value)
    return count


def report(
    alpha: float, informative: float, observations: float, floored: int = 0, clipped: int = 0
) -> dict[str, float]:
    """`innovation` is the mean of r²/(v+R), near 1 where the predicted variance is right."""
    return {
        "alpha": alpha,
        "innovation": informative / max(observations, 1.0),
        "floored": float(floored),
        "clipped": float(clipped),
    }


def local(tensor: Tensor) -> Tensor:
    """This process's shard of a distributed tensor."""
    shard: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return shard


def parallelism(net: nn.Module) -> tuple[Any, bool, int]:
    """The process group over which `net` averages its messages, whether it is sharded, and the group's size."""
    if isinstance(net, nn.parallel.DistributedDataParallel):
        return net.process_group, False, dist.get_world_size(net.process_group)
    mesh = next((p.device_mesh for p in net.parameters() if hasattr(p, "device_mesh")), None)
    if mesh is not None:
        return mesh.get_group(), True, mesh.size()
    return None, False, 1


def group_of(described: dict[str, Any]) -> dict[str, Any]:
    """A torch parameter group: its tensors as mean, var, mean, var, …"""
    options = {key: value for key, value in described.items() if key != "modules"}
    tensors: Tensors = []
    for parameter in gaussian_parameters(described["modules"]):
        tensors += [parameter.mean, parameter.var]
    if not tensors:
        raise ValueError("Update needs at least one GaussianParameter, and found none in the modules given")
    return {"params": tensors, **options}


def gaussian_parameters(modules: Iterable[nn.Module]) -> list[GaussianParameter]:
    found: dict[int, GaussianParameter] = {}
    for module in modules:
        for part in module.modules():
            if isinstance(part, GaussianParameter):
                found.setdefault(id(part), part)
    return list(found.values())
