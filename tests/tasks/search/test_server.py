"""The local search page: what it answers, and what it refuses."""

import contextlib
import io

import pytest
from PIL import Image
from starlette.testclient import TestClient

from tasks.search import server
from tasks.search.indexes import open_index
from tasks.search.server import SearchApp, serve_index
from tasks.study import load_context
from tests.references.answered_projects import REQUEST
from tests.references.drawn_flowers import draw_flower

BASE = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def opened(searched_project):
    with contextlib.chdir(searched_project):
        return open_index(load_context(REQUEST))


@pytest.fixture
def client(opened):
    with TestClient(SearchApp(opened, title="flowers").build("key"), base_url=BASE) as found:
        yield found


def make_picture(label=3):
    content = io.BytesIO()
    draw_flower(label, 50).save(content, "PNG")
    return content.getvalue()


def test_a_picture_finds_its_nearest_images_with_scores(client, opened):
    answer = client.post("/key/search?top=5", content=make_picture())
    assert answer.status_code == 200
    found = answer.json()["neighbors"]
    assert len(found) == 5
    assert found[0]["score"].startswith("similarity 0.9")
    for each in found:
        assert opened.index.files[each["position"]] == each["name"]
    similar = client.get(f"/key/similar/{found[0]['position']}?top=2").json()["neighbors"]
    assert similar[0]["name"] == found[0]["name"]
    assert similar[0]["score"] == "similarity 1.000"


def test_a_picture_is_encoded_anew(client, opened):
    answer = client.get("/key/picture/3")
    assert answer.headers["content-type"] == "image/jpeg"
    shown = Image.open(io.BytesIO(answer.content))
    stored = opened.index.file(3)
    assert stored.suffix == ".jpg"
    assert answer.content != stored.read_bytes()
    # Stored on its side by number 3 of each class; upright here, without the mark.
    assert not shown.getexif()
    assert max(shown.size) <= 320


@pytest.mark.parametrize(
    "path",
    ["/", "/search", "/other/", "/other/picture/0", "/key/picture/128", "/key/picture/-1",
     "/key/picture/../../params.yaml", "/key/picture/%2e%2e%2fparams.yaml", "/key/params.yaml",
     "/key/picture/flower-00/0.jpg", "/key/similar/99999999999999999999"],
)  # fmt: skip
def test_nothing_but_indexed_pictures_is_served(client, path):
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example"])
def test_other_hosts_get_nothing(client, host):
    answer = client.get("/key/", headers={"host": host})
    assert answer.status_code == 400
    assert "flowers" not in answer.text
    assert client.get("/key/", headers={"host": "localhost:8000"}).status_code == 200


def test_uploads_of_other_sites_are_refused(client):
    headers = {"origin": "http://evil.example"}
    assert client.post("/key/search", content=make_picture(), headers=headers).status_code == 403
    headers = {"origin": BASE}
    assert client.post("/key/search", content=make_picture(), headers=headers).status_code == 200


def test_large_empty_and_broken_uploads_end_in_a_message(client, monkeypatch):
    monkeypatch.setattr(server, "MAX_UPLOAD_BYTES", 2**20)
    too_large = b"x" * (2**20 + 1)
    for content in (too_large, iter([too_large[:1000], too_large])):
        answer = client.post("/key/search", content=content)
        assert answer.status_code == 413
        assert answer.json()["error"] == "A picture may have 1 MiB."
    assert client.post("/key/search", content=b"").status_code == 400
    answer = client.post("/key/search", content=b"hello")
    assert answer.status_code == 422
    assert "is not an image of a known format" in answer.json()["error"]
    heic = client.post("/key/search", content=b"\0\0\0\x18ftypheic\0\0\0\0").json()["error"]
    assert heic.startswith("The picture is a HEIC image")
    answer = client.post("/key/search?top=0", content=make_picture())
    assert answer.json()["error"] == "top must be a number from 1 to 200."


def test_answers_forbid_foreign_scripts_frames_and_copies(client):
    for path in ("/key/", "/key/picture/0", "/none"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["x-content-type-options"] == "nosniff"


def test_a_picture_that_was_deleted_since_is_not_there(client, opened, tmp_path, monkeypatch):
    monkeypatch.setattr(opened.index, "root", tmp_path)
    assert client.get("/key/picture/0").status_code == 404


def test_a_port_that_is_taken_is_named(opened):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=rf"port {port} of 127\.0\.0\.1 cannot be used"):
            serve_index(opened, title="flowers", port=port, on_ready=print)
