"""Which posterior the hidden layers and the last one get, by name."""

from dataclasses import dataclass

from skbayes_sym.inference.layerwise.base import HiddenPosterior, LastLayer, Layerwise
from skbayes_sym.inference.layerwise.collapsed import CollapsedLast, MeanFieldHidden
from skbayes_sym.inference.layerwise.global_inducing import InducingHidden, InducingLast
from skbayes_sym.inference.layerwise.scales import PriorOfLayers

LAST_LAYERS = {"collapsed", "variational"}
HIDDEN_POSTERIORS = {"mean_field", "global_inducing"}
_N_INDUCING = 100  # n_inducing="auto"


@dataclass(frozen=True)
class Parts:
    """Posteriors of the layers, in the words of the constructor.

    Raises
    ------
    ValueError
        If they don't go together: the message says what does.
    """

    last_layer: str
    hidden_posterior: str
    n_inducing: int | str

    def __post_init__(self) -> None:
        if self.hidden_posterior == "global_inducing":
            return
        if self.last_layer == "variational":
            raise ValueError(
                "last_layer='variational' is made of sites at inducing points: use it with "
                "hidden_posterior='global_inducing'. Independent weights in all layers are "
                "SymmetrizedVIRegressor's."
            )
        if not isinstance(self.n_inducing, str):
            raise ValueError(
                f"n_inducing={self.n_inducing} is for hidden_posterior='global_inducing': with "
                f"hidden_posterior={self.hidden_posterior!r} there are no inducing points."
            )

    @property
    def needs_all_rows(self) -> bool:
        """Whether every step needs every row: a last layer integrated out is theirs together."""
        return self.last_layer == "collapsed"

    def posterior(self, prior: PriorOfLayers, n_rows: int) -> Layerwise:
        """The posterior of a network's layers, with at most one inducing point per row.

        Under the scales at which a prior that learns them starts.
        """
        network = prior.network
        asked = _N_INDUCING if isinstance(self.n_inducing, str) else int(self.n_inducing)
        m = min(asked, n_rows)
        *hidden_scales, last_scale = prior.of_layers(prior.start)
        hidden: HiddenPosterior = MeanFieldHidden(network, tuple(hidden_scales))
        if self.hidden_posterior == "global_inducing":
            hidden = InducingHidden(network, tuple(hidden_scales), m)
        last: LastLayer = CollapsedLast(last_scale)
        if self.last_layer == "variational":
            last = InducingLast(last_scale, m, network.n_outputs)
        return Layerwise(network, hidden, last)
