import torch
from torch import nn
from torch.nn import functional as F


class Chain(nn.Module):
    def forward(self, x):
        return torch.relu(x.permute(0, 2, 1, 3).transpose(2, 3).transpose(0, 1))


def build():
    torch.manual_seed(0)
    return Chain().eval(), (torch.randn(2, 3, 4, 5),)
