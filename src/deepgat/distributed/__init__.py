"""Exact partition-parallel training: several processes train one model, each on a part."""

from deepgat.distributed.dataset import PartDataset, cut_dataset, part_of, whole_labels
from deepgat.distributed.halo import LivePart
from deepgat.distributed.partition import METHODS, has_metis, owners
from deepgat.distributed.parts import GraphPart, cut
from deepgat.distributed.team import LostTeamError, Team
from deepgat.distributed.whole import WholeGraphs, dealt

__all__ = [
    "METHODS",
    "GraphPart",
    "LivePart",
    "LostTeamError",
    "PartDataset",
    "Team",
    "WholeGraphs",
    "cut",
    "cut_dataset",
    "dealt",
    "has_metis",
    "owners",
    "part_of",
    "whole_labels",
]
