"""The page of a model: one HTML file that shows its nodes, its layers and its attention."""

from deepgat.view.contents import TrainedModel, check_can_show
from deepgat.view.html import page

__all__ = ["TrainedModel", "check_can_show", "page"]
