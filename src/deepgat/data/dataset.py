"""What every model is trained on: labelled graphs whose masks say what each node is for."""

from dataclasses import dataclass

from torch_geometric.data import Data

from deepgat.errors import UserError


@dataclass(frozen=True)
class NodeDataset:
    """One or many labelled graphs: masks say what each node is for.

    Every graph is a :class:`torch_geometric.data.Data` of n nodes with

    - ``x`` [n, num_features]: float32, dense, or ``torch.sparse_csr`` for bags of words;
    - ``edge_index`` [2, e] int64, row 0 the source and row 1 the target of an edge;
    - ``y``: [n] int64 class ids with −1 for "unlabelled", or [n, num_classes] float 0/1 when
      ``multi_label``;
    - ``train_mask``, ``val_mask``, ``test_mask``: [n] bool, disjoint; unlabelled nodes
      are in none of them.
    """

    name: str
    """The catalogue's key, as ``load_graph`` takes it: "cora"."""
    title: str
    """As shown to people: "Cora"."""
    graphs: tuple[Data, ...]
    num_features: int
    num_classes: int
    multi_label: bool
    split: str
    """The canonical text of the split in the masks, as ``parse_split`` reads it."""

    @property
    def graph(self) -> Data:
        """The only graph; a :class:`UserError` when there are several."""
        if len(self.graphs) != 1:
            raise UserError(
                f"{self.title} has {len(self.graphs)} graphs: use its .graphs, one after another"
            )
        return self.graphs[0]
