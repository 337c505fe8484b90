"""The networks on which the advisor is measured: random weights, nothing downloaded, sizes a CPU can run.

Each network is a function, `resnet50(train=False) -> (model, args, kwargs)`, so that `frx advise
benchmarks/zoo.py:resnet50` works; `ZOO` lists them all. With `train` the model is in training mode and, where its
library computes the loss, gets the labels for it; the output then holds one scalar. Batches are of two or more, because
a dimension of size 1 hides layout. Other benchmarks import this module as `zoo`. The libraries
(transformers, diffusers, monai) are imported only when one of their networks is built.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

Built: TypeAlias = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]

BATCH = 2
IMAGE = 224
"""Side of an ImageNet crop, in pixels."""
CLASSES = 1000
SEED = 0


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """One network. `build(train)` makes a fresh model, its positional and its keyword arguments."""

    name: str
    build: Callable[[bool], Built]


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """The same weights and inputs on every build, with the caller's random state left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        yield


def _images(side: int = IMAGE, channels: int = 3) -> Tensor:
    return torch.randn(BATCH, channels, side, side)


def _classifier(build: Callable[[], nn.Module], train: bool) -> Built:
    """An image classifier of transformers, which takes `labels` and returns the loss with the logits."""
    with _seeded():
        model = build().train(train)
        kwargs: dict[str, Any] = {"labels": torch.randint(CLASSES, (BATCH,))} if train else {}
        return model, (_images(),), kwargs


def resnet18(train: bool = False) -> Built:
    """ResNet-18 (He et al. 2015), 11.7 M parameters."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(layer_type="basic", depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], num_labels=CLASSES)
    return _classifier(lambda: ResNetForImageClassification(config), train)


def resnet50(train: bool = False) -> Built:
    """ResNet-50 (He et al. 2015), 25.6 M parameters."""
    from transformers import ResNetConfig, ResNetForImageClassification

    return _classifier(lambda: ResNetForImageClassification(ResNetConfig(num_labels=CLASSES)), train)


def convnext_tiny(train: bool = False) -> Built:
    """ConvNeXt-T (Liu et al. 2022), 28.6 M parameters: NHWC layer norms and linears between depthwise convolutions."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    return _classifier(lambda: ConvNextForImageClassification(ConvNextConfig(num_labels=CLASSES)), train)


def mobilenet_v2(train: bool = False) -> Built:
    """MobileNetV2 at width 1.0 (Sandler et al. 2018), 3.5 M parameters."""
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    return _classifier(lambda: MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=CLASSES)), train)


def segformer(train: bool = False) -> Built:
    """SegFormer-B0 with 150 classes (Xie et al. 2021), 3.8 M parameters: switches between sequence and image layout."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    classes = 150
    with _seeded():
        model = SegformerForSemanticSegmentation(SegformerConfig(num_labels=classes)).train(train)
        kwargs: dict[str, Any] = {"labels": torch.randint(classes, (BATCH, IMAGE, IMAGE))} if train else {}
        return model, (_images(),), kwargs


def swin_tiny(train: bool = False) -> Built:
    """Swin-T (Liu et al. 2021), 28.3 M parameters: window partition, shift and reverse."""
    from transformers import SwinConfig, SwinForImageClassification

    return _classifier(lambda: SwinForImageClassification(SwinConfig(num_labels=CLASSES)), train)


def vit_small(train: bool = False) -> Built:
    """ViT-S/16 (Dosovitskiy et al. 2020; small as in Touvron et al. 2021), 22.1 M parameters."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_labels=CLASSES)
    return _classifier(lambda: ViTForImageClassification(config), train)


def bert_base(train: bool = False) -> Built:
    """BERT-base with its masked language model head (Devlin et al. 2018), 109.5 M parameters, sequences of 128 tokens.

    The head's weight is the embedding's: one tied parameter. The second sequence is padded to exercise the mask.
    """
    from transformers import BertConfig, BertForMaskedLM

    length = 128
    with _seeded():
        config = BertConfig()
        model = BertForMaskedLM(config).train(train)
        tokens = torch.randint(1, config.vocab_size, (BATCH, length))
        mask = torch.ones(BATCH, length, dtype=torch.long)
        mask[1:, length * 3 // 4 :] = 0
        kwargs = {"attention_mask": mask}
        return model, (tokens,), {**kwargs, "labels": tokens.clone()} if train else kwargs


def unet_2d(train: bool = False) -> Built:
    """The denoising U-Net of DDPM on CIFAR-10 (Ho et al. 2020) from diffusers, 35.7 M parameters, 32x32."""
    from diffusers import UNet2DModel

    with _seeded():
        model = UNet2DModel(
            sample_size=32,
            block_out_channels=(128, 256, 256, 256),
            down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
            attention_head_dim=None,
        ).train(train)
        return model, (_images(32), torch.tensor([10, 500])), {}


def autoencoder_kl(train: bool = False) -> Built:
    """The Stable Diffusion autoencoder (Rombach et al. 2021) from diffusers at half width, 64x64."""
    from diffusers import AutoencoderKL

    with _seeded():
        model = AutoencoderKL(
            block_out_channels=(64, 128, 256, 256),
            layers_per_block=2,
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            sample_size=64,
        ).train(train)
        return model, (_images(64),), {}


def unet_3d(train: bool = False) -> Built:
    """A residual 3-D U-Net (Kerfoot et al. 2018) from monai, 4.8 M parameters, volumes of 48x48x48."""
    from monai.networks.nets import UNet

    with _seeded():
        model = UNet(
            spatial_dims=3,
            in_channels=1,
            out_channels=2,
            channels=(16, 32, 64, 128, 256),
            strides=(2, 2, 2, 2),
            num_res_units=2,
        ).train(train)
        return model, (torch.randn(BATCH, 1, 48, 48, 48),), {}


class ShuffleUnit(nn.Module):
    """A ShuffleNet unit (Zhang et al. 2017): grouped 1x1, channel shuffle, depthwise 3x3, grouped 1x1, residual."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.squeeze = nn.Conv2d(channels, channels // 2, 1, groups=groups, bias=False)
        self.squeeze_norm = nn.BatchNorm2d(channels // 2)
        self.depthwise = nn.Conv2d(channels // 2, channels // 2, 3, padding=1, groups=channels // 2, bias=False)
        self.depthwise_norm = nn.BatchNorm2d(channels // 2)
        self.expand = nn.Conv2d(channels // 2, channels, 1, groups=groups, bias=False)
        self.expand_norm = nn.BatchNorm2d(channels)

    def shuffle(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        x = x.view(batch, self.groups, channels // self.groups, height, width)
        x = x.transpose(1, 2).contiguous()
        return x.view(batch, channels, height, width)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.squeeze_norm(self.squeeze(x)))
        y = self.shuffle(y)
        y = self.depthwise_norm(self.depthwise(y))
        y = self.expand_norm(self.expand(y))
        return functional.relu(x + y)


class ShuffleNet(nn.Module):
    """A stem and three stages of shuffle units with a classifier."""

    def __init__(self, width: int = 128, units: int = 3, groups: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False)
        self.stages = nn.ModuleList(
            nn.ModuleDict(
                {
                    "down": nn.Conv2d(width << stage, width << (stage + 1), 3, stride=2, padding=1, bias=False),
                    "units": nn.Sequential(*(ShuffleUnit(width << (stage + 1), groups) for _ in range(units))),
                }
            )
            for stage in range(3)
        )
        self.classifier = nn.Linear(width << 3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.stem(x)), 2)
        for stage in self.stages:
            assert isinstance(stage, nn.ModuleDict)
            x = stage["units"](functional.relu(stage["down"](x)))
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits


class HandWrittenAttention(nn.Module):
    """Self-attention as tutorials write it: view, transpose, contiguous, and softmax(QK^T) V with the scores stored."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        query = self.split(self.query(x))
        key = self.split(self.key(x))
        value = self.split(self.value(x))
        scores = torch.matmul(query, key.transpose(-2, -1)) / (query.shape[-1] ** 0.5)
        weights = torch.softmax(scores, dim=-1)
        mixed = torch.matmul(weights, value)
        mixed = mixed.transpose(1, 2).contiguous().view(x.shape)
        output: Tensor = self.out(mixed)
        return output


class AttentionBlock(nn.Module):
    """A pre-norm transformer block around `HandWrittenAttention`."""

    def __init__(self, width: int = 384, heads: int = 6) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = HandWrittenAttention(width, heads)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_attention(x))
        output: Tensor = x + self.mlp(self.norm_mlp(x))
        return output


def shufflenet(train: bool = False) -> Built:
    """Our own ShuffleNet: channel shuffles written with view, transpose and contiguous."""
    with _seeded():
        return ShuffleNet().train(train), (_images(112),), {}


def attention_block(train: bool = False) -> Built:
    """Our own transformer blocks with hand-written softmax attention, sequences of 256."""
    with _seeded():
        model = nn.Sequential(*(AttentionBlock() for _ in range(4))).train(train)
        return model, (torch.randn(BATCH, 256, 384),), {}


ZOO: tuple[ZooEntry, ...] = (
    ZooEntry("resnet18", resnet18),
    ZooEntry("resnet50", resnet50),
    ZooEntry("convnext_tiny", convnext_tiny),
    ZooEntry("mobilenet_v2", mobilenet_v2),
    ZooEntry("segformer", segformer),
    ZooEntry("swin_tiny", swin_tiny),
    ZooEntry("vit_small", vit_small),
    ZooEntry("bert_base", bert_base),
    ZooEntry("unet_2d", unet_2d),
    ZooEntry("autoencoder_kl", autoencoder_kl),
    ZooEntry("unet_3d", unet_3d),
    ZooEntry("shufflenet", shufflenet),
    ZooEntry("attention_block", attention_block),
)

_BY_NAME: Mapping[str, ZooEntry] = {entry.name: entry for entry in ZOO}


def zoo_entry(name: str) -> ZooEntry:
    """The network called `name`; KeyError with all names where there is none."""
    if name not in _BY_NAME:
        raise KeyError(f"no network {name!r} in the zoo; there are {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
