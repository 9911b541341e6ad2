"""From messages to posteriors: the only place that writes parameters.

After `loss.backward()` a parameter with mean m and variance s holds its summed message: g = mean.grad, the gradient
of the loss, and h = var.grad, its curvature. A step is a gradient step whose learning rate is each weight's own
variance. Three rules apply it:

`paper`      m⁺ = m − s g,  s⁺ = s − s² h: every observation of the batch as if independent of the others.

`capped`     the same, with each |Δm| and |Δs| at most √s/cap (cap 0.1 for one sample, 2 below 256, 3 from there):
             parity with the authors' code.

`coherent`   (default) the observations of a batch share weights. The exact step of the joint linearised posterior
             solves a system in the observations' covariance K + R; the messages' direction −s g gets the length
             that solves it best. With error r, predictive variance v, noise R and gradient u of each observation,

                 α = Σ r²/(v+R) / (q + Σ R u²),        q = Σ_θ s g²,  the variance of the outputs along s g

             is 1 for uncorrelated observations and (v + R)/(Bv + R), the exact value, for B equal ones.
             Where the errors are larger than predicted, λ = mean r²/(v+R) > 1, the predicted variance v + R is
             wrong by that factor: it is inflated to λ(v + R), and Σ R u² above becomes λ Σ r²/(v+R) − Σ v u².
             Around it a trust region: R ≥ κ v bounds the Kalman gain; no step moves the outputs by more than τ, nor
             a weight by more than c prior standard deviations; no variance shrinks below a share f of itself at
             once:

                 α ← min(1, α, τ/√q);   m⁺ = m − clip(α s g, ±c√s);   s⁺ = s · max(1 − α ρ s h, f)

             ρ is 1 but for shared parameters, those of convolutions. One such weight acts at many positions of an
             image, and h adds up what each position says as if it had a weight of its own: Σ_p J_p² where the
             derivative is Σ_p J_p. But g knows the sum. Under the model a message has E[g²] = h for a weight that
             acts once, so what sharing adds can be read from the lengths of both, tensor by tensor:

                 ρ = min(P, max(1, r/r₀)),        r = Σ s g² / (λ Σ s h)

             r₀ ≥ 1 is the same ratio over all tensors that are not shared: what the observations of a batch have in
             common makes every g longer, and α counts it already. A linear layer of a CIFAR-10 network has r = 1.0,
             its first convolution 200. With ρ the variance of a convolution's weight that acts equally at all
             positions is exact. At P positions sharing adds at most a factor P, by Cauchy and Schwarz; a tensor
             with messages that widen (h < 0, as AGVI's may be) has ρ = 1.

             Uncertain parameters that take part in the outputs but are not updated (`frozen`, a GAN's discriminator
             while its generator learns) are noise to the others, and noise that a batch shares. Its variance along
             u is read from the messages on them like q itself, and added to it in α: q + q_frozen + Σ R u².

Whatever the rule, an observation counts as a new one and holds for ever. Two things may take back a share of what
was learned, f = n/M in a step on n samples, back towards the prior N(m₀, s₀):

                 1/s⁺ = (1 − f)/s + f/s₀

`horizon`    M samples are remembered: for a world that drifts. The means stay where they are.

`repeats`    there are M observations, and those of this step were learned before. Together they are one averaged
             site (stochastic expectation propagation: Li, Hernández-Lobato & Turner, 2015); each takes its M-th
             part away and puts its new message in its place. Of the means, too:

                 m⁺ = m + α κ f (s⁺/s₀)(m₀ − m),        κ = Σ R u² / Σ (v+R) u²

             Without α and κ that would be the site's share for a single weight. The messages on many are shortened
             by both, R/(v+R) of an observation's own and α of the batch's; shortened alike, pull and messages
             balance where Σ J r/R = (m − m₀)/s₀, at the posterior mean, however long the steps are.

docs/maths.md has the derivation and the measurements behind the constants.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from torchtagi import distributed
from torchtagi.checks import plain_number
from torchtagi.compat import (
    foreach_add_,
    foreach_addcmul_,
    foreach_clamp_max_,
    foreach_div_,
    foreach_mul,
    has_global_optimizer_hook,
    profiler_enabled,
)
from torchtagi.inference.output_hook import BatchStatistics, Call, OutputHook, Record
from torchtagi.inference.passes import Passes, allows_mean_passes
from torchtagi.inference.statistics import Statistics, read, sharing_factors, squared_length
from torchtagi.parameter import GaussianParameter, gaussian_parameters

RULES = ("coherent", "capped", "paper")

live_updates: weakref.WeakSet[Update] = weakref.WeakSet()
writers: weakref.WeakKeyDictionary[GaussianParameter, Callable[[], Update | None]] = weakref.WeakKeyDictionary()
"""Which update writes a parameter; not an attribute of it, which would go into copies and pickles."""


class Update(torch.optim.Optimizer):
    """Turns the messages on each Gaussian parameter into its posterior.

        update = Update(net)
        likelihood(net(x), y).backward()
        update.step(); update.zero_grad()

    `net` may be wrapped in DistributedDataParallel or sharded by `fully_shard`: pass the wrapped module, whose
    averaged messages are summed again here. One that is not wrapped learns from all processes within
    `distributed.joined`, where its messages are summed here, with mean passes as in one process.

    `lr` is the fraction of the messages that is applied, 1 for Bayes' rule; it is there for torch's schedulers.
    `outputs` is the module whose output the likelihood sees, if that is not `net` itself: `Update(net.head,
    outputs=net)` updates a part of a network. `frozen` are modules between `net` and that output which stay as
    they are, but whose uncertainty the coherent rule has to count; let messages reach their means
    (`requires_grad`). `count_sharing=False` leaves ρ of the coherent rule at 1. `horizon` is the number of samples
    after which what was learned has faded, none unless given; the variances at construction are the prior's.
    `repeats=math.inf` keeps the prior at the first step, so that `update.repeats = len(data)` can say later that
    all that comes has been learned before; `update.settling = True` then lets the variances count it as new all
    the same, so that the steps of a last few epochs become shorter.

    After a step `report` holds `alpha`, the fraction applied; `innovation`, the mean of r²/(v+R), near 1 where the
    predicted variance is right; `clipped` and `floored`, how many entries a bound on their mean's or variance's
    change held back. `sharing` holds ρ of each shared tensor that got a message.

    The network's ordinary parameters (`ordinary_parameters`) are left to an optimizer of their own; a torch
    optimizer that was given Gaussian ones too is refused at its step.
    """

    # docs/maths.md has the measurements behind these
    gain_bound = 0.3  # κ
    output_bound = 6.0  # τ
    weight_bound = 1.0  # c
    floor = 0.1  # f

    def __init__(
        self,
        net: nn.Module,
        rule: str = "coherent",
        *,
        lr: float = 1.0,
        outputs: nn.Module | None = None,
        frozen: Iterable[nn.Module] = (),
        count_sharing: bool = True,
        horizon: float | None = None,
        repeats: float | None = None,
    ) -> None:
        if not isinstance(net, nn.Module):
            raise TypeError(f"Update takes the network, Update(net), not its parameters; got {type(net).__name__}")
        horizon, repeats = plain_number(horizon), plain_number(repeats)
        if rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")
        if horizon is not None and not (isinstance(horizon, int | float) and 1 <= horizon < math.inf):
            raise ValueError(f"horizon must be a number of samples, at least 1, got {horizon}")
        if repeats is not None and not repeats >= 1:
            raise ValueError(f"repeats must be a number of observations, at least 1, got {repeats}")
        self.parameters = gaussian_parameters([net])
        if not self.parameters:
            raise ValueError("Update needs at least one GaussianParameter, and found none in the network given")
        self.frozen = gaussian_parameters(frozen)
        self.rule, self.horizon, self.repeats = rule, horizon, repeats
        self.count_sharing = count_sharing and rule == "coherent"
        self.process_group, self.sharded, self.averaged_over = parallelism(net)
        super().__init__(self.tensors, {"lr": require_fraction(lr)})
        if horizon is not None:
            self.keep_prior()
        self.report: dict[str, float] = {}
        self.sharing: list[float] = []
        self.settling = False  # whether variances count repeats as new, so that steps become shorter
        self.applied = False  # whether the messages that are there have been applied
        self.record = Record()
        wrapped = self.process_group is not None and not self.sharded
        possible = rule == "coherent" and not wrapped and not self.frozen and outputs in (None, net)
        self.passes = Passes(possible and allows_mean_passes(net))
        handle = (net if outputs is None else outputs).register_forward_hook(OutputHook(self))
        weakref.finalize(self, handle.remove)
        self.output_hook = handle
        live_updates.add(self)
        watch_other_optimizers()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.param_groups:
            raise TypeError("an Update has the parameters of its network; make an Update for the other one")
        super().add_param_group(param_group)

    def keep_prior(self) -> None:
        """What the parameters are now is what they return to."""
        for part in self.parameters:
            mean, var = part.pair()
            self.state[var]["prior"] = var.detach().clone()
            if self.repeats is not None:
                self.state[var]["prior_mean"] = mean.detach().clone()

    def take_shards(self, net: nn.Module, priors: Sequence[dict[str, Tensor]]) -> None:
        """Go on with a network that `fully_shard` has divided since; its priors are divided alike."""
        self.process_group, self.sharded, self.averaged_over = parallelism(net)
        hooks, own = net._forward_hooks, self.output_hook.id
        hooks[own] = hooks.pop(own)  # behind those of `fully_shard`, which warn of the views that it returns
        self.param_groups[0]["params"] = self.tensors
        self.state.clear()
        for part, prior in zip(self.parameters, priors, strict=True):
            if prior:
                self.state[part.var] = {name: sharded_as(part.var, tensor) for name, tensor in prior.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's; without a prior in the state the one that is kept already stays."""
        priors = {part.var: self.state[part.var] for part in self.parameters if part.var in self.state}
        super().load_state_dict(state_dict)
        for var, prior in priors.items():
            if "prior" not in self.state[var]:
                self.state[var] = prior

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "an Update is hooked to its network and cannot be copied or pickled; copy the network, make an Update "
            "for the copy and load this one's state_dict()"
        )

    @property
    def tensors(self) -> list[Tensor]:
        """Means and variances of all parameters that this update writes."""
        return [tensor for part in self.parameters for tensor in part.pair()]

    def holds(self, tensors: Iterable[Tensor]) -> bool:
        """Whether messages on these tensors are this update's, to apply or to count, and to clear."""
        own = {id(tensor) for tensor in self.tensors}
        own |= {id(tensor) for part in self.frozen for tensor in part.pair()}
        return own.issuperset(map(id, tensors))

    def expects_messages(self) -> bool:
        """Whether parameters of this update learn from the pass that begins. What earlier passes said is dropped
        if its messages were cleared by somebody else (`net.zero_grad()`)."""
        if self.record.entries and not self.sharded and not self.has_messages():
            self.record.entries.clear()
        return any(tensor.requires_grad for tensor in self.tensors)

    def has_messages(self) -> bool:
        return any(tensor.grad is not None and bool(tensor.grad.any()) for tensor in self.tensors)

    def receive(self, call: Call, var: Tensor, gradient: Tensor, curvature: Tensor) -> tuple[Tensor, Tensor]:
        """Record a message to outputs of this variance; refused while those of the last step are still there."""
        if self.applied and self.has_messages():
            raise RuntimeError(
                "the messages of the last step are still there and would count again: call zero_grad() after step()"
            )
        self.applied = False
        bound = self.gain_bound if self.rule == "coherent" else 0.0
        return self.record.add(call, var, gradient, curvature, bound)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for tensor in (*self.tensors, *(tensor for part in self.frozen for tensor in part.pair())):
            if set_to_none:
                tensor.grad = None
            elif tensor.grad is not None:
                tensor.grad.zero_()
        self.record.entries.clear()
        self.applied = False

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Apply the messages. A closure is evaluated first, with messages on; its value is returned."""
        watched = self.has_hooks() or profiler_enabled()
        return (self.watched_step if watched else self.bare_step)(closure)

    # Torch wraps every optimizer's `step` for hooks and the profiler, unless it is marked as wrapped already. A
    # small network feels it even where nobody looks, so it is done here, where somebody does.
    step.hooked = True  # type: ignore[attr-defined]

    def has_hooks(self) -> bool:
        return bool(
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or has_global_optimizer_hook(apart_from=refuse_gaussian_parameters)
        )

    def bare_step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self.apply_messages()
        return loss

    watched_step = torch.optim.Optimizer.profile_hook_step(bare_step)

    def apply_messages(self, full: bool = True) -> None:
        """Those of a full pass, or of a mean pass."""
        lr = require_fraction(self.param_groups[0]["lr"])
        group = distributed.state.group if self.process_group is None else None
        of_batch = self.record.sums() if group is None else self.sum_messages(group)
        weights = Statistics(self.parameters, full, self.sharded, self.averaged_over)
        if not weights.means and not self.sharded:
            self.explain_no_messages()
        # a sharded process whose shards are all empty still has its share in the sums
        batch, q, q_frozen, shared = self.gather(weights, of_batch)
        if not math.isfinite(sum(batch) + q + q_frozen):
            raise FloatingPointError(
                "the messages are not finite, so no parameter was changed: an input or a target is far "
                "out of range, or the network's variances have run off"
            )
        self.claim_parameters()
        if self.repeats is not None and not self.state:
            self.keep_prior()
        alpha = self.line_search(batch, q, q_frozen) if self.rule == "coherent" else 1.0
        if full:
            self.sharing = sharing_factors(shared, batch.innovation, weights.positions) if shared else []
            weights.take_factors(self.sharing)
        clipped = floored = 0
        if weights.means:
            apply = {"paper": self.paper, "capped": self.capped, "coherent": self.coherent}[self.rule]
            clipped, floored = apply(weights, alpha * lr, batch)
        self.take_back(weights, batch, alpha, min(1.0, lr) * batch.samples)
        self.report = {"alpha": alpha * lr, "innovation": batch.innovation, "clipped": clipped, "floored": floored}
        self.record.entries.clear()
        self.applied = True

    def take_back(self, weights: Statistics, batch: BatchStatistics, alpha: float, samples: float) -> None:
        """The share that these samples take of what was learned: as those of a horizon, and as repeats. Mean passes
        leave it to the next full pass."""
        horizon, repeats = self.horizon or math.inf, self.repeats or math.inf
        remembered = horizon if self.settling else min(horizon, repeats)
        pull = alpha * batch.noise_share * samples / repeats if batch.observations else 0.0
        if not weights.full:
            self.passes.end_mean_pass(samples, pull)
            return
        pull += self.passes.pull
        samples += self.passes.samples
        if remembered < math.inf and batch.observations and weights.means:
            weights.forget(samples / remembered, self.state)
        if pull > 0 and weights.means:
            weights.pull(pull, self.state)
        self.passes.end_full_pass(batch.samples, min(horizon, repeats))

    def explain_no_messages(self) -> None:
        if not any(tensor.requires_grad for tensor in self.tensors):
            raise RuntimeError("nothing can be learned: all parameters of this update have requires_grad=False")
        raise RuntimeError(
            "step() found no messages: call backward() on the loss first; a copy of a network needs an Update of "
            "its own, and the loss must come from the network that was given to this one"
        )

    def claim_parameters(self) -> None:
        """Refuse to write parameters that another update has written since this one last did."""
        owners = [writers.get(part, no_writer)() for part in self.parameters]
        if any(owner is not self and owner is not None for owner in owners):
            raise RuntimeError(
                "two Updates write the same parameters, which counts observations twice: make one Update for a "
                "network and keep it; del the other one if it is not used any more"
            )
        for part, owner in zip(self.parameters, owners, strict=True):
            if owner is None:
                writers[part] = weakref.ref(self)
                part.learned = True

    def sum_messages(self, group: distributed.Group) -> list[Tensor]:
        """The messages of all processes in the place of this one's, and the batch statistics of all. They go
        together; docs/distributed.md says why."""
        frozen = [part.mean for part in self.frozen]
        means, variances = ([part.pair()[which] for part in self.parameters] for which in range(2))
        tensors = [tensor for tensor in (*means, *frozen, *variances) if tensor.grad is not None]
        for tensor in tensors:  # as the parameter lies in memory, on every process alike
            if tensor.grad is not None and tensor.grad.stride() != (strides := dense(tensor)):
                like: Any = {"dtype": tensor.grad.dtype, "device": tensor.grad.device}
                tensor.grad = torch.empty_strided(tensor.shape, strides, **like).copy_(tensor.grad)
        statistics = self.record.totals(self.tensors[0])
        group.sum_(statistics, *(tensor.grad for tensor in tensors if tensor.grad is not None))
        return list(statistics)

    def gather(
        self, weights: Statistics, of_batch: list[Tensor]
    ) -> tuple[BatchStatistics, float, float, list[float]]:
        """Batch statistics, q, q_frozen, and what `sharing_factors` needs, over everything the messages came from:
        micro-batches and processes."""
        if not self.record.entries:
            raise RuntimeError(
                "there are messages on the parameters, but none came through the output of the module given "
                "to Update: call that module itself, or name the one you call with outputs=..."
            )
        of_frozen = squared_length(self.frozen, self.sharded)
        numbers = read([*of_batch, *of_frozen, *weights.sums()])
        ends = len(of_batch), len(of_batch) + len(of_frozen)
        alone = distributed.state.group is None or self.process_group is not None
        own = numbers[: ends[0]]
        batch = self.record.statistics(own) if alone else BatchStatistics(*own)
        weights.take_sums(numbers[ends[1] :])
        of_weights = [weights.length, sum(numbers[slice(*ends)]) * self.averaged_over**2]
        if weights.full and self.count_sharing and weights.shared:
            of_weights += weights.sharing_sums()
        if self.process_group is not None:
            if not self.sharded:  # every process holds all weights, and so all of these sums, already
                of_weights = [part / dist.get_world_size(self.process_group) for part in of_weights]
            everyones = torch.tensor([*batch, *of_weights], dtype=torch.float64, device=self.tensors[0].device)
            dist.all_reduce(everyones, group=self.process_group)
            sums = everyones.tolist()
            batch, of_weights = BatchStatistics(*sums[: len(batch)]), sums[len(batch) :]
        return batch, of_weights[0], of_weights[1], of_weights[2:]

    def line_search(self, batch: BatchStatistics, q: float, q_frozen: float = 0.0) -> float:
        """α of the coherent rule."""
        if not q > 0:
            return 1.0
        noise = max(max(1.0, batch.innovation) * batch.explained - batch.own_var, 0.0)
        return min(1.0, batch.explained / (q + q_frozen + noise), self.output_bound / math.sqrt(q))

    # Each rule applies a fraction of the messages, and returns how many entries it clipped and floored.

    def paper(self, weights: Statistics, fraction: float, batch: BatchStatistics) -> tuple[int, int]:
        foreach_add_(weights.means, weights.steps, alpha=-fraction)
        foreach_addcmul_(weights.vars, weights.vars, weights.shrinks, value=-fraction)
        return 0, replace_nonpositive(weights.vars, torch.finfo(weights.vars[0].dtype).tiny)

    def capped(self, weights: Statistics, fraction: float, batch: BatchStatistics) -> tuple[int, int]:
        cap = 0.1 if batch.samples == 1 else 2.0 if batch.samples < 256 else 3.0
        clipped = 0
        columns = zip(weights.means, weights.vars, weights.steps, weights.shrinks, strict=True)
        for mean, var, step, shrink in columns:
            bound = var.sqrt().div_(cap)
            change = var * shrink
            clipped += clip(step, bound) + clip(change, bound)
            mean.sub_(step, alpha=fraction)
            var.sub_(change, alpha=fraction)
        return clipped, replace_nonpositive(weights.vars, 1e-5)

    def coherent(self, weights: Statistics, fraction: float, batch: BatchStatistics) -> tuple[int, int]:
        clipped = floored = 0
        # The bounds act seldom. A length or a largest entry tells when none of them can.
        longest = self.weight_bound / max(fraction, 1e-30)
        if weights.length > longest**2 and max(read([term.amax() for term in weights.terms])) > longest**2:
            for step, var in zip(weights.steps, weights.vars, strict=True):
                clipped += clip(step, var.sqrt().mul_(longest))
        foreach_add_(weights.means, weights.steps, alpha=-fraction)
        if not weights.full:
            return clipped, floored
        scales = [fraction * factor for factor in weights.factors]
        if max(scale * high for scale, high in zip(scales, weights.highest, strict=True)) > 1 - self.floor:
            bounds = [(1 - self.floor) / max(scale, 1e-30) for scale in scales]
            floored = sum(int((shrink > high).sum()) for shrink, high in zip(weights.shrinks, bounds, strict=True))
            foreach_clamp_max_(weights.shrinks, bounds)
        foreach_addcmul_(weights.vars, weights.vars, weights.shrinks, [-scale for scale in scales])
        more = self.passes.samples / max(batch.samples, 1.0)
        if more > 0:  # with s⁺ = s(1 − x) the precision grows by x/(s(1 − x)); it grows by as much for each of them
            growths = foreach_mul(weights.shrinks, [more * scale for scale in scales])
            foreach_add_(growths, 1.0)
            foreach_div_(weights.vars, growths)
        return clipped, floored


def require_fraction(lr: Any) -> float:
    if not (lr >= 0 and math.isfinite(lr)):
        raise ValueError(f"lr, the fraction of the messages applied, must be finite and not negative, got {lr}")
    return float(lr)


def no_writer() -> None:
    return None


def refuse_gaussian_parameters(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Before a step of any torch optimizer: it must not hold parameters of an update."""
    if isinstance(optimizer, Update):
        return
    theirs = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
    if any(id(tensor) in theirs for update in live_updates for tensor in update.tensors):
        raise RuntimeError(
            f"{type(optimizer).__name__} was given Gaussian parameters, which an Update writes: give it "
            "tagi.ordinary_parameters(net) alone"
        )


@functools.cache
def watch_other_optimizers() -> None:
    """From the first update on."""
    register_optimizer_step_pre_hook(refuse_gaussian_parameters)


def clip(change: Tensor, bound: Tensor) -> int:
    """Cut each entry of `change` to ± its bound, in place; how many were cut."""
    cut = int((change.abs() > bound).sum())
    torch.clamp(change, -bound, bound, out=change)
    return cut


def replace_nonpositive(variances: Iterable[Tensor], value: float) -> int:
    count = 0
    for var in variances:
        dead = var <= 0
        count += int(dead.sum())
        var.masked_fill_(dead, value)
    return count


def dense(tensor: Tensor) -> tuple[int, ...]:
    """Its strides, or those of a contiguous one where it has gaps."""
    layouts = (torch.contiguous_format, *((torch.channels_last,) if tensor.ndim == 4 else ()))
    if any(tensor.is_contiguous(memory_format=layout) for layout in layouts):
        return tensor.stride()
    return torch.empty(tensor.shape, device="meta").stride()


def sharded_as(like: Any, tensor: Tensor) -> Tensor:
    from torch.distributed.tensor import distribute_tensor  # a fifth of a second, for those who shard

    return distribute_tensor(tensor, like.device_mesh, like.placements)


def parallelism(net: nn.Module) -> tuple[Any, bool, int]:
    """The process group over which `net` averages its messages, whether it is sharded, the group's size."""
    if isinstance(net, nn.parallel.DistributedDataParallel):
        return net.process_group, False, dist.get_world_size(net.process_group)
    mesh = next((p.device_mesh for p in net.parameters() if hasattr(p, "device_mesh")), None)
    if mesh is not None:
        return mesh.get_group(), True, mesh.size()
    return None, False, 1
