"""What weighing modes may cost, in proportion to what was asked for."""

from skbayes_sym.estimators.mcmc.draws import Explored
from skbayes_sym.estimators.mcmc.setting import REPLICATE_MOVES, Setting
from skbayes_sym.estimators.mcmc.trust import why_not_weigh
from skbayes_sym.inference.modes.bridge import can_bridge
from skbayes_sym.inference.samplers import SMC
from skbayes_sym.inference.sampling.allowance import Allowance
from skbayes_sym.inference.sampling.chains import ChainDraws

_STAGES, _GRADIENTS_A_STAGE_MOVE = 30, 10  # of a replicate, about
_CALLS_A_STAGE = 100  # what aligning and resampling particles takes, in calls of a gradient
_REPLICATES_SHARE = 0.5  # of what the evidence may cost


def affordable(setting: Setting, chains: ChainDraws, particles: SMC) -> SMC | None:
    """The replicates that are worth it: they propose modes, and what they cost is limited."""
    group, search = setting.model.group, setting.search
    if not setting.weighs or not can_bridge(group) or why_not_weigh(group, chains):
        return None
    if search.all_replicates:
        return particles
    allowance = setting.allowance(_for_the_evidence(setting, chains))
    n_gradients = REPLICATE_MOVES * _GRADIENTS_A_STAGE_MOVE * _STAGES
    each = _work_of_replicate(allowance, n_gradients, _STAGES, particles.n_particles)
    n = min(particles.n_replicates, int(allowance.part(_REPLICATES_SHARE) / each))
    return SMC(particles.n_particles, n) if n else None


def allowance_for_evidence(setting: Setting, explored: Explored) -> Allowance:
    """What finding the evidence may still cost: its part less what replicates have."""
    ledger = setting.allowance(0.0)
    particles = 0.0
    for run in explored.replicates:
        n = len(run.particles)
        particles += _work_of_replicate(ledger, run.n_gradients / n, len(run.stages), n)
    if explored.chains is None:  # only particles explored
        return setting.allowance(setting.search.effort * particles)
    return setting.allowance(_for_the_evidence(setting, explored.chains) - particles)


def allowance_for_new_chains(
    setting: Setting, explored: Explored, evidence: Allowance
) -> Allowance | None:
    """What is left for chains in the modes once the evidence is known; None without a limit.

    What the ``evidence`` has left of its part is theirs as well.
    """
    if explored.chains is None:
        return None
    left = _left_by(setting, explored.chains) - _for_the_evidence(setting, explored.chains)
    return setting.allowance(left + evidence.left)


def _for_the_evidence(setting: Setting, chains: ChainDraws) -> float:
    """At most ``effort`` times what was asked for; half of what exploring chains leave of all that
    a fit may cost, or all but new chains' draws if that is more."""
    asked, left = _work_asked(setting, chains), _left_by(setting, chains)
    return min(setting.search.effort * asked, max(0.5 * left, left - asked))


def _left_by(setting: Setting, chains: ChainDraws) -> float:
    """Of what was asked for, and ``effort`` times as much, by the exploring chains."""
    return (1.0 + setting.search.effort) * _work_asked(setting, chains) - _made(setting, chains)


def _work_asked(setting: Setting, chains: ChainDraws) -> float:
    """What ``n_chains``, ``n_warmup``, ``n_draws`` cost, in multiplications: of the exploring
    chains, had they made all draws that were asked for."""
    plan = setting.chains
    n_moves = plan.n_warmup + chains.draws.shape[1] * plan.thinning
    wanted = plan.n_warmup + plan.n_draws * plan.thinning
    return _made(setting, chains) * wanted / n_moves


def _made(setting: Setting, chains: ChainDraws) -> float:
    """What the exploring chains have cost."""
    n_gradients = chains.warmup.n_gradients + chains.sampling.n_gradients
    n_moves = chains.warmup.n_moves + chains.sampling.n_moves
    return setting.allowance().of_moves(n_gradients, n_moves, setting.block_size)


def _work_of_replicate(
    ledger: Allowance, n_gradients: float, n_stages: int, n_particles: int
) -> float:
    """Of so many gradients of every particle, and what happens between the moves."""
    return ledger.work(n_gradients, n_particles) + ledger.work(_CALLS_A_STAGE * n_stages, 0.0)
