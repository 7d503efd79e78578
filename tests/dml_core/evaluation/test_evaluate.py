"""Every configured number comes out under its name, from one call."""

import numpy as np
import pytest
import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

from dml_core.config.trial import EvaluationConfig
from dml_core.evaluation.clustering import cluster_embeddings
from dml_core.evaluation.evaluate import evaluate_embeddings
from tests.references.continuous import mean_label_distance, ndcg
from tests.references.retrieval import rank_gallery, score_rankings

CLASS_NAMES = ["recall_at_1", "recall_at_5", "r_precision", "map_at_r"]
CONFIG = EvaluationConfig(recall_at=(1, 5), kmeans_iterations=5, label_at=(2,), ndcg_at=(3,))


@pytest.fixture
def noisy_classes():
    """Twelve classes of five around their own centres, and one image of a class of its own."""
    random = np.random.default_rng(0)
    labels = np.append(np.repeat(np.arange(12), 5), 99) + 2**24
    centers = random.standard_normal((13, 6))
    embeddings = centers[np.append(np.repeat(np.arange(12), 5), 12)]
    return (embeddings + 0.6 * random.standard_normal((61, 6))).astype(np.float32), labels


def change(config, **values):
    return config.model_copy(update=values)


def test_all_numbers_come_in_the_order_of_the_report(noisy_classes):
    embeddings, labels = noisy_classes
    numbers = evaluate_embeddings(
        embeddings,
        labels,
        config=change(CONFIG, binary=True),
        metric="cosine",
        continuous=embeddings[:, :2],
    )
    binary_names = [f"binary_{name}" for name in CLASS_NAMES]
    assert list(numbers) == [
        *CLASS_NAMES,
        *("nmi", "pair_f1"),
        *binary_names,
        *("mean_label_distance_at_2", "ndcg_at_3"),
        *("num_queries", "num_queries_left_out"),
    ]
    assert all(type(value) is float for value in numbers.values())
    assert numbers["num_queries"] == 60
    assert numbers["num_queries_left_out"] == 1


def test_what_is_not_configured_is_absent(noisy_classes):
    embeddings, labels = noisy_classes
    config = change(CONFIG, clustering=False)
    numbers = evaluate_embeddings(embeddings, labels, config=config, metric="cosine")
    assert list(numbers) == [*CLASS_NAMES, "num_queries", "num_queries_left_out"]


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_numbers_agree_with_plain_loops(noisy_classes, metric):
    embeddings, labels = noisy_classes
    continuous = embeddings[:, :2].astype(np.float64)
    numbers = evaluate_embeddings(
        embeddings, labels, config=CONFIG, metric=metric, continuous=continuous
    )
    rankings = rank_gallery(embeddings, None, metric=metric)
    expected = score_rankings(rankings, labels, labels, recall_at=(1, 5))
    assert numbers["recall_at_1"] == pytest.approx(expected["recall_at"][1])
    assert numbers["recall_at_5"] == pytest.approx(expected["recall_at"][5])
    assert numbers["r_precision"] == pytest.approx(expected["r_precision"])
    assert numbers["map_at_r"] == pytest.approx(expected["map_at_r"])
    distance = mean_label_distance(rankings, continuous, continuous, 2)
    assert numbers["mean_label_distance_at_2"] == pytest.approx(distance)
    assert numbers["ndcg_at_3"] == pytest.approx(ndcg(rankings, continuous, continuous, 3))


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_prefixes_are_scored_as_embeddings_of_that_length(noisy_classes, metric):
    embeddings, labels = noisy_classes
    continuous = embeddings[:, :2]
    config = change(CONFIG, clustering=False)
    given = {"metric": metric, "continuous": continuous}
    whole = evaluate_embeddings(embeddings, labels, config=config, **given)
    cut = evaluate_embeddings(
        embeddings, labels, config=change(config, truncate_at=(2, 6)), **given
    )
    short = evaluate_embeddings(embeddings[:, :2], labels, config=config, **given)
    counts = ("num_queries", "num_queries_left_out")
    expected = {f"dim2_{name}": value for name, value in short.items() if name not in counts}
    expected |= {f"dim6_{name}": value for name, value in whole.items() if name not in counts}
    assert cut == whole | expected
    assert cut["dim2_recall_at_1"] != cut["dim6_recall_at_1"]


def test_a_prefix_longer_than_the_embedding_is_refused(noisy_classes):
    with pytest.raises(ValueError, match=r"truncate_at must hold lengths up to 6.*Got 8"):
        evaluate_embeddings(*noisy_classes, truncate_at=[4, 8])


def test_queries_are_searched_in_the_gallery_only(noisy_classes):
    embeddings, labels = noisy_classes
    continuous = embeddings[:, :2].astype(np.float64)
    roles = np.where(np.arange(61) % 3 == 0, "query", "gallery")
    is_query = roles == "query"
    numbers = evaluate_embeddings(
        embeddings,
        labels,
        config=CONFIG,
        metric="euclidean",
        roles=roles,
        continuous=continuous,
    )
    rankings = rank_gallery(embeddings[is_query], embeddings[~is_query], metric="euclidean")
    expected = score_rankings(rankings, labels[is_query], labels[~is_query], recall_at=(1, 5))
    assert numbers["map_at_r"] == pytest.approx(expected["map_at_r"])
    assert numbers["num_queries"] == expected["num_queries"] == 20
    gain = ndcg(rankings, continuous[is_query], continuous[~is_query], 3)
    assert numbers["ndcg_at_3"] == pytest.approx(gain)
    # Clustering has no queries: it is over all images, with or without roles.
    alone = evaluate_embeddings(embeddings, labels, config=CONFIG, metric="euclidean")
    assert numbers["nmi"] == alone["nmi"]


def test_bits_are_scored_as_signs(noisy_classes):
    embeddings, labels = noisy_classes
    config = change(CONFIG, binary=True, clustering=False)
    numbers = evaluate_embeddings(embeddings, labels, config=config, metric="cosine")
    signs = np.where(embeddings > 0, 1, -1).astype(np.float32)
    again = evaluate_embeddings(signs, labels, config=config, metric="cosine")
    assert numbers["binary_map_at_r"] == again["binary_map_at_r"]
    assert numbers["binary_map_at_r"] < numbers["map_at_r"]


def test_nmi_and_retrieval_equal_those_of_pytorch_metric_learning(noisy_classes):
    embeddings, labels = noisy_classes
    numbers = evaluate_embeddings(embeddings, labels, config=CONFIG, metric="euclidean", seed=4)
    clusters = cluster_embeddings(
        embeddings, num_clusters=13, metric="euclidean", iterations=5, restarts=1, seed=4
    )
    names = ("NMI", "precision_at_1", "r_precision", "mean_average_precision_at_r")
    # Its k-means starts elsewhere, so it is handed the same clusters.
    peer = AccuracyCalculator(
        include=names, k="max_bin_count", kmeans_func=lambda *_: clusters
    ).get_accuracy(embeddings, labels - 2**24)
    assert numbers["nmi"] == pytest.approx(peer["NMI"], abs=1e-6)
    assert numbers["recall_at_1"] == pytest.approx(peer["precision_at_1"], abs=1e-6)
    assert numbers["r_precision"] == pytest.approx(peer["r_precision"], abs=1e-6)
    assert numbers["map_at_r"] == pytest.approx(peer["mean_average_precision_at_r"], abs=1e-6)


def test_order_of_images_and_names_of_classes_do_not_matter(noisy_classes):
    embeddings, labels = noisy_classes
    config = change(CONFIG, clustering=False)
    numbers = evaluate_embeddings(embeddings, labels, config=config, metric="cosine")
    order = np.random.default_rng(5).permutation(61)
    moved = evaluate_embeddings(
        embeddings[order], -7 * labels[order], config=config, metric="cosine"
    )
    assert moved == pytest.approx(numbers)


@pytest.mark.parametrize("is_binary", [False, True])
def test_alike_embeddings_find_their_class_by_its_share_not_by_its_place(is_binary):
    # Classes of 20 in a row, so the file's order would give nearly 1 or, reversed, nearly 0.
    labels = np.repeat(np.arange(10), 20)
    embeddings = np.tile(np.array([[1, 2, 3]], dtype=np.float32), (200, 1))
    config = change(CONFIG, binary=True, clustering=False)
    name = "binary_recall_at_1" if is_binary else "recall_at_1"
    for order in (np.arange(200), np.arange(200)[::-1]):
        numbers = evaluate_embeddings(embeddings, labels[order], config=config, metric="cosine")
        assert 0.05 < numbers[name] < 0.15


def test_repeated_calls_agree_and_leave_the_inputs_alone(noisy_classes):
    embeddings, labels = noisy_classes
    arrays = {
        "embeddings": embeddings,
        "labels": labels,
        "roles": np.where(np.arange(61) % 2 == 0, "query", "gallery"),
        "continuous": embeddings[:, :2].astype(np.float64),
    }
    before = {name: array.copy() for name, array in arrays.items()}
    for array in arrays.values():
        array.flags.writeable = False
    config = change(CONFIG, binary=True)
    first = evaluate_embeddings(**arrays, config=config, metric="euclidean", seed=3)
    second = evaluate_embeddings(**arrays, config=config, metric="euclidean", seed=3)
    assert first == second
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, before[name])


def test_the_block_size_never_changes_a_number(noisy_classes):
    embeddings, labels = noisy_classes
    results = [
        evaluate_embeddings(
            embeddings,
            labels,
            config=change(CONFIG, block_size=block_size, binary=True),
            metric="cosine",
            continuous=embeddings[:, :2],
        )
        for block_size in (1, 10, 1000)
    ]
    assert results[0] == results[1] == results[2]


def test_continuous_labels_alone_need_no_classes(noisy_classes):
    embeddings, _ = noisy_classes
    numbers = evaluate_embeddings(
        embeddings, np.arange(61), config=CONFIG, metric="euclidean", continuous=embeddings
    )
    assert list(numbers)[:2] == ["mean_label_distance_at_2", "ndcg_at_3"]
    assert numbers["ndcg_at_3"] == pytest.approx(1, abs=1e-6)
    assert (numbers["num_queries"], numbers["num_queries_left_out"]) == (0, 61)


def test_nothing_to_find_is_an_error_with_the_number_of_queries(noisy_classes):
    embeddings, _ = noisy_classes
    with pytest.raises(ValueError, match="Got 61 queries that do not"):
        evaluate_embeddings(embeddings, np.arange(61), config=CONFIG, metric="cosine")


def test_embeddings_that_are_not_finite_are_an_error_with_their_number(noisy_classes):
    embeddings, labels = noisy_classes
    broken = embeddings.copy()
    broken[[3, 50], 0] = np.nan
    with pytest.raises(ValueError, match="Got 2 of 61 rows"):
        evaluate_embeddings(broken, labels, config=CONFIG, metric="cosine")


def test_continuous_labels_of_another_length_are_an_error(noisy_classes):
    embeddings, labels = noisy_classes
    with pytest.raises(ValueError, match=r"shape \(61, columns\).*Got shape \(60, 2\)"):
        evaluate_embeddings(
            embeddings, labels, config=CONFIG, metric="cosine", continuous=embeddings[:60, :2]
        )


def test_one_class_alone_scores_one():
    embeddings = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    numbers = evaluate_embeddings(
        embeddings, np.zeros(6, dtype=np.int64), config=CONFIG, metric="cosine"
    )
    assert {numbers[name] for name in [*CLASS_NAMES, "nmi", "pair_f1"]} == {1.0}


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_float_types_give_nearly_the_same_numbers(noisy_classes, dtype):
    embeddings, labels = noisy_classes
    config = change(CONFIG, clustering=False)
    rounded = embeddings.astype(np.float16)
    numbers = evaluate_embeddings(
        rounded.astype(np.float32), labels, config=config, metric="cosine"
    )
    same = evaluate_embeddings(rounded.astype(dtype), labels, config=config, metric="cosine")
    assert same == numbers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_give_the_numbers_of_arrays(noisy_classes, dtype):
    embeddings, labels = torch.tensor(noisy_classes[0]).to(dtype), torch.tensor(noisy_classes[1])
    options = {"recall_at": (1, 5), "kmeans_iterations": 5, "label_at": (2,), "ndcg_at": (3,)}
    numbers = evaluate_embeddings(embeddings.requires_grad_(), labels, **options)
    plain = embeddings.detach().float().numpy()
    assert numbers == evaluate_embeddings(plain, labels.numpy(), config=CONFIG, metric="cosine")


def test_a_gallery_is_searched_in_place_of_the_queries(noisy_classes):
    embeddings, labels = noisy_classes
    roles = np.where(np.arange(61) % 3 == 0, "query", "gallery")
    is_query = roles == "query"
    expected = evaluate_embeddings(embeddings, labels, roles=roles, clustering=False)
    apart = evaluate_embeddings(
        embeddings[is_query],
        labels[is_query],
        gallery=(torch.tensor(embeddings[~is_query]), labels[~is_query].tolist()),
        clustering=False,
    )
    assert apart == expected
    assert apart["num_queries"] + apart["num_queries_left_out"] == is_query.sum()


def test_options_go_over_the_config(noisy_classes):
    numbers = evaluate_embeddings(*noisy_classes, config=CONFIG, recall_at=[3], clustering=False)
    assert list(numbers)[:2] == ["recall_at_3", "r_precision"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recal_at": [1]}, r"recal_at is not .*Did you mean 'recall_at'\?"),
        ({"galery": None}, r"galery is not .*Did you mean 'gallery'\?"),
        ({"recall_at": [0]}, r"recall_at\.0 must be >= 1\. Got 0"),
        ({"gallery": (np.zeros((2, 3)), [0, 1])}, r"Got shapes \(61, 6\) and \(2, 3\)"),
        ({"gallery": (np.zeros((2, 6)), [0, 1]), "roles": ["a", "b"]}, r"without roles"),
    ],
)
def test_a_wrong_option_is_refused(noisy_classes, options, message):
    with pytest.raises(ValueError, match=message):
        evaluate_embeddings(*noisy_classes, **options)
