import torch
from torch import nn
from torch.nn import functional as F


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(16, 1))

    def forward(self, x):
        y = x[0].clone()
        return (y * 2).sum((0, 1))


def build():
    torch.manual_seed(0)
    return Gate().eval(), (torch.randn(4, 8, 16),)
