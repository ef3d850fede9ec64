"""Tables and figures from results; never trains."""

from deepgat.report.figures import depth_figure, save_figure
from deepgat.report.inspection import inspection_figure
from deepgat.report.reliability import reliability_figure

__all__ = ["depth_figure", "inspection_figure", "reliability_figure", "save_figure"]
