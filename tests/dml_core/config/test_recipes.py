"""The papers' training recipes can be written as parameters."""

import pytest

from dml_core.config import resolve_trial_config

PROXY_ANCHOR = """
data: {name: cars196, image_size_px: 256, resize: shorter}
augmentation: {input_size_px: 224, crop: random_resized, flip: image}
sampler: {name: shuffled, batch_size: 180}
loss: {name: proxy_anchor, alpha: 32, delta: 0.1}
model: {backbone: "torchvision:googlenet", weights: imagenet, pooling: avg+max, embedding_dim: 512}
optimizer: {name: adamw, learning_rate: 1e-4, proxy_factor: 100, weight_decay: 1e-4}
schedule: {name: step, epochs: 20, gamma: 0.5}
training: {epochs: 60, warmup_epochs: 1, freeze_batch_norm: true, gradient_clip: value,
           gradient_clip_at: 10}
"""
NORM_SOFTMAX = """
data: {name: cub200, image_size_px: 256, resize: square}
augmentation: {input_size_px: 224, crop: random, flip: image}
sampler: {name: class_balanced, batch_size: 75, class_ratio: null, samples_per_class: 25}
loss: {name: norm_softmax, temperature: 0.05}
model: {backbone: "torchvision:resnet50", weights: imagenet, pooling: avg, layer_norm: true,
        projection: none, embedding_dim: 2048}
optimizer: {name: sgd, learning_rate: 1e-3, proxy_factor: 1, momentum: 0.9, weight_decay: 1e-4}
schedule: {name: step, epochs: 15, gamma: 0.1}
training: {epochs: 31, warmup_epochs: 1, new_optimizer_after_warmup: true}
evaluation: {binary: true, kmeans_iterations: 300, kmeans_restarts: 10}
"""
LOG_RATIO = """
data: {name: folder, table: poses.csv, class_column: "", continuous_labels: [x1, y1],
       image_size_px: 288, resize: square}
augmentation: {input_size_px: 224, crop: jitter, size_jitter_px: 12, shift_px: 7, flip: batch}
sampler: {name: dense, batch_size: 150, nearest: 5, epoch: anchors}
loss: {name: log_ratio, anchors: heads}
model: {backbone: "torchvision:resnet34", weights: imagenet, pixel_scaling: caffe, pooling: avg,
        embedding_dim: 128}
optimizer: {name: sgd, learning_rate: 0.01, weight_decay: 5e-4}
schedule: {name: inverse_time, decay: 1e-4}
training: {epochs: 30}
"""
EXPANSION = """
data: {name: cars196, image_size_px: 256, resize: square}
augmentation: {input_size_px: 227, crop: random, plain_probability: 0.5, flip: image,
               evaluation_crop: whole}
sampler: {name: class_balanced, batch_size: 128, class_ratio: null, samples_per_class: 32}
loss: {name: triplet, mining: hard, margin: 1e-5, expansion: {points: 2, normalize: true}}
model: {backbone: "torchvision:googlenet", weights: imagenet, pooling: avg, embedding_dim: 512}
optimizer: {name: adamw, learning_rate: 1e-4, weight_decay: 5e-4}
schedule: {name: step, epochs: 400, gamma: 0.5}
training: {epochs: 4000, validate_every: 5}
"""


@pytest.mark.parametrize("recipe", [PROXY_ANCHOR, NORM_SOFTMAX, LOG_RATIO, EXPANSION])
def test_a_papers_recipe_is_a_valid_configuration(recipe):
    from dml_core.config.loading import flatten, to_flat_dict
    from dml_core.config.yaml_files import parse_yaml

    wanted = flatten(parse_yaml(recipe, source="recipe"))
    resolved = to_flat_dict(resolve_trial_config(wanted))
    assert {key: resolved[key] for key in wanted} == wanted
