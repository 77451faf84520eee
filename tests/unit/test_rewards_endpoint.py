"""Requests to a server that is slow, answers nonsense, fails, hangs up or is not there. Failures are told, never raised."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

from tests.faulty_server import FaultyServer, slowly
from trainer.rewards import endpoint
from trainer.rewards.endpoint import Endpoint, Failed, is_local, unreachable, url_problem


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(endpoint, "_FIRST_WAIT_S", 0.01)


def number_of(answer, _):
    if not isinstance(answer, dict) or not isinstance(answer.get("n"), int):
        raise ValueError("no n in it")
    return answer["n"]


def ask(url, count, **options):
    options = {"timeout_s": 5.0, "retries": 2, "parallel": 4, **options}
    return Endpoint(url, **options).post([lambda n=n: {"n": n} for n in range(count)], number_of)


def test_answers_come_in_the_order_of_the_requests_and_in_parallel():
    with FaultyServer(lambda body, number: slowly(0.05 * (4 - body["n"] % 4), (200, body))) as server:
        answers = ask(server.url, 12)
    assert answers.items == list(range(12)) and not answers.counts and answers.trouble() is None
    assert 2 <= server.most <= 4


def test_parallel_is_a_bound():
    with FaultyServer(lambda body, number: slowly(0.02, (200, body))) as server:
        assert ask(server.url, 6, parallel=1).items == list(range(6))
    assert server.most == 1


def test_a_late_answer_is_a_time_out_and_is_asked_for_again():
    with FaultyServer(lambda body, number: slowly(3.0 if number == 0 else 0, (200, body))) as server:
        answers = ask(server.url, 1, timeout_s=0.3)
    assert answers.items == [0] and answers.counts == {"timeouts": 1, "retries": 1}


def test_a_server_that_is_always_late():
    started = time.monotonic()
    with FaultyServer(lambda body, number: slowly(2.0, (200, body))) as server:
        answers = ask(server.url, 1, timeout_s=0.2, retries=1)
    assert answers.items == [Failed("timeouts", "no answer within 0.2 s")] and answers.counts["timeouts"] == 2
    assert time.monotonic() - started < 2.0


def test_an_answer_that_trickles_in_is_bounded_as_a_whole():
    """A time-out that starts anew with every byte never ends."""
    listener = socket.create_server(("127.0.0.1", 0))

    def trickle():
        connection, _ = listener.accept()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        try:
            for _ in range(100):
                connection.sendall(b" ")
                time.sleep(0.05)
        except OSError:
            pass

    threading.Thread(target=trickle, daemon=True).start()
    started = time.monotonic()
    answers = ask(f"http://127.0.0.1:{listener.getsockname()[1]}", 1, timeout_s=0.4, retries=0)
    listener.close()
    assert answers.items[0].kind == "timeouts" and time.monotonic() - started < 3


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        ((200, b"<html>busy</html>"), "unusable", "the answer is no JSON: <html>busy</html>"),
        ((200, b""), "unusable", "the answer is no JSON"),
        ((200, {"m": 1}), "unusable", 'no n in it: {"m": 1}'),
        ((200, b"[" * 100_000), "unusable", ""),
        ((200, b"\xff\xfe"), "unusable", "no JSON"),
        ((500, b"out of memory"), "errors", "500 Internal Server Error: out of memory"),
        ((503, b""), "errors", "503 Service Unavailable"),
        ((429, b"slow down"), "errors", "429 Too Many Requests: slow down"),
        (FaultyServer.CLOSE, "dropped", "ServerDisconnectedError"),
    ],
)
def test_what_may_pass_is_tried_again_and_then_told(reply, kind, said):
    with FaultyServer(lambda body, number: reply) as server:
        answers = ask(server.url, 1)
    (failed,) = answers.items
    assert failed.kind == kind and said in failed.why and len(server.bodies) == 3
    assert answers.counts == {kind: 3, "retries": 2} and answers.trouble() == f"{failed.why} (1x)"
    with FaultyServer(lambda body, number: reply if number == 0 else (200, body)) as server:
        assert ask(server.url, 1).items == [0]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_a_request_that_is_wrong_is_not_repeated(status):
    with FaultyServer(lambda body, number: (status, {"error": "no such model"})) as server:
        answers = ask(server.url, 1)
    assert answers.items[0].kind == "refused" and "no such model" in answers.items[0].why and len(server.bodies) == 1


def test_a_redirection_is_not_followed():
    """Pictures and the key go where the user said, and nowhere else."""
    with FaultyServer(lambda body, number: (200, body)) as other:
        with FaultyServer(lambda body, number: (307, b"", ("Location", other.url))) as server:
            answers = ask(server.url, 1)
        assert answers.items[0].kind == "refused" and f"it has moved to {other.url}; give that address" in answers.items[0].why
        assert other.bodies == []


def test_retry_after_is_honoured(monkeypatch):
    times = []

    def answer(body, number):
        times.append(time.monotonic())
        return (429, b"", ("Retry-After", "1")) if number == 0 else (200, body)

    with FaultyServer(answer) as server:
        assert ask(server.url, 1).items == [0]
    assert 1.0 <= times[1] - times[0] < 3


@pytest.mark.parametrize(("header", "seconds"), [(None, 0), ("3", 3), ("9999", 30), ("Wed, 21 Oct 2026", 0), ("-1", 0)])
def test_retry_after(header, seconds):
    assert endpoint._seconds(header) == seconds


def test_waits_double_up_to_a_bound(monkeypatch):
    monkeypatch.setattr(endpoint, "_FIRST_WAIT_S", 0.5)
    one = Endpoint("http://x", timeout_s=1, retries=1, parallel=1)
    for attempt, wait in enumerate((0.5, 1, 2, 4, 8, 16, 30, 30)):
        assert 0.7 * wait < one._back_off(attempt) < 1.3 * wait


def test_waiting_draws_nothing_from_the_global_generator():
    import random

    random.seed(3)
    expected = random.Random(3).random()
    Endpoint("http://x", timeout_s=1, retries=1, parallel=1)._back_off(1)
    assert random.random() == expected


def unused_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_when_nobody_is_there_the_rest_is_not_tried():
    """A thousand pictures times four attempts would take a night."""
    answers = ask(f"http://127.0.0.1:{unused_port()}", 40, parallel=4, retries=1)
    assert all(item.kind == "dropped" for item in answers.items)
    assert answers.counts["skipped"] >= 32 and answers.counts["dropped"] <= 16
    assert "not tried, as those before it failed" in answers.items[-1].why


def test_an_address_that_is_down_rests_before_it_is_tried_again(monkeypatch):
    working = []
    with FaultyServer(lambda body, number: (200, body) if working else FaultyServer.CLOSE) as server:
        one = Endpoint(server.url, timeout_s=5, retries=0, parallel=2)
        bodies = [lambda: {"n": 7}]
        assert isinstance(one.post(bodies, number_of).items[0], Failed)
        working.append(True)
        resting = one.post(bodies, number_of)
        assert resting.items[0].why.startswith("not tried again yet: ") and resting.counts == {"skipped": 1}
        assert len(server.bodies) == 1
        monkeypatch.setattr(endpoint, "_REST_S", 0.0)
        assert one.post(bodies, number_of).items == [7] and one.post(bodies, number_of).items == [7]


def test_some_failures_among_successes_stop_nothing():
    with FaultyServer(lambda body, number: (500, b"") if body["n"] % 3 == 0 else (200, body)) as server:
        answers = ask(server.url, 30, retries=0)
    assert [item for item in answers.items if not isinstance(item, Failed)] == [n for n in range(30) if n % 3]
    assert answers.counts == {"errors": 10} and answers.trouble() == "500 Internal Server Error (10x)"


def test_the_key_is_sent_as_a_bearer_token():
    with FaultyServer(lambda body, number: (200, body)) as server:
        ask(server.url, 1, key="s3cret")
        ask(server.url, 1)
    assert [headers.get("Authorization") for headers in server.headers] == ["Bearer s3cret", None]


def test_it_works_where_a_loop_is_running_already():
    """ComfyUI runs nodes in one."""

    async def inside():
        return ask(server.url, 2).items

    with FaultyServer(lambda body, number: (200, body)) as server:
        assert asyncio.run(inside()) == [0, 1]


def test_another_thread_can_end_it():
    """Whoever stops a run does not wait for a server that hangs."""
    with FaultyServer(lambda body, number: slowly(5.0, (200, body))) as server:
        one = Endpoint(server.url, timeout_s=60, retries=3, parallel=1)
        threading.Timer(0.3, one.interrupt).start()
        started = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            one.post([lambda: {"n": 1}], number_of)
        assert time.monotonic() - started < 3
        one.interrupt()  # nothing is under way


def test_nothing_to_ask_asks_nothing():
    assert ask(f"http://127.0.0.1:{unused_port()}", 0).items == []


def test_a_mistake_of_ours_is_no_answer_of_the_servers():
    def read(answer, number):
        raise KeyError("bug")

    with FaultyServer(lambda body, number: (200, body)) as server, pytest.raises(KeyError):
        Endpoint(server.url, timeout_s=5, retries=0, parallel=1).post([lambda: {}], read)


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:8000/v1", "https://example.org", "HTTP://x/y?z=1"])
def test_addresses(url):
    assert url_problem(url) is None


def test_whether_a_server_is_there(monkeypatch):
    with FaultyServer(lambda body, number: (200, body)) as server:
        assert unreachable(server.url) is None
    port = unused_port()
    assert f"nothing answers at 127.0.0.1:{port} (" in unreachable(f"http://127.0.0.1:{port}/v1")
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    assert unreachable("http://no.such.host.example") is None  # the proxy may know it
    assert unreachable(f"http://127.0.0.1:{port}")  # which no proxy can reach


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000",
        "ftp://x",
        "file:///etc/passwd",
        "http://",
        "http:///x",
        "x",
        "http://x:99999",
        "http://x:a/",
        "http://[::1",
    ],
)
def test_no_addresses(url):
    assert "such as http://" in url_problem(url)


def test_this_machine_needs_no_proxy():
    assert all(is_local(url) for url in ("http://127.0.0.1:1", "http://localhost/x", "http://[::1]:8000/"))
    assert not any(is_local(url) for url in ("http://example.org", "http://10.0.0.1", "http://localhost.example.org"))
