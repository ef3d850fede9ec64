"""The page of a model: one HTML file that shows its nodes, its layers and its attention."""

from deepgat.view.contents import TrainedModel
from deepgat.view.html import check_can_show, page

__all__ = ["TrainedModel", "check_can_show", "page"]
