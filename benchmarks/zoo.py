"""The networks on which frx-graph is measured: random weights, nothing downloaded, sizes a CPU can run.

Each network is a function, `resnet50(train=False, batch=2) -> (model, args, kwargs)`, so that `frx advise
benchmarks/zoo.py:resnet50` works; `ZOO` lists them all. With `train` the model is in training mode and, where its
library computes the loss, gets the labels for it; the output then holds one scalar. Other benchmarks import this module
as `zoo`. The libraries (transformers, diffusers, monai) are imported only when one of their networks is built; our own
networks are in the `written_*` files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from written_attention import attention_block, attention_contiguous
from written_images import alternating_strides, custom_between, stride_followers, unet_plain
from written_networks import conv_flatten_linear, mixed_64_512, nhwc_written, shufflenet, wide_7x7
from zoo_entry import BATCH, CLASSES, IMAGE, Built, Group, ZooEntry, images, seeded


def _classifier(build: Callable[[], nn.Module], train: bool, batch: int) -> Built:
    """An image classifier of transformers, which takes `labels` and returns the loss with the logits."""
    with seeded():
        model = build().train(train)
        kwargs: dict[str, Any] = {"labels": torch.randint(CLASSES, (batch,))} if train else {}
        return model, (images(batch),), kwargs


def resnet18(train: bool = False, batch: int = BATCH) -> Built:
    """ResNet-18 (He et al. 2015), 11.7 M parameters."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(layer_type="basic", depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], num_labels=CLASSES)
    return _classifier(lambda: ResNetForImageClassification(config), train, batch)


def resnet50(train: bool = False, batch: int = BATCH) -> Built:
    """ResNet-50 (He et al. 2015), 25.6 M parameters."""
    from transformers import ResNetConfig, ResNetForImageClassification

    return _classifier(lambda: ResNetForImageClassification(ResNetConfig(num_labels=CLASSES)), train, batch)


def convnext_tiny(train: bool = False, batch: int = BATCH) -> Built:
    """ConvNeXt-T (Liu et al. 2022), 28.6 M parameters: NHWC layer norms and linears between depthwise convolutions."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    return _classifier(lambda: ConvNextForImageClassification(ConvNextConfig(num_labels=CLASSES)), train, batch)


def mobilenet_v2(train: bool = False, batch: int = BATCH) -> Built:
    """MobileNetV2 at width 1.0 (Sandler et al. 2018), 3.5 M parameters."""
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    return _classifier(lambda: MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=CLASSES)), train, batch)


def segformer(train: bool = False, batch: int = BATCH) -> Built:
    """SegFormer-B0 with 150 classes (Xie et al. 2021), 3.8 M parameters: switches between sequence and image layout."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    classes = 150
    with seeded():
        model = SegformerForSemanticSegmentation(SegformerConfig(num_labels=classes)).train(train)
        kwargs: dict[str, Any] = {"labels": torch.randint(classes, (batch, IMAGE, IMAGE))} if train else {}
        return model, (images(batch),), kwargs


def swin_tiny(train: bool = False, batch: int = BATCH) -> Built:
    """Swin-T (Liu et al. 2021), 28.3 M parameters: window partition, shift and reverse."""
    from transformers import SwinConfig, SwinForImageClassification

    return _classifier(lambda: SwinForImageClassification(SwinConfig(num_labels=CLASSES)), train, batch)


def vit_small(train: bool = False, batch: int = BATCH) -> Built:
    """ViT-S/16 (Dosovitskiy et al. 2020; small as in Touvron et al. 2021), 22.1 M parameters."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_labels=CLASSES)
    return _classifier(lambda: ViTForImageClassification(config), train, batch)


def bert_base(train: bool = False, batch: int = BATCH) -> Built:
    """BERT-base with its masked language model head (Devlin et al. 2018), 109.5 M parameters, sequences of 128 tokens.

    The head's weight is the embedding's: one tied parameter. The second sequence is padded to exercise the mask.
    """
    from transformers import BertConfig, BertForMaskedLM

    length = 128
    with seeded():
        config = BertConfig()
        model = BertForMaskedLM(config).train(train)
        tokens = torch.randint(1, config.vocab_size, (batch, length))
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[1:, length * 3 // 4 :] = 0
        kwargs = {"attention_mask": mask}
        return model, (tokens,), {**kwargs, "labels": tokens.clone()} if train else kwargs


def unet_2d(train: bool = False, batch: int = BATCH) -> Built:
    """The denoising U-Net of DDPM on CIFAR-10 (Ho et al. 2020) from diffusers, 35.7 M parameters, 32x32."""
    from diffusers import UNet2DModel

    with seeded():
        model = UNet2DModel(
            sample_size=32,
            block_out_channels=(128, 256, 256, 256),
            down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
            attention_head_dim=None,
        ).train(train)
        return model, (images(batch, 32), torch.tensor([10, 500] * batch)[:batch]), {}


def autoencoder_kl(train: bool = False, batch: int = BATCH) -> Built:
    """The Stable Diffusion autoencoder (Rombach et al. 2021) from diffusers at half width, 64x64."""
    from diffusers import AutoencoderKL

    with seeded():
        model = AutoencoderKL(
            block_out_channels=(64, 128, 256, 256),
            layers_per_block=2,
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            sample_size=64,
        ).train(train)
        return model, (images(batch, 64),), {}


def unet_3d(train: bool = False, batch: int = BATCH) -> Built:
    """A residual 3-D U-Net (Kerfoot et al. 2018) from monai, 4.8 M parameters, volumes of 48x48x48."""
    from monai.networks.nets import UNet

    with seeded():
        model = UNet(
            spatial_dims=3,
            in_channels=1,
            out_channels=2,
            channels=(16, 32, 64, 128, 256),
            strides=(2, 2, 2, 2),
            num_res_units=2,
        ).train(train)
        return model, (torch.randn(batch, 1, 48, 48, 48),), {}


def regnet(train: bool = False, batch: int = BATCH) -> Built:
    """RegNetY-400MF (Radosavovic et al. 2020), 4.3 M parameters: convolutions in groups of 8 channels."""
    from transformers import RegNetConfig, RegNetForImageClassification

    config = RegNetConfig(
        layer_type="y", depths=[1, 3, 6, 6], hidden_sizes=[48, 104, 208, 440], groups_width=8, num_labels=CLASSES
    )
    return _classifier(lambda: RegNetForImageClassification(config), train, batch)


ZOO: tuple[ZooEntry, ...] = (
    ZooEntry("resnet18", resnet18, Group.CONVOLUTIONAL),
    ZooEntry("resnet50", resnet50, Group.CONVOLUTIONAL),
    ZooEntry("convnext_tiny", convnext_tiny, Group.CONVOLUTIONAL),
    ZooEntry("mobilenet_v2", mobilenet_v2, Group.CONVOLUTIONAL),
    ZooEntry("segformer", segformer, Group.TRANSFORMER),
    ZooEntry("swin_tiny", swin_tiny, Group.TRANSFORMER, only_batch_varies=True),
    ZooEntry("vit_small", vit_small, Group.TRANSFORMER),
    ZooEntry("bert_base", bert_base, Group.TRANSFORMER),
    ZooEntry("unet_2d", unet_2d, Group.CONVOLUTIONAL),
    ZooEntry("autoencoder_kl", autoencoder_kl, Group.CONVOLUTIONAL),
    ZooEntry("unet_3d", unet_3d, Group.WRITTEN),
    ZooEntry("regnet", regnet, Group.WRITTEN),
    ZooEntry("shufflenet", shufflenet, Group.WRITTEN),
    ZooEntry("attention_block", attention_block, Group.WRITTEN),
    ZooEntry("attention_contiguous", attention_contiguous, Group.WRITTEN),
    ZooEntry("nhwc_written", nhwc_written, Group.WRITTEN),
    ZooEntry("wide_7x7", wide_7x7, Group.WRITTEN, train_batch=1),
    ZooEntry("mixed_64_512", mixed_64_512, Group.WRITTEN, train_batch=1),
    ZooEntry("conv_flatten_linear", conv_flatten_linear, Group.WRITTEN),
    ZooEntry("unet_plain", unet_plain, Group.WRITTEN),
    ZooEntry("alternating_strides", alternating_strides, Group.WRITTEN, alternates=True),
    ZooEntry("custom_between", custom_between, Group.WRITTEN),
    ZooEntry("stride_followers", stride_followers, Group.WRITTEN),
)

_BY_NAME: Mapping[str, ZooEntry] = {entry.name: entry for entry in ZOO}


def zoo_entry(name: str) -> ZooEntry:
    """The network called `name`; KeyError with all names where there is none."""
    if name not in _BY_NAME:
        raise KeyError(f"no network {name!r} in the zoo; there are {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
