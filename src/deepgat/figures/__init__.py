"""Figures for the commands demo, inspect and predict."""

from deepgat.figures.neighborhood import inspection_figure
from deepgat.figures.reliability import reliability_figure
from deepgat.figures.style import depth_figure, save_figure

__all__ = ["depth_figure", "inspection_figure", "reliability_figure", "save_figure"]
