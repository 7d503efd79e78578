"""Hostile names, questions and messages on the pages of MLflow and Prefect, in a real browser."""

import base64
import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.references.browsers import open_browser
from tests.references.hostile_projects import (
    FOLDER_NAME,
    make_hostile_project,
    make_hostile_texts,
    make_question,
)
from tests.references.running_servers import (
    DML,
    call_api,
    make_environment,
    read_status,
    run_dml,
    sign_in,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]
LONG = 900
MISSING = f"data/raw/missing {FOLDER_NAME}"


class Sentinel(ThreadingHTTPServer):
    """A server that only an attack sends a request to."""

    def __init__(self):
        self.heard = []
        super().__init__(("127.0.0.1", 0), SentinelHandler)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"


class SentinelHandler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.heard.append(self.path)
        self.send_error(404)

    def log_message(self, *ignored):
        """Nothing is printed."""


@pytest.fixture(scope="module")
def sentinel():
    with Sentinel() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def project(tmp_path_factory, sentinel):
    """A hostile project: its servers, one run with an answer and one that failed."""
    folder = make_hostile_project(tmp_path_factory.mktemp("hostile"), sentinel.address)
    ports = ("--prefect-port", "0", "--mlflow-port", "0")
    started = run_dml(folder, "up", *ports, "--timeout", "280")
    assert started.returncode == 0, started.stderr
    try:
        run_study(folder, code=0)
        run_study(folder, "--set", f"data.raw={MISSING}", code=2)
        yield folder
    finally:
        run_dml(folder, "down", "--force")


def run_study(folder, *options, code):
    done = subprocess.run(
        [str(DML), "run", "hostile", *options],
        cwd=folder,
        env=make_environment(folder),
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.returncode == code, done.stderr[-3000:]


@pytest.fixture(scope="module")
def servers(project):
    """Address of each server without a password, by name."""
    status = read_status(project)
    return {name: status[name]["address"] for name in ("prefect", "mlflow")}


@pytest.fixture(scope="module")
def context(project, servers):
    """A browser that is signed in to both servers."""
    password = (project / ".dml" / "password").read_text().strip()
    with open_browser() as browser:
        signed_in = browser.new_context(http_credentials={"username": "dml", "password": password})
        secret = base64.b64encode(f"dml:{password}".encode()).decode()
        signed_in.add_init_script(
            f"if (location.origin === {json.dumps(servers['prefect'])})"
            f" localStorage.setItem('prefect-password', {json.dumps(secret)})"
        )
        yield signed_in


@pytest.fixture
def visit(context, sentinel):
    """Opens a page, waits until it shows some texts, and checks that nothing of it ran."""

    def open_page(address, *texts):
        sentinel.heard.clear()
        page = context.new_page()
        dialogs = []
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        try:
            page.goto(address, timeout=LONG * 1000)
            for text in texts:
                wait_for_text(page, text)
            assert not any(frame.evaluate("window.hacked") for frame in page.frames)
            assert page.locator("a[href^='javascript:' i]").count() == 0
            assert page.locator(f"[src^='{sentinel.address}']").count() == 0
            assert page.locator("img[src=x]").count() == 0
        finally:
            page.close()
        assert dialogs == []
        assert sentinel.heard == []

    return open_page


def wait_for_text(page, text):
    """Returns once a page shows a text, up to white space; fails with what it shows instead."""
    shows = "text => document.body.innerText.replace(/\\s+/g, ' ').includes(text)"
    try:
        page.wait_for_function(shows, arg=text, timeout=120_000)
    except Exception as error:
        shown = page.inner_text("body")
        raise AssertionError(f"{text!r} is not shown on {page.url}:\n{shown}") from error


@pytest.fixture(scope="module")
def runs(project, servers):
    """MLflow's runs of the study: ids by name."""
    api = f"{sign_in(project, servers['mlflow'])}/api/2.0/mlflow"
    found = call_api(f"{api}/experiments/search", {"max_results": 10})["experiments"]
    (experiment,) = [each["experiment_id"] for each in found if each["name"] == "hostile"]
    listed = call_api(f"{api}/runs/search", {"experiment_ids": [experiment]})["runs"]
    ids = {run["info"]["run_name"]: run["info"]["run_id"] for run in listed}
    return {"experiment": experiment, **ids}


def test_the_sentinel_hears_an_attack_that_is_let_through(context, sentinel):
    """The checks of the other tests find something where there is something."""
    sentinel.heard.clear()
    page = context.new_page()
    page.set_content("".join(make_hostile_texts(sentinel.address).values()))
    page.wait_for_function("window.hacked === 1", timeout=120_000)
    assert page.locator(f"[src^='{sentinel.address}']").count() > 0
    page.close()
    assert {"/image.png", "/script.js", "/frame.html"} <= set(sentinel.heard)


def test_mlflow_shows_a_hostile_question_as_text(visit, servers, runs, sentinel):
    address = f"{servers['mlflow']}/#/experiments/{runs['experiment']}/runs/{runs['hostile sweep']}"
    visit(address, make_question(sentinel.address))


def test_mlflow_shows_hostile_parameters_as_text(visit, servers, runs, sentinel):
    texts = make_hostile_texts(sentinel.address)
    shown = (FOLDER_NAME, texts["image"], texts["script"])
    root = f"{servers['mlflow']}/#"
    visit(f"{root}/experiments/{runs['experiment']}/runs/{runs['anchor-seed0']}", *shown)
    compared = json.dumps([runs["anchor-seed0"], runs["triplet-seed0"]])
    experiments = json.dumps([runs["experiment"]])
    visit(f"{root}/compare-runs?runs={compared}&experiments={experiments}", *shown)


@pytest.mark.parametrize(
    ("run", "path", "text"),
    [
        ("hostile sweep", "study/hostile.yaml", "<script>window.hacked=1</script>"),
        ("hostile sweep", "answer/answer.json", "<script>window.hacked=1</script>"),
        ("hostile sweep", "figures/figure.svg", "figure.svg"),
        ("anchor", "config.json", FOLDER_NAME),
    ],
)
def test_mlflow_shows_hostile_files_as_text(visit, servers, runs, run, path, text):
    pages = f"{servers['mlflow']}/#/experiments/{runs['experiment']}/runs/{runs[run]}"
    visit(f"{pages}/artifacts/{path}", text)


def test_mlflow_lists_runs_and_models_of_a_hostile_study(visit, servers, runs):
    root = f"{servers['mlflow']}/#"
    visit(f"{root}/experiments/{runs['experiment']}/runs", "hostile sweep")
    visit(f"{root}/models/dml-hostile", "dml-hostile", "champion")
    visit(f"{root}/models/dml-hostile/versions/1", "Version 1", "dml.checkpoint")


@pytest.fixture(scope="module")
def prefect_api(project, servers):
    return f"{sign_in(project, servers['prefect'])}/api"


@pytest.fixture(scope="module")
def artifacts(prefect_api):
    """Ids of the newest artifacts by key."""
    found = call_api(f"{prefect_api}/artifacts/latest/filter", {"limit": 50})
    return {artifact["key"]: artifact["latest_id"] for artifact in found}


def test_prefect_shows_a_hostile_question_as_text(visit, servers, artifacts, sentinel):
    pages = f"{servers['prefect']}/artifacts"
    visit(f"{pages}/artifact/{artifacts['answer-hostile']}", make_question(sentinel.address))
    visit(f"{pages}/key/answer-hostile", make_question(sentinel.address))


def test_prefect_shows_hostile_class_names_as_text(visit, servers, artifacts, sentinel):
    address = f"{servers['prefect']}/artifacts/artifact/{artifacts['data-hostile']}"
    # Five of eight pairs of equal names are listed. All but one have the address, most have tags.
    visit(address, sentinel.address, "</")


@pytest.mark.parametrize("key", ["sweep", "scores", "run", "watch"])
def test_prefect_shows_the_other_artifacts_of_a_hostile_study(visit, servers, artifacts, key):
    address = f"{servers['prefect']}/artifacts/artifact/{artifacts[f'{key}-hostile']}"
    visit(address, f"{key}-hostile")


def test_prefect_shows_hostile_parameters_messages_and_logs_as_text(
    visit, servers, prefect_api, sentinel
):
    filters = {"flow_runs": {"state": {"type": {"any_": ["FAILED"]}}}, "limit": 10}
    found = call_api(f"{prefect_api}/flow_runs/filter", filters)
    (failed,) = [run["id"] for run in found if "overrides" in run["parameters"]]
    send_log(prefect_api, failed, make_question(sentinel.address))
    page = f"{servers['prefect']}/runs/flow-run/{failed}"
    visit(f"{page}?tab=Parameters", MISSING)
    visit(f"{page}?tab=Details", "State Message")
    visit(f"{page}?tab=Logs", make_question(sentinel.address))


def send_log(api, flow_run, message):
    """Adds a line to a run's log in Prefect, as `get_run_logger` does."""
    line = {
        "name": "prefect.flow_runs",
        "level": 40,
        "message": message,
        "timestamp": "2026-01-01T00:00:00Z",
        "flow_run_id": flow_run,
    }
    call_api(f"{api}/logs/", [line])
