import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Linear(16, 16)
        self.right = nn.Linear(16, 16)

    def forward(self, x):
        y = x.transpose(1, 2)
        y_copy = 2.0
        left = self.left(y.contiguous()) * y_copy
        if left.shape[0] > 2:
            left = left * self.right(y.contiguous())
        return left


def build():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(4, 16, 8),)
