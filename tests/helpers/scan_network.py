"""A feature network small enough for every test that needs one."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Scan(nn.Module):
    """Six features and four logits of an image with three channels and even sides."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(3, 6, 2, stride=2)
        self.out = nn.Linear(6, 4)
        self.num_features = 6

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.convolution(x.float() / 255).flatten(2).mean(2)
        return features, self.out(20 * features)
