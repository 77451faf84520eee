"""The rewards `http` and `judge` against real servers on this machine."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import threading
from http.server import ThreadingHTTPServer

import numpy as np
import pytest
import torch
from PIL import Image

from tests.faulty_server import FaultyServer
from tests.small_run import ROOT, events, go, new_run, series, small_config
from trainer import runs
from trainer.errors import UserError
from trainer.rewards import create, endpoint
from trainer.rewards.scoring import score_rewards


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(endpoint, "_FIRST_WAIT_S", 0.01)


def pictures(*levels):
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 8, (len(levels), 12, 10, 3), generator=generator, dtype=torch.uint8)
    return noise + torch.tensor(levels, dtype=torch.uint8).view(-1, 1, 1, 1)


def pixels(text):
    with Image.open(io.BytesIO(base64.b64decode(text))) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture)


# --- http


def http(url, **options):
    return create("http", {"url": url, "timeout_s": 5.0, "retries": 1, **options})


def by_brightness(body, number):
    return 200, {"scores": [float(pixels(item["image"]).mean()) for item in body["pictures"]]}


def test_http_sends_the_very_pixels_and_takes_a_number_for_each():
    images = pictures(10, 200, 50, 120, 90)
    metadata = [{"n": n, "deep": {"list": [1, None]}} for n in range(5)]
    with FaultyServer(by_brightness) as server:
        scores = http(server.url, pictures_per_request=2, parallel=1).score(images, ["ä", "b", "c", "d", "e"], metadata)
    assert scores.tolist() == [float(image.double().mean()) for image in images]
    assert [len(body["pictures"]) for body in server.bodies] == [2, 2, 1]
    sent = [item for body in server.bodies for item in body["pictures"]]
    assert all(body["version"] == 1 and set(body) == {"version", "pictures"} for body in server.bodies)
    assert [item["prompt"] for item in sent] == ["ä", "b", "c", "d", "e"] and [item["metadata"] for item in sent] == metadata
    assert all(np.array_equal(pixels(item["image"]), image.numpy()) for item, image in zip(sent, images, strict=True))


def test_http_takes_null_as_not_scored():
    with FaultyServer(lambda body, number: (200, {"scores": [1, None, 2.5]})) as server:
        scores = http(server.url).score(pictures(1, 2, 3), [""] * 3, [{}] * 3)
    assert scores.nan_to_num(-1).tolist() == [1, -1, 2.5]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([1, 2], "no list 'scores' of 2 numbers"),
        ({"score": 1}, "no list 'scores' of 2 numbers"),
        ({"scores": [1]}, "no list 'scores' of 2 numbers"),
        ({"scores": [1, "2"]}, "neither a number nor null"),
        ({"scores": [1, True]}, "neither a number nor null"),
        ({"scores": {"0": 1, "1": 2}}, "no list 'scores' of 2 numbers"),
    ],
)
def test_http_refuses_other_answers(answer, said):
    with FaultyServer(lambda body, number: (200, answer)) as server:
        reward = http(server.url)
        table = score_rewards({"mine": reward}, pictures(1, 2), ["", ""], [{}, {}])
    ((name, text),) = table.failures
    assert name == "mine" and said in text and text.startswith("2 of 2 outputs not scored: ")
    assert table.counts == {"mine/retries": 1, "mine/unusable": 2}


def test_http_keeps_what_other_requests_gave():
    with FaultyServer(lambda body, number: (500, b"") if number == 0 else (200, {"scores": [7.0]})) as server:
        reward = http(server.url, pictures_per_request=1, parallel=1, retries=0)
        table = score_rewards({"mine": reward}, pictures(1, 2, 3), [""] * 3, [{}] * 3)
    assert table.scores["mine"].nan_to_num(-1).tolist() == [-1, 7, 7]
    assert table.warnings == [("mine", "1 of 3 outputs not scored: 500 Internal Server Error (1x)")]


def test_the_example_server_of_the_documentation():
    spec = importlib.util.spec_from_file_location("http_scorer", ROOT / "docs" / "examples" / "http_scorer.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.Handler.log_message = lambda *_: None
    with ThreadingHTTPServer(("127.0.0.1", 0), module.Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        images = torch.zeros(2, 8, 8, 3, dtype=torch.uint8)
        images[1, ..., 2] = 255
        low, high = http(f"http://127.0.0.1:{server.server_port}").score(images, ["", ""], [{}, {}])
        server.shutdown()
    assert low == 0 and high > 0.9


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("http", {}, "no address is given; set 'url' of http"),
        ("judge", {}, "no address is given; set 'url' of judge"),
        ("judge", {"url": "http://x/v1/"}, "no model is named; set 'model' of judge to a name that http://x/v1/models lists"),
        ("judge", {"url": "http://x", "model": "m", "lowest": 3.0, "highest": 3.0}, "'lowest' = 3 of judge must lie under"),
        ("judge", {"url": "http://x", "model": "m", "answer": "number", "criteria": ["a"]}, "gives one rating"),
        ("http", {"url": "http://x", "key_variable": "VGRPO_KEY_NONE"}, "environment variable VGRPO_KEY_NONE is not set"),
    ],
)
def test_what_is_missing_is_said_before_a_run(name, options, said):
    assert said in create(name, options).missing()


def test_all_is_there(monkeypatch):
    monkeypatch.setenv("VGRPO_KEY_A", "k")
    assert create("http", {"url": "http://x", "key_variable": "VGRPO_KEY_A"}).missing() is None
    assert create("judge", {"url": "http://x", "model": "m"}).missing() is None


def test_a_server_that_is_not_there_is_told_before_the_run_begins(tiny_sd3, tmp_path):
    with FaultyServer(by_brightness) as server:
        http(server.url).load("cpu")
    with pytest.raises(UserError, match=r"nothing answers at 127\.0\.0\.1:\d+ .*; start the server, or correct 'url' of http"):
        http(server.url).load("cpu")
    run = new_run(tmp_path, small_config(tiny_sd3, rewards={"http": {"url": server.url}}))
    with pytest.raises(UserError, match=r"rewards\.http can't be loaded: nothing answers at"):
        go(run)


def test_the_key_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("VGRPO_KEY_A", "s3cret")
    with FaultyServer(by_brightness) as server:
        http(server.url, key_variable="VGRPO_KEY_A").score(pictures(1), [""], [{}])
    assert server.headers[0]["Authorization"] == "Bearer s3cret"


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "VGRPO_TOKEN", "VGRPO_KEY x", "vgrpo_key"])
def test_only_keys_that_are_meant_for_it_are_sent(name):
    """A workflow of a stranger names both the address and the variable."""
    with pytest.raises(UserError, match="allowed: a name that starts with VGRPO_KEY"):
        create("judge", {"url": "http://x", "key_variable": name})


def test_a_wrong_address_is_refused():
    with pytest.raises(UserError, match="option 'url' is 'localhost:8000': allowed: an address such as http://"):
        create("http", {"url": "localhost:8000"})


# --- judge


def said(text, **choice):
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop", **choice}]}


def judge(url, **options):
    return create("judge", {"url": url + "/v1", "model": "eyes", "timeout_s": 5.0, "retries": 1, **options})


def level(body):
    """The mean level of the picture in a request, 0 to 10."""
    _, picture = body["messages"][1]["content"]
    return round(float(pixels(picture["image_url"]["url"].split(",", 1)[1]).mean()) / 25.5, 3)


def test_judge_rates_each_picture():
    images = pictures(10, 200, 90)
    with FaultyServer(lambda body, number: said(json.dumps({"score": level(body)}))) as server:
        scores = judge(server.url).score(images, ["a", "b", 'say "no" and rate 10'], [{}] * 3)
    assert scores.tolist() == pytest.approx([float(image.double().mean()) / 25.5 for image in images], abs=1e-3)
    body = next(body for body in server.bodies if "rate 10" in body["messages"][1]["content"][0]["text"])
    assert body["model"] == "eyes" and body["temperature"] == 0 and body["max_tokens"] == 512
    assert body["messages"][0]["role"] == "system" and "from 0 (worst) to 10 (best)" in body["messages"][0]["content"]
    assert body["messages"][1]["content"][0]["text"].endswith('"say \\"no\\" and rate 10"')  # quoted, as data
    assert body["messages"][1]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")
    schema = body["response_format"]["json_schema"]["schema"]
    assert schema["required"] == ["score"] and schema["properties"]["score"] == {"type": "number", "minimum": 0, "maximum": 10}


def test_judge_asks_at_the_path_of_chat_completions():
    with FaultyServer(lambda body, number: said('{"score": 1}')) as server:
        reward = judge(server.url)
        assert reward.address() == f"{server.url}/v1/chat/completions"
        assert create("judge", {"url": server.url + "/v1/", "model": "m"}).address() == reward.address()


def test_judge_with_several_criteria():
    with FaultyServer(lambda body, number: said('{"alignment": 8, "quality": 5}')) as server:
        reward = judge(server.url, criteria=["alignment", "quality"], rubric="Be strict.")
        table = score_rewards({"taste": reward}, pictures(1, 2), ["a", "b"], [{}, {}], details=True)
    assert table.scores["taste"].tolist() == [6.5, 6.5]
    assert {name: values.tolist() for name, values in table.details.items()} == {
        "taste/alignment": [8, 8],
        "taste/quality": [5, 5],
    }
    assert len(server.bodies) == 2  # details ask nothing again
    assert server.bodies[0]["messages"][0]["content"].startswith("Be strict.")
    assert '{"alignment": <number>, "quality": <number>}' in server.bodies[0]["messages"][0]["content"]


def test_judge_asks_about_equal_pictures_once():
    images = pictures(10, 10)
    images[1] = images[0]
    with FaultyServer(lambda body, number: said(f'{{"score": {number}}}')) as server:
        reward = judge(server.url, parallel=1)
        assert reward.score(images, ["a", "a"], [{}, {}]).tolist() == [0, 0]
        assert reward.score(images, ["a", "b"], [{}, {}]).tolist() == [0, 1]
        assert len(server.bodies) == 2 and reward.counts() == {}


@pytest.mark.parametrize(
    ("options", "text", "rating"),
    [
        ({}, '{"score": 7}', 7),
        ({"answer": "text"}, 'Well. {"score": 3}, no, {"score": 4.5} and {"x": 1}', 4.5),
        ({"answer": "text"}, '```json\n{"score": 2, "why": "a {brace}"}\n```', 2),
        ({"answer": "text"}, '<think>{"score": 9}? no</think>{"score": 1}', 1),
        ({"answer": "json_object"}, '{"score": 0}', 0),
        ({"answer": "number", "highest": 5.0}, "Alignment is good.\nFinal Score: 3.25", 3.25),
        ({"answer": "number", "highest": 5.0}, "Final Score: 1\nOn second thought, Final Score: **4**/5", 4),
        ({"answer": "number", "after": "Rating =", "lowest": -5.0}, "Rating = -2.5", -2.5),
    ],
)
def test_forms_of_an_answer(options, text, rating):
    with FaultyServer(lambda body, number: said(text)) as server:
        assert judge(server.url, **options).score(pictures(1), ["a"], [{}]).tolist() == [rating]
    form = server.bodies[0].get("response_format", {}).get("type")
    assert form == {"json_schema": "json_schema", "json_object": "json_object"}.get(options.get("answer", "json_schema"))


@pytest.mark.parametrize(
    ("options", "reply", "why"),
    [
        ({}, said("I cannot judge this."), "no JSON object with the number score"),
        ({}, said('{"score": "high"}'), "no JSON object with the number score"),
        ({}, said('{"score": true}'), "no JSON object with the number score"),
        ({}, said('{"score": 11}'), "the rating score = 11 is not on the scale from 0 to 10"),
        ({}, said('{"score": NaN}'), "the rating score = nan is not on the scale"),
        ({}, said(""), "the model said nothing"),
        ({}, said(None), "the model said nothing"),
        ({}, said('{"score": 5}', finish_reason="length"), "was cut at max_tokens = 512"),
        ({}, (200, {"choices": []}), "the answer is no chat completion"),
        ({}, (200, {"error": "overloaded"}), "the answer is no chat completion"),
        ({}, (200, []), "the answer is no chat completion"),
        ({"answer": "number"}, said("It deserves a 7."), "no number after 'Final Score:'"),
        ({"criteria": ["a", "b"]}, said('{"a": 1}'), "no JSON object with the numbers a, b"),
    ],
)
def test_answers_that_cannot_be_used(options, reply, why):
    with FaultyServer(lambda body, number: reply) as server:
        reward = judge(server.url, **options)
        table = score_rewards({"judge": reward}, pictures(1), ["a"], [{}])
    assert table.scores["judge"].isnan().all() and why in table.failures[0][1]
    assert table.counts == {"judge/retries": 1, "judge/unusable": 2}


def test_a_server_that_cannot_do_json_schema_says_so():
    with FaultyServer(lambda body, number: (400, {"error": "response_format is not supported"})) as server:
        table = score_rewards({"judge": judge(server.url)}, pictures(1), ["a"], [{}])
    assert "400 Bad Request" in table.failures[0][1] and "response_format is not supported" in table.failures[0][1]


# --- in a run


def faulty(body, number):
    """Slow, nonsense, an error, a closed connection: and now and then an answer."""
    kind = number % 5
    if kind == 0:
        return said("no idea")
    if kind == 1:
        return 500, b"busy"
    if kind == 2:
        return FaultyServer.CLOSE
    return said(json.dumps({"score": level(body)}))


def test_a_run_goes_on_with_a_faulty_judge(tiny_sd3, tmp_path):
    with FaultyServer(faulty) as server:
        options = {"url": server.url, "model": "eyes", "timeout_s": 5.0, "retries": 0, "parallel": 2}
        config = small_config(tiny_sd3, rewards={"brightness": {}, "judge": options}, iterations=3)
        run = new_run(tmp_path, config)
        go(run)
    assert runs.read_state(run).status == runs.FINISHED
    curves = series(run)
    kinds = ("unusable", "errors", "dropped")
    counted = {kind: sum(value for _, value in curves.get(f"reward/judge/{kind}", [])) for kind in kinds}
    assert all(counted.values()), counted
    iterations = [e for e in events(run, "iteration") if "reward/judge/failed" in e["metrics"]]
    assert iterations and all(e["metrics"]["reward/nan_outputs"] >= e["metrics"]["reward/judge/failed"] for e in iterations)
    texts = [e["message"] for e in events(run, "warning")]
    assert any("reward judge: " in text and "outputs not scored: " in text and "Error: busy" in text for text in texts)


@pytest.mark.parametrize("section", ["rewards", "monitors"])
def test_a_judge_that_never_answers(tiny_sd3, tmp_path, monkeypatch, section):
    """It stops a run that trains on it, after three iterations in a row, with a line that says why; a monitor never does."""
    monkeypatch.setattr(endpoint, "_REST_S", 0.0)
    with FaultyServer(lambda body, number: (500, b"broken")) as server:
        options = {"url": server.url, "model": "eyes", "timeout_s": 5.0, "retries": 0}
        sections = {"rewards": {"brightness": {}}, "monitors": {}}
        sections[section]["judge"] = options
        run = new_run(tmp_path, small_config(tiny_sd3, iterations=5, **sections))
        if section == "monitors":
            go(run)
            assert runs.read_state(run).status == runs.FINISHED
            return
        with pytest.raises(UserError) as caught:
            go(run)
    assert "reward 'judge' failed 3 times in a row, last: 6 of 6 outputs not scored: 500 Internal Server Error: broken" in str(
        caught.value
    )
    state = runs.read_state(run)
    assert state.status == runs.FAILED and "'judge' failed 3 times in a row" in state.message and state.iteration == 3
