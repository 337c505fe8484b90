import torch
from torch import nn
from torch.nn import functional as F


class Images(nn.Module):
    def forward(self, x):
        y = x.to(memory_format=torch.channels_last)
        return (y + 1).sum()


def build():
    torch.manual_seed(0)
    return Images().eval(), (torch.randn(2, 4, 6, 6),)
