"""Networks of any system for tests, in one call."""

from typing import Any

from deepgat.models import SYSTEMS, Network, build_network, find_system
from deepgat.models.config import Config

PAPER_SCORES = {"deepgat": ("dp", "sd"), "gat": ("ad", "dp", "sd"), "oracle": ("sum", "softmax")}
"""The systems of the DeepGAT paper with their scores; they have the presets paper and authors."""
ORACLES = tuple(name for name, system in SYSTEMS.items() if system.sees_every_label)
"""The systems that are shown every label."""


def settings_of(system: str, preset: str | None = None, **settings: Any) -> Config:
    """The settings of a system; ``preset`` left out: its first."""
    entry = find_system(system)
    name = preset or next(iter(entry.presets), None)
    config = entry.config if name is None else entry.config.with_changes(entry.presets[name])
    return config.with_changes(settings)


def network(
    system: str,
    in_channels: int,
    out_channels: int,
    *,
    preset: str | None = None,
    multi_label: bool = False,
    edge_dim: int | None = None,
    **settings: Any,
) -> Network:
    config = settings_of(system, preset, **settings)
    return build_network(
        system, config, in_channels, out_channels, multi_label=multi_label, edge_dim=edge_dim
    )
