"""What weighing modes may cost, in proportion to what was asked for."""

from skbayes_sym.estimators.mcmc.draws import Explored
from skbayes_sym.estimators.mcmc.setting import Setting
from skbayes_sym.estimators.mcmc.trust import why_not_weigh
from skbayes_sym.inference.allowance import Allowance
from skbayes_sym.inference.mcmc.chains import ChainDraws
from skbayes_sym.inference.multimodal.bridge import can_bridge
from skbayes_sym.inference.samplers import SMC

REPLICATE_MOVES = 4  # a stage: particles look for modes, whose weights come from elsewhere
_STAGES, _GRADIENTS_A_STAGE_MOVE = 30, 10  # of a replicate, about
_REPLICATES_SHARE = 0.5  # of what the evidence may cost


def affordable(setting: Setting, chains: ChainDraws, particles: SMC) -> SMC | None:
    """The replicates that are worth it: they propose modes, and what they cost is limited."""
    group, search = setting.model.group, setting.search
    if not setting.weighs or not can_bridge(group) or why_not_weigh(group, chains):
        return None
    if search.all_replicates:
        return particles
    allowance = setting.allowance(search.effort * _work_of_chains(setting, chains))
    n_calls = REPLICATE_MOVES * _GRADIENTS_A_STAGE_MOVE * _STAGES
    each = allowance.work(n_calls, particles.n_particles)
    n = min(particles.n_replicates, int(allowance.part(_REPLICATES_SHARE) / each))
    return SMC(particles.n_particles, n) if n else None


def allowance_of(setting: Setting, explored: Explored) -> Allowance:
    """What finding the evidence may still cost: its share less what replicates have."""
    ledger = setting.allowance(0.0)
    particles = sum(
        ledger.work(r.n_gradients / len(r.particles), len(r.particles)) for r in explored.replicates
    )
    asked = work_asked(setting, explored)
    if asked is None:  # only particles explored
        return setting.allowance(setting.search.effort * particles)
    return setting.allowance(setting.search.effort * asked - particles)


def work_asked(setting: Setting, explored: Explored) -> float | None:
    """What ``n_chains``, ``n_warmup``, ``n_draws`` cost, multiplications; None without chains."""
    return None if explored.chains is None else _work_of_chains(setting, explored.chains)


def _work_of_chains(setting: Setting, chains: ChainDraws) -> float:
    """Of the exploring chains, had they made all draws that were asked for."""
    made, plan = chains.warmup.n_gradients + chains.sampling.n_gradients, setting.chains
    n_moves = plan.n_warmup + chains.draws.shape[1] * plan.thinning
    wanted = plan.n_warmup + plan.n_draws * plan.thinning
    return setting.allowance().of_moves(made, setting.block_size) * wanted / n_moves
