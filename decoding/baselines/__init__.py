"""What MuCoLa is compared with: the same requests in, the same generations out.

The logits processors (``DExpertsProcessor``, ``GeDiProcessor``, ``FudgeProcessor``) also work by
themselves, in ``generate()`` of any causal language model of transformers.
"""

from decoding.baselines.best_of_n import BestOfN
from decoding.baselines.dexperts import DExperts, DExpertsProcessor
from decoding.baselines.fudge import FUDGE, FudgeProcessor
from decoding.baselines.gedi import GeDi, GeDiProcessor
from decoding.baselines.nucleus import DAPT, Nucleus

__all__ = [
    "DAPT",
    "FUDGE",
    "BestOfN",
    "DExperts",
    "DExpertsProcessor",
    "FudgeProcessor",
    "GeDi",
    "GeDiProcessor",
    "Nucleus",
]
