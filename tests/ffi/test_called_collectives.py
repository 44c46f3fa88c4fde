"""Drains are compared with the calls that a process has made."""

import optireduce_testing as native


def collective(mode="bounded", fingerprint=1, description="gradients: float32[10]"):
    return native.Collective(
        "gradients",
        mode=mode,
        members=[0, 1],
        elements=10,
        description=description,
        fingerprint=fingerprint,
    )


def test_a_drain_of_a_call_that_was_made_passes():
    called = native.CalledCollectives()
    called.note("gradients", collective())
    assert called.check("gradients", collective()) == ""


def test_before_any_call_that_defers_every_drain_passes():
    called = native.CalledCollectives()
    called.note("loss", collective("exact"))
    assert called.check("gradients", collective()) == ""


def test_a_drain_of_another_mode_names_the_mode_of_the_call():
    called = native.CalledCollectives()
    called.note("gradients", collective("agreed"))
    error = called.check("gradients", collective("bounded", fingerprint=2))
    assert "write mode='agreed' in the drain" in error


def test_a_drain_of_another_tree_is_an_error():
    called = native.CalledCollectives()
    called.note("gradients", collective())
    other = collective(fingerprint=2, description="gradients: float32[20]")
    error = called.check("gradients", other)
    assert "drain of gradients: float32[20] matches no call" in error
    assert "a tree of the same shapes and dtypes" in error


def test_a_misspelled_drain_names_the_nearest_call_unless_it_may_be_missing():
    called = native.CalledCollectives()
    called.note("gradients", collective())
    called.note("weights", collective(description="weights: float32[10]"))
    error = called.check("gradient", collective(fingerprint=3))
    assert "Nearest to it are the calls of gradients: float32[10]." in error
    assert called.check("gradient", collective(fingerprint=3), if_any=True) == ""
