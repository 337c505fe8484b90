# line 15 writes in place, perhaps into the same memory
import torch
from torch import nn
from torch.nn import functional as F


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(16, 1))

    def forward(self, x):
        y = x.clone()
        if y.shape[0] > 100:
            x.add_(1)
        return (y * 2).sum((0, 1, 2))


def build():
    torch.manual_seed(0)
    return Gate().eval(), (torch.randn(4, 8, 16),)
