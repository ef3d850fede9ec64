"""The systems: a file each, and a registry of their names."""

from deepgat.models.appnp import APPNP, APPNPConfig
from deepgat.models.dagnn import DAGNN, DAGNNConfig
from deepgat.models.deep import Deep, DeepConfig
from deepgat.models.deep_oracle import DeepOracle, DeepOracleConfig
from deepgat.models.deepgat import DeepGAT, DeepGATConfig
from deepgat.models.ensemble import Ensemble, EnsembleConfig
from deepgat.models.g2 import G2, G2Config
from deepgat.models.gat import GAT, GATConfig
from deepgat.models.gcn import GCN, GCNConfig
from deepgat.models.gcnii import GCNII, GCNIIConfig
from deepgat.models.gin import GIN
from deepgat.models.grand import GRAND, GRANDConfig
from deepgat.models.graph_classifier import ConvStack, GraphClassifier
from deepgat.models.jk import JK, JKConfig
from deepgat.models.label_propagation import LabelPropagation, LabelPropagationConfig
from deepgat.models.mlp import MLP, MLPConfig
from deepgat.models.network import Network
from deepgat.models.oracle import Oracle, OracleConfig
from deepgat.models.outputs import LayerOutputs
from deepgat.models.prenorm import PreNorm, PreNormConfig
from deepgat.models.registry import SYSTEMS, System, build_network, find_system
from deepgat.models.sage import SAGE, SAGEConfig

__all__ = [
    "APPNP",
    "DAGNN",
    "G2",
    "GAT",
    "GCN",
    "GCNII",
    "GIN",
    "GRAND",
    "JK",
    "MLP",
    "SAGE",
    "SYSTEMS",
    "APPNPConfig",
    "ConvStack",
    "DAGNNConfig",
    "Deep",
    "DeepConfig",
    "DeepGAT",
    "DeepGATConfig",
    "DeepOracle",
    "DeepOracleConfig",
    "Ensemble",
    "EnsembleConfig",
    "G2Config",
    "GATConfig",
    "GCNConfig",
    "GCNIIConfig",
    "GRANDConfig",
    "GraphClassifier",
    "JKConfig",
    "LabelPropagation",
    "LabelPropagationConfig",
    "LayerOutputs",
    "MLPConfig",
    "Network",
    "Oracle",
    "OracleConfig",
    "PreNorm",
    "PreNormConfig",
    "SAGEConfig",
    "System",
    "build_network",
    "find_system",
]
