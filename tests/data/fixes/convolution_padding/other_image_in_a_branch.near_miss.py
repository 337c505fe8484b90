# no simple statement follows it
import torch
from torch import nn
from torch.nn import functional as F


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        x = F.pad(x, (1, 1, 1, 1))
        if x.shape[0] > 100:
            x = x * 2
        x = self.conv(x)
        return x


def build():
    torch.manual_seed(0)
    return Padded().eval(), (torch.randn(2, 3, 8, 8),)
