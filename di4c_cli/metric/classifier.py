"""A small classifier whose last hidden layer is the feature space of the embedded image metrics."""

from __future__ import annotations

from torch import Tensor, nn

CLASSIFIER_FEATURES = 32


class Classifier(nn.Module):
    """Grey images `(n, H, W)` in [0, 1] to ten classes; two strided convolutions and one hidden layer."""

    def __init__(self, size: int, classes: int = 10) -> None:
        super().__init__()
        self.size = size
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1),
            nn.GELU(),
        )
        side = (size + 3) // 4  # each of the two strides halves, rounding up
        self.hidden = nn.Linear(32 * side * side, CLASSIFIER_FEATURES)
        self.out = nn.Linear(CLASSIFIER_FEATURES, classes)

    def features(self, images: Tensor) -> Tensor:
        """`(n, H, W)` -> `(n, CLASSIFIER_FEATURES)`."""
        return self.hidden(self.convolutions(images[:, None]).flatten(1))

    def forward(self, images: Tensor) -> Tensor:
        """`(n, H, W)` -> `(n, classes)` logits."""
        return self.classify(self.features(images))

    def classify(self, features: Tensor) -> Tensor:
        """Features `(n, CLASSIFIER_FEATURES)` -> `(n, classes)` logits."""
        return self.out(nn.functional.gelu(features))
