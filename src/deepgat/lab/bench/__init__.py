"""Speed and memory against PyTorch Geometric and a plain PyTorch implementation."""
