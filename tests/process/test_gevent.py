"""Green threads: refused with a reason when they are patched in, ignored when not."""

from __future__ import annotations

import pytest

from tests.process import children

pytest.importorskip("gevent")
pytestmark = pytest.mark.live

NO_NOISE = ("-W", "ignore")


def test_a_patched_process_is_told_why_it_cannot_connect(url: str) -> None:
    said = children.run(
        """
    from gevent import monkey
    monkey.patch_all()
    import sys
    import jsclient
    try:
        jsclient.connect(sys.argv[1])
    except jsclient.Error as error:
        print(error)
    """,
        url,
        flags=NO_NOISE,
    ).check()
    assert "gevent's monkey patching" in said.out


@pytest.mark.parametrize("patch", ["", "monkey.patch_time(); monkey.patch_os()"])
def test_an_unpatched_process_may_use_gevent_beside_us(url: str, patch: str) -> None:
    children.run(
        f"""
    import gevent
    from gevent import monkey
    {patch}
    import sys
    import jsclient
    with jsclient.connect(sys.argv[1]) as nc:
        sub = nc.subscribe("green")
        nc.publish("green", b"x")
        assert sub.next(timeout=5).data == b"x"
        assert gevent.spawn(lambda: 7).get() == 7
    """,
        url,
        flags=NO_NOISE,
    ).check()
