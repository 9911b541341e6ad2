"""A lock between processes; two handles of one process stand for two of them."""

import threading

from torchtagi.experiments.runs.locking import attempt, exclusive


def test_an_attempt_says_whether_it_is_alone(tmp_path):
    lock = tmp_path / "lock"
    with attempt(lock) as first, attempt(lock) as second:
        assert (first, second) == (True, False)
    with attempt(lock) as again:
        assert again


def test_exclusive_waits_for_its_turn(tmp_path):
    lock, order = tmp_path / "lock", []

    def wait():
        with exclusive(lock):
            order.append("second")

    with exclusive(lock):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
