"""Exact partition-parallel training: several processes train one model, each on a part."""

from deepgat.distributed.halo import HaloPart, WholeGraphs
from deepgat.distributed.part_dataset import PartDataset, cut, part_of, whole_labels
from deepgat.distributed.partition import METHODS, has_metis, owners
from deepgat.distributed.team import LostTeamError, Team, dealt, stop_asked

__all__ = [
    "METHODS",
    "HaloPart",
    "LostTeamError",
    "PartDataset",
    "Team",
    "WholeGraphs",
    "cut",
    "dealt",
    "has_metis",
    "owners",
    "part_of",
    "stop_asked",
    "whole_labels",
]
