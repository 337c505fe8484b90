# the memory format is not a constant of torch
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Linear(16, 16)
        self.right = nn.Linear(16, 16)

    def forward(self, x):
        y, kept = x.transpose(1, 2), torch.contiguous_format
        left = self.left(y.contiguous(memory_format=kept))
        return left * self.right(y.contiguous(memory_format=kept))


def build():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(4, 16, 8),)
