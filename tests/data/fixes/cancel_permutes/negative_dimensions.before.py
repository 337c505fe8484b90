import torch
from torch import nn
from torch.nn import functional as F


class Chain(nn.Module):
    def forward(self, x):
        return torch.relu(x.permute(0, 1, -1, -2).transpose(2, 3))


def build():
    torch.manual_seed(0)
    return Chain().eval(), (torch.randn(2, 3, 4, 5),)
