"""From features to embeddings."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_core.models.blocks import ModelError
from dml_core.models.embedding_model import EmbeddingHead, GlobalPooling, l2_normalize


def build_head(**knobs) -> EmbeddingHead:
    defaults = {
        "num_features": 6,
        "embedding_dim": 4,
        "pooling": "avg",
        "layer_norm": False,
        "projection": "linear",
        "normalize": False,
    }
    return EmbeddingHead(**{**defaults, **knobs})


# One channel of 1, 2, 3, 6: the mean is 3, the maximum 6, their sum 9.
@pytest.mark.parametrize(("pooling", "value"), [("avg", 3.0), ("max", 6.0), ("avg+max", 9.0)])
def test_pooling_has_a_worked_value(pooling, value):
    features = torch.tensor([1.0, 2.0, 3.0, 6.0]).reshape(1, 1, 2, 2)
    assert GlobalPooling(pooling)(features).tolist() == [[value]]


@pytest.mark.parametrize("pooling", ["avg", "max", "avg+max"])
def test_pooling_leaves_a_vector_as_it_is(pooling):
    features = torch.randn(3, 5)
    assert torch.equal(GlobalPooling(pooling)(features), features)


def test_layer_norm_comes_before_the_projection_and_has_no_weights():
    head = build_head(layer_norm=True)
    features = torch.randn(5, 6)
    mean = features.mean(dim=1, keepdim=True)
    variance = features.var(dim=1, keepdim=True, unbiased=False)
    expected = head.projection((features - mean) / (variance + 1e-5).sqrt())
    torch.testing.assert_close(head(features), expected)
    assert sorted(head.state_dict()) == ["projection.bias", "projection.weight"]


def test_layer_norm_hides_the_scale_of_the_feature():
    head = build_head(layer_norm=True)
    features = torch.randn(5, 6)
    torch.testing.assert_close(head(features), head(50 * features + 3), rtol=1e-3, atol=1e-3)


def test_projection_starts_as_he_normal_by_fan_out_with_zero_bias():
    torch.manual_seed(0)
    head = build_head(num_features=800, embedding_dim=200)
    # fan out is 200, so the standard deviation is sqrt(2 / 200) = 0.1
    assert head.projection.weight.std().item() == pytest.approx(math.sqrt(2 / 200), rel=0.02)
    assert head.projection.bias.abs().max().item() == 0


def test_projection_without_bias_sends_zero_to_zero():
    head = build_head(projection="linear_no_bias")
    assert list(head.state_dict()) == ["projection.weight"]
    assert head(torch.zeros(2, 6)).abs().max().item() == 0


def test_no_projection_hands_the_pooled_feature_on():
    head = build_head(projection="none", embedding_dim=6, pooling="max")
    features = torch.randn(2, 6, 3, 3)
    assert torch.equal(head(features), features.amax(dim=(2, 3)))
    assert list(head.parameters()) == []


def test_no_projection_refuses_another_embedding_dim():
    with pytest.raises(ModelError, match=r"trunk's 6 channels. Got model.embedding_dim=4"):
        build_head(projection="none")


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(2, 40))
def test_normalized_embeddings_have_unit_length(seed, num_images, num_features):
    torch.manual_seed(seed)
    head = build_head(num_features=num_features, normalize=True, projection="linear_no_bias")
    lengths = head(torch.randn(num_images, num_features) + 0.1).norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(num_images), rtol=1e-4, atol=1e-4)


def test_normalizing_keeps_the_direction():
    # (3, 4) has length 5
    embeddings = l2_normalize(torch.tensor([[3.0, 4.0]]))
    torch.testing.assert_close(embeddings, torch.tensor([[0.6, 0.8]]))


def test_normalizing_a_zero_vector_gives_zero_and_a_finite_gradient():
    embeddings = torch.zeros(1, 3, requires_grad=True)
    normalized = l2_normalize(embeddings)
    normalized.sum().backward()
    assert normalized.abs().max().item() == 0
    assert torch.isfinite(embeddings.grad).all()


def test_head_without_normalization_gives_raw_embeddings():
    head = build_head()
    features = torch.randn(2, 6)
    assert torch.equal(head(features), head.projection(features))


@pytest.mark.parametrize("normalize", [True, False])
def test_head_gives_float32_under_autocast(normalize):
    head = build_head(normalize=normalize)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert head(torch.randn(3, 6)).dtype == torch.float32


def test_head_gives_float64_for_float64():
    assert build_head().double()(torch.randn(3, 6, dtype=torch.float64)).dtype == torch.float64


def test_gradient_of_the_normalized_head_is_right():
    torch.manual_seed(0)
    head = build_head(normalize=True, layer_norm=True, pooling="avg+max").double()
    features = torch.randn(2, 6, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(head, features)
