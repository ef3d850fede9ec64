"""Tables and figures from results; never trains."""

from deepgat.report.figures import depth_figure, save_figure

__all__ = ["depth_figure", "save_figure"]
