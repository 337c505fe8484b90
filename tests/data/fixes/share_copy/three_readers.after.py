import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Linear(16, 16)
        self.right = nn.Linear(16, 16)

    def forward(self, x):
        y = x.transpose(1, 2)
        y_copy = y.contiguous()
        left = self.left(
            y_copy
        )
        right = self.right(y_copy) + y_copy.sum()
        return left * right


def build():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(4, 16, 8),)
