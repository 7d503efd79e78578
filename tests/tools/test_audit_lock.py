"""The audit of the locks, against a local server with OSV's API: tests use no network."""

import json
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tools.audit_lock import AuditError, main, read_lock, search_database

ROOT = Path(__file__).parents[2]


@pytest.fixture
def lock(tmp_path):
    path = tmp_path / "requirements.lock"
    path.write_text("Jinja2==3.1.2\nnumpy==2.4.1  # a comment\nsafe-one==1.0\n")
    return path


@pytest.fixture
def service():
    """A server with the part of OSV's API that the audit uses."""
    asked = []

    class Service(BaseHTTPRequestHandler):
        def do_POST(self):
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, content["queries"]))
            known = {"jinja2": {"vulns": [{"id": "GHSA-2"}, {"id": "GHSA-1"}]}}
            results = [known.get(query["package"]["name"], {}) for query in content["queries"]]
            body = json.dumps({"results": results}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def test_known_vulnerabilities_are_listed_and_end_with_one(lock, service, capsys):
    address, asked = service
    assert main(["--lock", str(lock), "--service", address]) == 1
    printed = capsys.readouterr().out
    assert "jinja2==3.1.2: GHSA-1, GHSA-2" in printed
    assert "3 locked packages, 1 of them with known vulnerabilities" in printed
    ((path, queries),) = asked
    assert path == "/v1/querybatch"
    assert queries[1] == {"package": {"name": "numpy", "ecosystem": "PyPI"}, "version": "2.4.1"}


def test_nothing_known_ends_with_zero(lock, service):
    lock.write_text("safe-one==1.0\n")
    assert main(["--lock", str(lock), "--service", service[0]]) == 0


def test_a_service_that_is_away_is_no_good_news(lock, service, capsys):
    address = f"{service[0].rpartition(':')[0]}:1"
    assert main(["--lock", str(lock), "--service", address]) == 2
    said = capsys.readouterr()
    assert "the lock was not audited" in said.err
    assert "make audit DATABASE=all.zip" in said.err
    assert said.out == ""


def record(number, name, **affected):
    package = {"name": name, "ecosystem": "PyPI"}
    return {"id": f"GHSA-{number}", "affected": [{"package": package, **affected}]}


def span(*events):
    return {"ranges": [{"type": "ECOSYSTEM", "events": list(events)}]}


@pytest.mark.parametrize(
    ("affected", "is_found"),
    [
        ({"versions": ["3.1.1", "3.1.2"]}, True),
        ({"versions": ["3.1.1"]}, False),
        (span({"introduced": "0"}, {"fixed": "3.1.3"}), True),
        (span({"introduced": "0"}, {"fixed": "3.1.2"}), False),
        (span({"introduced": "0"}, {"fixed": "2.0"}, {"introduced": "3.1"}), True),
        (span({"introduced": "3.2"}), False),
        (span({"introduced": "0"}, {"last_affected": "3.1.2"}), True),
        (span({"introduced": "0"}, {"last_affected": "3.1.1"}), False),
    ],
)
def test_a_file_of_records_is_searched_without_network(lock, tmp_path, affected, is_found):
    database = tmp_path / "all.zip"
    withdrawn = {**record(9, "numpy", versions=["2.4.1"]), "withdrawn": "2024-01-01T00:00:00Z"}
    with zipfile.ZipFile(database, "w") as archive:
        for each in (record(1, "Jinja2", **affected), record(2, "other"), withdrawn):
            archive.writestr(f"{each['id']}.json", json.dumps(each))
    found = search_database(read_lock(lock), database=database)
    assert found == ({"jinja2==3.1.2": ["GHSA-1"]} if is_found else {})
    assert main(["--lock", str(lock), "--database", str(database)]) == int(is_found)


def test_files_that_are_none_are_named(lock, tmp_path):
    lock_without = tmp_path / "other.lock"
    lock_without.write_text("jinja2>=3\n")
    with pytest.raises(AuditError, match=r"name==version. Found \['jinja2>=3'\]"):
        read_lock(lock_without)
    assert main(["--lock", str(lock), "--database", str(lock)]) == 2


def test_the_projects_lock_can_be_read():
    assert len(read_lock(ROOT / "requirements.lock")) > 100
