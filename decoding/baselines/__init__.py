"""What MuCoLa is compared with: the same requests in, the same generations out.

The logits processors (``DExpertsProcessor``, ``GeDiProcessor``, ``FudgeProcessor``) also work by
themselves, in ``generate()`` of any causal language model of transformers.
"""

from decoding.baselines.beam_search import BeamSearch
from decoding.baselines.best_of_n import BestOfN
from decoding.baselines.dexperts import DExperts, DExpertsProcessor
from decoding.baselines.fudge import FUDGE, FudgeProcessor
from decoding.baselines.gedi import GeDi, GeDiProcessor
from decoding.baselines.k2t import K2T, K2TProcessor
from decoding.baselines.nucleus import DAPT, Nucleus
from decoding.baselines.simplex_langevin import SimplexLangevin

__all__ = [
    "DAPT",
    "FUDGE",
    "K2T",
    "BeamSearch",
    "BestOfN",
    "DExperts",
    "DExpertsProcessor",
    "FudgeProcessor",
    "GeDi",
    "GeDiProcessor",
    "K2TProcessor",
    "Nucleus",
    "SimplexLangevin",
]
