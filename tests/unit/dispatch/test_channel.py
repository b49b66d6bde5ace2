import socket

import pytest

from airflow_provider_eaco.dispatch.channel import Channel, ChannelClosedError


@pytest.fixture
def ends():
    left, right = socket.socketpair()
    with left, right:
        yield Channel(left), right


def test_half_a_message_is_kept(ends):
    """A message that arrives in two parts is not lost by a call that saw only the first."""
    channel, far = ends
    far.sendall(b'{"a":')
    assert channel.receive(timeout_s=0) is None
    far.sendall(b' 1}\n{"b": 2}\n')
    assert channel.receive(timeout_s=0) == {"a": 1}
    assert channel.receive(timeout_s=0) == {"b": 2}
    assert channel.receive(timeout_s=0) is None


def test_the_last_messages_of_a_dead_peer_are_read_before_its_end(ends):
    """What the other side said before it went is delivered; then its end is raised."""
    channel, far = ends
    far.sendall(b'{"a": 1}\n')
    far.close()
    assert channel.receive(timeout_s=0) == {"a": 1}
    with pytest.raises(ChannelClosedError):
        channel.receive(timeout_s=0)
    with pytest.raises(ChannelClosedError):
        channel.send({"b": 2})


def test_text_of_any_kind_travels(ends):
    """Line ends, non-ASCII and undecodable bytes of an environment arrive as they were sent."""
    channel, far = ends
    message = {"text": "a\nb ü \udcff"}
    Channel(far).send(message)
    assert channel.receive(timeout_s=1) == message


def test_a_full_buffer_is_a_time_out(ends):
    """A peer that never reads costs the sender its time-out and no more."""
    channel, _ = ends
    with pytest.raises(TimeoutError):
        channel.send({"text": "x" * 10_000_000}, timeout_s=0.05)
